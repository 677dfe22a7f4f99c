"""What a study comes to: a tile and a sentence for each ranking of its configurations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from cifar_ray.reporting import chance, figures, scaling
from cifar_ray.reporting.cells import EFFICIENCY, SPEED_UP
from cifar_ray.reporting.chance import Measured, Ranking
from cifar_ray.reporting.contents import Finding, Highlight
from cifar_ray.reporting.effects import effects
from cifar_ray.reporting.figures import ITERATION_TIME, TRAINING_TIME, Figure, Statistic
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.reporting.names import Names, compared, titled

_MOST_NAMED = 3


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
        """The best is called so only where the test tells it from all others."""
        if len(self.ranking.ranked) == 1:
            return self.ranking.figure.title.partition(" (")[0]
        if self.ranking.level:
            return f"No measurable difference in {self.what}"
        return self.best + (" (n = 1)" if self.ranking.single else ", not alone" if self.ranking.ties else "")

    @property
    def tile(self) -> Highlight:
        """The best at a glance."""
        ranked, ties = self.ranking.ranked, 0 if self.ranking.single else len(self.ranking.ties)
        if self.ranking.level:
            return Highlight(self.title, self.ranking.span, f"{len(ranked)} configurations")
        tied = f"; not distinguishable from {ties} other{'s' * (ties > 1)}" if ties else ""
        figure = self.shown or self.ranking.figure.text(ranked[0].value.mean)
        return Highlight(self.title, figure, self.name(ranked[0].config) + tied)

    def sentence(self, other: Measured) -> str:
        """The first beside another one, and those that the test does not tell from it."""
        ranking, best = self.ranking, self.ranking.ranked[0]
        ties = () if ranking.single else ranking.ties
        seen = f" {ranking.seen}" if ties else ""
        if ranking.level:
            return f"{self.title}: {ranking.span} in {len(ranking.ranked)} configurations.{seen}"
        sentence = f"{self.title}: {self._told(best)}"
        if other not in ties and len({ranking.figure.text(each.value.mean) for each in (best, other)}) > 1:
            sentence += f", {_gap(ranking.figure, best, other)} {self._told(other)}"
        more = f" and {len(ties) - _MOST_NAMED} more" if len(ties) > _MOST_NAMED else ""
        tied = f" Not distinguishable: {'; '.join(map(self._told, ties[:_MOST_NAMED]))}{more}." if ties else ""
        return f"{sentence}.{tied}{seen}"

    def _told(self, measured: Measured) -> str:
        return f"{self.name(measured.config)} ({self.ranking.figure.text(measured.value.mean)})"


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
    speeds, learned = (Ranking.of(figure, chance.measured(figure, among)) for figure in (speed, objective))
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
    if price is not None and not unequal:
        cost = figures.cost_of_run(price)
        if costs := chance.measured(cost, among):
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
        if objective.subset == "test" and not learned.level:
            sentences.append(f"The best was chosen on the test set, among {len(learned.ranked)} configurations.")
    sentences += [*effects(among, speed), *_strategies(among, name)]
    return Finding(title, tiles, [*sentences, *_tests(speeds, learned)])


def _base(speeds: Ranking) -> Measured:
    """What the fastest stands beside: a single worker with the same batch, else the slowest."""
    best, *rest = speeds.ranked
    untied = [other for other in rest if speeds.single or other not in speeds.ties]
    alone = {o.config: o for o in untied if o.config.devices == 1 and o.config.column == best.config.column}
    base = scaling.reference(best.config, list(alone), speeds.figure)
    return rest[-1] if base is None else alone[base]


def _gap(figure: Figure, best: Measured, other: Measured) -> str:
    low, high = sorted((best.value.mean, other.value.mean))
    if figure.of is not None:
        return f"{figure.difference(high - low, 2 if high - low < 0.05 else 1)} better than"
    return f"{high / low:.2f} times as fast as" if low > 0 else "many times as fast as"


def _gain(among: Sequence[Configuration], name: Callable[[Configuration], str]) -> Iterator[Highlight]:
    """The best speed-up for its workers, or that more workers brought none."""
    throughput = among[0].runs.task.throughput
    noise = chance.Noise.of(throughput, chance.measured(throughput, among))
    found = [(config, ratio) for config in among if (ratio := scaling.ratio(config, among)) is not None]
    ratios = {config: ratio for config, ratio in found if ratio.reference.devices < config.devices}

    def gained(ratio: scaling.Ratio) -> bool:
        both = (Statistic.of(values) for values in (ratio.pairs.own, ratio.pairs.base))
        return ratio.speed_up.mean > 1 and noise.distinct(*both) is not False

    if gains := [Measured(config, ratio.efficiency) for config, ratio in ratios.items() if gained(ratio)]:
        by = replace(EFFICIENCY, title=SPEED_UP.title, better="high")  # whose figure is shown
        ranking = Ranking.of(by, gains)
        speed_up = SPEED_UP.text(ratios[ranking.ranked[0].config].speed_up.mean)
        yield Answer(ranking, "Best speed-up for its workers", "efficiency", name, speed_up).tile
    elif ratios:
        config = max(ratios, key=lambda config: ratios[config].speed_up.mean)
        which = "second" if ratios[config].reference.devices == 1 else "further"
        mean = ratios[config].speed_up.mean
        figure = SPEED_UP.text(mean) + (", within chance" if mean > 1 else "")
        yield Highlight(f"No {which} {scaling.unit(among)[:-1]} paid off here", figure, f"{name(config)}, the highest")


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
        times = [each for each in chance.measured(ITERATION_TIME, those) if each.value.mean > 0]
        if compared([each.config for each in times]):
            place = f"With {count} {scaling.unit(those)}" + (f" and global batch {batch}" if several else "")
            ranking = Ranking.of(ITERATION_TIME, times, chance.measured(ITERATION_TIME, among))
            told = Answer(ranking, "shortest iteration", "iteration time", name).sentence(ranking.ranked[-1])
            yield f"{place}, {told[:1].lower()}{told[1:]}"


def _tests(*rankings: Ranking) -> Iterator[str]:
    tested = {each.figure.of.noun if each.figure.of else "speed": each.noise for each in rankings if each.noise.freedom}
    if tested:
        spread = " and ".join(f"{noise.text(math.sqrt(noise.variance))} of {what}" for what, noise in tested.items())
        yield f"Tests are Student's t at 5 %, with one standard deviation of the seeds for all: {spread}."
