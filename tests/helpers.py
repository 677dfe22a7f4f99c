"""What several test modules use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cifar_ray.config import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.training.hardware import Place
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import EpochRecord, Launch, Outcome, Row, SavedCheckpoint, Started


@dataclass
class Recorder:
    """An observer that keeps what it hears, and can end the run after a step."""

    stop_after: int | None = None
    begun: list[Started] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    epochs: list[EpochRecord] = field(default_factory=list)
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def started(self, event: Started) -> None:
        self.begun.append(event)

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        self.steps.append(step)
        if row is not None:
            self.rows.append(row)
        if step == self.stop_after:
            raise Stopped

    def epoch_done(self, record: EpochRecord) -> None:
        self.epochs.append(record)

    def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
        self.checkpoints.append(saved)


class Stopped(Exception):  # noqa: N818
    """The run was ended on purpose."""


def train_here(
    config: TrainConfig, dataset: Dataset, folder: Path, recorder: Recorder | None = None, place: Place | None = None
) -> Outcome:
    """The loop in this process, with no launcher."""
    return fit(config, dataset, folder, place or Place(), recorder or Recorder(), Launch(0.0, 0.0))
