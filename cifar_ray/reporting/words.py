"""What a study comes to, in a few figures and sentences made from its runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from cifar_ray.reporting import aggregate, measures, peers, scaling
from cifar_ray.reporting.aggregate import Configuration, Statistic
from cifar_ray.reporting.contents import Finding, Highlight
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.measures import ACCURACY, IMAGES_PER_S, ITERATION_TIME, TRAINING_TIME, Figure
from cifar_ray.reporting.names import Names, compared, title_of
from cifar_ray.tracking.study import Study

_TEST_IMAGES = aggregate.metric("test/images")
_PARTS = (*measures.STEP_PARTS, measures.NOT_SPLIT)
_MOSTLY = 0.5  # of a difference, so that one part accounts for it
_MOST_NAMED = 3


class _Found(NamedTuple):
    """A configuration and one of its figures."""

    one: Configuration
    value: Statistic


class _Group(NamedTuple):
    """Finished configurations of one model, data set and device, and what they are called."""

    study: Study
    among: Sequence[Configuration]
    name: Callable[[Configuration], str]

    def found(self, figure: Figure, among: Sequence[Configuration] | None = None) -> list[_Found]:
        """Those that have a figure, the best first; of equal ones, in their order."""
        known = [
            _Found(one, value)
            for one in (self.among if among is None else among)
            if (value := one.statistic(figure.measure)) is not None
        ]
        return sorted(known, key=lambda found: found.value.mean, reverse=figure.better == "high")


def findings(study: Study, price: Price | None) -> list[Finding]:
    """What was found, by model, data set and device: what one device does faster than another is no finding.

    Args:
        study: the runs.
        price: of one node; None leaves costs out.
    """
    every = aggregate.configurations(study)
    title = title_of(every)
    groups: dict[str, list[Configuration]] = {}
    for one in every:
        groups.setdefault(title(one), []).append(one)
    found = []
    for heading, among in groups.items():
        names = Names.of(study, among)
        finished = [one for one in among if one.finished]
        if finished:
            found.append(_finding(heading, _Group(study, finished, names.words), price))
        elif not any(one.finished for one in every if (one.model, one.dataset) == (among[0].model, among[0].dataset)):
            found.append(Finding(heading, (), ("No run has finished, so there is nothing to compare yet.",)))
    return found


def _finding(title: str, group: _Group, price: Price | None) -> Finding:
    unequal, apart = (peers.difference(group.among, figure) for figure in (TRAINING_TIME, ACCURACY))
    speed = IMAGES_PER_S if unequal else TRAINING_TIME
    speeds = group.found(speed)
    fastest = speeds[0].one if speeds else None
    accuracies = _leading(group.found(ACCURACY), fastest)
    if not speeds and not accuracies:
        return Finding(title, (), ("Runs have finished, but recorded neither training times nor accuracies.",))
    ratios = _ratios(group)

    def highlight(title: str, found: _Found, figure: Figure) -> Highlight:
        return Highlight(title, figure.text(found.value.mean), group.name(found.one))

    shown = [highlight("Fastest", found, speed) for found in speeds[:1]]
    shown += [highlight("Most accurate", found, ACCURACY) for found in accuracies[:1]]
    if ratios:
        one, ratio = max(ratios, key=lambda pair: pair[1].efficiency.mean)
        times = f"{ratio.speed_up.mean:.2f} times"
        shown.append(Highlight("Best speed-up for its workers", times, group.name(one)))
    if price is not None:
        cost = measures.cost_of_training(price) if unequal else measures.cost_of_run(price)
        shown += [highlight(f"Cheapest on {price.machine}", found, cost) for found in group.found(cost)[:1]]

    said = []
    if unequal:
        cause = ", and a difference in accuracy may come from the amount of training" if apart else ""
        said.append(f"{unequal[0].upper()}{unequal[1:]}, so they are ranked by images/s{cause}.")
    if len(speeds) > 1:
        said.append(_speed(group, speeds, speed))
    if fastest is not None and len(accuracies) > 1 and not apart:
        said += _trade(group, fastest, accuracies)
    return Finding(title, shown, [*said, *_efficiencies(group, ratios), *_strategies(group)])


def spoken(findings: Sequence[Finding], cautions: Sequence[str]) -> Iterator[str]:
    """Findings and cautions as lines for a terminal."""
    for finding in findings:
        yield from (f"{finding.title}: {sentence}" for sentence in finding.sentences)
    yield from (f"caution: {caution}" for caution in cautions)


def _leading(accuracies: Sequence[_Found], fastest: Configuration | None) -> list[_Found]:
    """From the most accurate on; of several that are equal, the fastest first where it is one of them."""
    if not accuracies:
        return []
    top = accuracies[0].value.mean
    equal = [found for found in accuracies if math.isclose(found.value.mean, top, rel_tol=1e-9)]
    return sorted(accuracies, key=lambda found: (found not in equal, found.one is not fastest))


def _speed(group: _Group, speeds: Sequence[_Found], figure: Figure) -> str:
    """The fastest beside a single worker with the same batch, else beside the slowest."""
    best = speeds[0]
    column = aggregate.column(group.study, best.one)
    alone = [
        found
        for found in speeds[1:]
        if found.one.devices == 1
        and aggregate.column(group.study, found.one) == column
        and scaling.same_work(found.one, best.one)
        and scaling.may_be_base(found.one, best.one)
    ]
    alone.sort(key=lambda found: found.one.others != best.one.others)
    other = alone[0] if alone else speeds[-1]
    figures = f"{figure.number(best.value.mean)} against {figure.text(other.value.mean)}"
    sentence = f"{group.name(best.one)} is {_times(best, other)} {group.name(other.one)} ({figures})."
    ties = [found for found in speeds[1:] if peers.distinct(best.value, found.value) is False]
    return f"{sentence} {_tied(group, ties, 'speed')}".rstrip()


def _times(fast: _Found, slow: _Found) -> str:
    low, high = sorted((fast.value.mean, slow.value.mean))
    times = f"{high / low:.2f}" if low > 0 else "many"
    return "as fast as" if times == "1.00" else f"{times} times as fast as"


def _tied(group: _Group, ties: Sequence[_Found], what: str) -> str:
    """Names the configurations that chance does not tell from the best."""
    if not ties:
        return ""
    more = f" and {len(ties) - _MOST_NAMED} more" if len(ties) > _MOST_NAMED else ""
    listed = "; ".join(group.name(found.one) for found in ties[:_MOST_NAMED])
    return f"Its {what} is not distinguishable from that of {listed}{more} (Student's t-test over the seeds, 5 %)."


def _trade(group: _Group, fastest: Configuration, accuracies: Sequence[_Found]) -> list[str]:
    """What the fastest gave up in accuracy, and whether that can be told from chance; the most accurate come first."""
    top = accuracies[0]
    own = next((found for found in accuracies if found.one is fastest), None)
    if own is None:
        return []
    if top.one is fastest:
        return ["No other is more accurate."]
    figures = f"{ACCURACY.number(own.value.mean)} against {ACCURACY.text(top.value.mean)}"
    distinct = peers.distinct(own.value, top.value, _test_images((own.one, top.one)))
    if distinct is False:
        return [
            f"Its accuracy is not distinguishable from the best, that of {group.name(top.one)}: {figures} "
            "(Student's t-test over the seeds and the size of the test set, 5 %)."
        ]
    lost = top.value.mean - own.value.mean
    chance = "" if distinct else " One run of each (n = 1) cannot tell that from chance."
    sizes = ""
    if own.one.global_batch_size != top.one.global_batch_size:
        sizes = f" The global batch is {own.one.global_batch_size} there and {top.one.global_batch_size} here."
    return [f"It loses {lost:.1f} points of accuracy against {group.name(top.one)}: {figures}.{chance}{sizes}"]


def _test_images(among: Sequence[Configuration]) -> float | None:
    known = [images for one in among for trial in one.finished if (images := _TEST_IMAGES(trial)) is not None]
    return min(known, default=None)


def _ratios(group: _Group) -> list[tuple[Configuration, scaling.Ratio]]:
    """Those that scale over several workers, by how well."""
    found = [(one, scaling.ratio(group.study, one, group.among)) for one in group.among]
    return [(one, ratio) for one, ratio in found if ratio is not None and ratio.reference.devices < one.devices]


def _efficiencies(group: _Group, ratios: Sequence[tuple[Configuration, scaling.Ratio]]) -> list[str]:
    """The range of the efficiency with the fewest and the most workers, over all batches and strategies."""
    by_count: dict[int, list[float]] = {}
    for one, ratio in ratios:
        by_count.setdefault(one.devices, []).append(ratio.efficiency.mean)
    if not by_count:
        return []

    def told(count: int) -> str:
        low, high = (f"{value:.0f}" for value in (min(by_count[count]), max(by_count[count])))
        return f"{low} %" if low == high else f"{low} to {high} %"

    least, most = min(by_count), max(by_count)
    word = scaling.unit(group.among)
    sentence = f"With {least} {word} the efficiency is {told(least)}"
    return [f"{sentence}, with {most} it is {told(most)}." if most != least else f"{sentence}."]


def _strategies(group: _Group) -> list[str]:
    """For every number of workers, the fastest strategy and the slowest, and what the split of their steps says."""
    if not compared(group.among):
        return []
    rivals: dict[tuple[int, int], list[Configuration]] = {}
    for one in sorted(group.among, key=lambda one: (one.devices, one.global_batch_size)):
        if one.devices > 1:
            rivals.setdefault((one.devices, one.global_batch_size), []).append(one)
    said = []
    several = len({batch for _, batch in rivals}) > 1
    for (count, batch), among in rivals.items():
        times = [found for found in group.found(ITERATION_TIME, among) if found.value.mean > 0]
        if compared([found.one for found in times]):
            place = f"With {count} {scaling.unit(among)}" + (f" and global batch {batch}" if several else "")
            said.append(f"{place}, {_rivals(group, times)}")
    return said


def _rivals(group: _Group, times: Sequence[_Found]) -> str:
    best, after, slowest = times[0], times[1], times[-1]

    def told(found: _Found) -> str:
        remark = ITERATION_TIME.remarks(found.one.finished)
        return f"{ITERATION_TIME.text(found.value.mean)}{f', {remark}' if remark else ''}"

    sentence = f"{group.name(best.one)} has the shortest iteration ({told(best)}), "
    sentence += f"{_times(best, after)} {group.name(after.one)} ({told(after)})"
    if slowest is not after:
        sentence += f" and {_times(best, slowest)} the slowest, {group.name(slowest.one)} ({told(slowest)})"
    tied = _tied(group, [found for found in times[1:] if peers.distinct(best.value, found.value) is False], "time")
    return " ".join(filter(None, (f"{sentence}.", tied, _why(group, best.one, slowest.one))))


def _why(group: _Group, best: Configuration, slowest: Configuration) -> str:
    """Where most of the time goes that the slowest takes longer, where the split of the steps tells."""
    whole = _gap(ITERATION_TIME, best, slowest) or 0.0
    gaps = [(gap, part) for part in _PARTS if (gap := _gap(part, best, slowest)) is not None]
    if not gaps or whole <= 0:
        return ""
    most, part = max(gaps, key=lambda pair: pair[0])
    if part is measures.NOT_SPLIT or most < _MOSTLY * whole:
        return ""
    name = part.title.removesuffix(" (ms)").lower()
    longer = ITERATION_TIME.number(most)
    return f"{name.capitalize()} takes {longer} ms longer with {group.name(slowest)} than with {group.name(best)}."


def _gap(figure: Figure, best: Configuration, other: Configuration) -> float | None:
    """By how much the other's figure is larger."""
    low, high = best.statistic(figure.measure), other.statistic(figure.measure)
    return None if low is None or high is None else high.mean - low.mean
