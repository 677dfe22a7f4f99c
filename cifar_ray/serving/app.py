"""The FastAPI application that answers for images, texts, or rows of numbers, with a run's model.

``POST /predict`` answers for the image or the text that is its body, or for the rows that it has as JSON: an object of
numbers by the features' names, or a list of such. ``GET /`` describes the model, and ``GET /healthz`` answers while the
server lives. Every answer is JSON; an error is ``{"error": "one sentence"}``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from typing import Annotated, Any

import torch
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as Refusal
from starlette.requests import ClientDisconnect
from torch import Tensor

from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.data import Facts, imagefiles, tokens
from cifar_ray.orchestration.run import given, results
from cifar_ray.tasks import SUBSETS, TaskSpec
from cifar_ray.training import predictor

MAX_BODY_MIB = 16  # of one request; a larger one is refused before all of it has arrived
MAX_BODIES_MIB = 256  # of all requests in progress
BODY_TIMEOUT_S = 10.0  # for a body to arrive
MAX_BATCH = 32  # images in one forward pass
BATCH_WAIT_S = 0.01  # for which an image waits for others to share its forward pass
_MAX_TOP = 9999
_DECODERS = 2  # each may hold an image of `imagefiles.MAX_PIXELS`


def of_run(
    run: str, which: WhichCheckpoint = "last", tracking_uri: str | None = None, note: results.Note = print
) -> FastAPI:
    """The application for a run's model.

    Raises:
        CheckpointError: the run has no usable checkpoint.
        ConfigError: there is no such run.
    """
    checkpoint = results.find_checkpoint(run, which, tracking_uri, note)
    snapshot, task = checkpoint.snapshot, checkpoint.snapshot.task
    measured = snapshot.spec.measured
    about = {
        "run": checkpoint.run.name,
        "run_id": checkpoint.run.run_id,
        "model": snapshot.config.model,
        "dataset": snapshot.config.dataset,
        "checkpoint": checkpoint.address.rpartition("/")[2],
        "step": snapshot.step,
        f"{measured}_{task.primary.name}": snapshot.score,
        "weights_sha256": snapshot.weights_sha256,
        task.names: snapshot.spec.names,
    }
    spec = snapshot.spec
    if spec.inputs == "tokens":
        results.check_reads(snapshot)
    if spec.inputs == "features":
        about["features"] = spec.feature_names
    app = build(about, task, spec, predictor.of(checkpoint.address, snapshot), snapshot.encoding)
    if snapshot.score is not None:
        app.state.result = f"{SUBSETS[measured]} {task.primary.named(snapshot.score)}"
    return app


def build(
    about: dict[str, Any], task: TaskSpec, spec: Facts, model: Callable[[Tensor], Tensor], encoding: str = ""
) -> FastAPI:
    """The application for a model that maps inputs as data sets have them, such as images, to its task's answers.

    Args:
        about: describes the model, as ``GET /`` and ``app.state.about`` give it; ``classes``, or ``values``, are the
            answers' names in order.
        task: of the model.
        spec: of the model's inputs.
        model: computes on the CPU.
        encoding: of texts, the tokenizer; a model of them maps int32 tokens (B, length).
    """
    app = FastAPI(openapi_url=None)
    app.state.about, app.state.result = about, ""
    zeros = shlex.quote(json.dumps(dict.fromkeys(spec.feature_names, 0)))
    known = {"images": ("image", "@IMAGE"), "tokens": ("text", "TEXT"), "features": ("row", zeros)}
    app.state.noun, app.state.example = known[spec.inputs]
    run = model if spec.inputs != "tokens" else lambda rows: model(torch.from_numpy(tokens.cut(rows.numpy())))
    bodies, batches, decoders = Bodies(), Batches(run), ThreadPoolExecutor(_DECODERS)

    @app.post("/predict")
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=_MAX_TOP)] = _MAX_TOP) -> JSONResponse:
        names, loop = about[task.names], asyncio.get_running_loop()
        async with bodies.receive(request) as body:
            if spec.inputs == "features":
                return await rows(body, top)
            if spec.inputs == "tokens":
                is_json = request.headers.get("content-type", "").startswith("application/json")
                one, size = await loop.run_in_executor(decoders, _encode, spec, encoding, body, is_json), (0, 0)
            else:
                one, size = await loop.run_in_executor(decoders, _decode, spec, body)
            row, images = await batches.answer(one)
        numbers, mask = await loop.run_in_executor(decoders, results.answered, task, names, row, size)
        document = task.document(names, numbers, top)
        if mask:
            document["mask"] = base64.b64encode(mask).decode()
        return JSONResponse(document, headers={"X-Batch-Size": str(images)})

    async def rows(body: bytes, top: int) -> JSONResponse:
        """The answers for rows: an object for one, a list for a list."""
        try:
            loop = asyncio.get_running_loop()
            features, is_list = await loop.run_in_executor(decoders, given.features_from_json, body, spec)
        except ValueError as error:
            raise HTTPException(400, f"cannot read the rows: {error}") from None
        answers = await asyncio.gather(*map(batches.answer, torch.from_numpy(features)))
        if endless := next((number for number, (row, _) in enumerate(answers, 1) if not row.isfinite().all()), None):
            raise HTTPException(400, f"cannot answer for row {endless}: its numbers are too large for the model")
        documents = [task.document(about[task.names], row.tolist(), top) for row, _ in answers]
        return JSONResponse(documents if is_list else documents[0])

    @app.get("/")
    async def describe() -> dict[str, Any]:
        return about

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    for kind in (Refusal, RequestValidationError, Exception):
        app.add_exception_handler(kind, _error)
    return app


async def _error(request: Request, error: Exception) -> JSONResponse:
    """The answer to an error; one that is unforeseen is logged by the server."""
    path = request.url.path
    if isinstance(error, RequestValidationError):
        top = request.query_params["top"][:8]
        error = HTTPException(400, f"top must be a whole number of classes from 1 to {_MAX_TOP}, got {top!r}")
    if not isinstance(error, Refusal):
        error = HTTPException(500, f"{path} failed with {type(error).__name__}")
    headers, noun = error.headers or {}, request.app.state.noun
    article = "an" if noun == "image" else "a"
    sentences = {
        404: f"there is nothing at {path}; send {article} {noun} to /predict by POST",
        405: f"{path} takes {headers.get('Allow')}, not {request.method}",
    }
    return JSONResponse({"error": sentences.get(error.status_code, error.detail)}, error.status_code, headers)


def _decode(spec: Facts, body: bytes) -> tuple[Tensor, tuple[int, int]]:
    """An image as the model gets it, with its own width and height."""
    if not body:
        raise HTTPException(400, "the body is empty; send an image: curl --data-binary @IMAGE")
    try:
        image = imagefiles.read(BytesIO(body))
        return imagefiles.batch(spec, [image])[0], image.size
    except imagefiles.ImageError as error:
        raise HTTPException(400, f"cannot read the image: {error}") from None


def _encode(spec: Facts, encoding: str, body: bytes, is_json: bool) -> Tensor:
    """A text as the model gets it: plain, or the value of ``text`` in a JSON object."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "cannot read the text: it is not UTF-8") from None
    if is_json or text.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            document = json.loads(text)
            if isinstance(document, dict) and isinstance(document.get("text"), str):
                text, is_json = document["text"], False
        if is_json:
            raise HTTPException(400, 'cannot read the text: JSON must be an object with a text, {"text": "..."}')
    if not tokens.is_unicode(text):
        raise HTTPException(400, "cannot read the text: it has half of a surrogate pair")
    if not text.strip():
        raise HTTPException(400, "the text is empty; send one: curl --data-binary TEXT")
    return torch.from_numpy(tokens.encode(encoding, [text], spec.length)[0][0])


class Batches:
    """Classifies images that are there at the same time in one forward pass."""

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        self._model = model
        self._computing = asyncio.Lock()
        self._open: list[Tensor] = []  # images of the next pass
        self._rows: asyncio.Task[Tensor]  # their answers

    async def answer(self, pixels: Tensor) -> tuple[Tensor, int]:
        """Return an image's answers and the number of images in its forward pass."""
        if not self._open or len(self._open) == MAX_BATCH:
            self._open = []
            self._rows = asyncio.create_task(self._compute(self._open))
        images, rows, index = self._open, self._rows, len(self._open)
        images.append(pixels)
        return (await asyncio.shield(rows))[index], len(images)

    async def _compute(self, images: list[Tensor]) -> Tensor:
        await asyncio.sleep(BATCH_WAIT_S)
        async with self._computing:
            if self._open is images:
                self._open = []
            return await asyncio.to_thread(self._forward, torch.stack(images))

    def _forward(self, images: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._model(images)


class Bodies:
    """Receives the bodies of requests within limits of size and time."""

    def __init__(self) -> None:
        self._bytes = 0

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[bytes]:
        """Yield a request's body, which counts towards the limits until the context ends.

        Raises:
            HTTPException: 413 or 408 when it is too large or too slow, 503 when all together are too large.
        """
        body = bytearray()
        try:
            await asyncio.wait_for(self._read(request, body), BODY_TIMEOUT_S)
            yield bytes(body)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"the body has not arrived within {BODY_TIMEOUT_S:g} s") from None
        except ClientDisconnect:
            raise HTTPException(400, "the body has ended too early") from None
        finally:
            self._bytes -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        if request.headers.get("content-type", "").startswith("multipart/"):
            noun, example = request.app.state.noun, request.app.state.example
            raise HTTPException(415, f"the body must be the {noun} itself, not a form: curl --data-binary {example}")
        self._check(int(request.headers.get("content-length", 0)))
        async for part in request.stream():
            body += part
            self._bytes += len(part)
            self._check(len(body))

    def _check(self, size: int) -> None:
        if size > MAX_BODY_MIB << 20:
            raise HTTPException(413, f"the body is larger than {MAX_BODY_MIB} MiB")
        if self._bytes > MAX_BODIES_MIB << 20:
            raise HTTPException(503, "the server has too many requests; try again", {"Retry-After": "1"})
