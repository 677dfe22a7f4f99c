"""Whether the step of some runs is slower than that of others by more than is allowed: a guard for somebody's CI.

One-sided test of Welch (Biometrika 34, 1947) on the logarithms of the runs' mean step times, at 5 %: it holds where a
baseline of many quiet runs meets two of a busy machine (Ruxton, Behavioral Ecology 17, 2006). A run is one observation,
since its steps share a process and a machine's mood (Kalibera and Jones, 2013).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, pvariance, stdev
from typing import Literal

from cifar_ray.config.errors import ConfigError, brief, counted
from cifar_ray.reporting import compare, figures
from cifar_ray.reporting.chance import CHANCE
from cifar_ray.tracking.study import HARDWARE_TAG, THREADS_TAG, Run, Sweep

_LEAST_RUNS = 2  # of one run, nobody knows the spread
_SAME_WORK = ("task", "model", "dataset", "global_batch_size")
_SAME_MACHINE = {HARDWARE_TAG: "hardware", THREADS_TAG: "CPU threads per worker"}
_MAY_DIFFER = ("status", "seed", "commit", "hardware", "cpus_per_worker", "convolutions")  # on one side


@dataclass(frozen=True)
class Slowdown:
    """How the step of B compares with that of A.

    Attributes:
        verdict: ``unknown`` where there is not enough evidence.
        sentence: the verdict in words.
        max_slowdown_percent: what is allowed.
        ratio: B's step in multiples of A's; None where unknown.
        chance: probability of this ratio or a larger one if B were slower by just what is allowed; None where unknown.
        a: MLflow id -> mean milliseconds of a step in steady state, of A's runs that have finished and have times.
        b: the same of B.
    """

    verdict: Literal["slower", "within", "unknown"]
    sentence: str
    max_slowdown_percent: float
    ratio: float | None
    chance: float | None
    a: Mapping[str, float]
    b: Mapping[str, float]

    @property
    def status(self) -> int:
        """The command's exit status."""
        return {"within": 0, "slower": 1, "unknown": 3}[self.verdict]


def judge(sides: Sequence[tuple[str, Sequence[Sweep]]], max_slowdown_percent: float) -> Slowdown:
    """Compare the step of B with that of A, of each of which ``sides`` has the name and the studies.

    Raises:
        ConfigError: when a run is on both sides, or runs differ where they must not.
    """
    names = [brief(name) for name, _ in sides]
    every = [{trial.run_id: trial for study in of for trial in study.meant.trials} for _, of in sides]
    for run_id in every[0].keys() & every[1].keys() - {""}:
        raise ConfigError("", f"run {brief(every[0][run_id].name)} is on both sides, which must have different runs")
    timed = [[trial for trial in of.values() if trial.finished and figures.iteration_ms(trial)] for of in every]
    a, b = ({trial.run_id: figures.iteration_ms(trial) or 0.0 for trial in of} for of in timed)
    _check_settings(names, timed)
    if lacking := _lacking(names, timed):
        return Slowdown("unknown", f"Not enough evidence: {lacking}.", max_slowdown_percent, None, None, a, b)
    allowed, ratio = 1 + max_slowdown_percent / 100, geometric_mean(b.values()) / geometric_mean(a.values())
    chance = probability([*a.values()], [*b.values()], allowed)
    is_slower = chance < CHANCE
    unsure = "may be too slow, but the runs differ too much to tell" if ratio > allowed else "is not too slow"
    lead = "is too slow" if is_slower else unsure
    sentence = (
        f"{names[1]} {lead}: its step takes {ratio:.3f} times that of {names[0]} ({_words(b)}, against {_words(a)}), "
        f"and {allowed:.6g} is allowed (Welch's test: p = {chance:.2g})."
    )
    return Slowdown("slower" if is_slower else "within", sentence, max_slowdown_percent, ratio, chance, a, b)


def probability(a: Sequence[float], b: Sequence[float], allowed: float) -> float:
    """How likely two or more times of each have this ratio, ``b`` to ``a``, or more, where it is ``allowed``."""
    from scipy import stats  # takes long to import

    first, second = ([math.log(time) for time in times] for times in (a, [time / allowed for time in b]))
    if not pvariance(first) + pvariance(second):  # equal times, of which the test knows nothing
        return float(fmean(second) <= fmean(first) + 1e-12)
    return float(stats.ttest_ind(second, first, equal_var=False, alternative="greater").pvalue)


def _words(steps: Mapping[str, float]) -> str:
    spread = 100 * stdev(map(math.log, steps.values()))
    return f"{geometric_mean(steps.values()):.3g} ms +- {spread:.1f} %, n = {len(steps)}"


def _check_settings(names: Sequence[str], timed: Sequence[Sequence[Run]]) -> None:
    """Refuse a side whose runs differ in more than the seed, and sides of which a step is different work."""
    for setting in (each for each in compare.settings([*timed[0], *timed[1]]) if each not in _MAY_DIFFER):
        values = [sorted({compare.value(trial, setting) for trial in of}) for of in timed]
        for name in (name for name, of in zip(names, values) if len(of) > 1):
            raise ConfigError("", f"the runs of {name} differ in {setting}; those of one side may differ in the seed")
        if setting in _SAME_WORK and all(values) and values[0] != values[1]:
            problem = f"{setting} is {values[0][0]} in A and {values[1][0]} in B"
            raise ConfigError("", f"a step of A and of B must be the same work: {problem}")


def _lacking(names: Sequence[str], timed: Sequence[Sequence[Run]]) -> str:
    """Why runs are not enough evidence, as the middle of a sentence; empty where they are."""
    for tag, what in _SAME_MACHINE.items():
        values = sorted({trial.tags[tag] for trials in timed for trial in trials if tag in trial.tags})
        if len(values) > 1:
            return f"the runs have different {what} ({'; '.join(values)}), so a difference may be the machine's"
    few = [f"{name} has {counted(len(of), 'finished run')}" for name, of in zip(names, timed) if len(of) < _LEAST_RUNS]
    return f"{' and '.join(few)} with step times, and it takes {_LEAST_RUNS} or more on each side" if few else ""
