"""Using what a run has left: evaluate its model again, and classify images with it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from cifar_ray import data, storage, tracking
from cifar_ray.config import WhichCheckpoint
from cifar_ray.data import SPECS
from cifar_ray.data.datasets import to_model_size
from cifar_ray.place import Place
from cifar_ray.storage import copies
from cifar_ray.strict import ConfigError
from cifar_ray.tracking import store
from cifar_ray.training import checkpoint, classifier, hardware
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
        recorded_accuracy: the accuracy noted when the checkpoint was written, if its epoch was evaluated.
    """

    checkpoint: str
    step: int
    metrics: dict[str, float]
    images: int
    recorded_accuracy: float | None


@dataclass(frozen=True)
class Prediction:
    """One image's classes, likeliest first, with their probabilities."""

    image: Path
    classes: list[tuple[str, float]]


Note = Callable[[str], None]
"""Is told what a person should know beside the result."""


def find_checkpoint(run: str, which: WhichCheckpoint, tracking_uri: str | None, note: Note) -> tuple[str, Snapshot]:
    """Address of a run's newest usable checkpoint, or the one with the highest test accuracy, and what is in it.

    Raises:
        CheckpointError: when the run has none that can be used.
        ConfigError: when there is no such run.
    """
    tracking.quieten(verbose=False)
    _, known = store.open_run(store.resolve_uri(tracking_uri), run)
    kept = storage.at(known.folder).below(copies.CHECKPOINTS)
    with copies.reading(storage.at(known.folder), which) as here:
        newest = checkpoint.latest(here)
        best = checkpoint.best(here) if which == "best" else None
        if newest is None:
            raise CheckpointError(f"run {run!r} has no checkpoint in {kept.address}")
        for problem in newest[2]:
            note(f"passed over: {problem.replace(str(here), kept.address)}")
        path, snapshot = (best, checkpoint.load(best)) if best else newest[:2]
        return kept.below(path.name).address, snapshot


def evaluate(run: str, which: WhichCheckpoint, data_dir: str | None, tracking_uri: str | None, note: Note) -> Scored:
    """Evaluate a run's model on every test image, in this process, with the run's precision.

    Raises:
        CheckpointError: when the run has no usable checkpoint.
        ConfigError: when there is no such run, or its data set cannot be read.
    """
    from cifar_ray.training.evaluate import Evaluator

    path, snapshot = find_checkpoint(run, which, tracking_uri, note)
    model = classifier.restore(path, snapshot)
    dataset = data.load(snapshot.config.dataset, data_dir or snapshot.config.data_dir)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hardware.set_threads(os.cpu_count() or 1)
    evaluation = Evaluator(dataset, Place(device=device), snapshot.config.precision)(model.to(device))
    return Scored(path, snapshot.step, evaluation.metrics, evaluation.images, snapshot.accuracy)


def predict(
    run: str, images: Sequence[Path], which: WhichCheckpoint, tracking_uri: str | None, note: Note
) -> list[Prediction]:
    """Classify image files with a run's model.

    An image is scaled to the size of its data set's, and made grey if they are.

    Raises:
        CheckpointError: when the run has no usable checkpoint.
        ConfigError: when there is no such run, or a file is not an image.
    """
    if not images:
        raise ConfigError("", "there is no image to classify; name at least one file after the run")
    opened = [_open(image) for image in images]
    path, snapshot = find_checkpoint(run, which, tracking_uri, note)
    model = classifier.restore(path, snapshot)
    spec, names = SPECS[snapshot.config.dataset], snapshot.class_names
    size = (spec.native_size, spec.native_size)
    pixels = [image.convert("L" if spec.grey else "RGB").resize(size) for image in opened]
    batch = torch.from_numpy(to_model_size(spec, np.stack([np.asarray(image) for image in pixels])))
    with torch.inference_mode():
        probabilities = classifier.Classifier(model, spec).eval()(batch)
    predictions = []
    for image, row in zip(images, probabilities, strict=True):
        order = row.argsort(descending=True).tolist()
        predictions.append(Prediction(image, [(names[index], row[index].item()) for index in order]))
    return predictions


def _open(path: Path) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # it is large, but not too large
            image = Image.open(path)
            image.load()
    except Image.DecompressionBombError:
        raise ConfigError("", f"cannot read image {path}: it has too many pixels") from None
    except (OSError, UnidentifiedImageError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not an image"
        raise ConfigError("", f"cannot read image {path}: {reason}") from None
    return image
