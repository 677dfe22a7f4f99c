"""What a study comes to, in a few figures and sentences made from its runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from cifar_ray.reporting import aggregate, cells, effects, measures, peers, scaling
from cifar_ray.reporting.aggregate import Configuration, Statistic
from cifar_ray.reporting.contents import Finding, Highlight
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.measures import ACCURACY, IMAGES_PER_S, ITERATION_TIME, TRAINING_TIME, Figure
from cifar_ray.reporting.names import Names, compared, title_of
from cifar_ray.tracking.study import Study

_PARTS = (*measures.STEP_PARTS, measures.NOT_SPLIT)
_MOSTLY = 0.5  # of a difference, so that one part accounts for it
_MOST_NAMED = 3
_ONCE = "In one run of each"


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


class _Question(NamedTuple):
    """What a figure answers: the titles of its tile, as far as chance lets it be answered."""

    best: str
    single: str
    alone: str
    what: str


class _Ranking(NamedTuple):
    """Configurations by one figure, the best first.

    Attributes:
        figure: which one.
        found: all of them.
        ties: those that the test does not tell from the best.
        untested: those that it cannot be applied to, as they and the best have one run each.
        images: how many test images limit how exact the figure is.
        level: whether the test tells no two apart, nor finds an effect of an axis.
    """

    figure: Figure
    found: Sequence[_Found]
    ties: Sequence[_Found]
    untested: Sequence[_Found]
    images: float | None
    level: bool

    @property
    def single(self) -> bool:
        """Whether there is no test, for want of a second run."""
        return 0 < len(self.untested) == len(self.found) - 1

    @property
    def same(self) -> Sequence[_Found]:
        """Those without a test whose figure reads as the best one's."""
        best = self.figure.number(self.found[0].value.mean)
        return [one for one in self.untested if self.figure.number(one.value.mean) == best]


def _ranking(figure: Figure, found: Sequence[_Found], effect: bool = False) -> _Ranking:
    images = peers.images(figure, [one.one for one in found])
    distinct = [peers.distinct(found[0].value, other.value, images) for other in found[1:]]
    ties, untested = ([other for other, are in zip(found[1:], distinct) if are is which] for which in (False, None))
    level = len(ties) == len(found) - 1 and not (
        effect or any(peers.distinct(one.value, other.value, images) for one, other in combinations(found[1:], 2))
    )
    if found and figure.unit == " s" and found[0].value.mean < 1:
        figure = replace(figure, digits=None)
    return _Ranking(figure, found, ties, untested, images, level)


_SPEEDS = {
    TRAINING_TIME: _Question("Fastest", "Shortest training", "Training time", "speed"),
    IMAGES_PER_S: _Question("Fastest", "Most images/s", "Images per second", "speed"),
}
_HIGHEST = "Highest accuracy, unequal training"
_ACCURACIES = _Question("Most accurate", "Highest accuracy", "Test accuracy", "accuracy")
_UNEQUAL = _Question(_HIGHEST, _HIGHEST, "Test accuracy, unequal training", "accuracy, unequal training")
_GAIN = _Question("Best speed-up for its workers", "Highest speed-up for its workers", "Speed-up", "speed-up")


def _finding(title: str, group: _Group, price: Price | None) -> Finding:
    unequal, apart = (peers.difference(group.among, figure) for figure in (TRAINING_TIME, ACCURACY))
    speed = IMAGES_PER_S if unequal else TRAINING_TIME
    known = list(effects.effects(group.study, group.among, speed))
    moved = {effect.figure for effect in known if effect.measurable}
    speeds = _ranking(speed, group.found(speed), speed in moved)
    fastest = speeds.found[0].one if speeds.found else None
    accuracies = _ranking(ACCURACY, _leading(group.found(ACCURACY), fastest), ACCURACY in moved)
    if not speeds.found and not accuracies.found:
        return Finding(title, (), ("Runs have finished, but recorded neither training times nor accuracies.",))
    ratios = _ratios(group)
    shown = [*_tile(group, speeds, _SPEEDS[speed])]
    shown += _tile(group, accuracies, _UNEQUAL if apart else _ACCURACIES)
    shown += _gain(group, ratios)
    if price is not None and all(one.device == price.device for one in group.among):
        cost = measures.cost_of_training(price) if unequal else measures.cost_of_run(price)
        on = f"on {price.machine}"
        question = _Question(f"Cheapest {on}", f"Lowest cost {on}", f"Cost {on}", "cost")
        shown += _tile(group, _ranking(cost, group.found(cost)), question)

    said = []
    if unequal:
        cause = ", and a difference in accuracy may come from the amount of training" if apart else ""
        said.append(f"{unequal[0].upper()}{unequal[1:]}, so they are ranked by images/s{cause}.")
    if len(speeds.found) > 1:
        said.append(_speed(group, speeds, _SPEEDS[speed]))
    if len(accuracies.found) > 1 and not apart:
        said += _accuracy(group, None if speeds.level else fastest, accuracies)
    said += [effect.sentence for effect in known]
    return Finding(title, shown, [*said, *_efficiencies(group, ratios), *_strategies(group)])


def _tile(group: _Group, ranking: _Ranking, question: _Question, shown: str = "") -> Iterator[Highlight]:
    """The best, called the best only where the test tells it from all others."""
    if not ranking.found:
        return
    best, *rest = ranking.found
    figure, name = shown or ranking.figure.text(best.value.mean), group.name(best.one)
    every = f"{len(ranking.found)} configurations"
    if not rest:
        yield Highlight(question.alone, figure, name)
    elif not ranking.ties and not ranking.untested:
        yield Highlight(question.best, figure, name)
    elif ranking.level and not shown:
        yield Highlight(f"No measurable difference in {question.what}", _span(ranking), every)
    elif len(ranking.same) == len(rest) and not shown:
        yield Highlight(f"Same {question.what} (n = 1)", figure, every)
    else:
        of_one = len(ranking.untested) > len(ranking.same) or bool(shown and ranking.untested)
        told = [f"not distinguishable from {_others(ranking.ties)}"] if ranking.ties else []
        told += [f"the same as {_others(ranking.same)}"] if ranking.same and not shown else []
        told += [f"not tested against {_others(ranking.untested)}"] if of_one and not ranking.single else []
        title = f"{question.single} (n = 1)" if ranking.untested else f"{question.single}, not alone"
        yield Highlight(title, figure, "; ".join([name, ", ".join(told)] if told else [name]))


def _others(those: Sequence[_Found]) -> str:
    return f"{len(those)} other{'s' if len(those) > 1 else ''}"


def _gain(group: _Group, ratios: Sequence[tuple[Configuration, scaling.Ratio]]) -> Iterator[Highlight]:
    """The best speed-up for its workers, or that more workers brought none."""

    def gained(ratio: scaling.Ratio) -> bool:
        speed, base = (Statistic.of(values) for values in (ratio.pairs.own, ratio.pairs.base))
        return ratio.speed_up.mean > 1 and peers.distinct(speed, base) is not False

    gains = [(one, ratio) for one, ratio in ratios if gained(ratio)]
    if ratios and not gains:
        one, ratio = max(ratios, key=lambda pair: pair[1].speed_up.mean)
        which = "second" if ratio.reference.devices == 1 else "further"
        title = f"No {which} {scaling.unit(group.among)[:-1]} paid off here"
        within = ", within chance" if ratio.speed_up.mean > 1 else ""
        yield Highlight(title, f"{ratio.speed_up.mean:.2f} times{within}", f"{group.name(one)}, the highest")
    elif gains:
        found = [_Found(one, ratio.efficiency) for one, ratio in gains]
        found.sort(key=lambda one: one.value.mean, reverse=True)
        times = next(ratio.speed_up.mean for one, ratio in gains if one is found[0].one)
        yield from _tile(group, _ranking(cells.EFFICIENCY, found), _GAIN, f"{times:.2f} times")


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


def _speed(group: _Group, speeds: _Ranking, question: _Question) -> str:
    """The fastest beside a single worker with the same batch, else beside the slowest that is told from it."""
    figure, (best, *rest) = speeds.figure, speeds.found
    column = aggregate.column(group.study, best.one)
    alone = [
        found
        for found in rest
        if found.one.devices == 1
        and aggregate.column(group.study, found.one) == column
        and scaling.same_work(found.one, best.one)
        and scaling.may_be_base(found.one, best.one)
    ]
    alone.sort(key=lambda found: found.one.others != best.one.others)
    others = [*alone, *reversed(rest)]
    slower = [found for found in others if found not in speeds.ties and found not in speeds.untested]
    if speeds.level:
        return _no_difference(speeds, "No configuration is measurably faster")
    if not slower and not speeds.single:
        value = figure.text(best.value.mean)
        return f"{group.name(best.one)} has the {question.single.lower()}, {value}. {_tied(group, speeds, 'speed')}"
    other = (slower or others)[0]
    figures = _both(figure, best, other)
    verb = f"{group.name(best.one)} is" if slower else f"{_ONCE}, {group.name(best.one)} was"
    sentence = f"{verb} {_times(best, other)} {group.name(other.one)} ({figures})."
    return f"{sentence} {_tied(group, speeds, 'speed')}".rstrip()


def _span(ranking: _Ranking) -> str:
    low, *_, high = sorted(found.value.mean for found in ranking.found)
    least, most = ranking.figure.number(low), ranking.figure.text(high)
    return most if ranking.figure.text(low) == most else f"{least} to {most}"


def _no_difference(ranking: _Ranking, claim: str) -> str:
    figure, (best, *rest) = ranking.figure, ranking.found
    return f"{claim}: {_span(ranking)} in {len(rest) + 1} configurations ({_test(best, rest, figure, ranking.images)})."


def _test(best: _Found, others: Sequence[_Found], figure: Figure, images: float | None = None) -> str:
    """The test that did not tell these apart, and how large a difference it would have seen."""
    against = "the seeds and the size of the test set" if images and math.isfinite(images) else "the seeds"
    least = [peers.visible(best.value, other.value, images) for other in others]
    chance = [peers.by_seeds(best.value, other.value) for other in others]
    known, by_seeds = (max((one for one in found if one is not None), default=0.0) for found in (least, chance))
    counts = sorted({best.value.n, *(other.value.n for other in others)})
    runs = f"n = {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "")
    if images is None and known > by_seeds:
        return f"Student's t-test over {against}, 5 %, {runs}; differences below 1 % count as none"
    shown = f"{known:.1f} points" if figure.unit == " %" else figure.text(known)
    return f"Student's t-test over {against}, 5 %; with {runs} it sees differences above {shown}"


def _both(figure: Figure, one: _Found, other: _Found) -> str:
    """Two figures, with the counts of their runs where those differ."""
    first, second = figure.number(one.value.mean), figure.text(other.value.mean)
    if one.value.n == other.value.n:
        return f"{first} against {second}"
    return f"{first}, n = {one.value.n}, against {second}, n = {other.value.n}"


def _times(fast: _Found, slow: _Found) -> str:
    low, high = sorted((fast.value.mean, slow.value.mean))
    times = f"{high / low:.2f}" if low > 0 else "many"
    return "as fast as" if times == "1.00" else f"{times} times as fast as"


def _tied(group: _Group, ranking: _Ranking, what: str) -> str:
    """Names the configurations that the test does not tell from the best, and those without one."""

    def listed(those: Sequence[_Found]) -> str:
        more = f" and {len(those) - _MOST_NAMED} more" if len(those) > _MOST_NAMED else ""
        return "; ".join(group.name(found.one) for found in those[:_MOST_NAMED]) + more

    ties, said = ranking.ties, []
    if ties:
        test = _test(ranking.found[0], ties, ranking.figure, ranking.images)
        said.append(f"Its {what} is not distinguishable from that of {listed(ties)} ({test}).")
    if ranking.untested and not ranking.single:
        said.append(f"One run of each (n = 1) cannot tell it from {listed(ranking.untested)}.")
    return " ".join(said)


def _accuracy(group: _Group, fastest: Configuration | None, accuracies: _Ranking) -> list[str]:
    """How accurate the fastest is beside the most accurate; without times, what the most accurate is told from."""
    top, images = accuracies.found[0], accuracies.images
    own = next((found for found in accuracies.found if found.one is fastest), None)
    if own is None:
        return [_most_accurate(group, accuracies)]
    if own is top:
        if accuracies.single:
            every = len(accuracies.same) == len(accuracies.untested)
            equal = f"{_ONCE}, all had an accuracy of {ACCURACY.text(top.value.mean)}."
            return [equal if every else f"{_ONCE}, no other was more accurate than {group.name(top.one)}."]
        return ["No other is measurably more accurate." if accuracies.ties else "It is also the most accurate."]
    figures = _both(ACCURACY, own, top)
    distinct = peers.distinct(own.value, top.value, images)
    if distinct is False:
        return [
            f"Its accuracy is not distinguishable from the highest, that of {group.name(top.one)}: {figures} "
            f"({_test(top, [own], ACCURACY, images)})."
        ]
    if own in accuracies.same:
        return [f"{_ONCE}, its accuracy was the highest, {ACCURACY.text(own.value.mean)}."]
    lost = top.value.mean - own.value.mean
    chance = "" if distinct else " One run of each (n = 1) cannot tell that from chance."
    sizes = ""
    if own.one.global_batch_size != top.one.global_batch_size:
        sizes = f" Its global batch is {own.one.global_batch_size}, against {top.one.global_batch_size}."
    verb = "It loses" if distinct else "Its run had"
    what = f"{lost:.1f} points of accuracy" if distinct else f"{lost:.1f} points less accuracy"
    return [f"{verb} {what} {'against' if distinct else 'than'} {group.name(top.one)}: {figures}.{chance}{sizes}"]


def _most_accurate(group: _Group, accuracies: _Ranking) -> str:
    top, *rest = accuracies.found
    value = ACCURACY.text(top.value.mean)
    if accuracies.single:
        if len(accuracies.same) == len(rest):
            return f"{_ONCE}, all had an accuracy of {value}."
        return f"{_ONCE}, {group.name(top.one)} had the highest accuracy, {value}."
    if accuracies.level:
        return _no_difference(accuracies, "No configuration is measurably more accurate")
    if not accuracies.ties and not accuracies.untested:
        return f"{group.name(top.one)} is the most accurate, {value}."
    return f"{group.name(top.one)} has an accuracy of {value}. {_tied(group, accuracies, 'accuracy')}"


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

    ranking = _ranking(ITERATION_TIME, times)
    ties, single = ranking.ties, after in ranking.untested
    if ranking.level:
        return _no_difference(ranking, "no strategy is measurably faster")
    name = f"{group.name(best.one)} {'had, in one run of each,' if single else 'has'}"
    if after in ties:
        sentence = f"{name} an iteration of {told(best)}"
        sentence += f", {_times(best, slowest)} the slowest, {group.name(slowest.one)} ({told(slowest)})"
        if slowest in ties:
            sentence = f"{name} an iteration of {told(best)}"
    else:
        sentence = f"{name} the shortest iteration ({told(best)}), "
        sentence += f"{_times(best, after)} {group.name(after.one)} ({told(after)})"
        if slowest is not after:
            sentence += f" and {_times(best, slowest)} the slowest, {group.name(slowest.one)} ({told(slowest)})"
    tied = _tied(group, ranking, "time")
    why = "" if slowest in ties else _why(group, best.one, slowest.one)
    return " ".join(filter(None, (f"{sentence}.", tied, why)))


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
