"""Propose the trials of a search one after another: TPE (Bergstra et al., 2011), by Ray Tune's OptunaSearch."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import Range, SweepConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.sweep import planner
from cifar_ray.orchestration.sweep.goal import chooser_of
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.orchestration.sweep.trial import TrialSpec
from cifar_ray.tasks.choosing import Goal

if TYPE_CHECKING:
    from ray.tune.search.optuna import OptunaSearch

_MOST_ASKS = 100  # for one trial, before giving up on a combination that is new


def check_installed() -> None:
    """Refuse a search by Optuna where it is not installed.

    Raises:
        ConfigError: naming the extra.
    """
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("search", "must be grid or random without Optuna: `pip install 'cifar-ray[optuna]'` has it")


class OptunaProposer:
    """Gives the open trials of a search their values, knowing how the others came out; Ray Tune's thread calls it.

    Args:
        trials: all of the sweep's. Those that ended under an earlier driver are told to Optuna.
        begin: prepares a trial that has its values; what its process gets, or None when it cannot run here.
        drop: marks an open trial as skipped, with a reason.
    """

    def __init__(
        self,
        config: SweepConfig,
        goal: Goal,
        trials: Sequence[PlannedTrial],
        begin: Callable[[PlannedTrial], TrialSpec | None],
        drop: Callable[[PlannedTrial, str], None],
    ) -> None:
        self._config, self._goal, self._trials, self._begin, self._drop = config, goal, trials, begin, drop
        self._lists = {name: of for name, of in config.grid[0].items() if not isinstance(of, Range)}
        self._asked: dict[int, str] = {}
        proposed = [trial for trial in trials if trial.proposal is not None]
        # Another seed after a resume: the same one would propose the first trials again.
        self._search = _optuna(config, goal, random.Random(f"{config.name} {len(proposed)}").randrange(2**31))
        for trial in proposed:
            if trial.state not in (boards.WAITING, boards.RUNNING):
                self._tell(trial, goal.value(trial.figures) if trial.state != boards.FAILED else None)

    def propose(self) -> TrialSpec | None:
        """The next trial, ready to be trained; None when there are no more."""
        waiting = [trial for trial in self._trials if trial.is_open]
        for number, trial in enumerate(waiting):
            if not self._fill(trial):
                for other in waiting[number:]:
                    self._drop(other, "Optuna proposes nothing that has not been tried")
                return None
            spec = self._begin(trial)
            if spec is not None:
                return spec
            self.ended(trial.index, None)
        return None

    def ended(self, index: int, figures: Mapping[str, float] | None) -> None:
        """A trial has ended, with its latest figures; None when it has failed."""
        trial = self._trials[index]
        value = None if figures is None else self._goal.value({**trial.figures, **figures})
        asked = self._asked.pop(index, None)
        if asked is None:  # proposed by an earlier driver
            self._tell(trial, value)
        else:
            self._answer(asked, value)

    def _fill(self, trial: PlannedTrial) -> bool:
        """Give a trial values that no other has; return whether there are any."""
        others = [other for other in self._trials if other.proposal is not None]
        for attempt in range(_MOST_ASKS):
            key = f"{trial.index} {attempt}"
            suggested = self._search.suggest(key)
            values = {name: of[suggested[name]] if name in suggested else of[0] for name, of in self._lists.items()}
            proposal = {name: values.get(name, suggested.get(name)) for name in self._config.grid[0]}
            cell = sweeps.proposed(self._config, proposal, [other.cell for other in others])
            if cell is not None:
                self._asked[trial.index] = key
                trial.proposal, trial.is_open = proposal, False
                planner.assign(trial, cell, chooser_of(self._config))
                return True
            twin = next(other for other in others if other.proposal == proposal)
            self._answer(key, self._goal.value(twin.figures) if twin.state == boards.FINISHED else None)
        return False

    def _answer(self, key: str, value: float | None) -> None:
        """Tell Optuna how a trial that it was asked for came out; None: it failed."""
        result = None if value is None else {self._goal.metric: value}
        self._search.on_trial_complete(key, result, error=value is None)

    def _tell(self, trial: PlannedTrial, value: float | None) -> None:
        """Tell Optuna of a trial that an earlier driver asked it for."""
        assert trial.proposal is not None
        point = {name: value for name, value in trial.proposal.items() if name not in self._lists}
        point |= {name: of.index(trial.proposal[name]) for name, of in self._lists.items() if len(of) > 1}
        self._search.add_evaluated_point(point, value, error=value is None)


def _optuna(config: SweepConfig, goal: Goal, seed: int) -> OptunaSearch:
    """Ray Tune's OptunaSearch over the axes; a list is the numbers of its values, which may be of any type."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    space: dict[str, optuna.distributions.BaseDistribution] = {}
    for name, of in config.grid[0].items():
        if not isinstance(of, Range):
            if len(of) > 1:
                space[name] = optuna.distributions.CategoricalDistribution(range(len(of)))
        elif of.kind == "int":
            space[name] = optuna.distributions.IntDistribution(int(of.low), int(of.high))
        else:
            space[name] = optuna.distributions.FloatDistribution(of.low, of.high, log=of.kind == "loguniform")
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it says that it has made a study
    try:
        return OptunaSearch(space, metric=goal.metric, mode=goal.better, seed=seed)
    finally:
        optuna.logging.set_verbosity(before)
