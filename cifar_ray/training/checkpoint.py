"""Checkpoints: all of a run up to one step, nothing per worker, nothing executable.

``step-00000390/`` holds the weights (safetensors), the rest of the state (read with ``weights_only``),
and a manifest with the SHA-256 of both and of itself, written last. The folder gets its name when all is on
disk, so a checkpoint is either complete or absent. One that was damaged or edited later is found by its hash and
passed over, and so is one that was made with another config than the run's.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import torch as safetensors
from torch import Tensor

from cifar_ray.config import errors, files, schema
from cifar_ray.config import train as configs
from cifar_ray.config.schema import Number, Whole
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.observer import Row, SavedCheckpoint

FORMAT = 2
"""Version of the layout. It changes when older code could not read what is written."""

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")
_LOCK_WAIT_S = 120.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the next try would meet again."""


@dataclass(frozen=True)
class Snapshot:
    """All of a run after ``step`` optimizer steps.

    Attributes:
        config: the resolved config, with nothing left to ``auto``.
        step: optimizer steps done.
        epoch: whole epochs done.
        accuracy: test accuracy from 0 to 1 of the epoch that ends here, if one does.
        class_names: one per label.
        weights: the model's parameters and buffers by name.
        optimizer: the optimizer's state.
        clock: the clock's state.
        epoch_loss: sum over the epoch's steps so far of the losses' mean over ranks.
        history: every row recorded so far.
    """

    config: ResolvedConfig
    step: int
    epoch: int
    accuracy: float | None
    class_names: tuple[str, ...]
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    clock: dict[str, Any]
    epoch_loss: float
    history: Sequence[Row]


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
    """What a checkpoint says of itself; ``weights`` and ``state`` are its files, the rest is :class:`Snapshot`'s."""

    config: ResolvedConfig
    step: Whole
    epoch: Whole
    accuracy: Number | None
    class_names: tuple[str, ...]
    weights: Written
    state: Written


def save(snapshot: Snapshot, folder: Path) -> SavedCheckpoint:
    """Write a checkpoint below ``folder`` and remove those that need not be kept.

    The latest ``keep_checkpoints`` are kept, and the one with the highest test accuracy.

    Raises:
        CheckpointError: when there is no room for it; earlier checkpoints are untouched.
        OSError: when it cannot be written for another reason, likewise.
    """
    target = folder / f"step-{snapshot.step:08d}"
    for unfinished in folder.glob(".step-*.partial"):  # of a process that was killed while it wrote
        shutil.rmtree(unfinished, ignore_errors=True)
    partial = folder / f".{target.name}.partial"
    try:
        partial.mkdir(parents=True)
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in snapshot.weights.items()}
        (partial / WEIGHTS).write_bytes(safetensors.save(contiguous))
        (partial / STATE).write_bytes(_packed(_state(snapshot)))
        described = {name: _describe(partial / name) for name in (WEIGHTS, STATE)}
        values = {
            "format": FORMAT,
            "step": snapshot.step,
            "epoch": snapshot.epoch,
            "accuracy": snapshot.accuracy,
            "class_names": list(snapshot.class_names),
            "config": configs.to_mapping(snapshot.config),
            "files": described,
        }
        (partial / MANIFEST).write_text(_sealed(values), encoding="utf-8")
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
    best = _prune(folder, snapshot.step, snapshot.config.keep_checkpoints)
    return SavedCheckpoint(
        target, snapshot.step, snapshot.epoch, described[WEIGHTS]["sha256"], snapshot.accuracy, best == target
    )


def load(path: Path, record: ResolvedConfig | None = None) -> Snapshot:
    """Read one checkpoint to the CPU, verifying every byte of it.

    Args:
        path: its folder.
        record: the run's config, to compare the checkpoint's with; None not to compare.

    Raises:
        CheckpointError: when it is damaged, incomplete, of another version, or made with other settings than the run's.
    """
    manifest = read_manifest(path)
    try:
        if record is not None:
            _check_same(manifest.config, record, path)
        _verify(path / WEIGHTS, manifest.weights)
        _verify(path / STATE, manifest.state)
        weights = safetensors.load((path / WEIGHTS).read_bytes())
        state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        return Snapshot(
            config=manifest.config,
            step=manifest.step,
            epoch=manifest.epoch,
            accuracy=manifest.accuracy,
            class_names=manifest.class_names,
            weights=weights,
            optimizer=_of(dict, state["optimizer"]),
            clock=_of(dict, state["clock"]),
            epoch_loss=_of(float, state["epoch_loss"]),
            history=[_row(row) for row in _of(list, state["history"])],
        )
    except CheckpointError:
        raise
    except Exception as error:  # on content that is not what it should be, the readers raise whatever comes
        raise CheckpointError(f"checkpoint {path} cannot be read: {_first_line(error)}") from None


def to_bytes(snapshot: Snapshot) -> bytes:
    """A snapshot for another process of the same run, in the format of ``state.pt``."""
    return _packed(
        {
            **_state(snapshot),
            "config": configs.to_mapping(snapshot.config),
            "step": snapshot.step,
            "epoch": snapshot.epoch,
            "accuracy": snapshot.accuracy,
            "class_names": list(snapshot.class_names),
            "weights": snapshot.weights,
        }
    )


def from_bytes(content: bytes) -> Snapshot:
    """What :func:`to_bytes` has made, on the CPU."""
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    state["config"] = configs.resolved_from_mapping(state["config"])
    state["class_names"] = tuple(state["class_names"])
    state["history"] = [Row(**row) for row in state["history"]]
    return Snapshot(**state)


def _state(snapshot: Snapshot) -> dict[str, Any]:
    """What of a snapshot is in ``state.pt``."""
    return {
        "optimizer": snapshot.optimizer,
        "clock": snapshot.clock,
        "epoch_loss": snapshot.epoch_loss,
        "history": [asdict(row) for row in snapshot.history],
    }


def _packed(state: dict[str, Any]) -> bytes:
    """``torch.save`` in memory; to a file, it hides why the file cannot be written."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _of(kind: type, value: Any) -> Any:
    """``value``, which must be a ``kind``."""
    if not isinstance(value, kind):
        raise TypeError(f"must be {kind.__name__}, got {errors.brief(value)}")
    return value


def _row(values: Any) -> Row:
    row = Row(**values)
    for kind, value in ((str, row.kind), (int, row.step), (int, row.timestamp_ms), (dict, row.metrics)):
        _of(kind, value)
    return Row(row.kind, row.step, row.timestamp_ms, {_of(str, name): float(of) for name, of in row.metrics.items()})


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _sealed(values: dict[str, Any]) -> str:
    """The text of a manifest with these values and their digest."""
    return json.dumps({**values, "sha256": _digest(values)}, indent=1)


def _digest(values: dict[str, Any]) -> str:
    """SHA-256 of a manifest's values, however they are laid out in its file."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_manifest(path: Path) -> Manifest:
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
        raise CheckpointError(f"checkpoint {path} has a {MANIFEST} that cannot be used: {_first_line(error)}") from None
    if not sealed:
        raise CheckpointError(f"checkpoint {path} is damaged: its {MANIFEST} is not what was written")
    if manifest.step != step_of(path.name):
        raise CheckpointError(f"checkpoint {path} is damaged: its {MANIFEST} is that of step {manifest.step}")
    return manifest


def _typed(values: dict[str, Any]) -> Manifest:
    described = values["files"]
    config = configs.resolved_from_mapping({**values["config"]})
    own = {name: values[name] for name in ("step", "epoch", "accuracy", "class_names")}
    made: Manifest = schema.build(
        Manifest, {**own, "config": config, "weights": described[WEIGHTS], "state": described[STATE]}
    )
    return made


def _check_same(made: ResolvedConfig, record: ResolvedConfig, path: Path) -> None:
    """Refuse to go on with a run that learns something else, or otherwise."""
    for name in configs.LEARNING:
        was, wanted = getattr(made, name), getattr(record, name)
        undecided = name == "precision" and wanted == "auto"
        if was != wanted and not undecided:
            raise CheckpointError(
                f"checkpoint {path} was made with {name} {errors.brief(was)}, and this run has "
                f"{errors.brief(wanted)}; take another run name"
            )


def every(folder: Path) -> list[Path]:
    """The checkpoint folders below ``folder``, oldest first, readable or not."""
    if not folder.is_dir():
        return []
    return sorted(
        (path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=lambda path: step_of(path.name)
    )


def step_of(name: str) -> int:
    """The step in the name of a checkpoint's folder; -1 when it is another's name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else -1


def latest(folder: Path, record: ResolvedConfig | None = None) -> tuple[Path, Snapshot, tuple[str, ...]] | None:
    """The newest checkpoint that can be used, with sentences about newer ones that cannot.

    Args:
        folder: that of the checkpoints.
        record: as for :func:`load`.

    Returns:
        None when there is no checkpoint at all.

    Raises:
        CheckpointError: when there are some and none can be used.
    """
    problems: list[str] = []
    for path in reversed(every(folder)):
        try:
            return path, load(path, record), tuple(problems)
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"no usable checkpoint in {folder}: {problems[0]}")
    return None


def existing(folder: Path) -> list[SavedCheckpoint]:
    """What there is below ``folder``, oldest first, as it was told when it was saved; damaged ones are left out."""
    top = best(folder)
    found = []
    for path in every(folder):
        try:
            manifest = read_manifest(path)
        except CheckpointError:
            continue
        digest = manifest.weights.sha256
        found.append(SavedCheckpoint(path, manifest.step, manifest.epoch, digest, manifest.accuracy, path == top))
    return found


def best(folder: Path) -> Path | None:
    """The checkpoint with the highest test accuracy, the earliest of equals; None when there is none."""
    scored: list[tuple[float, int, Path]] = []
    for path in every(folder):
        try:
            manifest = read_manifest(path)
        except CheckpointError:
            continue
        if manifest.accuracy is not None:
            scored.append((-manifest.accuracy, manifest.step, path))
    return min(scored)[2] if scored else None


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


def _prune(folder: Path, step: int, keep: int) -> Path | None:
    """Remove what need not be kept; returns the best checkpoint.

    Later ones than that of ``step``, the newest, were passed over as damaged and do not count.
    """
    top = best(folder)
    for path in [path for path in every(folder) if step_of(path.name) <= step][:-keep]:
        if path != top:
            shutil.rmtree(path, ignore_errors=True)
    return top


def _describe(path: Path) -> dict[str, Any]:
    return {"sha256": files.digest(path, "sha256"), "bytes": path.stat().st_size}


def _verify(path: Path, expected: Written) -> None:
    try:
        intact = path.stat().st_size == expected.bytes and files.digest(path, "sha256") == expected.sha256
    except OSError as error:
        raise CheckpointError(f"checkpoint file {path} cannot be read: {error.strerror}") from None
    if not intact:
        raise CheckpointError(f"checkpoint file {path} is damaged: its SHA-256 is not the manifest's")


def _sync(path: Path) -> None:
    """Have the operating system write a file or a folder's names to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
