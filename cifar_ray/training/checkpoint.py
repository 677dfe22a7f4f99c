"""Checkpoints: all of a run up to one step, nothing per worker, nothing executable.

``step-00000390/`` holds the weights (safetensors), the rest of the state (read with ``weights_only``),
and a manifest with the SHA-256 of both, written last. The folder gets its name when all is on disk, so a checkpoint
is either complete or absent. One whose files were damaged later is passed over, and so is one that was made with
another config than the run's.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from filelock import FileLock, Timeout
from pydantic import ConfigDict, TypeAdapter
from safetensors import torch as safetensors
from torch import Tensor

from cifar_ray.config import errors, option, runfile, schema
from cifar_ray.config.decided import Decided
from cifar_ray.config.schema import Number, Whole
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Facts
from cifar_ray.tasks import TaskSpec, choosing
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.observer import MANIFEST, Row, SavedCheckpoint, step_of

FORMAT = 7
"""Version of a checkpoint's layout. It changes when older code could not read what is written."""

WEIGHTS, STATE = "weights.safetensors", "state.pt"
_IN_STATE = ("optimizer", "clock", "epoch_loss", "history", "encoding")

_LOCK_WAIT_S = 120.0
_OF_WEIGHTS = ("precision", "convolutions", "weights_digest")
"""What is decided beside the config and decides the weights."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the next try would meet again."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint's ``manifest.json`` says of it.

    Attributes:
        config: the resolved config.
        decided: what it leaves open.
        task: what is learned.
        step: optimizer steps done.
        epoch: whole epochs done.
        score: the task's primary figure of the epoch that ends here, if one does, on the validation samples where
            there are any, else on the test.
        weights_sha256: of the weights file, in hex; empty until it is written.
        state_sha256: of the state file.
    """

    config: ResolvedConfig
    decided: Decided
    task: TaskSpec
    step: Whole
    epoch: Whole
    score: Number | None
    weights_sha256: str = ""
    state_sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Snapshot(Manifest):
    """All of a run after ``step`` optimizer steps.

    Attributes:
        weights: the model's parameters and buffers by name.
        optimizer: the optimizer's state.
        clock: the clock's state.
        epoch_loss: sum over the epoch's steps so far of the losses' mean over ranks.
        history: every row recorded so far.
        encoding: that of the data set (:class:`cifar_ray.data.Dataset`).
    """

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    clock: dict[str, Any]
    epoch_loss: Number
    history: list[Row]
    encoding: str = ""

    @property
    def spec(self) -> Facts:
        """The facts of the data set that it has learned from."""
        return self.decided.facts


_SNAPSHOT = TypeAdapter(Snapshot)


def save(snapshot: Snapshot, folder: Path) -> SavedCheckpoint:
    """Write a checkpoint below ``folder`` and remove those that need not be kept.

    The latest ``keep_checkpoints`` are kept, and the one with the best score where something chooses by it.

    Raises:
        CheckpointError: when there is no room for it; earlier checkpoints are untouched.
        OSError: when it cannot be written for another reason, likewise.
    """
    target = folder / f"step-{snapshot.step:08d}"
    for unfinished in folder.glob(".step-*.partial"):  # of a process that was killed while it wrote
        shutil.rmtree(unfinished, ignore_errors=True)
    partial = folder / f".{target.name}.partial"
    state = {**{name: getattr(snapshot, name) for name in _IN_STATE}, "history": [*map(asdict, snapshot.history)]}
    packed = io.BytesIO()
    torch.save(state, packed)  # to a file, it hides why the file cannot be written
    try:
        partial.mkdir(parents=True)
        weights_sha256 = _write(partial / WEIGHTS, safetensors.save(apart(snapshot.weights)))
        state_sha256 = _write(partial / STATE, packed.getbuffer())
        values = {
            "format": FORMAT,
            **{field.name: getattr(snapshot, field.name) for field in fields(Manifest)},
            "config": runfile.to_mapping(snapshot.config),
            "decided": schema.to_plain(snapshot.decided),
            "task": asdict(snapshot.task),
            "weights_sha256": weights_sha256,
            "state_sha256": state_sha256,
        }
        _write(partial / MANIFEST, json.dumps(values, indent=1).encode())
        shutil.rmtree(target, ignore_errors=True)  # a damaged one of the same step
        partial.rename(target)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise CheckpointError(f"checkpoint {target} cannot be written: {os.strerror(error.errno)}") from None
        raise
    top = best(folder)
    kept = [path for path in every(folder) if step_of(path.name) <= snapshot.step]  # later ones are damaged
    for path in kept[: -snapshot.config.keep_checkpoints]:
        if path != top:
            shutil.rmtree(path, ignore_errors=True)
    return SavedCheckpoint(target, snapshot.step, snapshot.epoch, weights_sha256, snapshot.score, top == target)


def _write(path: Path, content: bytes | memoryview) -> str:
    """Write a file to disk, and return its SHA-256."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of weights on the CPU: safetensors refuses those that a model has under two names."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()
    }


def read(path: Path) -> Manifest:
    """The manifest of one checkpoint, every field of the type that it should have.

    Raises:
        CheckpointError: when it is missing, damaged, or of another version.
    """
    try:
        values = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if (version := values["format"]) != FORMAT:
            raise ValueError(f"format {errors.brief(version)} is another version's; this one reads format {FORMAT}")
        config = runfile.resolved_from_mapping(values["config"])
        manifest: Manifest = schema.build(Manifest, {**values, "config": config})
        if manifest.step != step_of(path.name):
            raise ValueError("it is of another step")
    except Exception as error:  # of whatever kind the values are
        raise CheckpointError(
            f"checkpoint {path} has a {MANIFEST} that cannot be used: {errors.first_line(error)}"
        ) from None
    return manifest


def load(path: Path, config: ResolvedConfig | None = None, decided: Decided | None = None) -> Snapshot:
    """Read one checkpoint to the CPU, verifying every byte of it; it must fit a run's ``config``, if one is given.

    Raises:
        CheckpointError: when it is damaged, incomplete, of another version, or made with other settings than the run's.
    """
    manifest = read(path)
    if config is not None:
        _check_same(manifest, config, decided or Decided.asked(config), path)
    weights = _verified(path / WEIGHTS, manifest.weights_sha256)
    state = _verified(path / STATE, manifest.state_sha256)
    try:
        content = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
        values = {**vars(manifest), **{name: content[name] for name in _IN_STATE}, "weights": safetensors.load(weights)}
        return _SNAPSHOT.validate_python(values)
    except Exception as error:  # on content that is not what it should be, the readers raise whatever comes
        raise CheckpointError(f"checkpoint {path} cannot be read: {errors.first_line(error)}") from None


def _verified(path: Path, digest: str) -> bytes:
    """The content of a checkpoint's file, which must have the digest of the manifest."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint file {path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(f"checkpoint file {path} is damaged: its SHA-256 is not the manifest's")
    return content


def _check_same(made: Manifest, config: ResolvedConfig, decided: Decided, path: Path) -> None:
    """Refuse to go on with a run that learns something else, or otherwise; what is not decided yet may be anything."""
    theirs, ours = (option.of_weights(TrainConfig, each) for each in (made.config, config))
    pairs = {name: (theirs[name], ours[name]) for name in theirs}
    known = {name: value for name, value in vars(decided).items() if value not in (None, "auto")}
    pairs |= {name: (getattr(made.decided, name), known[name]) for name in _OF_WEIGHTS if name in known}
    if decided.data is not None:
        pairs["data"] = made.decided.facts.digest, decided.data.digest
    for name, (was, wanted) in pairs.items():
        if was != wanted:
            raise CheckpointError(
                f"checkpoint {path} was made with {name} {errors.brief(was)}, and this run has "
                f"{errors.brief(wanted)}; take another run name"
            )


def every(folder: Path) -> list[Path]:
    """The checkpoint folders below ``folder``, oldest first, readable or not."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in paths if step_of(path.name) >= 0), key=lambda path: step_of(path.name))


def latest(
    folder: Path, config: ResolvedConfig | None = None, decided: Decided | None = None
) -> tuple[Path, Snapshot, tuple[str, ...]] | None:
    """The newest checkpoint that :func:`load` can use, with sentences about newer ones; None when there is none at all.

    Raises:
        CheckpointError: when there are some and none can be used.
    """
    problems: list[str] = []
    for path in reversed(every(folder)):
        try:
            return path, load(path, config, decided), tuple(problems)
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"no usable checkpoint in {folder}: {problems[0]}")
    return None


def existing(folder: Path) -> list[SavedCheckpoint]:
    """What there is below ``folder``, oldest first, as it was told when it was saved; damaged ones are left out."""
    manifests: dict[Path, Manifest] = {}
    for path in every(folder):
        with suppress(CheckpointError):
            manifests[path] = read(path)
    scores = {
        path: made.task.primary.rank(made.score)
        for path, made in manifests.items()
        if made.score is not None and choosing.objective(made.task, made.decided.facts) is not None
    }
    top = max(scores, key=scores.__getitem__, default=None)
    return [
        SavedCheckpoint(path, made.step, made.epoch, made.weights_sha256, made.score, path == top)
        for path, made in manifests.items()
    ]


def best(folder: Path) -> Path | None:
    """The checkpoint with the best score, the earliest of equals; None when nothing chooses by it, or none has one."""
    return next((saved.path for saved in existing(folder) if saved.best), None)


def chosen(folder: Path) -> Path:
    """The checkpoint with the best score.

    Raises:
        CheckpointError: when nothing chooses by it, or none has one.
    """
    if (path := best(folder)) is None:
        raise CheckpointError(
            f"no checkpoint in {folder} is the best: the run has no validation images (--val-share) to choose it by"
        )
    return path


def lock(folder: Path) -> FileLock:
    """Make this process the only one that trains into ``folder``, until it ends or releases the lock.

    A process that was just told to die may still hold it, so some time is given.

    Raises:
        CheckpointError: when another process keeps it, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=_LOCK_WAIT_S, thread_local=False)  # any thread may release it
        lock.acquire()
        return lock
    except Timeout:
        raise CheckpointError(f"another process is training into {folder}") from None
    except OSError as error:
        raise CheckpointError(f"checkpoints cannot be written to {folder}: {error.strerror}") from None
