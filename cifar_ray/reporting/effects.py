"""The effect of every axis of a study on speed and on the primary figure, with its interval."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cifar_ray.reporting import chance
from cifar_ray.reporting.chance import Measured, Noise
from cifar_ray.reporting.figures import Figure
from cifar_ray.reporting.frame import HARDWARE, OPTIONAL, RUN, Configuration
from cifar_ray.reporting.names import STRATEGY, shortened

_NO_AXES = (RUN, HARDWARE)
_MORE_WORK = ("epochs", "steps_per_epoch")
_ROUNDING = 1e-9

_Pair = tuple[Measured, Measured]


class Effect(NamedTuple):
    """By how much ``high`` is better than ``low`` on average over the settings that were measured with both.

    ``low`` and ``high`` are values of the axis; of times and speeds the mean is the logarithm of a ratio. ``half`` is
    half of its 95 % interval, and ``differences`` are those of the settings.
    """

    axis: str
    low: str
    high: str
    figure: Figure
    mean: float
    half: float
    differences: Sequence[float]
    batches: bool

    @property
    def sentence(self) -> str:
        """What the axis does to the figure."""
        of, mean = self.figure.of, self.mean

        def number(value: float) -> str:
            return self.figure.difference(value).partition(" ")[0] if of else f"{math.exp(value):.2f}"

        much = f"{self.figure.difference(mean)} {of.more} than" if of else f"{number(mean)} times as fast as"
        words = f"95 % interval {number(mean - self.half)} to {number(mean + self.half)}"
        average = " on average" * (len(self.differences) > 1)
        span = dict.fromkeys(number(end) for end in (min(self.differences), max(self.differences)))
        if len(span) > 1:
            words += f"; from {' to '.join(span)} over the other settings"
        batches = "; the global batch differs, too" if of and self.batches and "atch" not in self.axis else ""
        return f"{self.axis}: {self.high} is{average} {much} {self.low} ({words}){batches}."


def effects(among: Sequence[Configuration], speed: Figure) -> Iterator[Effect]:
    """What every axis does to the primary figure and to ``speed``, the figure that tells how fast a run is.

    Two values of an axis are compared in runs that are alike in everything else, by the test that compares
    configurations; of several values, the two of which the difference is the largest at least. An axis has none where
    that may be chance.
    """
    settings = _settings(among)
    strategies = any(config.devices > 1 for config in among)  # then their iterations are compared
    for axis in (name for name in settings[0] if name not in _NO_AXES):
        for figure in (speed, among[0].runs.task.primary):
            if axis == "Strategy" and figure is speed and strategies:
                continue
            if effect := _effect(among, settings, axis, figure):
                yield effect


def _settings(among: Sequence[Configuration]) -> list[dict[str, str]]:
    """What each configuration was given: axis -> value, empty where it does not apply."""
    study = among[0].runs.study
    short, batch = shortened(study), "Global batch" if study.hold == "global_batch" else "Batch per worker"
    rows = [
        {batch: str(config.column), "Topology": config.topology, "Strategy": config.strategy}
        | {name: short.get((name, value), value) for name, value in config.others if name != STRATEGY}
        for config in among
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, "none" if name in OPTIONAL else "") for name in names} for row in rows]


def _effect(
    among: Sequence[Configuration], settings: Sequence[Mapping[str, str]], axis: str, figure: Figure
) -> Effect | None:
    """The effect of an axis, between the two values whose interval begins highest; None where it may be chance."""
    cells = [
        (each, Measured(config, value))
        for each, config in zip(settings, among)
        if (value := config.statistic(figure)) is not None
    ]
    matches = _matches(cells, axis, figure)
    levels, sign = len({value for values in matches for value in values}), 1 if figure.better == "high" else -1
    known = []
    for (low, high), pairs in matches.items():
        noise = Noise.of(figure, [cell for _, cell in cells], [cell.config for pair in pairs for cell in pair])
        differences = [sign * noise.difference(other.value, first.value) for first, other in pairs]
        mean, half = statistics.fmean(differences), noise.least(*((a.value, b.value) for a, b in pairs), levels=levels)
        if half is None or abs(mean) <= half + _ROUNDING:
            continue
        if mean < 0:
            low, high, mean, differences = high, low, -mean, [-difference for difference in differences]
        batches = any(a.config.global_batch_size != b.config.global_batch_size for a, b in pairs)
        known.append(Effect(axis, low, high, figure, mean, half, differences, batches))
    return max(known, key=lambda effect: effect.mean - effect.half, default=None)


def _matches(
    cells: Sequence[tuple[Mapping[str, str], Measured]], axis: str, figure: Figure
) -> dict[tuple[str, str], list[_Pair]]:
    """For every two values of an axis, the cells of equal work that have them and are alike in everything else."""
    alike: dict[tuple[str, ...], dict[str, Measured]] = {}
    for settings, cell in cells:
        if settings[axis]:
            rest = tuple(value for name, value in settings.items() if name != axis)
            alike.setdefault(rest, {}).setdefault(settings[axis], cell)
    matches: dict[tuple[str, str], list[_Pair]] = {}
    for by_value in alike.values():
        for (low, first), (high, other) in itertools.combinations(sorted(by_value.items()), 2):
            if axis in _MORE_WORK or chance.comparable(figure, (first.config, other.config)):
                matches.setdefault((low, high), []).append((first, other))
    return matches
