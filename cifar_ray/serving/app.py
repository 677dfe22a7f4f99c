"""The FastAPI application that classifies images with a run's model.

``POST /predict`` classifies the image that is its body, ``GET /`` describes the model, and ``GET /healthz`` answers
while the server lives. Requests that arrive together share a forward pass. Every answer is JSON; an error is
``{"error": "one sentence"}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from torch import Tensor

from cifar_ray import data
from cifar_ray.config.train import WhichCheckpoint
from cifar_ray.data import DatasetSpec, imagefiles
from cifar_ray.orchestration.run import results
from cifar_ray.training import classifier

MAX_BODY_MIB = 16  # of one request; a larger one is refused before all of it has arrived
MAX_BODIES_MIB = 256  # of all requests in progress
MAX_REQUESTS = 1024  # in progress
BODY_TIMEOUT_S = 10.0  # for a body to arrive
ANSWER_TIMEOUT_S = 60.0  # for the whole answer
MAX_BATCH = 32  # images in one forward pass
BATCH_WAIT_S = 0.01  # for which an image waits for others to share its forward pass
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


def of_run(
    run: str, which: WhichCheckpoint = "last", tracking_uri: str | None = None, note: results.Note = print
) -> FastAPI:
    """The application for a run's model; its ``state.served`` is the :class:`Served`.

    Raises:
        CheckpointError: the run has no usable checkpoint.
        ConfigError: there is no such run.
    """
    found = results.find_checkpoint(run, which, tracking_uri, note)
    snapshot = found.snapshot
    served = Served(
        run=found.run.name,
        run_id=found.run.run_id,
        model=snapshot.config.model,
        dataset=snapshot.config.dataset,
        checkpoint=found.address.rpartition("/")[2],
        step=snapshot.step,
        test_accuracy=snapshot.accuracy,
        weights_sha256=found.weights_sha256,
        classes=snapshot.class_names,
    )
    return build(served, data.spec(snapshot.config), classifier.of(found.address, snapshot))


def build(served: Served, spec: DatasetSpec, model: Callable[[Tensor], Tensor]) -> FastAPI:
    """The application for a model.

    Args:
        served: describes the model.
        spec: its images.
        model: maps uint8 images (B, side, side, 3) to probabilities (B, classes), on the CPU.
    """
    app = FastAPI(openapi_url=None)
    app.state.served = served
    bodies, batches = Bodies(), Batches(model)
    decoders = ThreadPoolExecutor(_DECODERS, thread_name_prefix="decode")

    async def classify(request: Request, top: int) -> JSONResponse:
        async with bodies.receive(request) as body:
            pixels = await asyncio.get_running_loop().run_in_executor(decoders, _decode, spec, body)
            probabilities, images = await batches.classify(pixels)
        ranked = results.ranked(served.classes, probabilities)[:top]
        answer = {"classes": [{"class": name, "probability": probability} for name, probability in ranked]}
        return JSONResponse(answer, headers={"X-Batch-Size": str(images)})

    @app.post("/predict")
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=_MAX_TOP)] = _MAX_TOP) -> Any:
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise HTTPException(415, "the body must be the image itself, not a form: curl --data-binary @IMAGE")
        try:
            return await asyncio.wait_for(classify(request, top), ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"the answer took longer than {ANSWER_TIMEOUT_S:g} s") from None

    @app.get("/")
    async def about() -> Served:
        return served

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    app.add_exception_handler(HTTPException, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_top)
    app.add_exception_handler(Exception, _fail)
    return app


def _decode(spec: DatasetSpec, body: bytes) -> Tensor:
    if not body:
        raise HTTPException(400, "the body is empty; send an image: curl --data-binary @IMAGE")
    try:
        return imagefiles.batch(spec, [imagefiles.read(BytesIO(body))])[0]
    except imagefiles.ImageError as error:
        raise HTTPException(400, f"cannot read the image: {error}") from None


class Batches:
    """Classify images that are there at the same time in one forward pass."""

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        self._model = model
        self._waiting: list[tuple[Tensor, asyncio.Future[tuple[Tensor, int]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def classify(self, pixels: Tensor) -> tuple[Tensor, int]:
        """Return an image's probabilities (C,) and the number of images in its forward pass."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((pixels, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compute())
        return await answer

    async def _compute(self) -> None:
        await asyncio.sleep(BATCH_WAIT_S)
        while self._waiting:
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            batch = [(pixels, answer) for pixels, answer in batch if not answer.done()]  # the others have timed out
            if not batch:
                continue
            try:
                rows = await asyncio.to_thread(self._forward, torch.stack([pixels for pixels, _ in batch]))
            except Exception as error:
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), row in zip(batch, rows, strict=True):
                if not answer.done():
                    answer.set_result((row, len(batch)))

    def _forward(self, images: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._model(images)


class Bodies:
    """Receive the bodies of requests within limits of number, size and time.

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
            try:
                await asyncio.wait_for(self._read(request, body), BODY_TIMEOUT_S)
            except asyncio.TimeoutError:
                raise HTTPException(408, f"the body has not arrived within {BODY_TIMEOUT_S:g} s") from None
            yield bytes(body)
        finally:
            self._requests -= 1
            self._bytes -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        too_large = HTTPException(413, f"the body is larger than {MAX_BODY_MIB} MiB")
        if int(request.headers.get("content-length", 0)) > MAX_BODY_MIB << 20:
            raise too_large
        try:
            async for part in request.stream():
                body += part
                self._bytes += len(part)
                if len(body) > MAX_BODY_MIB << 20:
                    raise too_large
                if self._bytes > MAX_BODIES_MIB << 20:
                    raise _busy()
        except ClientDisconnect:
            raise HTTPException(400, "the body has ended too early") from None


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


async def _refuse_top(request: Request, _: Exception) -> JSONResponse:
    top = request.query_params["top"]
    return JSONResponse(
        {"error": f"top must be a whole number of classes from 1 to {_MAX_TOP}, got {top[:8]!r}"}, status_code=400
    )


async def _fail(request: Request, error: Exception) -> JSONResponse:
    """Answer an unforeseen error, which the server logs."""
    return JSONResponse({"error": f"{request.url.path} failed with {type(error).__name__}"}, 500)
