"""What a study comes to: a tile and a sentence for each ranking of its configurations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from cifar_ray import tasks
from cifar_ray.reporting import chance, figures, scaling
from cifar_ray.reporting.chance import Measured, Noise
from cifar_ray.reporting.contents import Finding, Highlight
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.effects import effects
from cifar_ray.reporting.figures import EFFICIENCY, ITERATION_TIME, TRAINING_TIME, Figure, Statistic
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.reporting.names import Names, compared, titled
from cifar_ray.reporting.ranking import Ranking
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking.study import Run

_PARTS = (*figures.PARTS, figures.NOT_SPLIT)
_MOSTLY = 0.5  # of a difference, so that one part accounts for it
_MOST_NAMED = 3
_LEAST_POINTS = 0.05  # read as 0.1


class _Question(NamedTuple):
    """What a ranking answers, as far as chance lets it be answered.

    Attributes:
        best: title of the first of several.
        alone: title of the only one.
        what: is ranked.
    """

    best: str
    alone: str
    what: str

    def title(self, ranking: Ranking) -> str:
        """The title of the first of a ranking."""
        if len(ranking.ranked) == 1:
            return self.alone
        if not ranking.ties:
            return self.best
        return f"{self.best} (n = 1)" if ranking.single else f"{self.best}, not alone"

    def even(self, ranking: Ranking) -> str:
        """The title of all of a ranking, where none is ahead; else empty."""
        if ranking.level and ranking.ties:
            return f"No measurable difference in {self.what}"
        return f"Same {self.what} (n = 1)" if ranking.same else ""


_TIME = _Question("Shortest training", "Training time", "speed")
_GAIN = _Question("Best speed-up for its workers", "Speed-up", "speed-up")
_ITERATION = _Question("shortest iteration", "iteration", "iteration time")


class _Group(NamedTuple):
    """Finished configurations of one model, data set and device, and what they are called."""

    among: Sequence[Configuration]
    name: Callable[[Configuration], str]

    @property
    def task(self) -> TaskFigures:
        return self.among[0].runs.task

    @property
    def trials(self) -> list[Run]:
        return [trial for config in self.among for trial in config.finished]

    @property
    def objective(self) -> Figure:
        """The figure by which one of them may be chosen."""
        return self.task.chooser(self.trials)

    @property
    def validated(self) -> bool:
        """Whether that is one of validation images."""
        return self.objective.subset == "val"

    def ranked(self, figure: Figure, among: Sequence[Configuration] | None = None) -> list[Measured]:
        """Those that have a figure, the best first; of equal ones, in their order."""
        pairs = [(config, config.statistic(figure)) for config in (self.among if among is None else among)]
        known = [Measured(config, value) for config, value in pairs if value is not None]
        return sorted(known, key=lambda measured: measured.value.mean, reverse=figure.better == "high")


def findings(runs: Runs, price: Price | None) -> list[Finding]:
    """What runs came to, by model, data set and device; ``price`` is that of one node, None leaves costs out."""
    done = {(config.model, config.dataset) for config in runs.finished}
    findings = []
    for heading, among in titled(runs.configurations).items():
        finished = [config for config in among if config.finished]
        if finished:
            findings.append(_finding(heading, _Group(finished, Names.of(among).words), price))
        elif (among[0].model, among[0].dataset) not in done:
            findings.append(Finding(heading, (), ("No run has finished, so there is nothing to compare yet.",)))
    return findings


def _finding(title: str, group: _Group, price: Price | None) -> Finding:
    task, objective = group.task, group.objective
    of = objective.of or task.spec.primary
    unequal, apart = (chance.unequal_work(group.among, figure) for figure in (TRAINING_TIME, objective))
    speed, speed_question = (task.throughput, _throughput(task)) if unequal else (TRAINING_TIME, _TIME)
    speeds = Ranking.of(speed, group.ranked(speed))
    fastest = speeds.ranked[0].config if speeds.ranked else None
    learned = Ranking.of(objective, _leading(group.ranked(objective), fastest))
    if not speeds.ranked and not learned.ranked:
        return Finding(title, (), (f"Runs have finished, but recorded neither training times nor {of.noun}.",))
    learned_question = _learned(group, of, ", unequal training" if apart else "")
    tested = _tested(group, learned)
    every = [(config, scaling.ratio(config, group.among)) for config in group.among]
    ratios = [
        (config, ratio) for config, ratio in every if ratio is not None and ratio.reference.devices < config.devices
    ]
    tiles = [
        *_tile(group, speeds, speed_question),
        *_tile(group, learned, learned_question, tested),
        *_gain(group, ratios),
    ]
    if price is not None and all(price.suits(config.device) for config in group.among):
        cost, at = task.cost_of_training(price) if unequal else figures.cost_of_run(price), price.at
        question = _Question(f"Lowest cost {at}", f"Cost {at}", "cost")
        tiles += _tile(group, Ranking.of(cost, group.ranked(cost)), question)
    sentences = []
    if unequal:
        cause = f", and a difference in {of.noun} may come from the amount of training" if apart else ""
        sentences.append(f"{unequal[0].upper()}{unequal[1:]}, so they are ranked by {task.spec.unit}/s{cause}.")
    if len(speeds.ranked) > 1:
        sentences.append(_sentence(group, speeds, speed_question, _base(speeds)))
    if len(learned.ranked) > 1 and not apart:
        others = [each for each in learned.ranked[1:] if each.config is fastest] or learned.ranked[-1:]
        sentences.append(_sentence(group, learned, learned_question, others[0], tested))
        if not (group.validated or learned.level or learned.same):
            sentences.append(f"The best was chosen on the test set, among {len(learned.ranked)} configurations.")
    sentences += [*effects(group.among, speed), *_efficiencies(group, ratios), *_strategies(group)]
    return Finding(title, tiles, [*sentences, *_tests(speeds, learned)])


def _throughput(task: TaskFigures) -> _Question:
    return _Question(f"Most {task.spec.unit}/s", f"{task.counts} per second", "speed")


def _learned(group: _Group, of: tasks.Figure, but: str) -> _Question:
    """Of the figure that chooses; ``but`` is what keeps runs from being compared by it."""
    return _Question(f"Best {of.noun}{but}", f"Test {group.task.spec.primary.noun}{but}", f"{of.noun}{but}")


def _leading(ranked: Sequence[Measured], fastest: Configuration | None) -> list[Measured]:
    """From the best on; of several that are equal, the fastest first where it is one of them."""
    top = ranked[0].value.mean if ranked else 0.0

    def after(measured: Measured) -> tuple[bool, bool]:
        return not math.isclose(measured.value.mean, top, rel_tol=1e-9), measured.config is not fastest

    return sorted(ranked, key=after)


def _tested(group: _Group, ranking: Ranking) -> str:
    """What the first of a ranking by validation images has in the test; empty of another ranking."""
    value = ranking.ranked[0].config.statistic(group.task.primary) if ranking.ranked and group.validated else None
    return "" if value is None else f"{group.task.primary.text(value.mean)} in the test"


def _base(speeds: Ranking) -> Measured:
    """What the fastest stands beside: a single worker with the same batch, else the slowest."""
    best, *rest = speeds.ranked

    def is_base(other: Configuration) -> bool:
        alike = other.column == best.config.column and scaling.same_work(other, best.config)
        return other.devices == 1 and alike and scaling.may_be_base(other, best.config)

    alone = [other for other in rest if is_base(other.config) and (speeds.single or other not in speeds.ties)]
    return min(alone, key=lambda other: other.config.others != best.config.others, default=rest[-1])


def _tile(group: _Group, ranking: Ranking, question: _Question, shown: str = "") -> Iterator[Highlight]:
    """The best, called the best only where the test tells it from all others; ``shown`` stands for its figure."""
    if not ranking.ranked:
        return
    if (even := question.even(ranking)) and not shown:
        yield Highlight(even, ranking.span, f"{len(ranking.ranked)} configurations")
        return
    best = ranking.ranked[0]
    ties = f"{len(ranking.ties)} other{'s' * (len(ranking.ties) > 1)}"
    alone = ranking.single or not ranking.ties
    name = group.name(best.config) + ("" if alone else f"; not distinguishable from {ties}")
    yield Highlight(question.title(ranking), shown or ranking.figure.text(best.value.mean), name)


def _sentence(group: _Group, ranking: Ranking, question: _Question, other: Measured, tested: str = "") -> str:
    """The first of a ranking beside another one, and those that the test does not tell from it."""
    figure, best = ranking.figure, ranking.ranked[0]
    if even := question.even(ranking):
        sentence = f"{even}: {ranking.span} in {len(ranking.ranked)} configurations."
        return f"{sentence} {ranking.seen}" if ranking.level else sentence
    several = len({each.value.n for each in ranking.ranked}) > 1

    def told(measured: Measured, more: str = "") -> str:
        remarks = [figure.remarks(measured.config.finished), f"n = {measured.value.n}" * several, more]
        return ", ".join([figure.text(measured.value.mean), *filter(None, remarks)])

    sentence = f"{question.title(ranking)}: {group.name(best.config)} ({told(best, tested)})"
    if (ranking.single or other not in ranking.ties) and figure.text(best.value.mean) != figure.text(other.value.mean):
        sizes = [each.config.global_batch_size for each in (best, other)]
        batches = f", global batches {sizes[0]} and {sizes[1]}" if figure.of and sizes[0] != sizes[1] else ""
        sentence += f", {_gap(figure, best, other)} {group.name(other.config)} ({told(other)}){batches}"
    if ranking.single or not ranking.ties:
        return f"{sentence}."
    more = f" and {len(ranking.ties) - _MOST_NAMED} more" if len(ranking.ties) > _MOST_NAMED else ""
    ties = sorted(ranking.ties, key=lambda tie: tie is not other)[:_MOST_NAMED]
    listed = "; ".join(f"{group.name(tie.config)} ({told(tie)})" for tie in ties)
    return f"{sentence}. Not distinguishable: {listed}{more}. {ranking.seen}"


def _gap(figure: Figure, best: Measured, other: Measured) -> str:
    if figure.of is not None:
        lost = abs(best.value.mean - other.value.mean)
        return f"{figure.difference(lost, 1 if lost >= _LEAST_POINTS else 2)} better than"
    low, high = sorted((best.value.mean, other.value.mean))
    return f"{high / low:.2f} times as fast as" if low > 0 else "many times as fast as"


def _gain(group: _Group, ratios: Sequence[tuple[Configuration, scaling.Ratio]]) -> Iterator[Highlight]:
    """The best speed-up for its workers, or that more workers brought none."""
    noise = Noise.of(group.task.throughput, group.ranked(group.task.throughput))

    def gained(ratio: scaling.Ratio) -> bool:
        both = (Statistic.of(values) for values in (ratio.pairs.own, ratio.pairs.base))
        return ratio.speed_up.mean > 1 and noise.distinct(*both) is not False

    gains = [(config, ratio) for config, ratio in ratios if gained(ratio)]
    if ratios and not gains:
        config, ratio = max(ratios, key=lambda pair: pair[1].speed_up.mean)
        which = "second" if ratio.reference.devices == 1 else "further"
        title = f"No {which} {scaling.unit(group.among)[:-1]} paid off here"
        within = ", within chance" if ratio.speed_up.mean > 1 else ""
        yield Highlight(title, f"{ratio.speed_up.mean:.2f} times{within}", f"{group.name(config)}, the highest")
    elif gains:
        gains.sort(key=lambda pair: pair[1].efficiency.mean, reverse=True)
        ranking = Ranking.of(EFFICIENCY, [Measured(config, ratio.efficiency) for config, ratio in gains])
        yield from _tile(group, ranking, _GAIN, f"{gains[0][1].speed_up.mean:.2f} times")


def spoken(findings: Sequence[Finding], cautions: Sequence[str]) -> Iterator[str]:
    """Findings and cautions as lines for a terminal."""
    for finding in findings:
        yield from (f"{finding.title}: {sentence}" for sentence in finding.sentences)
    yield from (f"caution: {caution}" for caution in cautions)


def _efficiencies(group: _Group, ratios: Sequence[tuple[Configuration, scaling.Ratio]]) -> list[str]:
    """The range of the efficiency with the fewest and the most workers, over all batches and strategies."""
    by_count: dict[int, list[float]] = {}
    for config, ratio in ratios:
        by_count.setdefault(config.devices, []).append(ratio.efficiency.mean)
    if not by_count:
        return []

    def span(count: int) -> str:
        low, high = (f"{value:.0f}" for value in (min(by_count[count]), max(by_count[count])))
        return f"{low} %" if low == high else f"{low} to {high} %"

    least, most = min(by_count), max(by_count)
    sentence = f"With {least} {scaling.unit(group.among)} the efficiency is {span(least)}"
    return [f"{sentence}, with {most} it is {span(most)}." if most != least else f"{sentence}."]


def _strategies(group: _Group) -> Iterator[str]:
    """For every number of workers, the fastest strategy and the slowest, and what the split of their steps says."""
    rivals: dict[tuple[int, int], list[Configuration]] = {}
    for config in sorted(group.among, key=lambda config: (config.devices, config.global_batch_size)):
        if config.devices > 1:
            rivals.setdefault((config.devices, config.global_batch_size), []).append(config)
    several = len({batch for _, batch in rivals}) > 1
    for (count, batch), among in rivals.items():
        times = [measured for measured in group.ranked(ITERATION_TIME, among) if measured.value.mean > 0]
        if compared([measured.config for measured in times]):
            place = f"With {count} {scaling.unit(among)}" + (f" and global batch {batch}" if several else "")
            ranking = Ranking.of(ITERATION_TIME, times, group.ranked(ITERATION_TIME))
            sentence = _sentence(group, ranking, _ITERATION, times[-1])
            certain = ranking.single or times[-1] not in ranking.ties
            why = _why(group, times[0].config, times[-1].config) if certain else ""
            yield f"{place}, {sentence[0].lower()}{sentence[1:]} {why}".rstrip()


def _why(group: _Group, best: Configuration, slowest: Configuration) -> str:
    """Where most of the time goes that the slowest takes longer, where the split of the steps tells."""
    whole = _longer(ITERATION_TIME, best, slowest) or 0.0
    gaps = [(gap, part) for part in _PARTS if (gap := _longer(part, best, slowest)) is not None]
    most, part = max(gaps, key=lambda pair: pair[0], default=(0.0, figures.NOT_SPLIT))
    if whole <= 0 or part is figures.NOT_SPLIT or most < _MOSTLY * whole:
        return ""
    name, longer = part.title.removesuffix(" (ms)").lower().capitalize(), ITERATION_TIME.number(most)
    return f"{name} takes {longer} ms longer with {group.name(slowest)} than with {group.name(best)}."


def _longer(figure: Figure, best: Configuration, other: Configuration) -> float | None:
    """By how much the other's figure is larger."""
    low, high = best.statistic(figure), other.statistic(figure)
    return None if low is None or high is None else high.mean - low.mean


def _tests(*rankings: Ranking) -> Iterator[str]:
    """What the test takes for granted: one deviation for all."""
    tested = {each.figure.of.noun if each.figure.of else "speed": each.noise for each in rankings if each.noise.freedom}
    if tested:
        spread = " and ".join(f"{noise.text(math.sqrt(noise.variance))} of {what}" for what, noise in tested.items())
        yield f"Tests are Student's t at 5 %, with one standard deviation of the seeds for all: {spread}."
