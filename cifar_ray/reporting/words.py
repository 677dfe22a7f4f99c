"""What a study comes to, in a few figures and sentences made from its runs."""

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
from cifar_ray.tracking.study import Trial

_PARTS = (*figures.PARTS, figures.NOT_SPLIT)
_MOSTLY = 0.5  # of a difference, so that one part accounts for it
_MOST_NAMED = 3
_LEAST_POINTS = 0.05  # read as 0.1
_ONCE = "In one run of each"


class _Question(NamedTuple):
    """What a figure answers: the titles of its tile, as far as chance lets it be answered."""

    best: str
    single: str
    alone: str
    what: str


_TIME = _Question("Fastest", "Shortest training", "Training time", "speed")
_GAIN = _Question("Best speed-up for its workers", "Highest speed-up for its workers", "Speed-up", "speed-up")


class _Group(NamedTuple):
    """Finished configurations of one model, data set and device, and what they are called."""

    among: Sequence[Configuration]
    name: Callable[[Configuration], str]

    @property
    def task(self) -> TaskFigures:
        return self.among[0].runs.task

    @property
    def trials(self) -> list[Trial]:
        return [trial for config in self.among for trial in config.finished]

    @property
    def objective(self) -> Figure:
        """The figure by which one of them may be chosen."""
        return self.task.chooser(self.trials)

    @property
    def validated(self) -> bool:
        """Whether that is one of validation images."""
        return self.objective.subset == "val"

    def tested(self, ranking: Ranking) -> str:
        """What the first of a ranking by validation images has in the test; empty of another ranking."""
        value = ranking.ranked[0].config.statistic(self.task.primary) if ranking.ranked and self.validated else None
        return "" if value is None else f"{self.task.primary.text(value.mean)} in the test"

    def ranked(self, figure: Figure, among: Sequence[Configuration] | None = None) -> list[Measured]:
        """Those that have a figure, the best first; of equal ones, in their order."""
        pairs = [(config, config.statistic(figure)) for config in (self.among if among is None else among)]
        known = [Measured(config, value) for config, value in pairs if value is not None]
        return sorted(known, key=lambda measured: measured.value.mean, reverse=figure.better == "high")

    def tied(self, ranking: Ranking, what: str) -> str:
        """The configurations that the test does not tell from the best, in a sentence; empty without any."""
        if ranking.single or not ranking.ties:
            return ""
        more = f" and {len(ranking.ties) - _MOST_NAMED} more" if len(ranking.ties) > _MOST_NAMED else ""
        listed = "; ".join(self.name(tie.config) for tie in ranking.ties[:_MOST_NAMED]) + more
        seen = ranking.seen(ranking.ranked[0], ranking.ties)
        return f"Its {what} is not distinguishable from that of {listed}. {seen}"


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
    task = group.task
    objective, of = group.objective, group.objective.of or task.spec.primary
    unequal, apart = (chance.unequal_work(group.among, figure) for figure in (TRAINING_TIME, objective))
    speed, speed_question = (task.throughput, _throughput(task)) if unequal else (TRAINING_TIME, _TIME)
    known = list(effects(group.among, speed))
    moved = {effect.figure.key for effect in known}
    speeds = Ranking.of(speed, group.ranked(speed), speed.key in moved)
    fastest = speeds.ranked[0].config if speeds.ranked else None
    learned = Ranking.of(objective, _leading(group.ranked(objective), fastest), task.primary.key in moved)
    if not speeds.ranked and not learned.ranked:
        return Finding(title, (), (f"Runs have finished, but recorded neither training times nor {of.plural}.",))
    every = [(config, scaling.ratio(config, group.among)) for config in group.among]
    ratios = [
        (config, ratio) for config, ratio in every if ratio is not None and ratio.reference.devices < config.devices
    ]
    tiles = [*_tile(group, speeds, speed_question)]
    tested = group.tested(learned)
    tiles += _tile(group, learned, _learned(group, of, ", unequal training" if apart else ""), tested)
    tiles += _gain(group, ratios)
    if price is not None and all(price.suits(config.device) for config in group.among):
        cost = task.cost_of_training(price) if unequal else figures.cost_of_run(price)
        at = price.at
        question = _Question(f"Cheapest {at}", f"Lowest cost {at}", f"Cost {at}", "cost")
        tiles += _tile(group, Ranking.of(cost, group.ranked(cost)), question)
    sentences = []
    if unequal:
        cause = f", and a difference in {of.noun} may come from the amount of training" if apart else ""
        sentences.append(f"{unequal[0].upper()}{unequal[1:]}, so they are ranked by {task.spec.unit}/s{cause}.")
    if len(speeds.ranked) > 1:
        sentences.append(_speed(group, speeds, speed_question))
    if len(learned.ranked) > 1 and not apart:
        sentences.append(_of_fastest(group, of, None if speeds.level else fastest, learned))
        sentences += _chosen(group, learned, tested)
    sentences += [effect.sentence for effect in known]
    sentences += [*_efficiencies(group, ratios), *_strategies(group), *_tests(group, speeds, learned)]
    return Finding(title, tiles, sentences)


def _tests(group: _Group, *rankings: Ranking) -> Iterator[str]:
    """What the test takes for granted: one deviation for all, and the configurations that have another one."""
    tested = {each.figure.of.noun if each.figure.of else "speed": each.noise for each in rankings if each.noise.freedom}
    if tested:
        spread = " and ".join(f"{noise.text(math.sqrt(noise.variance))} of {what}" for what, noise in tested.items())
        yield f"Tests are Student's t at 5 %, with one standard deviation of the seeds for all: {spread}."
    for what, noise in tested.items():
        for config in noise.unsteady:
            yield (
                f"By seed, {group.name(config)} varies much more in {what} than the others: tests are too lenient with "
                "it and too strict with them. Train more seeds."
            )


def _throughput(task: TaskFigures) -> _Question:
    unit = task.spec.unit
    return _Question("Fastest", f"Most {unit}/s", f"{task.counts} per second", "speed")


def _learned(group: _Group, of: tasks.Figure, but: str) -> _Question:
    """Of the figure that chooses; ``but`` is what keeps runs from being compared by it."""
    first = f"{of.extreme.capitalize()} {of.noun}{but}"
    best = first if but else f"{of.most[0].upper()}{of.most[1:]}{' by validation' * group.validated}"
    return _Question(best, first, f"Test {group.task.spec.primary.noun}{but}", f"{of.noun}{but}")


def _chosen(group: _Group, ranking: Ranking, tested: str) -> Iterator[str]:
    """By which images the best was chosen; of the test not for runs of versions that did not record it."""
    most, name = f"The {group.task.spec.primary.most} was chosen on the", group.name(ranking.ranked[0].config)
    if ranking.level or ranking.same:
        if group.validated:
            yield "That is by the validation set."
    elif group.validated:
        yield f"{most} validation set: {name} has {tested}."
    elif any(trial.chosen_by for trial in group.trials):
        yield f"{most} test set, among {len(ranking.ranked)} configurations."


def _leading(ranked: Sequence[Measured], fastest: Configuration | None) -> list[Measured]:
    """From the best on; of several that are equal, the fastest first where it is one of them."""
    top = ranked[0].value.mean if ranked else 0.0

    def after(measured: Measured) -> tuple[bool, bool]:
        return not math.isclose(measured.value.mean, top, rel_tol=1e-9), measured.config is not fastest

    return sorted(ranked, key=after)


def _tile(group: _Group, ranking: Ranking, question: _Question, shown: str = "") -> Iterator[Highlight]:
    """The best, called the best only where the test tells it from all others."""
    if not ranking.ranked:
        return
    best, *rest = ranking.ranked
    figure, name = shown or ranking.figure.text(best.value.mean), group.name(best.config)
    every = f"{len(ranking.ranked)} configurations"
    if not rest:
        yield Highlight(question.alone, figure, name)
    elif not ranking.ties:
        yield Highlight(question.best, figure, name)
    elif ranking.level and not shown:
        yield Highlight(f"No measurable difference in {question.what}", ranking.span, every)
    elif ranking.same and not shown:
        yield Highlight(f"Same {question.what} (n = 1)", figure, every)
    elif ranking.single:
        yield Highlight(f"{question.single} (n = 1)", figure, name)
    else:
        ties = f"{len(ranking.ties)} other{'s' * (len(ranking.ties) > 1)}"
        yield Highlight(f"{question.single}, not alone", figure, f"{name}; not distinguishable from {ties}")


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


def _speed(group: _Group, speeds: Ranking, question: _Question) -> str:
    """The fastest beside a single worker with the same batch, else beside the slowest that is told from it."""
    figure, (best, *rest) = speeds.figure, speeds.ranked
    if speeds.level:
        return speeds.none_better("No configuration is measurably faster")

    def is_base(other: Configuration) -> bool:
        alike = other.column == best.config.column and scaling.same_work(other, best.config)
        return other.devices == 1 and alike and scaling.may_be_base(other, best.config)

    alone = [other for other in rest if is_base(other.config)]
    alone.sort(key=lambda other: other.config.others != best.config.others)
    others = [*alone, *reversed(rest)]
    slower = [other for other in others if other not in speeds.ties]
    tied = group.tied(speeds, "speed")
    if not slower and not speeds.single:
        return f"{group.name(best.config)} has the {question.single.lower()}, {figure.text(best.value.mean)}. {tied}"
    other = (slower or others)[0]
    verb = f"{group.name(best.config)} is" if slower else f"{_ONCE}, {group.name(best.config)} was"
    sentence = f"{verb} {_times(best, other)} {group.name(other.config)} ({_both(figure, best, other)})."
    return f"{sentence} {tied}".rstrip()


def _both(figure: Figure, fast: Measured, other: Measured) -> str:
    """Two figures, with the counts of their runs where those differ."""
    first, second = figure.number(fast.value.mean), figure.text(other.value.mean)
    if fast.value.n == other.value.n:
        return f"{first} against {second}"
    return f"{first}, n = {fast.value.n}, against {second}, n = {other.value.n}"


def _times(fast: Measured, slow: Measured) -> str:
    low, high = sorted((fast.value.mean, slow.value.mean))
    times = f"{high / low:.2f}" if low > 0 else "many"
    return "as fast as" if times == "1.00" else f"{times} times as fast as"


def _of_fastest(group: _Group, of: tasks.Figure, fastest: Configuration | None, ranking: Ranking) -> str:
    """What the fastest has learned beside the best; without times, what the best is told from."""
    figure, top = ranking.figure, ranking.ranked[0]
    if ranking.same:
        return f"{_ONCE}, all had {of.article} {of.noun} of {ranking.span}."
    of_fastest = next((measured for measured in ranking.ranked if measured.config is fastest), None)
    if of_fastest is None:
        return _best(group, of, ranking)
    if of_fastest is top:
        return f"No other is measurably {of.more}." if ranking.ties else f"It is also the {of.most}."
    best, both = group.name(top.config), _both(figure, of_fastest, top)
    distinct = ranking.noise.distinct(of_fastest.value, top.value)
    if distinct is False:
        seen = ranking.seen(top, [of_fastest])
        return f"Its {of.noun} is not distinguishable from the {of.extreme}, that of {best}: {both}. {seen}"
    if figure.number(of_fastest.value.mean) == figure.number(top.value.mean):
        where = f"In the digits shown, its {of.noun} is" if distinct else f"{_ONCE}, its {of.noun} was"
        return f"{where} the {of.extreme}, {figure.text(of_fastest.value.mean)}."
    lost, sizes = abs(top.value.mean - of_fastest.value.mean), ""
    much = figure.difference(lost, 1 if lost >= _LEAST_POINTS else 2)
    if of_fastest.config.global_batch_size != top.config.global_batch_size:
        sizes = f" Its global batch is {of_fastest.config.global_batch_size}, against {top.config.global_batch_size}."
    if distinct:
        first, second = (figure.text(each.value.mean) for each in (of_fastest, top))
        counts = (of_fastest.value.n, top.value.n)
        runs = f"n = {counts[0]} each" if len({*counts}) == 1 else f"n = {counts[0]} and {counts[1]}"
        return (
            f"The fastest configuration loses {much} of {of.noun}: {first} against {second} of {best} ({runs}).{sizes}"
        )
    doubt = "One run of each (n = 1) cannot tell that from chance."
    return f"{group.name(of_fastest.config)} was {much} {of.less} than {best}: {both}. {doubt}{sizes}"


def _best(group: _Group, of: tasks.Figure, ranking: Ranking) -> str:
    name, value = group.name(ranking.ranked[0].config), ranking.figure.text(ranking.ranked[0].value.mean)
    if ranking.single:
        return f"{_ONCE}, {name} had the {of.extreme} {of.noun}, {value}."
    if ranking.level:
        return ranking.none_better(f"No configuration is measurably {of.more}")
    if not ranking.ties:
        return f"{name} is the {of.most}, {value}."
    return f"{name} has {of.article} {of.noun} of {value}. {group.tied(ranking, of.noun)}"


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


def _strategies(group: _Group) -> list[str]:
    """For every number of workers, the fastest strategy and the slowest, and what the split of their steps says."""
    if not compared(group.among):
        return []
    rivals: dict[tuple[int, int], list[Configuration]] = {}
    for config in sorted(group.among, key=lambda config: (config.devices, config.global_batch_size)):
        if config.devices > 1:
            rivals.setdefault((config.devices, config.global_batch_size), []).append(config)
    several = len({batch for _, batch in rivals}) > 1
    sentences = []
    for (count, batch), among in rivals.items():
        times = [measured for measured in group.ranked(ITERATION_TIME, among) if measured.value.mean > 0]
        if compared([measured.config for measured in times]):
            place = f"With {count} {scaling.unit(among)}" + (f" and global batch {batch}" if several else "")
            sentences.append(f"{place}, {_rivals(group, times)}")
    return sentences


def _rivals(group: _Group, times: Sequence[Measured]) -> str:
    best, after, slowest = times[0], times[1], times[-1]
    ranking = Ranking.of(ITERATION_TIME, times, among=group.ranked(ITERATION_TIME))
    if ranking.level:
        return ranking.none_better("no strategy is measurably faster")

    def told(measured: Measured) -> str:
        remark = ITERATION_TIME.remarks(measured.config.finished)
        return ITERATION_TIME.text(measured.value.mean) + (f", {remark}" if remark else "")

    tested = ranking.noise.distinct(best.value, after.value)
    name = f"{group.name(best.config)} {'had, in one run of each,' if tested is None else 'has'}"
    last = f"{_times(best, slowest)} the slowest, {group.name(slowest.config)} ({told(slowest)})"
    if tested is False:
        sentence = f"{name} an iteration of {told(best)}" + (f", {last}" if slowest not in ranking.ties else "")
    else:
        sentence = f"{name} the shortest iteration ({told(best)}), {_times(best, after)} {group.name(after.config)} "
        sentence += f"({told(after)})" + (f" and {last}" if slowest is not after else "")
    certain = ranking.single or slowest not in ranking.ties
    why = _why(group, best.config, slowest.config) if certain else ""
    return " ".join(filter(None, (f"{sentence}.", group.tied(ranking, "time"), why)))


def _why(group: _Group, best: Configuration, slowest: Configuration) -> str:
    """Where most of the time goes that the slowest takes longer, where the split of the steps tells."""
    whole = _gap(ITERATION_TIME, best, slowest) or 0.0
    gaps = [(gap, part) for part in _PARTS if (gap := _gap(part, best, slowest)) is not None]
    most, part = max(gaps, key=lambda pair: pair[0], default=(0.0, figures.NOT_SPLIT))
    if whole <= 0 or part is figures.NOT_SPLIT or most < _MOSTLY * whole:
        return ""
    name, longer = part.title.removesuffix(" (ms)").lower().capitalize(), ITERATION_TIME.number(most)
    return f"{name} takes {longer} ms longer with {group.name(slowest)} than with {group.name(best)}."


def _gap(figure: Figure, best: Configuration, other: Configuration) -> float | None:
    """By how much the other's figure is larger."""
    low, high = best.statistic(figure), other.statistic(figure)
    return None if low is None or high is None else high.mean - low.mean
