"""Whether the step of some runs is slower than that of others by more than is allowed: a guard for somebody's CI.

One-sided test of Welch (Biometrika 34, 1947) on the logarithms of the runs' mean step times against the logarithm of
the allowed ratio, at 5 %. The logarithm makes a ratio a difference, and noise grows with the time that it disturbs.
Welch's test rather than Student's, as the reports have it: a baseline of many quiet runs meets two of a busy machine,
and with unequal numbers and deviations Student's is wrong in either direction (Ruxton, Behavioral Ecology 17, 2006). A
run is one observation, since its steps share a process, a placement and a machine's mood (Kalibera and Jones, "Rigorous
benchmarking in reasonable time", 2013).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cifar_ray.config.errors import ConfigError, brief, counted, printable
from cifar_ray.reporting import compare, figures, report
from cifar_ray.reporting.chance import CHANCE
from cifar_ray.tracking.study import HARDWARE_TAG, THREADS_TAG, Run, Sweep

_LEAST_RUNS = 2  # of one run, nobody knows the spread
_SAME_WORK = ("task", "model", "dataset", "global_batch_size")
_SAME_MACHINE = {HARDWARE_TAG: "hardware", THREADS_TAG: "CPU threads per worker"}
_OF_MACHINE = ("commit", "hardware", "cpus_per_worker", "convolutions")
"""Settings in which the runs of one side may differ, beside the seed: what was found on a machine."""


@dataclass(frozen=True)
class Side:
    """The runs of one side that have finished and have times of their own.

    Attributes:
        name: as it was given.
        step_ms: mean milliseconds of a step in steady state, of each run: without the first of a process.
        run_ids: their MLflow ids, in the same order.
        left_out: how many others there are.
    """

    name: str
    step_ms: tuple[float, ...]
    run_ids: tuple[str, ...]
    left_out: int

    @property
    def mean_ms(self) -> float:
        """Geometric mean."""
        return statistics.geometric_mean(self.step_ms)

    def __str__(self) -> str:
        spread = 100 * statistics.stdev(map(math.log, self.step_ms))
        return f"{self.mean_ms:.3g} ms +- {spread:.1f} %, n = {len(self.step_ms)}"


@dataclass(frozen=True)
class Slowdown:
    """How the step of B compares with that of A.

    Attributes:
        verdict: ``unknown`` where there is not enough evidence.
        sentence: the verdict in words.
        max_slowdown_percent: what is allowed.
        ratio: B's step in multiples of A's; None where either has none, or their machines differ.
        chance: probability that runs came out with this ratio or a larger one if B were slower by just what is allowed;
            None where it cannot be told.
        a: the first side.
        b: the second side.
        differ: setting -> its value in A and in B, of those that differ.
    """

    verdict: Literal["slower", "within", "unknown"]
    sentence: str
    max_slowdown_percent: float
    ratio: float | None
    chance: float | None
    a: Side
    b: Side
    differ: dict[str, tuple[str, str]]

    @property
    def status(self) -> int:
        """The command's exit status."""
        return {"within": 0, "slower": 1, "unknown": 3}[self.verdict]

    def __str__(self) -> str:
        lines, (a, b) = [self.sentence], (brief(self.a.name), brief(self.b.name))
        changes = [f"{name} ({of_a or '-'} in {a}, {of_b or '-'} in {b})" for name, (of_a, of_b) in self.differ.items()]
        left = [f"{counted(side.left_out, 'run')} of {brief(side.name)}" for side in (self.a, self.b) if side.left_out]
        if changes:
            lines.append(f"They differ in {', '.join(changes)}.")
        if left:
            lines.append(f"Not counted: {' and '.join(left)}, not finished or without times of their own.")
        return printable("\n".join(lines))


def slowdown(
    sides: Sequence[tuple[str, Sequence[str]]], max_slowdown_percent: float, tracking_uri: str | None = None
) -> Slowdown:
    """Compare the step of B with that of A, each named by sweeps, runs, MLflow ids or exported files: :func:`judge`.

    Raises:
        ConfigError: also when there is no such run or sweep.
    """
    names = [name for _, of in sides for name in of]
    studies = dict(zip(names, report.read(names, tracking_uri)))
    return judge([(title, [studies[name] for name in of]) for title, of in sides], max_slowdown_percent)


def judge(sides: Sequence[tuple[str, Sequence[Sweep]]], max_slowdown_percent: float) -> Slowdown:
    """Compare the step of B with that of A.

    Args:
        sides: of A and of B, what it is called, and its studies.
        max_slowdown_percent: how much longer B's step may take.

    Raises:
        ConfigError: when a run is on both sides, the runs of one side differ in more than the seed, or a step of A and
            of B is different work.
    """
    every = [{trial.run_id: trial for study in of for trial in study.meant.trials} for _, of in sides]
    for run_id in every[0].keys() & every[1].keys() - {""}:
        raise ConfigError("", f"run {brief(every[0][run_id].name)} is on both sides, which must have different runs")
    timed = [[trial for trial in of.values() if trial.finished and figures.iteration_ms(trial)] for of in every]
    a, b = (
        Side(
            name=title,
            step_ms=tuple(filter(None, map(figures.iteration_ms, trials))),
            run_ids=tuple(trial.run_id for trial in trials),
            left_out=len(of) - len(trials),
        )
        for (title, _), trials, of in zip(sides, timed, every)
    )
    differ, problem = _differences((a, b), timed), _machines(timed)
    ratio = b.mean_ms / a.mean_ms if all(timed) and not problem else None
    if ratio is None or min(map(len, timed)) < _LEAST_RUNS:
        counts = " and ".join(f"{brief(side.name)} has {counted(len(side.step_ms), 'finished run')}" for side in (a, b))
        told = "" if ratio is None else f"; B's step takes {ratio:.3f} times A's"
        problem = problem or f"{counts} with step times, and it takes {_LEAST_RUNS} or more on each side{told}"
        return Slowdown("unknown", f"Not enough evidence: {problem}.", max_slowdown_percent, ratio, None, a, b, differ)
    allowed = 1 + max_slowdown_percent / 100
    chance = probability(a.step_ms, b.step_ms, allowed)
    is_slower = chance < CHANCE
    lead = "is too slow" if is_slower else "is not too slow"
    if not is_slower and ratio > allowed:
        lead = "may be too slow, but the runs differ too much to tell"
    sentence = (
        f"{brief(b.name)} {lead}: its step takes {ratio:.3f} times that of {brief(a.name)} ({b}, against {a}), and "
        f"{allowed:.6g} is allowed (Welch's test: p = {chance:.2g})."
    )
    return Slowdown("slower" if is_slower else "within", sentence, max_slowdown_percent, ratio, chance, a, b, differ)


def probability(a: Sequence[float], b: Sequence[float], allowed: float) -> float:
    """How likely times with this ratio of their means, ``b`` to ``a``, or a larger one, are where it is ``allowed``.

    There are two times of each, or more.
    """
    from scipy import stats  # takes long to import

    first, second = ([math.log(time) for time in times] for times in (a, b))
    if not statistics.pvariance(first) + statistics.pvariance(second):  # equal times, of which the test knows nothing
        return float(second[0] - first[0] <= math.log(allowed) + 1e-12)
    beyond = [log - math.log(allowed) for log in second]
    return float(stats.ttest_ind(beyond, first, equal_var=False, alternative="greater").pvalue)


def _differences(sides: Sequence[Side], timed: Sequence[Sequence[Run]]) -> dict[str, tuple[str, str]]:
    """Settings that differ between the sides, with their values on either.

    Raises:
        ConfigError: when runs of one side differ in more than the seed, or a step of A and of B is different work.
    """
    names = [name for name in compare.settings([*timed[0], *timed[1]]) if name not in ("status", "seed")]
    values = [{name: dict.fromkeys(compare.value(trial, name) for trial in of) for name in names} for of in timed]
    for side, of_side in zip(sides, values):
        if mixed := [name for name in names if len(of_side[name]) > 1 and name not in _OF_MACHINE]:
            problem = f"the runs of {brief(side.name)} differ in {', '.join(mixed)}"
            raise ConfigError("", f"{problem}; those of one side may differ in the seed")
    pairs = {name: tuple(", ".join(filter(None, of_side[name])) for of_side in values) for name in names}
    differ = {name: (a, b) for name, (a, b) in pairs.items() if a != b and all(timed)}
    for name in _SAME_WORK:
        if name in differ:
            a, b = differ[name]
            raise ConfigError("", f"a step of A and of B must be the same work: {name} is {a} in A and {b} in B")
    return differ


def _machines(timed: Sequence[Sequence[Run]]) -> str:
    """How the machines of all runs differ, as the middle of a sentence; empty where they do not."""
    for tag, what in _SAME_MACHINE.items():
        values = sorted({trial.tags[tag] for trials in timed for trial in trials if tag in trial.tags})
        if len(values) > 1:
            return f"the runs have different {what} ({'; '.join(values)}), so a difference may be the machine's"
    return ""
