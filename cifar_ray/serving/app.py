"""The FastAPI application that answers for images, texts, or rows of numbers, with a run's model.

``POST /predict`` answers for the image or the text that is its body, or for the rows that it has as JSON: an object of
numbers by the features' names, or a list of such. ``GET /`` describes the model, and ``GET /healthz`` answers while the
server lives. Every answer is JSON; an error is ``{"error": "one sentence"}``.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Annotated, Any

import torch
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as Refusal
from starlette.requests import ClientDisconnect
from torch import Tensor

from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.data import Facts
from cifar_ray.runs import given, use
from cifar_ray.tasks import TaskSpec
from cifar_ray.training import predictor

MAX_BODY_MIB = 16  # of one request; a larger one is refused before all of it has arrived
MAX_BATCH = 32  # inputs in one forward pass
BATCH_WAIT_S = 0.01  # for which an input waits for others to share its forward pass
_DECODERS = 2  # each may hold an image of `imagefiles.MAX_PIXELS`


def of_run(
    run: str, which: WhichCheckpoint = "last", tracking_uri: str | None = None, note: given.Note = print
) -> FastAPI:
    """The application for a run's model.

    Raises:
        CheckpointError: the run has no usable checkpoint.
        ConfigError: there is no such run.
    """
    checkpoint = use.find_checkpoint(run, which, tracking_uri, note)
    snapshot, spec, task = checkpoint.snapshot, checkpoint.snapshot.spec, checkpoint.snapshot.task
    about = {
        "run": checkpoint.run.name,
        "run_id": checkpoint.run.run_id,
        "model": snapshot.config.model,
        "dataset": snapshot.config.dataset,
        "checkpoint": checkpoint.address.rpartition("/")[2],
        "step": snapshot.step,
        f"{spec.measured}_{task.primary.name}": snapshot.score,
        "weights_sha256": snapshot.weights_sha256,
        task.names: spec.names,
    }
    return build(about, task, spec, predictor.of(checkpoint.address, snapshot), snapshot.encoding)


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
    what = given.of(spec, encoding)
    about = {**about, **what.about}
    app = FastAPI(openapi_url=None)
    app.state.about, app.state.example = about, what.example
    batches, decoding = Batches(lambda rows: model(what.shown(rows))), asyncio.Semaphore(_DECODERS)

    @app.post("/predict")
    async def predict(request: Request, top: Annotated[int, Query(ge=1)] = 9999) -> JSONResponse:
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise HTTPException(
                415, f"the body must be {what.noun} itself, not a form: curl --data-binary {what.example}"
            )
        if (length := int(request.headers.get("content-length", -1))) > MAX_BODY_MIB << 20:
            raise HTTPException(413, f"the body is larger than {MAX_BODY_MIB} MiB")
        if length < 0:
            raise HTTPException(411, "the request must tell the length of its body")
        body = await request.body()
        try:
            async with decoding:
                inputs, size = await asyncio.to_thread(what.read, body)
        except ValueError as error:
            raise HTTPException(400, f"cannot read the body as {what.noun}: {error}") from None
        answers = await asyncio.gather(*map(batches.answer, inputs))
        if not all(row.isfinite().all() for row, _ in answers):
            raise HTTPException(400, "numbers in the body are too large for the model")
        documents = await asyncio.to_thread(lambda: [document(row, size, top) for row, _ in answers])
        answer = documents if what.has_lists and body.lstrip().startswith(b"[") else documents[0]
        return JSONResponse(answer, headers={"X-Batch-Size": str(max(shared for _, shared in answers))})

    def document(row: Tensor, size: tuple[int, int], top: int) -> dict[str, Any]:
        numbers, mask = use.answered(task, about[task.names], row, size)
        answer = task.document(about[task.names], numbers, top)
        return {**answer, "mask": base64.b64encode(mask).decode()} if mask else answer

    @app.get("/")
    async def describe() -> dict[str, Any]:
        return about

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        """The answer to an error; one that is unforeseen is logged by the server, too."""
        match error:
            case RequestValidationError():
                status, sentence = 400, "top must be a whole number, 1 or more"
            case Refusal(status_code=404 | 405):
                status, sentence = error.status_code, f"send {what.noun} to /predict by POST"
            case Refusal():
                status, sentence = error.status_code, error.detail
            case _:
                status, sentence = 500, f"{request.url.path} failed with {type(error).__name__}"
        return JSONResponse({"error": sentence}, status, getattr(error, "headers", None))

    for kind in (Refusal, RequestValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, refuse)
    return app


class Batches:
    """Answers for inputs that are there at the same time in one forward pass."""

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        self._model = model
        self._computing = asyncio.Lock()
        self._open: list[Tensor] = []  # inputs of the next pass
        self._rows: asyncio.Task[Tensor]  # their answers

    async def answer(self, one: Tensor) -> tuple[Tensor, int]:
        """Return an input's answers and the number of inputs in its forward pass."""
        if not self._open or len(self._open) == MAX_BATCH:
            self._open = []
            self._rows = asyncio.create_task(self._compute(self._open))
        inputs, rows, index = self._open, self._rows, len(self._open)
        inputs.append(one)
        return (await asyncio.shield(rows))[index], len(inputs)

    async def _compute(self, inputs: list[Tensor]) -> Tensor:
        await asyncio.sleep(BATCH_WAIT_S)
        async with self._computing:
            if self._open is inputs:
                self._open = []
            return await asyncio.to_thread(self._forward, torch.stack(inputs))

    def _forward(self, inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._model(inputs)
