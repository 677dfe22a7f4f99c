"""A trained model behind HTTP: what each replica of the Ray Serve application does.

``POST /predict`` classifies one image, ``GET /`` tells what is served, and ``GET /healthz`` answers while the
replica lives. Requests that arrive together share a forward pass. Every answer is JSON; a refusal is
``{"error": "one sentence"}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
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

from cifar_ray.data import SPECS, imagefiles
from cifar_ray.orchestration.run import results
from cifar_ray.training import hardware
from cifar_ray.training.classifier import Classifier

MAX_BODY_MIB = 16
"""Largest body of a request; a longer one is refused before all of it has arrived."""

MAX_BODIES_MIB = 256
"""Most of all bodies together that are here, whole or in part, until their images are decoded."""

BODY_TIMEOUT_S = 10.0
"""How long a body may take to arrive."""

MAX_REQUESTS = 1024
"""Most requests at once, those whose bodies are on their way included; they cost little while they wait."""

ANSWER_TIMEOUT_S = 60.0
"""How long a request may take in all."""

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
    max_ongoing_requests=2 * MAX_REQUESTS,  # above the endpoint's own limit, which is told in JSON
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
        self._bodies = Bodies()

    def __serve_build_asgi_app__(self) -> Starlette:
        routes = [
            Route("/", self._about),
            Route("/healthz", self._healthz),
            Route("/predict", self._predict, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _refuse, Exception: _fail})

    async def _about(self, _: Request) -> JSONResponse:
        return JSONResponse(asdict(self._served))

    async def _healthz(self, _: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _predict(self, request: Request) -> JSONResponse:
        try:
            return await asyncio.wait_for(self._answer(request), ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"the answer took longer than {ANSWER_TIMEOUT_S:g} s") from None

    async def _answer(self, request: Request) -> JSONResponse:
        top = _top(request.query_params.get("top"), len(self._served.classes))
        async with self._bodies.of(request) as body:
            given = body, request.headers.get("content-type", "")
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


class Bodies:
    """The bodies of one replica's requests, so many and so large at once that memory suffices.

    One that arrives slowly takes a place among many, and none of the few that decode or compute.
    """

    def __init__(self) -> None:
        self._requests = self._bytes = 0

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body of a request, which is let go at the end.

        Raises:
            HTTPException: when it is too large or too slow, or there are too many.
        """
        if self._requests == MAX_REQUESTS:
            raise _busy()
        body = bytearray()
        self._requests += 1
        try:
            try:
                await asyncio.wait_for(self._receive(request, body), BODY_TIMEOUT_S)
            except asyncio.TimeoutError:
                raise HTTPException(408, f"the body has not arrived within {BODY_TIMEOUT_S:g} s") from None
            yield bytes(body)
        finally:
            self._requests -= 1
            self._bytes -= len(body)

    async def _receive(self, request: Request, body: bytearray) -> None:
        large = HTTPException(413, f"the body is larger than {MAX_BODY_MIB} MiB")
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > MAX_BODY_MIB << 20:
            raise large
        async for part in request.stream():
            body += part
            self._bytes += len(part)
            if len(body) > MAX_BODY_MIB << 20:
                raise large
            if self._bytes > MAX_BODIES_MIB << 20:
                raise _busy()


def _busy() -> HTTPException:
    return HTTPException(503, "too many requests are on their way; try again", {"Retry-After": "1"})


async def _fail(request: Request, error: Exception) -> JSONResponse:
    """What nobody has foreseen; Ray Serve logs it."""
    return JSONResponse({"error": f"{request.url.path} has failed with {type(error).__name__}"}, 500)


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
