"""One replica of the Ray Serve application: answers HTTP requests with a model's predictions.

``POST /predict`` classifies one image, ``GET /`` describes the model, and ``GET /healthz`` answers while the replica
lives. Requests that arrive together share a forward pass. Every answer is JSON; an error is
``{"error": "one sentence"}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
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
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser
from werkzeug.http import parse_options_header

from cifar_ray.data import DatasetSpec, imagefiles
from cifar_ray.orchestration.run import results
from cifar_ray.training import hardware
from cifar_ray.training.classifier import Classifier

# Limits of one replica
MAX_BODY_MIB = 16  # of one request; a larger one is refused before all of it has arrived
MAX_BODIES_MIB = 256  # of all bodies that are being received or decoded
MAX_REQUESTS = 1024  # whose bodies are being received or decoded
BODY_TIMEOUT_S = 10.0  # for a body to arrive
ANSWER_TIMEOUT_S = 60.0  # for the whole answer
MAX_BATCH = 32  # images in one forward pass
BATCH_WAIT_S = 0.01  # for which an image waits for others to share its forward pass
_MAX_PARTS = 20  # of a form
_MAX_TEXT_KIB = 128  # of a part's head or a text; Werkzeug needs more than the 64 KiB that it reads at a time
_MAX_TOP = 9999
_DECODERS = 2  # each may hold an image of `imagefiles.MAX_PIXELS`


@dataclass(frozen=True)
class Served:
    """What is served, as ``GET /`` describes it.

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
    max_ongoing_requests=2 * MAX_REQUESTS,  # above the endpoint's own limit, whose error is JSON
    max_queued_requests=16 * MAX_BATCH,
    max_constructor_retry_count=2,
    graceful_shutdown_wait_loop_s=0.1,
    graceful_shutdown_timeout_s=10,
    ray_actor_options={"num_cpus": 1},
)
@serve.ingress()
class Endpoint:
    """One replica, with a copy of the model on the CPU and one thread to compute with."""

    def __init__(self, served: Served, spec: DatasetSpec, model: Sequence[ObjectRef]) -> None:
        hardware.set_threads(1)
        self._served = served
        self._model: Classifier = ray.get(model[0])
        self._spec = spec
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
        top = _top(request)
        async with self._bodies.receive(request) as body:
            content_type = request.headers.get("content-type")
            loop = asyncio.get_running_loop()
            pixels = await loop.run_in_executor(self._decoders, self._decode, body, content_type)
        probabilities, images = await self._classify(pixels)
        ranked = results.ranked(self._served.classes, probabilities)[:top]
        answer = {"classes": [{"class": name, "probability": probability} for name, probability in ranked]}
        return JSONResponse(answer, headers={"X-Batch-Size": str(images)})

    def _decode(self, body: bytes, content_type: str | None) -> Tensor:
        image = image_in(body, content_type)
        if not image:
            raise HTTPException(400, "the body is empty; send an image: curl --data-binary @IMAGE")
        try:
            return imagefiles.batch(self._spec, [imagefiles.read(BytesIO(image))])[0]
        except imagefiles.ImageError as error:
            raise HTTPException(400, f"cannot read the image: {error}") from None

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=BATCH_WAIT_S)  # type: ignore[untyped-decorator]
    async def _classify(self, pixels: list[Tensor]) -> list[tuple[Tensor, int]]:
        """Return for each image its probabilities (C,) and the number of images in the forward pass."""
        probabilities = await asyncio.to_thread(self._forward, torch.stack(pixels))
        return [(row, len(pixels)) for row in probabilities]

    def _forward(self, images: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._model(images)


class Bodies:
    """Receive the bodies of one replica's requests within limits of number, size and time.

    A slow body counts as one of many requests, and takes none of the few threads that decode and compute.
    """

    def __init__(self) -> None:
        self._requests = self._bytes = 0

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the whole body of a request; it counts towards the limits until the context ends.

        Raises:
            HTTPException: 413 or 408 when it is too large or too slow, 503 when there are too many.
        """
        if self._requests == MAX_REQUESTS:
            raise _busy()
        body = bytearray()
        self._requests += 1
        try:
            await asyncio.wait_for(self._read(request, body), BODY_TIMEOUT_S)
            yield bytes(body)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"the body has not arrived within {BODY_TIMEOUT_S:g} s") from None
        finally:
            self._requests -= 1
            self._bytes -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        too_large = HTTPException(413, f"the body is larger than {MAX_BODY_MIB} MiB")
        if int(request.headers.get("content-length", 0)) > MAX_BODY_MIB << 20:
            raise too_large
        async for part in request.stream():
            body += part
            self._bytes += len(part)
            if len(body) > MAX_BODY_MIB << 20:
                raise too_large
            if self._bytes > MAX_BODIES_MIB << 20:
                raise _busy()


def image_in(body: bytes, content_type: str | None) -> bytes:
    """Return the image in a body: all of it, or the file named ``file`` of a form, as ``curl -F file=@IMAGE`` sends it.

    Raises:
        HTTPException: 400 when the form has no such file, is damaged, or has too many or too large parts.
    """
    kind, options = parse_options_header(content_type)
    if kind != "multipart/form-data":
        return body
    parser = FormDataParser(max_form_memory_size=_MAX_TEXT_KIB << 10, max_form_parts=_MAX_PARTS, silent=False)
    try:
        _, _, files = parser.parse(BytesIO(body), kind, len(body), options)
    except (ValueError, RequestEntityTooLarge):
        limits = f"more than {_MAX_PARTS} parts or {_MAX_TEXT_KIB} KiB of text"
        raise HTTPException(400, f"the form is damaged, or has {limits}") from None
    if "file" not in files:
        raise HTTPException(400, "the form has no file named file; send an image: curl -F file=@IMAGE")
    return files["file"].read()


def _top(request: Request) -> int:
    """Return how many classes are asked for; all when the query does not say."""
    given = request.query_params.get("top", str(_MAX_TOP))
    if not (len(given) <= len(str(_MAX_TOP)) and given.isdecimal() and int(given) >= 1):
        raise HTTPException(400, f"top must be a whole number of classes from 1 to {_MAX_TOP}, got {given[:8]!r}")
    return int(given)


def _busy() -> HTTPException:
    return HTTPException(503, "the server has too many requests; try again", {"Retry-After": "1"})


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path, headers = request.url.path, error.headers or {}
    sentences = {
        404: f"there is nothing at {path}; send an image to /predict by POST",
        405: f"{path} takes {headers.get('Allow')}, not {request.method}",
    }
    return JSONResponse({"error": sentences.get(error.status_code, error.detail)}, error.status_code, headers)


async def _fail(request: Request, error: Exception) -> JSONResponse:
    """Answer an unforeseen error, which Ray Serve logs."""
    return JSONResponse({"error": f"{request.url.path} failed with {type(error).__name__}"}, 500)
