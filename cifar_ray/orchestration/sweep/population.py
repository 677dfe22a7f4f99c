"""Train the runs of a sweep as a population: all pause after the same epochs, where the worst take over from the best.

This is the synchronous form of population-based training (Jaderberg et al. 2017, appendix A.1), whose outcome does not
depend on which run is quicker. Everything that is decided is written to the sweep's folder before it is done, so that
a later driver does the same.

Ray Tune trains the runs, but its PopulationBasedTraining does not decide here (as of Ray 2.60): with ``synch=True`` it
waits for ever once a run has failed, it draws from the process's own generator, it perturbs values beyond their ranges,
and it keeps what it has decided where only the same Tune can read it.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from cifar_ray import storage
from cifar_ray.config import population as options
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.option import value_of
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.run import checkpoints
from cifar_ray.orchestration.sweep.exploiting import exploits
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.storage import Folder, StorageError
from cifar_ray.tasks.goal import Goal
from cifar_ray.tracking.lineage import Takeover
from cifar_ray.training import checkpoint, manifest, recipe
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.observer import SavedCheckpoint

FILE = "population.json"

_SET = ("weight_decay", "momentum", "nesterov")
"""Options of an optimizer's groups that follow from a run's config."""


@dataclass(frozen=True)
class Round:
    """What was decided after an epoch.

    Attributes:
        epoch: after which.
        takeovers: name of a run -> what it goes on from.
        copied: whether all checkpoints have been copied.
    """

    epoch: int
    takeovers: Mapping[str, Takeover] = field(default_factory=dict)
    copied: bool = False


_ROUNDS = TypeAdapter(list[Round])


def read(folder: Folder) -> list[Round]:
    """The rounds of a sweep so far.

    Raises:
        ConfigError: when they cannot be read.
    """
    try:
        return _ROUNDS.validate_json(folder.read(FILE))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:  # no UTF-8, no JSON, or not what was written
        raise ConfigError("resume", f"needs {folder.address}/{FILE}, which is damaged or cannot be read") from error


@dataclass(frozen=True)
class Taken:
    """A run has taken over another's checkpoint, and has written it as its own."""

    trial: PlannedTrial
    takeover: Takeover
    saved: SavedCheckpoint


class Population:
    """The runs of a sweep that pause and take over from each other; those that have get the values they had last."""

    def __init__(self, config: SweepConfig, folder: Folder, trials: Sequence[PlannedTrial]) -> None:
        self._config, self._folder, self._trials = config, folder, trials
        self._axes = options.explored(config.grid[0])
        self._rounds = read(folder)
        for trial in trials:
            if trial.config is not None:
                trial.explored = self.values(trial)
            trial.lineage = tuple(r.takeovers[trial.cell.name] for r in self._rounds if trial.cell.name in r.takeovers)
            if trial.lineage and trial.config is not None:
                trial.config = _with(trial.config, trial.lineage[-1].after)

    @property
    def members(self) -> list[PlannedTrial]:
        """The trials that are still to be trained."""
        return [trial for trial in self._trials if trial.state in (boards.WAITING, boards.PAUSED)]

    @property
    def pause_after(self) -> int | None:
        """The epoch after which all pause next; None when they train to their end."""
        done = self._rounds[-1].epoch if self._rounds else 0
        epochs = max((trial.config.epochs for trial in self._trials if trial.config is not None), default=0)
        epoch = done + self._config.pbt.every
        return epoch if epoch < epochs else None

    def values(self, trial: PlannedTrial) -> dict[str, float]:
        """A trial's present values of the options that are explored."""
        assert trial.config is not None
        return {name: value_of(trial.config, name) for name in self._axes}

    def take_up(self) -> list[Taken]:
        """Finish what an earlier driver has begun; the trials that had come to the next pause are there."""
        taken = self._copy()
        for trial in self.members if self.pause_after is not None else ():
            if (newest := _newest(trial)) is not None and newest.epoch == self.pause_after:
                trial.state = boards.PAUSED
        return taken

    def advance(self, goal: Goal) -> list[Taken]:
        """Compare the trials that pause, and have the worst of them take over from the best.

        Afterwards they wait to be trained further; one that has diverged and has nothing to take over still pauses.

        Raises:
            ConfigError: when the sweep's folder cannot be written.
        """
        epoch, paused = self.pause_after, {t.cell.name: t for t in self._trials if t.state == boards.PAUSED}
        assert epoch is not None
        newest = {name: _newest(trial) for name, trial in paused.items()}
        ranks = {name: made.rank(epoch, goal) if made else None for name, made in newest.items()}
        values = {name: self.values(trial) for name, trial in paused.items()}
        draws = random.Random(f"{self._config.name} {epoch}")
        takeovers = {}
        for name, source, explored in exploits(ranks, values, self._axes, self._config.pbt.quantile, draws):
            theirs = newest[source]
            assert theirs is not None, "it has a rank"
            takeovers[name] = Takeover(
                epoch, theirs.step, source, theirs.weights_sha256, values[name], values[source], explored
            )
        self._rounds.append(Round(epoch, takeovers))
        self._write()
        for name, takeover in takeovers.items():
            trial = paused[name]
            assert trial.config is not None
            trial.config = _with(trial.config, takeover.after)
            trial.lineage = (*trial.lineage, takeover)
        for name, trial in paused.items():
            if ranks[name] is not None or name in takeovers:
                trial.state, trial.reason, trial.admitted, trial.reported = boards.WAITING, "", False, False
        return self._copy()

    def _write(self) -> None:
        with storage.refusing(self._folder):
            self._folder.write(FILE, _ROUNDS.dump_json(self._rounds, indent=1).decode())

    def _copy(self) -> list[Taken]:
        """Write the checkpoints of the last round, unless that has been done; those written already stay."""
        if not self._rounds or self._rounds[-1].copied:
            return []
        named = {trial.cell.name: trial for trial in self._trials}
        last, taken = self._rounds[-1], []
        for name, takeover in last.takeovers.items():
            trial, source = named[name], named[takeover.source]
            if trial.state in (boards.WAITING, boards.PAUSED):
                taken.append(Taken(trial, takeover, _take_over(trial, source, takeover)))
        self._rounds[-1] = dataclasses.replace(last, copied=True)
        self._write()
        return taken


@dataclass(frozen=True)
class _Newest:
    """A trial's newest usable checkpoint: its step, its epoch, its weights' digest, and the last row of an epoch."""

    step: int
    epoch: int
    weights_sha256: str
    figures: Mapping[str, float]

    def rank(self, epoch: int, goal: Goal) -> float | None:
        """The higher, the better; None without a figure of that epoch."""
        value = goal.value(self.figures) if self.epoch == epoch else None
        return None if value is None else goal.rank(value)


def _newest(trial: PlannedTrial) -> _Newest | None:
    if trial.folder is None:
        return None
    with checkpoints.reading(trial.folder.folder) as here:
        try:
            found = checkpoint.latest(here)
        except CheckpointError:  # all are damaged
            return None
        if found is None:
            return None
        path, snapshot, _ = found
        rows = [row.metrics for row in snapshot.history if row.kind == "epoch"]
        digest = manifest.read(path).weights.sha256
        return _Newest(snapshot.step, snapshot.epoch, digest, rows[-1] if rows else {})


def _with(config: ResolvedConfig, values: Mapping[str, float]) -> ResolvedConfig:
    changed: dict[str, Any] = dict(values)
    return dataclasses.replace(config, **changed)


def _take_over(trial: PlannedTrial, source: PlannedTrial, takeover: Takeover) -> SavedCheckpoint:
    """Write another trial's checkpoint as a trial's own, with the trial's values."""
    assert trial.config is not None
    assert trial.folder is not None
    assert source.folder is not None
    name = manifest.folder_of(takeover.step)
    try:
        with checkpoints.reading(source.folder.folder, name) as theirs:
            snapshot = _adopted(trial.config, checkpoint.load(theirs / name))
        with checkpoints.writing(trial.folder.folder, trial.config) as writer:
            lock = checkpoint.lock(writer.path)
            try:
                newest = checkpoint.latest(writer.path)
                if newest is not None and newest[1].step == snapshot.step:
                    # The score is left out: that of this epoch, in its own history, is of the weights that it leaves.
                    # An earlier driver may have written theirs already, with the score that it is to have.
                    own, is_written = newest[1], manifest.read(newest[0]).weights.sha256 == takeover.weights_sha256
                    score = own.score if is_written else None
                    snapshot = dataclasses.replace(snapshot, history=own.history, clock=own.clock, score=score)
                else:  # it has diverged, and so its history ends before
                    for path in checkpoint.every(writer.path):
                        shutil.rmtree(path)
                saved = checkpoint.save(snapshot, writer.path)
                writer.keep(saved.path)
            finally:
                lock.release()
        trial.folder.write_config(trial.config)
    except (CheckpointError, StorageError, OSError) as error:
        reason = error if isinstance(error, CheckpointError | StorageError) else storage.reason(error)
        raise RunFailedError(f"{trial.cell.name} cannot go on from {source.cell.name}: {reason}") from None
    return saved


def _adopted(config: ResolvedConfig, theirs: Snapshot) -> Snapshot:
    """Another trial's snapshot with this trial's config, which then sets the options of the optimizer."""
    decided = recipe.computing(config, theirs.config.precision, str(theirs.config.convolutions))
    groups = [{k: v for k, v in group.items() if k not in _SET} for group in theirs.optimizer["param_groups"]]
    return dataclasses.replace(theirs, config=decided, optimizer={**theirs.optimizer, "param_groups": groups})
