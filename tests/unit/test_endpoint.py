"""What the endpoint takes out of a request's body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from cifar_ray.orchestration import endpoint
from cifar_ray.orchestration.endpoint import Bodies, image_in

FORM = "multipart/form-data; boundary=xyz"


def form(*parts: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"--xyz\r\n%b\r\n\r\n%b\r\n" % part for part in parts) + b"--xyz--\r\n"


def named(name: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="%b"; filename="image.png"\r\nContent-Type: image/png' % name


def test_the_image_is_the_body_or_the_part_named_file() -> None:
    image = b"an image\r\n\r\nwith lines"
    assert image_in(image, "") == image
    assert image_in(image, "image/png") == image
    assert image_in(form((named(b"file"), image)), FORM) == image
    assert image_in(form(*[(named(b"other"), b"x")] * 19, (named(b"file"), image)), FORM) == image
    assert image_in(b"preamble\r\n" + form((named(b"file"), image)), FORM) == image


@pytest.mark.parametrize(
    ("body", "content_type", "reason"),
    [
        (form((named(b"other"), b"x")), FORM, "the form has no part named file; send an image: curl -F file=@IMAGE"),
        (form(*[(named(b"other"), b"x")] * 21), FORM, "the form has more than 20 parts"),
        (b"\r\n--" * (4 << 20), 'multipart/form-data; boundary=""', "the form has more than 20 parts"),
        (
            form((named(b"file") + b";" * (16 << 20), b"x")),
            FORM,
            "a part of the form has a head of more than 4096 bytes",
        ),
        (b"--xyz" + b";" * 5000 + b"\r\n--xyz--", FORM, "a part of the form has a head of more than 4096 bytes"),
        (b"x", FORM + ";" * 5000, "the content type is longer than 4096 bytes"),
    ],
    ids=["no file", "parts", "short boundary", "long head", "no content", "long type"],
)
def test_a_form_that_is_none_is_refused(body: bytes, content_type: str, reason: str) -> None:
    with pytest.raises(HTTPException) as caught:
        image_in(body, content_type)
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
        async with bodies.of(request) as body:
            return body
    except HTTPException as error:
        return f"{error.status_code} {error.detail}"


def test_bodies_are_received_while_others_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(endpoint, "MAX_REQUESTS", 401)

    async def all_at_once() -> None:
        bodies = Bodies()
        slow = [asyncio.create_task(received(bodies, sending(b"half", ends=False))) for _ in range(400)]
        await asyncio.sleep(0)
        assert await received(bodies, sending(b"an ", b"image")) == b"an image"
        assert not any(task.done() for task in slow)
        last = asyncio.create_task(received(bodies, sending(ends=False)))
        await asyncio.sleep(0)
        assert await received(bodies, sending(b"image")) == "503 too many requests are on their way; try again"
        assert set(await asyncio.gather(*slow, last)) == {"408 the body has not arrived within 0.2 s"}
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
        async with bodies.of(sending(mebibyte, mebibyte)) as whole:
            assert len(whole) == 2 << 20
            assert await received(bodies, sending(mebibyte)) == mebibyte
            busy = "503 too many requests are on their way; try again"
            assert await received(bodies, sending(mebibyte, b"x", ends=False)) == busy
        assert await received(bodies, sending(mebibyte, mebibyte)) == mebibyte * 2

    asyncio.run(some())
