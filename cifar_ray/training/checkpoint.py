"""Checkpoints: all of a run up to one step, nothing per worker, nothing executable.

``step-00000390/`` holds the weights (safetensors), the rest of the state (read with ``weights_only``),
and a manifest with the SHA-256 of both and of itself, written last. The folder gets its name when all is on
disk, so a checkpoint is either complete or absent. One that was damaged or edited later is found by its hash and
passed over, and so is one that was made with another config than the run's.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic import TypeAdapter
from safetensors import torch as safetensors
from torch import Tensor

from cifar_ray import tasks
from cifar_ray.config import errors, option, runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.schema import Number
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Facts
from cifar_ray.tasks import TaskSpec, choosing
from cifar_ray.training import manifest
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.manifest import MANIFEST, STATE, WEIGHTS, Manifest, step_of
from cifar_ray.training.observer import Row, SavedCheckpoint

_LOCK_WAIT_S = 120.0
_OF_WEIGHTS = ("precision", "convolutions", "data", "weights_digest")
"""What is decided beside the config and decides the weights."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the next try would meet again."""


@dataclass(frozen=True)
class Snapshot:
    """All of a run after ``step`` optimizer steps.

    Attributes:
        config: the resolved config.
        decided: what it leaves open.
        step: optimizer steps done.
        epoch: whole epochs done.
        score: the task's primary figure of the epoch that ends here, if one does, on the validation samples where
            there are any, else on the test.
        class_names: one per label.
        weights: the model's parameters and buffers by name.
        optimizer: the optimizer's state.
        clock: the clock's state.
        epoch_loss: sum over the epoch's steps so far of the losses' mean over ranks.
        history: every row recorded so far.
        task: what is learned.
        encoding: that of the data set (:class:`cifar_ray.data.Dataset`).
    """

    config: ResolvedConfig
    decided: Decided
    step: int
    epoch: int
    score: float | None
    class_names: tuple[str, ...]
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    clock: dict[str, Any]
    epoch_loss: float
    history: Sequence[Row]
    task: TaskSpec
    encoding: str = ""

    @property
    def spec(self) -> Facts:
        """The facts of the data set that it has learned from."""
        return self.decided.facts


@dataclass(frozen=True)
class _State:
    """What ``state.pt`` holds, named as in :class:`Snapshot`."""

    optimizer: dict[str, Any]
    clock: dict[str, Any]
    epoch_loss: Number
    history: list[Row]
    encoding: str = ""


_STATE = TypeAdapter(_State)


def save(snapshot: Snapshot, folder: Path) -> SavedCheckpoint:
    """Write a checkpoint below ``folder`` and remove those that need not be kept.

    The latest ``keep_checkpoints`` are kept, and the one with the best score where something chooses by it.

    Raises:
        CheckpointError: when there is no room for it; earlier checkpoints are untouched.
        OSError: when it cannot be written for another reason, likewise.
    """
    target = folder / manifest.folder_of(snapshot.step)
    for unfinished in folder.glob(".step-*.partial"):  # of a process that was killed while it wrote
        shutil.rmtree(unfinished, ignore_errors=True)
    partial = folder / f".{target.name}.partial"
    try:
        partial.mkdir(parents=True)
        (partial / WEIGHTS).write_bytes(safetensors.save(apart(snapshot.weights)))
        state = {
            "optimizer": snapshot.optimizer,
            "clock": snapshot.clock,
            "epoch_loss": snapshot.epoch_loss,
            "history": [asdict(row) for row in snapshot.history],
            **({"encoding": snapshot.encoding} if snapshot.encoding else {}),
        }
        (partial / STATE).write_bytes(_packed(state))
        made = Manifest(
            config=snapshot.config,
            decided=snapshot.decided,
            step=snapshot.step,
            epoch=snapshot.epoch,
            score=snapshot.score,
            class_names=snapshot.class_names,
            weights=manifest.describe(partial / WEIGHTS),
            state=manifest.describe(partial / STATE),
            task=snapshot.task,
        )
        manifest.write(made, partial)
        for name in (WEIGHTS, STATE, MANIFEST):
            _sync(partial / name)
        shutil.rmtree(target, ignore_errors=True)  # a damaged one of the same step
        partial.rename(target)
        _sync(folder)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise CheckpointError(f"checkpoint {target} cannot be written: {os.strerror(error.errno)}") from None
        raise
    return _event(target, made, best=_prune(folder, made) == target)


def load(path: Path, config: ResolvedConfig | None = None, decided: Decided | None = None) -> Snapshot:
    """Read one checkpoint to the CPU, verifying every byte of it.

    Args:
        path: its folder.
        config: the run's, to compare the checkpoint's with; None not to compare.
        decided: likewise.

    Raises:
        CheckpointError: when it is damaged, incomplete, of another version, or made with other settings than the run's.
    """
    made = manifest.read(path)
    if config is not None:
        _check_same(made, config, decided or Decided.asked(config), path)
    manifest.verify(path / WEIGHTS, made.weights)
    manifest.verify(path / STATE, made.state)
    try:
        weights = safetensors.load((path / WEIGHTS).read_bytes())
        state = _STATE.validate_python(torch.load(path / STATE, map_location="cpu", weights_only=True))
        of = (made.config, made.decided, made.step, made.epoch, made.score, made.class_names)
        return Snapshot(*of, weights, **vars(state), task=made.task)
    except Exception as error:  # on content that is not what it should be, the readers raise whatever comes
        raise CheckpointError(f"checkpoint {path} cannot be read: {errors.first_line(error)}") from None


def apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights on the CPU, each in memory of its own: safetensors refuses those that a model has under two names."""
    separate: dict[str, Tensor] = {}
    held: set[int] = set()
    for name, tensor in weights.items():
        on_cpu = tensor.detach().cpu().contiguous()
        place = on_cpu.untyped_storage().data_ptr()
        separate[name] = on_cpu.clone() if place in held else on_cpu
        held.add(place)
    return separate


def to_bytes(snapshot: Snapshot) -> bytes:
    """A snapshot for another process of the same run, in the format of ``state.pt``."""
    config, decided = runfile.to_mapping(snapshot.config), snapshot.decided.to_mapping()
    plain = {"config": config, "decided": decided, "task": snapshot.task.to_mapping()}
    return _packed({**vars(snapshot), **plain, "history": [asdict(row) for row in snapshot.history]})


def from_bytes(content: bytes) -> Snapshot:
    """What :func:`to_bytes` has made, on the CPU."""
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    state["config"] = runfile.resolved_from_mapping(state["config"])
    state["decided"] = Decided.from_mapping(state["decided"])
    state["history"] = [Row(**row) for row in state["history"]]
    state["task"] = tasks.from_mapping(state["task"])
    return Snapshot(**state)


def _packed(state: dict[str, Any]) -> bytes:
    """``torch.save`` in memory; to a file, it hides why the file cannot be written."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _check_same(made: Manifest, config: ResolvedConfig, decided: Decided, path: Path) -> None:
    """Refuse to go on with a run that learns something else, or otherwise; what is not decided yet may be anything."""
    pairs = {
        name: (option.value_of(made.config, name), option.value_of(config, name))
        for name in option.decide_weights(TrainConfig)
    }
    known = {name: value for name, value in vars(decided).items() if value not in (None, "auto")}
    pairs |= {name: (getattr(made.decided, name), known.get(name)) for name in _OF_WEIGHTS}
    for name, (was, wanted) in pairs.items():
        if was != wanted and not (wanted is None and name in _OF_WEIGHTS):
            raise CheckpointError(
                f"checkpoint {path} was made with {name} {errors.brief(was)}, and this run has "
                f"{errors.brief(wanted)}; take another run name"
            )


def every(folder: Path) -> list[Path]:
    """The checkpoint folders below ``folder``, oldest first, readable or not."""
    if not folder.is_dir():
        return []
    steps = {path: step_of(path.name) for path in folder.iterdir()}
    return sorted((path for path, step in steps.items() if step >= 0), key=steps.__getitem__)


def latest(
    folder: Path, config: ResolvedConfig | None = None, decided: Decided | None = None
) -> tuple[Path, Snapshot, tuple[str, ...]] | None:
    """The newest checkpoint that can be used, with sentences about newer ones that cannot.

    Args:
        folder: that of the checkpoints.
        config: as for :func:`load`.
        decided: likewise.

    Returns:
        None when there is no checkpoint at all.

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
    readable = _readable(folder)
    top = _best(readable)
    return [_event(path, made, best=path == top) for path, made in readable.items()]


def best(folder: Path) -> Path | None:
    """The checkpoint with the best score, the earliest of equals; None when nothing chooses by it, or none has one."""
    return _best(_readable(folder))


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


def _readable(folder: Path) -> dict[Path, Manifest]:
    """The checkpoints whose manifests can be read, oldest first."""
    manifests = {}
    for path in every(folder):
        with suppress(CheckpointError):
            manifests[path] = manifest.read(path)
    return manifests


def _best(readable: Mapping[Path, Manifest]) -> Path | None:
    ranks = {
        path: made.task.primary.rank(made.score)
        for path, made in readable.items()
        if made.score is not None and choosing.objective(made.task, made.decided.facts) is not None
    }
    return max(ranks, key=ranks.__getitem__, default=None)


def _event(path: Path, made: Manifest, best: bool) -> SavedCheckpoint:
    return SavedCheckpoint(path, made.step, made.epoch, made.weights.sha256, made.score, best)


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


def _prune(folder: Path, newest: Manifest) -> Path | None:
    """Remove what need not be kept; returns the best checkpoint, for which all manifests are read.

    Later ones than ``newest`` were passed over as damaged and do not count.
    """
    top = best(folder) if choosing.objective(newest.task, newest.decided.facts) is not None else None
    older = [path for path in every(folder) if step_of(path.name) <= newest.step]
    for path in older[: -newest.config.keep_checkpoints]:
        if path != top:
            shutil.rmtree(path, ignore_errors=True)
    return top


def _sync(path: Path) -> None:
    """Have the operating system write a file or a folder's names to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
