"""What the endpoint takes out of a request's body."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from cifar_ray.orchestration.serving import endpoint
from cifar_ray.orchestration.serving.endpoint import Bodies, image_in

DAMAGED = "the form is damaged, or has more than 20 parts or 128 KiB of text"
NO_FILE = "the form has no file named file; send an image: curl -F file=@IMAGE"
FORM = "multipart/form-data; boundary=xyz"


def form(*parts: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"--xyz\r\n%b\r\n\r\n%b\r\n" % part for part in parts) + b"--xyz--\r\n"


def named(name: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="%b"; filename="image.png"\r\nContent-Type: image/png' % name


def test_the_image_is_the_body_or_the_part_named_file() -> None:
    image = b"an image\r\n\r\nwith lines"
    assert image_in(image, None) == image
    assert image_in(image, "image/png") == image
    assert image_in(form((named(b"file"), image)), FORM) == image
    assert image_in(form(*[(named(b"other"), b"x")] * 19, (named(b"file"), image)), FORM) == image
    assert image_in(b"preamble\r\n" + form((named(b"file"), image)), FORM) == image


BAD_FORMS = {
    "other": (form((named(b"other"), b"x")), FORM, NO_FILE),
    "no content": (b"--xyz" + b";" * 5000 + b"\r\n--xyz--", FORM, NO_FILE),
    "parts": (form(*[(named(b"other"), b"x")] * 21), FORM, DAMAGED),
    "no boundary": (b"\r\n--" * (4 << 20), 'multipart/form-data; boundary=""', DAMAGED),
    "short boundary": (b"\r\n--x" * (3 << 20), "multipart/form-data; boundary=x", DAMAGED),
    "long head": (form((named(b"file") + b";" * (16 << 20), b"x")), FORM, DAMAGED),
    "like boundaries": (b"--xyz\r\n" + named(b"file") + b"\r\n\r\n" + b"\r\n--xyz!" * (2 << 20), FORM, DAMAGED),
    "spaces": (b"--xyz" + b" " * (16 << 20), FORM, DAMAGED),
    "long type": (b"x", FORM + ";" * 60000, DAMAGED),
}


@pytest.mark.parametrize(("body", "content_type", "reason"), BAD_FORMS.values(), ids=BAD_FORMS)
def test_a_form_that_is_none_is_refused_at_once(body: bytes, content_type: str, reason: str) -> None:
    begin = time.process_time()
    with pytest.raises(HTTPException) as caught:
        image_in(body, content_type)
    assert time.process_time() - begin < 10  # parsing takes time in proportion to the length
    assert (caught.value.status_code, caught.value.detail) == (400, reason)


def sending(*parts: bytes, ends: bool = True, announced: str = "") -> Request:
    """A request whose body comes in these parts, and then ends or leaves one waiting."""
    messages: Iterator[dict[str, object]] = iter(
        [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        + [{"type": "http.request", "body": b"", "more_body": False}] * ends
    )

    async def receive() -> dict[str, object]:
        for message in messages:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    headers = [(b"content-length", announced.encode())] if announced else []
    return Request({"type": "http", "method": "POST", "path": "/predict", "headers": headers}, receive)  # type: ignore[arg-type]


async def received(bodies: Bodies, request: Request) -> bytes | str:
    """The body, or why there is none."""
    try:
        async with bodies.receive(request) as body:
            return body
    except HTTPException as error:
        return f"{error.status_code} {error.detail}"


def test_bodies_are_received_while_others_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_TIMEOUT_S", 1)
    monkeypatch.setattr(endpoint, "MAX_REQUESTS", 401)

    async def all_at_once() -> None:
        bodies = Bodies()
        slow = [asyncio.create_task(received(bodies, sending(b"half", ends=False))) for _ in range(400)]
        await asyncio.sleep(0)
        assert await received(bodies, sending(b"an ", b"image")) == b"an image"
        assert not any(task.done() for task in slow)
        last = asyncio.create_task(received(bodies, sending(ends=False)))
        await asyncio.sleep(0)
        assert await received(bodies, sending(b"image")) == "503 the server has too many requests; try again"
        assert set(await asyncio.gather(*slow, last)) == {"408 the body has not arrived within 1 s"}
        assert await received(bodies, sending(b"image")) == b"image"

    asyncio.run(all_at_once())


def test_a_body_has_a_limit_and_so_have_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_BODY_MIB", 2)
    monkeypatch.setattr(endpoint, "MAX_BODIES_MIB", 3)
    mebibyte = bytes(1 << 20)

    async def some() -> None:
        bodies = Bodies()
        large = "413 the body is larger than 2 MiB"
        assert await received(bodies, sending(ends=False, announced=str((2 << 20) + 1))) == large
        assert await received(bodies, sending(mebibyte, mebibyte, b"x", ends=False)) == large
        async with bodies.receive(sending(mebibyte, mebibyte)) as whole:
            assert len(whole) == 2 << 20
            assert await received(bodies, sending(mebibyte)) == mebibyte
            busy = "503 the server has too many requests; try again"
            assert await received(bodies, sending(mebibyte, b"x", ends=False)) == busy
        assert await received(bodies, sending(mebibyte, mebibyte)) == mebibyte * 2

    asyncio.run(some())


async def asked(app: Any, method: str, path: str, **scope: Any) -> tuple[int, dict[str, str]]:
    """Status and JSON of the answer to a request whose body does not come."""
    request, answer = sending(ends=False), []

    async def send(message: dict[str, Any]) -> None:
        answer.append(message)

    described = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], **scope}
    with contextlib.suppress(ZeroDivisionError):  # Ray Serve logs it
        await app(described, request.receive, send)
    headers = dict(answer[0]["headers"])
    assert headers[b"content-type"] == b"application/json"
    assert answer[0]["status"] != 405 or headers[b"allow"] == b"POST"
    return answer[0]["status"], json.loads(answer[1]["body"])


def test_every_refusal_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the application as Ray Serve has a replica build it, without its model."""
    replica = object.__new__(endpoint.Endpoint.func_or_class.__mro__[1])  # without Ray Serve's wrapper
    about = {field.name: None for field in dataclasses.fields(endpoint.Served)}
    replica._served = endpoint.Served(**{**about, "classes": ("a", "b")})
    replica._bodies = Bodies()
    app = replica.__serve_build_asgi_app__()
    monkeypatch.setattr(endpoint, "BODY_TIMEOUT_S", 0.05)

    def answer(*request: str, **scope: Any) -> tuple[int, str]:
        status, said = asyncio.run(asked(app, *request, **scope))
        return status, said["error"]

    assert answer("POST", "/predict") == (408, "the body has not arrived within 0.05 s")
    assert answer("GET", "/predict") == (405, "/predict takes POST, not GET")
    assert answer("POST", "/no") == (404, "there is nothing at /no; send an image to /predict by POST")
    for top in ("0", "-1", "many", "9" * 5000):
        sentence = f"top must be a whole number of classes from 1 to 9999, got '{top[:8]}'"
        assert answer("POST", "/predict", query_string=f"top={top}".encode()) == (400, sentence)
    large = [(b"content-length", b"99999999999")]
    assert answer("POST", "/predict", headers=large) == (413, "the body is larger than 16 MiB")
    monkeypatch.setattr(endpoint, "ANSWER_TIMEOUT_S", 0.01)
    assert answer("POST", "/predict") == (408, "the answer took longer than 0.01 s")
    monkeypatch.setattr(endpoint, "_top", lambda request: 1 // 0)
    assert answer("POST", "/predict") == (500, "/predict failed with ZeroDivisionError")
