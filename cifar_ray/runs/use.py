"""Use a run's model: find it, evaluate it again, and have it answer for images, texts or rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from cifar_ray import data, storage, tasks, tracking
from cifar_ray.config import runfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.runs import checkpoints, given
from cifar_ray.runs.folder import CHECKPOINTS, RunFolder
from cifar_ray.runs.given import Note
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks import TaskSpec
from cifar_ray.tracking import reading
from cifar_ray.tracking.study import FOLDER_TAG, KEY_TAG, Run
from cifar_ray.tracking.uri import resolve_uri
from cifar_ray.training import checkpoint, hardware, predictor, recipe, samples
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.errors import CheckpointError


@dataclass(frozen=True)
class KnownCheckpoint:
    """A checkpoint of a run, read from the folder ``address``."""

    address: str
    snapshot: Snapshot
    run: Run


@dataclass(frozen=True)
class Scored:
    """A checkpoint, by its address, evaluated again on so many test images.

    Attributes:
        recorded_score: the task's primary figure recorded with the checkpoint; None if its epoch was not evaluated, or
            on fewer test images (``--test-images``).
        recorded_on: the images that it was counted on.
    """

    checkpoint: str
    step: int
    metrics: dict[str, float]
    images: int
    recorded_score: float | None
    task: TaskSpec = tasks.USUAL
    recorded_on: tasks.Subset = "test"


@dataclass(frozen=True)
class Prediction:
    """What a model answers for one image, text, or row of a table.

    Attributes:
        sample: what was answered for, by name: ``image``, ``text``, or ``table`` and its ``row`` from 1.
        answers: classes with their probabilities or shares of a mask, the largest first; or values by name.
        mask: the file of the mask; None of other tasks.
    """

    sample: dict[str, Path | str | int]
    answers: list[tuple[str, float]]
    mask: Path | None = None


def find_run(run: str, tracking_uri: str | None, note: Note) -> tuple[Run, str]:
    """Find a run by its name or MLflow id; one that MLflow does not have there, by its folder or its name.

    Its folder is in the default storage. It names the store of the run, unless a store is given.

    Returns:
        The run, and the URI of its store; without an MLflow id if that store has lost it or does not answer.

    Raises:
        ConfigError: when there is no such run, or there are several of that name.
    """
    uri = resolve_uri(tracking_uri)
    try:
        return reading.open_run(uri, run)[1], uri
    except reading.AmbiguousRunError:
        raise
    except ConfigError as unknown:
        try:
            folder = RunFolder.at(run if "/" in run else storage.at(None).below(run).address)
        except ConfigError:
            raise unknown from None
    own = uri if tracking_uri else folder.asked()[0].tracking_uri or uri
    for each in dict.fromkeys([uri, own]):
        with suppress(ConfigError):  # it does not answer
            if known := reading.with_key(each, folder.key):
                return known, each
    note(f"MLflow at {own} does not have run {folder.name!r}, which is in {folder.address}")
    return Run(folder.name, "", "", tags={KEY_TAG: folder.key, FOLDER_TAG: folder.address}), own


def find_checkpoint(run: str, which: WhichCheckpoint, tracking_uri: str | None, note: Note) -> KnownCheckpoint:
    """Read a run's newest usable checkpoint, or the one with the best validation figure.

    Raises:
        CheckpointError: when the run has no usable checkpoint, or none is the best.
        ConfigError: when there is no such run.
    """
    tracking.quieten(verbose=False)
    known, _ = find_run(run, tracking_uri, note)
    if not known.folder:
        raise CheckpointError(f"run {run!r} failed before its first checkpoint")
    kept = storage.at(known.folder).below(CHECKPOINTS)
    with checkpoints.reading(storage.at(known.folder)) as here:
        newest = checkpoint.latest(here)
        if newest is None:
            raise CheckpointError(f"run {run!r} has no checkpoint in {kept.address}")
        path, snapshot, problems = newest
        for problem in problems:
            note(f"passed over: {problem.replace(str(here), kept.address)}")
        if which == "best":
            path = checkpoint.chosen(here)
            snapshot = checkpoint.load(path)
        return KnownCheckpoint(kept.below(path.name).address, snapshot, known)


def evaluate(
    run: str,
    which: WhichCheckpoint,
    data_dir: str | None,
    tracking_uri: str | None,
    note: Note,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> Scored:
    """Evaluate a run's model on every test image, in this process, in float32 as during training.

    Device ``auto`` takes the first GPU, if there is one.

    Raises:
        CheckpointError: when the run has no usable checkpoint.
        ConfigError: when there is no such run, its data set cannot be read, or the GPU is full.
    """
    from cifar_ray.training.evaluate import Evaluator

    chosen = find_checkpoint(run, which, tracking_uri, note)
    snapshot = chosen.snapshot
    model = predictor.of(chosen.address, snapshot).model
    config = snapshot.config
    if data_dir is not None:
        config = runfile.resolved_from_mapping({**runfile.to_mapping(config), "data_dir": data_dir})
    dataset = data.read(config, encoding=snapshot.encoding)
    recipe.settle(config, snapshot.decided, dataset)  # refuses others than it learned with
    dataset = dataset.normalised(config.normalise)
    torch.set_num_threads(hardware.allowed_cpus())
    is_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    place = torch.device("cuda", 0) if is_gpu else torch.device("cpu")
    try:
        if is_gpu:
            hardware.check_gpus([0])
        evaluator = Evaluator(dataset, Worker(device=place), tasks.build(config, snapshot.spec))
        evaluation = evaluator(model.to(place))
    except torch.OutOfMemoryError:
        raise ConfigError("device", "must be cpu here: the GPU has too little free memory") from None
    measured = snapshot.spec.measured
    score = snapshot.score if measured == "val" or not config.test_images else None
    return Scored(chosen.address, snapshot.step, evaluation.metrics, evaluation.images, score, snapshot.task, measured)


def predict(
    run: str,
    images: Sequence[Path],
    which: WhichCheckpoint,
    tracking_uri: str | None,
    note: Note,
    top: int | None = None,
    out: Path | None = None,
    words: Sequence[str] = (),
    overwrite: bool = False,
) -> tuple[TaskSpec, list[Prediction]]:
    """Answer with a run's model for image files and those below folders, for texts, or for the rows of CSV files.

    Args:
        run: its name, MLflow id or folder.
        images: files and folders of images; files of texts (:func:`cifar_ray.runs.given.sentences`), or of rows.
        which: checkpoint.
        tracking_uri: of the store that has the run.
        note: told of what is left out.
        top: classes to keep, the likeliest; all without.
        out: folder of the masks; one that has files needs ``overwrite``.
        words: texts.
        overwrite: whether masks may replace files.

    Raises:
        CheckpointError: when the run has no usable checkpoint.
        ConfigError: when there is no such run, or its model cannot answer for what is given, or ``out`` cannot be.
    """
    chosen = find_checkpoint(run, which, tracking_uri, note)
    snapshot, task = chosen.snapshot, chosen.snapshot.task
    model, names = predictor.of(chosen.address, snapshot), snapshot.spec.names
    if out is not None and not task.has_masks:
        raise ConfigError("out", f"is for models that predict masks, and that of run {run} predicts {task.answer}")
    places = given.places(given.images(images)[0], images, out, overwrite) if task.has_masks else {}
    predictions: list[Prediction] = []
    for named, inputs, sizes in given.of(snapshot.spec, snapshot.encoding).batches(images, words, note):
        with torch.inference_mode():
            rows = model(inputs)
        for sample, row, size in zip(named, rows, sizes):
            numbers, mask = answered(task, names, row, size)
            if place := places.get(sample["image"]) if mask else None:
                given.write(place, mask)
            shown = task.answers(names, numbers)[: top if task.has_classes else None]
            predictions.append(Prediction(sample, shown, place))
    if not predictions:
        raise ConfigError("", "none of these files is an image that can be read")
    return task, predictions


def answered(task: TaskSpec, names: Sequence[str], row: Tensor, size: tuple[int, int]) -> tuple[Sequence[float], bytes]:
    """The numbers that a model answers for an image of that width and height, and its mask, if any, as a PNG file.

    The numbers of a mask are each class's share of its pixels.
    """
    if not task.has_masks:
        return row.tolist(), b""
    shares = torch.bincount(row.flatten(), minlength=len(names)) / row.numel()
    return shares.tolist(), samples.mask_png(row.numpy(), size)
