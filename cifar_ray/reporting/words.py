"""What a study comes to: a tile and a sentence for each ranking of its configurations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from cifar_ray.reporting import chance, figures, scaling
from cifar_ray.reporting.chance import Measured, Ranking
from cifar_ray.reporting.contents import Finding, Highlight
from cifar_ray.reporting.effects import effects
from cifar_ray.reporting.figures import EFFICIENCY, ITERATION_TIME, TRAINING_TIME, Figure, Statistic
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.reporting.names import Names, compared, titled

_MOST_NAMED = 3
_LEAST_POINTS = 0.05  # read as 0.1


class Answer(NamedTuple):
    """What a ranking says, as far as chance lets it say something.

    Attributes:
        ranking: at least one configuration.
        best: the title of a first one that the test tells from all others.
        what: is ranked.
        name: what a configuration is called.
        shown: stands for the first one's figure; empty for the figure itself.
    """

    ranking: Ranking
    best: str
    what: str
    name: Callable[[Configuration], str]
    shown: str = ""

    @property
    def title(self) -> str:
        """The title of the first."""
        if len(self.ranking.ranked) == 1:
            return self.ranking.figure.title.partition(" (")[0]
        if not self.ranking.ties:
            return self.best
        return f"{self.best} (n = 1)" if self.ranking.single else f"{self.best}, not alone"

    @property
    def even(self) -> str:
        """The title of all of them, where none is ahead; else empty."""
        if self.ranking.level and self.ranking.ties:
            return f"No measurable difference in {self.what}"
        return f"Same {self.what} (n = 1)" if self.ranking.same else ""

    @property
    def tile(self) -> Highlight:
        """The best, called the best only where the test tells it from all others."""
        ranked, ties = self.ranking.ranked, len(self.ranking.ties)
        if self.even and not self.shown:
            return Highlight(self.even, self.ranking.span, f"{len(ranked)} configurations")
        tied = f"; not distinguishable from {ties} other{'s' * (ties > 1)}" if ties and not self.ranking.single else ""
        figure = self.shown or self.ranking.figure.text(ranked[0].value.mean)
        return Highlight(self.title, figure, self.name(ranked[0].config) + tied)

    def sentence(self, other: Measured) -> str:
        """The first beside another one, and those that the test does not tell from it."""
        ranking, best = self.ranking, self.ranking.ranked[0]
        if self.even:
            sentence = f"{self.even}: {ranking.span} in {len(ranking.ranked)} configurations."
            return f"{sentence} {ranking.seen}" if ranking.level else sentence
        sentence = f"{self.title}: {self._told(best, self.shown)}"
        if (ranking.single or other not in ranking.ties) and self._text(best) != self._text(other):
            sizes = [each.config.global_batch_size for each in (best, other)]
            batches = f", global batches {sizes[0]} and {sizes[1]}" if ranking.figure.of and len({*sizes}) > 1 else ""
            sentence += f", {_gap(ranking.figure, best, other)} {self._told(other)}{batches}"
        if ranking.single or not ranking.ties:
            return f"{sentence}."
        more = f" and {len(ranking.ties) - _MOST_NAMED} more" if len(ranking.ties) > _MOST_NAMED else ""
        listed = "; ".join(map(self._told, sorted(ranking.ties, key=lambda tie: tie is not other)[:_MOST_NAMED]))
        return f"{sentence}. Not distinguishable: {listed}{more}. {ranking.seen}"

    def _text(self, measured: Measured) -> str:
        return self.ranking.figure.text(measured.value.mean)

    def _told(self, measured: Measured, more: str = "") -> str:
        counts = {each.value.n for each in self.ranking.ranked}
        remark = self.ranking.figure.remarks(measured.config.finished)
        told = [self._text(measured), remark, f"n = {measured.value.n}" * (len(counts) > 1), more]
        return f"{self.name(measured.config)} ({', '.join(filter(None, told))})"


def findings(runs: Runs, price: float | None) -> list[Finding]:
    """What runs came to, by model, data set and device; ``price`` is that of one node, None leaves costs out."""
    done = {(config.model, config.dataset) for config in runs.finished}
    findings = []
    for heading, among in titled(runs.configurations).items():
        finished = [config for config in among if config.finished]
        if finished:
            findings.append(_finding(heading, finished, Names(among).words, price))
        elif (among[0].model, among[0].dataset) not in done:
            findings.append(Finding(heading, (), ("No run has finished, so there is nothing to compare yet.",)))
    return findings


def _finding(
    title: str, among: Sequence[Configuration], name: Callable[[Configuration], str], price: float | None
) -> Finding:
    task = among[0].runs.task
    objective = task.chooser(trial for config in among for trial in config.finished)
    of = objective.of or task.spec.primary
    unequal, apart = (chance.unequal_work(among, figure) for figure in (TRAINING_TIME, objective))
    speed, fastest = (task.throughput, f"Most {task.spec.unit}/s") if unequal else (TRAINING_TIME, "Shortest training")
    speeds = Ranking.of(speed, _ranked(speed, among))
    learned = Ranking.of(objective, _ranked(objective, among))
    if not speeds.ranked and not learned.ranked:
        return Finding(title, (), (f"Runs have finished, but recorded neither training times nor {of.noun}.",))
    answers = []
    if speeds.ranked:
        answers.append(Answer(speeds, fastest, "speed", name))
    if learned.ranked:
        but = ", unequal training" if apart else ""
        tested = learned.ranked[0].config.statistic(task.primary) if objective.subset == "val" else None
        shown = "" if tested is None else f"{task.primary.text(tested.mean)} in the test"
        answers.append(Answer(learned, f"Best {of.noun}{but}", f"{of.noun}{but}", name, shown))
    tiles = [*(answer.tile for answer in answers), *_gain(among, name)]
    if price is not None:
        cost = task.cost(price) if unequal else figures.cost_of_run(price)
        if costs := _ranked(cost, among):
            tiles.append(Answer(Ranking.of(cost, costs), "Lowest cost", "cost", name).tile)
    sentences = []
    if unequal:
        cause = f", and a difference in {of.noun} may come from the amount of training" if apart else ""
        sentences.append(f"{unequal[0].upper()}{unequal[1:]}, so they are ranked by {task.spec.unit}/s{cause}.")
    if len(speeds.ranked) > 1:
        sentences.append(answers[0].sentence(_base(speeds)))
    if len(learned.ranked) > 1 and not apart:
        quick = [each for each in learned.ranked[1:] if speeds.ranked and each.config is speeds.ranked[0].config]
        sentences.append(answers[-1].sentence((quick or learned.ranked)[-1]))
        if objective.subset == "test" and not (learned.level or learned.same):
            sentences.append(f"The best was chosen on the test set, among {len(learned.ranked)} configurations.")
    sentences += [*effects(among, speed), *_strategies(among, name)]
    return Finding(title, tiles, [*sentences, *_tests(speeds, learned)])


def _ranked(figure: Figure, among: Sequence[Configuration]) -> list[Measured]:
    """Those that have a figure, the best first; of equal ones, in their order."""
    pairs = [(config, config.statistic(figure)) for config in among]
    known = [Measured(config, value) for config, value in pairs if value is not None]
    return sorted(known, key=lambda measured: measured.value.mean, reverse=figure.better == "high")


def _base(speeds: Ranking) -> Measured:
    """What the fastest stands beside: a single worker with the same batch, else the slowest."""
    best, *rest = speeds.ranked

    def is_base(other: Configuration) -> bool:
        alike = other.devices == 1 and other.column == best.config.column
        return alike and scaling.is_base(other, best.config, speeds.figure)

    alone = [other for other in rest if is_base(other.config) and (speeds.single or other not in speeds.ties)]
    return min(alone, key=lambda other: other.config.others != best.config.others, default=rest[-1])


def _gap(figure: Figure, best: Measured, other: Measured) -> str:
    if figure.of is not None:
        lost = abs(best.value.mean - other.value.mean)
        return f"{figure.difference(lost, 1 if lost >= _LEAST_POINTS else 2)} better than"
    low, high = sorted((best.value.mean, other.value.mean))
    return f"{high / low:.2f} times as fast as" if low > 0 else "many times as fast as"


def _gain(among: Sequence[Configuration], name: Callable[[Configuration], str]) -> Iterator[Highlight]:
    """The best speed-up for its workers, or that more workers brought none."""
    throughput = among[0].runs.task.throughput
    noise = chance.Noise.of(throughput, _ranked(throughput, among))
    every = [(config, scaling.ratio(config, among)) for config in among]
    ratios = [
        (config, ratio) for config, ratio in every if ratio is not None and ratio.reference.devices < config.devices
    ]

    def gained(ratio: scaling.Ratio) -> bool:
        both = (Statistic.of(values) for values in (ratio.pairs.own, ratio.pairs.base))
        return ratio.speed_up.mean > 1 and noise.distinct(*both) is not False

    gains = [(config, ratio) for config, ratio in ratios if gained(ratio)]
    if ratios and not gains:
        config, ratio = max(ratios, key=lambda pair: pair[1].speed_up.mean)
        which = "second" if ratio.reference.devices == 1 else "further"
        title = f"No {which} {scaling.unit(among)[:-1]} paid off here"
        within = ", within chance" if ratio.speed_up.mean > 1 else ""
        yield Highlight(title, f"{ratio.speed_up.mean:.2f} times{within}", f"{name(config)}, the highest")
    elif gains:
        gains.sort(key=lambda pair: pair[1].efficiency.mean, reverse=True)
        by = replace(EFFICIENCY, title=figures.SPEED_UP.title)  # whose figure is shown
        ranking = Ranking.of(by, [Measured(config, ratio.efficiency) for config, ratio in gains])
        speed_up = f"{gains[0][1].speed_up.mean:.2f} times"
        yield Answer(ranking, "Best speed-up for its workers", "speed-up", name, speed_up).tile


def spoken(findings: Sequence[Finding], cautions: Sequence[str]) -> Iterator[str]:
    """Findings and cautions as lines for a terminal."""
    for finding in findings:
        yield from (f"{finding.title}: {sentence}" for sentence in finding.sentences)
    yield from (f"caution: {caution}" for caution in cautions)


def _strategies(among: Sequence[Configuration], name: Callable[[Configuration], str]) -> Iterator[str]:
    """For every number of workers, the fastest strategy and the slowest."""
    rivals: dict[tuple[int, int], list[Configuration]] = {}
    for config in sorted(among, key=lambda config: (config.devices, config.global_batch_size)):
        if config.devices > 1:
            rivals.setdefault((config.devices, config.global_batch_size), []).append(config)
    several = len({batch for _, batch in rivals}) > 1
    for (count, batch), those in rivals.items():
        times = [measured for measured in _ranked(ITERATION_TIME, those) if measured.value.mean > 0]
        if compared([measured.config for measured in times]):
            place = f"With {count} {scaling.unit(those)}" + (f" and global batch {batch}" if several else "")
            ranking = Ranking.of(ITERATION_TIME, times, _ranked(ITERATION_TIME, among))
            answer = Answer(ranking, "shortest iteration", "iteration time", name)
            yield f"{place}, {answer.sentence(times[-1])[:1].lower()}{answer.sentence(times[-1])[1:]}"


def _tests(*rankings: Ranking) -> Iterator[str]:
    """What the test takes for granted: one deviation for all."""
    tested = {each.figure.of.noun if each.figure.of else "speed": each.noise for each in rankings if each.noise.freedom}
    if tested:
        spread = " and ".join(f"{noise.text(math.sqrt(noise.variance))} of {what}" for what, noise in tested.items())
        yield f"Tests are Student's t at 5 %, with one standard deviation of the seeds for all: {spread}."
