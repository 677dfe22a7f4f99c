"""A trained model behind HTTP: what each replica of the Ray Serve application does.

``POST /predict`` classifies one image, ``GET /`` tells what is served, and ``GET /healthz`` answers while the
replica lives. Requests that arrive together share a forward pass. Every answer is JSON; a refusal is
``{"error": "one sentence"}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from io import BytesIO

import ray
import torch
from ray import ObjectRef, serve
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from torch import Tensor

from cifar_ray import results
from cifar_ray.data import SPECS, imagefiles
from cifar_ray.training import hardware
from cifar_ray.training.classifier import Classifier

MAX_BODY_MIB = 16
"""Largest body of a request; a longer one is refused before all of it has arrived."""

MAX_BATCH = 32
"""Most images in one forward pass."""

BATCH_WAIT_S = 0.01
"""How long an image waits for others to share its forward pass."""

_MOST_PARTS = 20  # of a form
_MOST_HEAD_BYTES = 4096  # of a form's part, or of a content type; parsing them takes time in the square of it
_TOP_DIGITS = 4
_DECODERS = 2  # at once; each may hold an image of `imagefiles.MAX_PIXELS`


@dataclass(frozen=True)
class Served:
    """What is served, as ``GET /`` tells it.

    Attributes:
        run: the run's name.
        run_id: its id in MLflow.
        model: the architecture.
        dataset: what it was trained on.
        checkpoint: the name of the checkpoint's folder.
        step: optimizer steps done at the checkpoint.
        test_accuracy: from 0 to 1; None when the checkpoint was written within an epoch.
        weights_sha256: of the file with the weights.
        classes: in the order of the model's outputs.
    """

    run: str
    run_id: str
    model: str
    dataset: str
    checkpoint: str
    step: int
    test_accuracy: float | None
    weights_sha256: str
    classes: tuple[str, ...]


@serve.deployment(
    name="classifier",
    max_ongoing_requests=4 * MAX_BATCH,
    max_queued_requests=16 * MAX_BATCH,
    max_constructor_retry_count=2,
    graceful_shutdown_wait_loop_s=0.1,
    graceful_shutdown_timeout_s=10,
    ray_actor_options={"num_cpus": 1},
)
@serve.ingress()
class Endpoint:
    """One replica, with a copy of the model on the CPU and one thread to compute with."""

    def __init__(self, served: Served, model: Sequence[ObjectRef]) -> None:
        hardware.set_threads(1)
        self._served = served
        self._spec = SPECS[served.dataset]
        self._model: Classifier = ray.get(model[0])
        self._decoders = ThreadPoolExecutor(_DECODERS, thread_name_prefix="decode")

    def __serve_build_asgi_app__(self) -> Starlette:
        routes = [
            Route("/", self._about),
            Route("/healthz", self._healthz),
            Route("/predict", self._predict, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _refuse})

    async def _about(self, _: Request) -> JSONResponse:
        return JSONResponse(asdict(self._served))

    async def _healthz(self, _: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _predict(self, request: Request) -> JSONResponse:
        top = _top(request.query_params.get("top"), len(self._served.classes))
        given = await _body(request), request.headers.get("content-type", "")
        pixels = await asyncio.get_running_loop().run_in_executor(self._decoders, self._decode, *given)
        probabilities, images = await self._classify(pixels)
        ranked = results.ranked(self._served.classes, probabilities)[:top]
        answer = {"classes": [{"class": name, "probability": probability} for name, probability in ranked]}
        return JSONResponse(answer, headers={"X-Batch-Size": str(images)})

    def _decode(self, body: bytes, content_type: str) -> Tensor:
        image = image_in(body, content_type)
        if not image:
            raise HTTPException(400, "the body is empty; send an image: curl --data-binary @IMAGE")
        try:
            return imagefiles.batch(self._spec, [imagefiles.read(BytesIO(image))])[0]
        except imagefiles.ImageError as error:
            raise HTTPException(400, f"cannot read the image: {error}") from None

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=BATCH_WAIT_S)  # type: ignore[untyped-decorator]
    async def _classify(self, pixels: list[Tensor]) -> list[tuple[Tensor, int]]:
        """For each image the probabilities (C,), and how many images were in the forward pass."""
        probabilities = await asyncio.to_thread(self._forward, torch.stack(pixels))
        return [(row, len(pixels)) for row in probabilities]

    def _forward(self, images: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._model(images)


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    sentence, path = error.detail, request.url.path
    if error.status_code == 404:
        sentence = f"there is nothing at {path}; send an image to /predict by POST"
    elif error.status_code == 405:
        sentence = f"{path} takes {(error.headers or {}).get('Allow')}, not {request.method}"
    return JSONResponse({"error": sentence}, error.status_code, error.headers)


def _top(given: str | None, classes: int) -> int:
    if given is None:
        return classes
    if not given.isdecimal() or len(given) > _TOP_DIGITS or int(given) < 1:
        raise HTTPException(
            400, f"top must be a whole number of classes from 1 to 9999, got {given[: 2 * _TOP_DIGITS]!r}"
        )
    return int(given)


async def _body(request: Request) -> bytes:
    """The whole body, unless it is too large."""
    limit = MAX_BODY_MIB << 20
    body = bytearray()
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) <= limit:
        async for part in request.stream():
            body += part
            if len(body) > limit:
                break
        else:
            return bytes(body)
    raise HTTPException(413, f"the body is larger than {MAX_BODY_MIB} MiB")


def image_in(body: bytes, content_type: str) -> bytes:
    """The image in a body: all of it, or the part named ``file`` of a form, as ``curl -F file=@IMAGE`` sends it.

    Raises:
        HTTPException: when there is none, or what describes it is longer than any that is honest.
    """
    if len(content_type) > _MOST_HEAD_BYTES:
        raise HTTPException(400, f"the content type is longer than {_MOST_HEAD_BYTES} bytes")
    header = Message()
    header["Content-Type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_type() != "multipart/form-data" or boundary is None:
        return body
    # What is before the first boundary is no part, and neither is what is after the last one.
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"), _MOST_PARTS + 2)[1:-1]
    if len(parts) > _MOST_PARTS:
        raise HTTPException(400, f"the form has more than {_MOST_PARTS} parts")
    for part in parts:
        head, _, content = part.partition(b"\r\n\r\n")
        if len(head) > _MOST_HEAD_BYTES:
            raise HTTPException(400, f"a part of the form has a head of more than {_MOST_HEAD_BYTES} bytes")
        described = BytesHeaderParser().parsebytes(head.lstrip())
        if described.get_param("name", header="content-disposition") == "file":
            return content
    raise HTTPException(400, "the form has no part named file; send an image: curl -F file=@IMAGE")
