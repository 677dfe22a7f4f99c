"""The last lines of a run: what has ended it, how far it has come, and what continues it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from cifar_ray import data
from cifar_ray.config import errors, limits
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.tracking import uri
from cifar_ray.tracking.run import RunRecord
from cifar_ray.training.observer import Outcome, SavedCheckpoint


@dataclass(frozen=True)
class LastLines:
    """The last line of a run, after so many whole ``epochs`` and with ``saved`` as its newest checkpoint, if any."""

    config: ResolvedConfig
    record: RunRecord
    epochs: int
    saved: SavedCheckpoint | None

    @property
    def command(self) -> str:
        """The command that continues the run."""
        return f"cifar-ray resume {shlex.quote(self.record.name)}{uri.flag(self.record.uri)}"

    @property
    def interrupted(self) -> str:
        """Of a run that a signal has ended."""
        return f"Stopped {self._when}. Continue with: {self.command}"

    @property
    def _when(self) -> str:
        return f"after epoch {self.epochs}" if self.epochs else "within the first epoch"

    def halted(self, by: str) -> str:
        """Of a run that a limit has stopped."""
        after = f"after step {self.saved.step}" if self.saved else "before its first checkpoint"
        return (
            f"stopped by {self.limit(by)} {after}, {self._when}; `{self.command} {errors.flag_of(by)} MORE` goes on, "
            f"`cifar-ray evaluate {shlex.quote(self.record.name)}{uri.flag(self.record.uri)}` measures it"
        )

    def exhausted(self, outcome: Outcome) -> str:
        """Of a run that its patience has ended, with the epoch that was the best."""
        best = int(outcome.metrics.get(CHOSEN_EPOCH, 0))
        metric = self.record.task.primary.on(data.facts(self.config).measured)
        since = f", {metric} was best after epoch {best}" if best else ""
        after = f"after epoch {outcome.epochs} of {self.config.epochs}"
        more = f"`{self.command} {errors.flag_of(outcome.stopped_by)} MORE` goes on"
        return f"stopped by {self.limit(outcome.stopped_by)} {after}{since}; {more}"

    def limit(self, by: str) -> str:
        """A limit in words: ``--max-time 2h``, or ``the sweep's --max-time``."""
        return limits.named(by) if limits.is_of_sweep(by) else f"{limits.named(by)} {getattr(self.config, by)}"
