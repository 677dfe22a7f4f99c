"""Use a run's model: evaluate it again, and have it answer for images."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from cifar_ray import data, storage, tasks, tracking
from cifar_ray.config import runfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.data import Dataset
from cifar_ray.orchestration.run import checkpoints, given, run_folder
from cifar_ray.orchestration.run.given import Note
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks import TaskSpec
from cifar_ray.tasks.protocol import Evaluation, Task
from cifar_ray.tracking import reading, store
from cifar_ray.tracking.study import Run
from cifar_ray.training import checkpoint, hardware, predictor, recipe, samples
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.errors import CheckpointError


@dataclass(frozen=True)
class Scored:
    """A checkpoint evaluated again.

    Attributes:
        checkpoint: its address.
        step: optimizer steps done.
        metrics: as :class:`cifar_ray.training.evaluate.Evaluation` has them.
        images: test images counted.
        recorded_score: the task's primary figure recorded with the checkpoint, if its epoch was evaluated.
        recorded_images: images that it was counted on, if any; of the test, fewer than ``images`` after
            ``--test-images``.
        task: what the run learns.
        recorded_on: the images that it was counted on: ``val`` or ``test``.
    """

    checkpoint: str
    step: int
    metrics: dict[str, float]
    images: int
    recorded_score: float | None
    recorded_images: int | None
    task: TaskSpec = tasks.USUAL
    recorded_on: tasks.Subset = "test"


@dataclass(frozen=True)
class Prediction:
    """What a model answers for one image, text, or row of a table.

    Attributes:
        sample: what was answered for, by name: the file as ``image``, the ``text``, or the ``table`` and the ``row`` in
            it, from 1.
        answers: classes with their probabilities, likeliest first; values by name; or of a mask, classes with their
            shares of the pixels, the largest first.
        mask: the file of the mask; None of other tasks.
    """

    sample: dict[str, Path | str | int]
    answers: list[tuple[str, float]]
    mask: Path | None = None


@dataclass(frozen=True)
class KnownCheckpoint:
    """A checkpoint of a run, read from the folder ``address``."""

    address: str
    snapshot: Snapshot
    run: Run


def find_run(run: str, tracking_uri: str | None, note: Note) -> Run:
    """Find a run by its name or MLflow id; one that MLflow has lost, by its folder or its name in the default storage.

    Raises:
        ConfigError: when there is no such run, or there are several of that name.
    """
    uri = store.resolve_uri(tracking_uri)
    try:
        return reading.open_run(uri, run)[1]
    except reading.AmbiguousRunError:
        raise
    except ConfigError as unknown:
        folder = storage.at(run) if "/" in run else storage.at(None).below(run)
        try:
            key = run_folder.reopen(folder).key
        except ConfigError:
            raise unknown from None
    with suppress(ConfigError):  # it does not answer
        if known := reading.with_key(uri, key):
            return known
    note(f"MLflow at {uri} does not have run {folder.name!r}, which is in {folder.address}")
    return Run(folder.name, "", "", tags={store.KEY_TAG: key, store.FOLDER_TAG: folder.address})


def find_checkpoint(run: str, which: WhichCheckpoint, tracking_uri: str | None, note: Note) -> KnownCheckpoint:
    """Read a run's newest usable checkpoint, or the one with the best validation figure.

    Raises:
        CheckpointError: when the run has no usable checkpoint, or none is the best.
        ConfigError: when there is no such run.
    """
    tracking.quieten(verbose=False)
    known = find_run(run, tracking_uri, note)
    if not known.folder:
        raise CheckpointError(f"run {run!r} failed before its first checkpoint")
    kept = storage.at(known.folder).below(checkpoints.CHECKPOINTS)
    with checkpoints.reading(storage.at(known.folder), which) as here:
        newest = checkpoint.latest(here)
        if newest is None:
            raise CheckpointError(f"run {run!r} has no checkpoint in {kept.address}")
        for problem in newest[2]:
            note(f"passed over: {problem.replace(str(here), kept.address)}")
        path, snapshot = newest[:2]
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

    With ``auto``, a GPU that is full, or that PyTorch cannot use, is left for the CPU, with a note.

    Raises:
        CheckpointError: when the run has no usable checkpoint.
        ConfigError: when there is no such run, or its data set cannot be read.
    """
    chosen = find_checkpoint(run, which, tracking_uri, note)
    snapshot = chosen.snapshot
    model = predictor.restore(chosen.address, snapshot)
    config = snapshot.config
    if data_dir is not None:
        config = runfile.resolved_from_mapping({**runfile.to_mapping(config), "data_dir": data_dir})
    dataset = data.read(config, encoding=snapshot.encoding)
    recipe.settle(config, snapshot.decided, dataset)  # refuses others than it learned with
    dataset = dataset.normalised(config.normalise)
    torch.set_num_threads(hardware.allowed_cpus())
    evaluation = _evaluation(dataset, tasks.build(config, snapshot.spec), model, device, note)
    counted = len(dataset.val) if dataset.val is not None else config.test_images or evaluation.images
    return Scored(
        chosen.address,
        snapshot.step,
        evaluation.metrics,
        evaluation.images,
        snapshot.score,
        None if snapshot.score is None else counted,
        snapshot.task,
        snapshot.spec.measured,
    )


def _evaluation(dataset: Dataset, task: Task, model: nn.Module, device: str, note: Note) -> Evaluation:
    from cifar_ray.training.evaluate import Evaluator

    why = ""
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        why = hardware.gpu_problem([0])
        if not why:
            gpu = torch.device("cuda", 0)
            try:
                model = model.to(gpu)
                return Evaluator(dataset, Worker(device=gpu), task)(model)
            except torch.OutOfMemoryError:
                why = "the GPU has too little free memory"
    if why and device == "cuda":
        raise ConfigError("device", f"must be cpu or auto here: {why}")
    if why:
        note(f"evaluating on the CPU: {why}")
    return Evaluator(dataset, Worker(), task)(model.cpu())


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
        run: name or MLflow id of the run, or its folder.
        images: files and folders of images; files of texts (:func:`cifar_ray.orchestration.run.given.sentences`), or of
            rows.
        which: checkpoint.
        tracking_uri: of the store that has the run.
        note: told of what is left out, and how far it is.
        top: classes to keep, the likeliest; all without.
        out: folder of the masks, by default ``predicted_masks``: PNG files with the names and sizes of the images.
        words: texts.
        overwrite: whether masks that are in ``out`` may be replaced.

    Returns:
        What kind of answers they are, and the answers.

    Raises:
        CheckpointError: when the run has no usable checkpoint.
        ConfigError: when there is no such run, or its model cannot answer for what is given, or ``out`` cannot be.
    """
    chosen = find_checkpoint(run, which, tracking_uri, note)
    snapshot, task = chosen.snapshot, chosen.snapshot.task
    model, names = predictor.of(chosen.address, snapshot), snapshot.spec.names
    if out is not None and not task.has_masks:
        raise ConfigError("out", f"is for models that predict masks, and that of run {run} predicts {task.answer}")
    places: dict[Path, Path] = {}
    if task.has_masks:
        places = given.places(given.images(images)[0], images, out, overwrite)
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
