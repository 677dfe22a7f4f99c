"""Which strategy is the fastest with how many workers, and what the split of its step says of why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cifar_ray.reporting import measures, strategies
from cifar_ray.reporting.aggregate import Configuration, Measure, Statistic
from cifar_ray.reporting.entries import noise, told_apart
from cifar_ray.reporting.measures import ACCURACY, ITERATION_TIME
from cifar_ray.tracking.study import Study

_TIME = replace(ITERATION_TIME, digits=None)
_PARTS = (*measures.STEP_PARTS, measures.NOT_SPLIT)
_COMMUNICATION = next(part for part in measures.STEP_PARTS if part.key == "communication_ms")
_MOSTLY = 0.5
_FAR = 1.25  # a part with so many times the whole difference is made up for by others
_Found = tuple[Configuration, Statistic]
_Name = Callable[[Configuration], str]


def sentences(study: Study, among: Sequence[Configuration]) -> list[str]:
    """For every number of workers: the fastest strategy against the next, the slowest and a single worker, and why.

    A worker that drives several GPUs counts as so many. Iterations of different sizes are not compared.

    Args:
        study: the runs.
        among: its configurations of one model, data set and device.
    """
    if not strategies.compared(among):
        return []
    groups: dict[tuple[int, int], list[_Found]] = {}
    for one in sorted(among, key=lambda one: (one.devices, one.global_batch_size)):
        found = one.statistic(_TIME.measure)
        if one.devices > 1 and found is not None and found.mean > 0:
            groups.setdefault((one.devices, one.global_batch_size), []).append((one, found))
    several = len({batch for _, batch in groups}) > 1
    called = strategies.names(study, among).of
    said = []
    word = "GPUs" if among[0].device == "cuda" else "workers"
    for (count, batch), times in groups.items():
        if strategies.compared([one for one, _ in times]):
            times.sort(key=lambda found: found[1].mean)
            place = f"with {count} {word}" + (f" and global batch {batch}" if several else "")
            said += [f"{place}, {sentence}" for sentence in _of_workers(called, times, among)]
    return said


def _of_workers(called: _Name, times: Sequence[_Found], among: Sequence[Configuration]) -> list[str]:
    """Of those with as many workers, from fast to slow."""
    tops = len({one.topology for one, _ in times}) > 1

    def name(one: Configuration) -> str:
        return called(one) + (f" on {one.topology}" if tops else "")

    best, after, slowest = times[0], times[1], times[-1]
    text = f"the fastest strategy is {name(best[0])}, with {_TIME.text(best[1])} an iteration{_pace(best[0])}"
    text += f", {_times(best, after)} the next, {name(after[0])} ({_TIME.text(after[1])}{_pace(after[0])})"
    if slowest is not after:
        text += f", {_times(best, slowest)} the slowest, {name(slowest[0])} "
        text += f"({_TIME.text(slowest[1])}{_pace(slowest[0])})"
    alone = strategies.single_worker(best[0], among, _TIME.measure)
    base = alone.statistic(_TIME.measure) if alone is not None else None
    if alone is not None and base is not None:
        text += f", and {_times(best, (alone, base))} a single worker ({called(alone)}, "
        text += f"{_TIME.text(base)})"
    lead = after[1].mean - best[1].mean
    text += "."
    if lead > 0:
        text += f" Its lead over the next is {_TIME.number(lead)} ms; {noise(best[1], after[1], _TIME)}."
    others = [after[0]] if slowest is after else [after[0], slowest[0]]
    return [text, *_accuracies(name, [best[0], *others]), *_why(name, best[0], others)]


def _times(fast: _Found, slow: _Found) -> str:
    times = f"{slow[1].mean / fast[1].mean:.2f}"
    return "as fast as" if times == "1.00" else f"{times} times as fast as"


def _pace(one: Configuration) -> str:
    return " by images/s of all ranks, waits included" if strategies.own_paces([one]) else ""


def _accuracies(name: _Name, those: Sequence[Configuration]) -> list[str]:
    """Speed is not all: some strategies are other algorithms."""
    known = [(one, found) for one in those if (found := one.statistic(ACCURACY.measure)) is not None]
    if len(known) < len(those):
        return []
    return [f"the test accuracy is {_listed([f'{ACCURACY.text(found)} with {name(one)}' for one, found in known])}."]


def _why(name: _Name, best: Configuration, others: Sequence[Configuration]) -> list[str]:
    """What the split of the steps says; nothing where the fastest was not split."""
    if not _measured(best):
        return []
    shares = [f"{share} with {name(one)}" for one in (best, *others) if (share := _share(one))]
    said = [f"exposed communication takes {_listed(shares)}"] if shares else []
    said += [_difference(name, best, other) for other in others if _slower(best, other)]
    idle = [(one, one.statistic(measures.BUBBLE[0].measure)) for one in (best, *others)]
    idles = [f"{measures.BUBBLE[0].text(found)} with {name(one)}" for one, found in idle if found is not None]
    said += [f"the share of the time in which a stage idles is {_listed(idles)}"] if idles else []
    return [f"by the split of an iteration, {'; '.join(said)}."] if said else []


def _share(one: Configuration) -> str:
    """Exposed communication in ms and as a share of the iteration, such as ``25.0 ms (2.6 %)``.

    A mean over ranks that have a pace each is no share of what the iteration is by the images/s of all.
    """
    part, whole = one.statistic(_COMMUNICATION.measure), one.statistic(_TIME.measure)
    if part is None or whole is None:
        return ""
    if strategies.own_paces([one]):
        return f"{_TIME.number(part.mean)} ms (the mean over the ranks)"
    return f"{_TIME.number(part.mean)} ms ({part.mean / whole.mean * 100:.1f} %)"


def _slower(best: Configuration, other: Configuration) -> bool:
    """Whether the other takes longer by more than what may be noise, so that it has a cause."""
    low, high = best.statistic(_TIME.measure), other.statistic(_TIME.measure)
    return low is not None and high is not None and high.mean > low.mean and told_apart(low, high)


def _difference(name: _Name, best: Configuration, other: Configuration) -> str:
    """Where most of the time goes that the other takes longer, if the split tells."""
    longer = f"what {name(other)} takes longer than {name(best)}"
    if strategies.own_paces([best, other]):
        return f"it is not known where {longer} goes, since asynchronous ranks have a pace each"
    if _measured(best) != _measured(other):
        return f"it is not known where {longer} goes, since different parts of their steps were measured"
    gaps = {part.title.lower(): gap for part in _PARTS if (gap := _gap(part.measure, best, other)) is not None}
    whole = _gap(_TIME.measure, best, other) or 0.0
    part, most = max(gaps.items(), key=lambda pair: pair[1])
    if most < _MOSTLY * whole:
        return f"{longer} is spread over several parts of the step"
    if part == measures.NOT_SPLIT.title.lower():
        return f"it is not known where {longer} goes, since most of it is not split"
    if most > _FAR * whole:
        figures = f"{_TIME.number(most)} ms longer there, {_TIME.number(whole)} ms in all"
        return f"{longer} is less than {part} alone accounts for, since other parts are shorter ({figures})"
    figures = f"{_TIME.number(most)} ms longer there, {_TIME.number(whole)} ms in all"
    return f"{longer} goes mostly into {part} ({figures})"


def _gap(measure: Measure, best: Configuration, other: Configuration) -> float | None:
    """By how many milliseconds the other's figure is larger."""
    low, high = best.statistic(measure), other.statistic(measure)
    return None if low is None or high is None else high.mean - low.mean


def _measured(one: Configuration) -> list[str]:
    """The parts of its step that were measured."""
    return [part.key for part in measures.STEP_PARTS if one.statistic(part.measure) is not None]


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
