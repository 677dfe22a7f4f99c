"""The events of the training loop, and the protocol through which it reports them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cifar_ray.config.decided import Decided
from cifar_ray.training.rank_times import PHASES, StepTimes

if TYPE_CHECKING:  # events need no torch
    from cifar_ray.training.mistakes import Mistake


MANIFEST = "manifest.json"
"""The file of a checkpoint's folder that says of what run and step it is."""


def step_of(name: str) -> int:
    """The step in the name of a checkpoint's folder, such as ``step-00000390``; -1 when it is another's name."""
    match = re.fullmatch(r"step-(\d{8,})", name)
    return int(match[1]) if match else -1


@dataclass(frozen=True)
class Launch:
    """Times measured before the loop begins.

    Attributes:
        begun: ``time.time()`` at which the command began.
        data_s: seconds since then spent on finding, fetching, reading and sharing the data set.
    """

    begun: float
    data_s: float


@dataclass(frozen=True)
class Row:
    """The metrics recorded at one step.

    Attributes:
        kind: ``iteration`` (``step`` counts optimizer steps) or ``epoch`` (``step`` counts epochs from 1).
        step: the position on that axis.
        timestamp_ms: wall-clock time in milliseconds since 1970.
        metrics: name -> finite number, or NaN for what has no value.
    """

    kind: str
    step: int
    timestamp_ms: int
    metrics: dict[str, float]

    @staticmethod
    def now(kind: str, step: int, metrics: Mapping[str, float]) -> Row:
        """A row of this moment."""
        return Row(kind, step, time.time_ns() // 1_000_000, dict(metrics))


@dataclass(frozen=True)
class Started:
    """Event: the loop is about to run its first step in this process.

    Attributes:
        decided: what the config leaves open.
        step: optimizer steps already done.
        steps_per_epoch: optimizer steps in an epoch.
        resumed_from: the checkpoint's folder, when there was one.
        skipped: sentences about newer checkpoints that could not be used.
        history: every row recorded before this process, from the checkpoint.
        hardware: what rank 0 computes with.
        measured: what the precision and convolutions were decided by, in words; empty when nothing was measured here.
    """

    decided: Decided
    step: int
    steps_per_epoch: int
    resumed_from: str | None = None
    skipped: tuple[str, ...] = ()
    history: tuple[Row, ...] = ()
    hardware: str = ""
    measured: str = ""


@dataclass(frozen=True)
class EpochRecord:
    """Event: an epoch has ended and was evaluated.

    Attributes:
        row: its figures.
        confusion: evaluated images by true class (row) and predicted class (column).
        per_class: metric name -> one number per class.
    """

    row: Row
    confusion: list[list[int]]
    per_class: dict[str, list[float]]


@dataclass(frozen=True)
class SavedCheckpoint:
    """Event: a checkpoint is complete on disk.

    Attributes:
        path: its folder.
        step: optimizer steps done.
        epoch: whole epochs done.
        weights_sha256: SHA-256 of its weights file; equal weights have equal hashes.
        score: the task's primary figure on the samples measured after every epoch, when its epoch was evaluated.
        best: whether the run chooses by it, and no other checkpoint of the run has a better one.
    """

    path: Path
    step: int
    epoch: int
    weights_sha256: str
    score: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Traced:
    """Event: some steps of a rank were profiled.

    Attributes:
        rank: its rank.
        path: the trace, gzipped JSON for Perfetto, beside the folder of checkpoints.
        operators: what each operator took per step, as CSV with a header.
        problem: why there is no trace, as the end of a sentence; empty when there is.
    """

    rank: int
    path: Path
    operators: str
    problem: str = ""


class Observer(Protocol):
    """Receives the events of one rank's loop. An exception in a method ends the run."""

    def started(self, event: Started) -> None:
        """The first step is next. Rank 0 only."""

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        """Optimizer step ``step`` (from 1) is done; with every rank's loss when one was due. Every rank."""

    def epoch_done(self, record: EpochRecord) -> None:
        """Every rank, with the same figures."""

    def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
        """Rank 0 only."""

    def traced(self, event: Traced) -> None:
        """Every rank, with its own."""


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run.

    Attributes:
        epochs: epochs done.
        metrics: the last epoch's figures. Where a checkpoint was chosen, its test figures start with
            ``chosen/test/``, and ``chosen/epoch`` is its epoch; the validation figure that chose it starts with
            ``best/``.
        times: seconds by phase, iteration times, and images per second.
        begun: ``time.time()`` at which the run would have begun had it never been interrupted.
        weights_sha256: SHA-256 of the final checkpoint's weights file.
        checkpoint: folder of the final checkpoint.
        per_class: metric name -> one number per class, of the chosen checkpoint, or else of the last.
        confusion: test images by true class (row) and predicted class (column), of the same checkpoint.
        mistakes: test images that the same checkpoint got wrong with the highest probabilities, the worst first.
        history: every row of the run.
        stopped_by: ``patience`` when that has ended the run before its last epoch, else empty.
        untested: why the best checkpoint has no test figures, as a sentence, when it cannot be read; else empty.
        steps: the times of the steps of every rank, in its last process.
    """

    epochs: int
    metrics: dict[str, float]
    times: dict[str, float]
    begun: float
    weights_sha256: str
    checkpoint: str
    per_class: dict[str, list[float]]
    confusion: list[list[int]]
    history: tuple[Row, ...]
    stopped_by: str = ""
    untested: str = ""
    mistakes: tuple[Mistake, ...] = ()
    steps: StepTimes | None = None

    @property
    def ended(self) -> float:
        """``time.time()`` at the result; valid after :meth:`at`."""
        return self.begun + self.times["time/wall_s"]

    def at(self, now: float) -> Outcome:
        """Add the wall time up to ``now``, and the part of it that is in no phase."""
        wall = now - self.begun
        phases = sum(self.times[f"time/{phase}_s"] for phase in PHASES)
        return replace(self, times={**self.times, "time/wall_s": wall, "time/other_s": wall - phases})
