"""The application that classifies images, without a network."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from PIL import Image
from torch import Tensor

from cifar_ray import tasks
from cifar_ray.data import SPECS, Facts, tokens
from cifar_ray.serving import app as apps
from cifar_ray.tasks import regression, segmentation

NAMES = tuple("0123456789")


def brightest(images: Tensor) -> Tensor:
    """A model whose class is the images' mean shade in tenths."""
    shades = (images.float().mean((1, 2, 3)) / 25.6).long()
    return 0.5 * torch.nn.functional.one_hot(shades, 10) + 0.05


@pytest.fixture
def app() -> FastAPI:
    return apps.build({"classes": NAMES}, tasks.USUAL, SPECS["digits"], brightest)


def shade(value: int, kind: str = "png") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((20, 30), value, np.uint8)).save(file, kind)
    return file.getvalue()


async def asked(
    app: FastAPI, body: bytes = b"", method: str = "POST", path: str = "/predict", **scope: Any
) -> tuple[int, Any, dict[bytes, bytes]]:
    """Status, JSON and headers of an answer; without a body, one that does not come."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, object]:
        if not body:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    length = [(b"content-length", str(len(body)).encode())] if body else []
    described = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": length, **scope}
    with contextlib.suppress(ZeroDivisionError):  # the server logs it
        await app(described, receive, send)
    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"] == b"application/json"
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:])), headers


def test_images_that_come_together_share_passes(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "MAX_BATCH", 5)
    values = [25 * index % 256 for index in range(50)]

    async def together() -> list[tuple[int, Any, dict[bytes, bytes]]]:
        return await asyncio.gather(*[asked(app, shade(value), query_string=b"top=1") for value in values])

    answers = asyncio.run(together())
    classes = [said["classes"] for _, said, _ in answers]
    assert classes == [[{"class": str(int(value / 25.6)), "probability": pytest.approx(0.55)}] for value in values]
    sizes = [int(headers[b"x-batch-size"]) for *_, headers in answers]
    assert 1 < max(sizes) <= 5
    assert sum(1 / size for size in sizes) < len(values) - 1  # passes


def test_a_mask_is_a_file_as_large_as_the_image_that_was_sent() -> None:
    spec = dataclasses.replace(SPECS["cifar10"], shape=(3, 8, 8), native_size=8, crop=True)

    def halves(images: Tensor) -> Tensor:
        """Class 2 on the right, elsewhere 0."""
        masks = torch.zeros(images.shape[:3], dtype=torch.uint8)
        masks[:, :, 4:] = 2
        return masks

    app = apps.build({"classes": ("ground", "cat", "dog")}, segmentation.TASK.spec, spec, halves)
    status, said, _ = asyncio.run(asked(app, shade(70), query_string=b"top=2"))
    assert (status, said["classes"]) == (200, [{"class": name, "share": 0.5} for name in ("ground", "dog")])
    mask = np.asarray(Image.open(io.BytesIO(base64.b64decode(said["mask"]))))
    assert mask.shape == (20, 30)  # of which the middle 20 are seen
    assert [*map(int, mask[7, ::5])] == [255, 0, 0, 2, 2, 255]


def test_an_error_is_told_to_all_and_an_image_alone_waits_not(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    async def two_and_then_one_after_another() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(torch, "inference_mode", lambda: 1 // 0)
            failed = await asyncio.gather(asked(app, shade(1)), asked(app, shade(2)))
        assert [answer[:2] for answer in failed] == [(500, {"error": "/predict failed with ZeroDivisionError"})] * 2
        for _ in range(2):
            status, said, headers = await asked(app, shade(70))
            assert (status, headers[b"x-batch-size"], len(said["classes"])) == (200, b"1", 10)
            assert said["classes"][0] == {"class": "2", "probability": pytest.approx(0.55)}

    asyncio.run(two_and_then_one_after_another())


def test_every_refusal_is_json(app: FastAPI) -> None:
    def answer(body: bytes = b"", **request: Any) -> tuple[int, str]:
        status, said, headers = asyncio.run(asked(app, body, **request))
        assert status != 405 or headers[b"allow"] == b"POST"
        return status, said["error"]

    large = io.BytesIO()
    Image.new("1", (20_000, 10_000)).save(large, "png")
    for body, reason in {
        b"no image": "it is not an image",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n": "it is not an image",
        large.getvalue(): "it has too many pixels; at most 100,000,000 are read",
        shade(9, "bmp")[:-20]: "it is truncated or damaged",
    }.items():
        assert answer(body) == (400, f"cannot read the body as an image: {reason}")
    for status, wrong in ((405, {"method": "GET"}), (404, {"path": "/no"})):
        assert answer(**wrong) == (status, "send an image to /predict by POST")
    for top in ("0", "many", "9" * 5000):
        assert answer(query_string=f"top={top}".encode()) == (400, "top must be a whole number, 1 or more")
    form = [(b"content-type", b"multipart/form-data; boundary=x")]
    assert answer(headers=form)[0] == 415
    assert answer(headers=[(b"content-length", b"99999999999")]) == (413, "the body is larger than 16 MiB")
    assert answer()[0] == 411


def test_a_text_is_the_body_or_in_json() -> None:
    """The answer is the share of a text's tokens that are those of ``good``."""
    encoding = tokens.train(["good bad"] * 20, vocabulary=280, max_length=20)
    good, _ = tokens.encode(encoding, ["good"], 1)

    def shares(rows: Tensor) -> Tensor:
        share = (rows == int(good[0, 0])).sum(1) / (rows > 0).sum(1)
        return torch.stack([share, 1 - share], 1)

    spec = dataclasses.replace(SPECS["digits"], inputs="tokens", shape=(20,), vocabulary=280)
    reader = apps.build({"classes": ("good", "bad")}, tasks.USUAL, spec, shares, encoding)
    expected = [{"class": "good", "probability": 0.75}, {"class": "bad", "probability": 0.25}]
    for body in (b"Good bad good GOOD", b' {"text": "Good bad good GOOD", "more": 1}'):
        assert asyncio.run(asked(reader, body))[:2] == (200, {"classes": expected})
    for body in (b"\xff\xfe", b'{"text": "x \\ud83d"}', b" \n", b'{"text": ""}', b'{"texts": "x"}'):
        status, said, _ = asyncio.run(asked(reader, body))
        assert (status, said["error"][:35]) == (400, "cannot read the body as a text: it ")


def test_one_row_or_a_list_of_rows_is_answered_and_what_are_none_is_refused() -> None:
    def model(rows: Tensor) -> Tensor:
        total = rows.sum(1, keepdim=True)
        return total.where(total.float().isfinite(), torch.inf)  # a network computes in float32

    spec = Facts(1, 9, 9, inputs="features", shape=(2,), features=("age", "bmi"))
    app = apps.build({"values": ("y",)}, regression.TASK.spec, spec, model)
    assert app.state.example == """'{"age": 0, "bmi": 0}'"""

    def answer(rows: Any) -> tuple[int, Any]:
        return asyncio.run(asked(app, rows if isinstance(rows, bytes) else json.dumps(rows).encode()))[:2]

    assert answer({"age": 3, "bmi": 4.5, "other": "x"}) == (200, {"values": {"y": 7.5}})
    assert answer({"age": 1_700_000_001, "bmi": 0})[1] == {"values": {"y": 1_700_000_001.0}}
    many = answer([{"age": number, "bmi": 1} for number in range(70)])[1]
    assert [row["values"]["y"] for row in many] == list(range(1, 71))
    too_large = {"error": "numbers in the body are too large for the model"}
    assert answer([{"age": 1, "bmi": 1}, {"age": 3e38, "bmi": 3e38}]) == (400, too_large)
    no_age = "have each column once, with a name, and the body has 0 named 'age'"
    no_number = "have a finite number in every row of age, and the body has"
    for body, sentence in {
        b"{age: 3}": "be JSON",
        b"[" * 100_000: "be JSON",
        b"[]": no_age,
        b"[[1, 2]]": no_age,
        b'[{"age": 1, "bmi": 2}, {"bmi": 1}]': f"{no_number} '' in row 2",
        b'{"age": "old", "bmi": 2}': f"{no_number} 'old' in row 1",
        b'{"age": true, "bmi": 2}': f"{no_number} 'True' in row 1",
        b'{"age": NaN, "bmi": 2}': f"{no_number} '' in row 1",
        b'{"age": 1e39, "bmi": 2}': f"{no_number} '1e+39' in row 1",
        b'{"age": 1' + b"0" * 400 + b', "bmi": 2}': f"{no_number} 'inf' in row 1",
        json.dumps([{}] * 10_001).encode(): "have at most 10,000 rows, and has 10,001",
    }.items():
        assert answer(body) == (400, {"error": f"cannot read the body as a row: it must {sentence}"}), body[:40]
