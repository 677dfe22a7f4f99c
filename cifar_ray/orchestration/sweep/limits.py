"""Limits of a whole sweep: which runs it does not start, and when those that run are to stop."""

from __future__ import annotations

from collections.abc import Sequence

from cifar_ray import data
from cifar_ray.config import limits
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import value_of
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Row
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.planning.measured import KIND
from cifar_ray.planning.span import Span
from cifar_ray.reporting import cost
from cifar_ray.reporting.cost import Price

_SEEDS = 3  # finished runs of the same work that count, the newest: enough for a range


class Expectation:
    """What runs of a sweep are expected to take on their nodes, by those that have finished."""

    def __init__(self, finished: Sequence[PlannedTrial]) -> None:
        self._finished = [(trial, trial.config) for trial in finished if trial.config and trial.spent.placed_s]
        self._known: dict[tuple[str, ...], Span | None] = {}

    def seconds(self, trial: PlannedTrial) -> Span | None:
        """Seconds of a run: those of the same work; without any, of the same kind and topology, by images.

        Returns:
            None when there is no such run.
        """
        key = _key(trial)
        if key not in self._known:
            self._known[key] = self._seconds(trial)
        return self._known[key]

    def _seconds(self, trial: PlannedTrial) -> Span | None:
        config, key = trial.config, _key(trial)
        assert config is not None
        same = [
            of.spent.placed_s
            for of, _ in self._finished
            if _match(key, _key(of)) and of.epoch in (0, config.epochs)  # its patience may have ended it
        ]
        if same:
            return Span.of(same[-_SEEDS:])
        alike = [(of, run) for of, run in self._finished if _match(_pace_key(trial), _pace_key(of))]
        paces = [of.spent.placed_s / _images(run, of.epoch) for of, run in alike]
        return Span.of(paces).times(_images(config, config.epochs)) if paces else None


def expect(trials: Sequence[PlannedTrial], rows: Sequence[Row], ended: PlannedTrial | None = None) -> None:
    """Have a board's rows know what each run that is to end yet is expected to take.

    What is known stays where the run that has ``ended``, if one has, tells nothing new of it.
    """
    expectation = Expectation([trial for trial in trials if trial.completed])
    new = ended.config.model_key if ended is not None and ended.completed and ended.config is not None else None
    for trial, row in zip(trials, rows):
        is_new = trial.state == boards.RUNNING and row.expected_s is None
        if trial.config is None or not (trial.state == boards.WAITING or is_new):
            continue
        if ended is None or row.expected_s is None or trial.config.model_key == new:
            whole = expectation.seconds(trial)
            before = trial.spent.placed_s if trial.state == boards.WAITING else 0.0
            row.expected_s = None if whole is None else max(whole.mid - before, 0.0)


def _key(trial: PlannedTrial) -> tuple[str, ...]:
    """What tells runs of a sweep apart in time."""
    options = ("model_options", "strategy_options", "bucket_cap_mb", "sync_batchnorm")
    batch = ("batch_size", "global_batch_size", "accumulate")
    steps = ("epochs", "steps_per_epoch", "test_images")
    return _values(trial, (*KIND, *options, *batch, *steps, "strategy", "topology", "cpus_per_worker"))


def _pace_key(trial: PlannedTrial) -> tuple[str, ...]:
    """What tells the seconds of an image apart, as far as another batch is no matter."""
    return _values(trial, (*KIND, "model_options", "topology", "cpus_per_worker"))


def _match(wanted: tuple[str, ...], known: tuple[str, ...]) -> bool:
    """Whether a run is of the work that is wanted, as far as that is decided."""
    return all(mine in ("'auto'", theirs) for mine, theirs in zip(wanted, known))


def _values(trial: PlannedTrial, names: Sequence[str]) -> tuple[str, ...]:
    decided = vars(trial.decided)
    return tuple(repr(decided[name] if name in decided else value_of(trial.config, name)) for name in names)


def _images(config: ResolvedConfig, epochs: int) -> int:
    """Images that a run trains on in so many epochs; in all of them when 0."""
    return (epochs or config.epochs) * data.steps_per_epoch(config) * config.global_batch_size


class Budget:
    """What a sweep may use and has used.

    Attributes:
        placed_s: seconds in which at least one run was on its nodes, over all drivers.
    """

    def __init__(self, config: SweepConfig, trials: Sequence[PlannedTrial], placed_s: float = 0.0) -> None:
        self.placed_s = placed_s
        self._trials = trials
        self._price: Price | None = cost.checked(config.base.price)
        self._max_s = None if config.max_time is None else limits.seconds(config.max_time)
        self._max_usd = config.max_cost
        self._given = {"max_time": config.max_time, "max_cost": config.max_cost}

    @property
    def limited(self) -> bool:
        return self._max_s is not None or self._max_usd is not None

    @property
    def usd(self) -> float | None:
        """What all runs have cost so far; None without a price."""
        if self._price is None:
            return None
        return sum(trial.spent.usd(self._price) or 0.0 for trial in self._trials)

    def words(self, key: str) -> str:
        """A limit as it was given: ``the sweep's --max-time 2h``."""
        return f"{limits.named(limits.of_sweep(key))} {self._given[key]}"

    def passed(self, seconds: float) -> None:
        """So much time has passed since the last call."""
        if any(trial.state == boards.RUNNING and trial.spent.nodes for trial in self._trials):
            self.placed_s += seconds

    @property
    def reached(self) -> str:
        """Which limit is reached, ``max_time`` or ``max_cost``; empty while none is."""
        if self._max_s is not None and self.placed_s >= self._max_s:
            return "max_time"
        return "max_cost" if self._max_usd is not None and (self.usd or 0.0) >= self._max_usd else ""

    def refusal(self, trial: PlannedTrial) -> str:
        """Why a run is not started: what it is expected to take is more than is left. Empty when it may start."""
        assert trial.config is not None
        if reached := self.reached:
            return f"{self.words(reached)} is reached"
        expectation = Expectation([other for other in self._trials if other.completed])
        whole = expectation.seconds(trial)
        if whole is None:
            return ""
        # Only what does not fit at the low end is refused. A run that goes on has done a part of it.
        yet = max(whole.low - trial.spent.placed_s, 0.0)
        if self._max_s is not None and self.placed_s + yet > self._max_s:
            left = limits.duration(self._max_s - self.placed_s)
            return f"expected to take {limits.duration(yet)}, and {left} of {self.words('max_time')} are left"
        if self._max_usd is not None and self._price is not None:
            wanted = self._price.paid_for(trial.config.placement.nodes * yet)
            left_usd = self._max_usd - (self.usd or 0.0) - self._promised(expectation, self._price)
            if wanted > left_usd:
                left = limits.dollars(max(left_usd, 0.0))
                return f"expected to cost {limits.dollars(wanted)}, and {left} of {self.words('max_cost')} are left"
        return ""

    def _promised(self, expectation: Expectation, price: Price) -> float:
        """US dollars that the runs that have been started are expected to cost yet, at the low end."""
        promised = 0.0
        for trial in (trial for trial in self._trials if trial.admitted and not trial.reported):
            if trial.config is not None and (whole := expectation.seconds(trial)) is not None:
                left = max(whole.low - trial.spent.placed_s, 0.0)
                promised += price.paid_for(trial.config.placement.nodes * left)
        return promised

    def refuse_reached(self, name: str) -> None:
        """Refuse to go on with a sweep that has reached its limits.

        Raises:
            ConfigError: naming the limit, and what the sweep has used.
        """
        if key := self.reached:
            used = limits.duration(self.placed_s) if key == "max_time" else limits.dollars(self.usd or 0.0)
            raise ConfigError(key, f"must be more than the {used} of sweep {name} so far, got {self._given[key]}")
