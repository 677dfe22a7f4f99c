"""The manifest of a checkpoint: the step and the config it belongs to, and the SHA-256 of its files and of itself."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cifar_ray import tasks
from cifar_ray.config import errors, files, runfile, schema
from cifar_ray.config.decided import Decided
from cifar_ray.config.schema import Number, Whole
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.tasks import TaskSpec
from cifar_ray.training.errors import CheckpointError

FORMAT = 4
"""Version of a checkpoint's layout. It changes when older code could not read what is written."""

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Written:
    """A file of a checkpoint as it was written.

    Attributes:
        sha256: SHA-256 of its content, in hex.
        bytes: its size.
    """

    sha256: str
    bytes: Whole


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself; ``weights`` and ``state`` are its files, the rest is a ``Snapshot``'s."""

    config: ResolvedConfig
    decided: Decided
    step: Whole
    epoch: Whole
    score: Number | None
    class_names: tuple[str, ...]
    weights: Written
    state: Written
    task: TaskSpec


def describe(path: Path) -> Written:
    """A file of a checkpoint as it lies there."""
    return Written(files.digest(path, "sha256"), path.stat().st_size)


def write(manifest: Manifest, folder: Path) -> None:
    """Write the manifest with its own digest into a checkpoint's folder."""
    task = tasks.to_record(manifest.task)
    values = {
        "format": FORMAT,
        "step": manifest.step,
        "epoch": manifest.epoch,
        **({manifest.task.primary.name: manifest.score} if task is None else {"score": manifest.score, "task": task}),
        "class_names": list(manifest.class_names),
        "config": runfile.to_mapping(manifest.config),
        "decided": manifest.decided.to_mapping(),
        "files": {WEIGHTS: vars(manifest.weights), STATE: vars(manifest.state)},
    }
    (folder / MANIFEST).write_text(json.dumps({**values, "sha256": _digest(values)}, indent=1), encoding="utf-8")


def read(path: Path) -> Manifest:
    """The manifest of one checkpoint, every field of the type that it should have.

    Raises:
        CheckpointError: when it is missing, damaged, edited, or of another version.
    """
    try:
        values = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        version = values["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"checkpoint {path} has no readable {MANIFEST}") from None
    if version != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {errors.brief(version)}, written by another version of cifar_ray; "
            f"this one reads format {FORMAT}"
        )
    try:
        sealed = values.pop("sha256", None) == _digest(values)
        manifest = _typed(values)
    except Exception as error:  # of whatever kind the values are
        raise CheckpointError(
            f"checkpoint {path} has a {MANIFEST} that cannot be used: {errors.first_line(error)}"
        ) from None
    if not sealed:
        raise CheckpointError(f"checkpoint {path} is damaged: its {MANIFEST} is not what was written")
    if manifest.step != step_of(path.name):
        raise CheckpointError(f"checkpoint {path} is damaged: its {MANIFEST} is that of step {manifest.step}")
    return manifest


def verify(path: Path, expected: Written) -> None:
    """Compare every byte of a checkpoint's file with its manifest.

    Raises:
        CheckpointError: when the file is missing, damaged or another.
    """
    try:
        intact = describe(path) == expected
    except OSError as error:
        raise CheckpointError(f"checkpoint file {path} cannot be read: {error.strerror}") from None
    if not intact:
        raise CheckpointError(f"checkpoint file {path} is damaged: its SHA-256 is not the manifest's")


def folder_of(step: int) -> str:
    """The name of the folder of the checkpoint after a step."""
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    """The step in the name of a checkpoint's folder; -1 when it is another's name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else -1


def _digest(values: dict[str, Any]) -> str:
    """SHA-256 of a manifest's values, however they are laid out in its file."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _typed(values: dict[str, Any]) -> Manifest:
    described = values["files"]
    config = runfile.resolved_from_mapping(values["config"])
    task = tasks.recorded(values.get("task"))
    fields = {name: values[name] for name in ("decided", "step", "epoch", "class_names")}
    fields |= {"score": values["score" if "task" in values else task.primary.name], "task": task}
    manifest: Manifest = schema.build(
        Manifest, {**fields, "config": config, "weights": described[WEIGHTS], "state": described[STATE]}
    )
    return manifest
