"""The page of a search: its best run, how much of its lead may be luck, every trial, and what the axes explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cifar_ray import tasks
from cifar_ray.config.errors import counted
from cifar_ray.reporting import chance, charts, importance, search_charts, search_tables, winner
from cifar_ray.reporting.contents import Chart, Finding, Highlight, Section
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.frame import Runs
from cifar_ray.reporting.search import Searched
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.tracking.study import Run


@dataclass(frozen=True)
class Page:
    """What a search's report says in place of a grid's; ``lead`` is the best run in one sentence, empty without one."""

    lead: str
    findings: Sequence[Finding]
    sections: Sequence[Section]
    charts: Sequence[Chart]


def page(runs: Runs, targets: Sequence[float] = (), price: Price | None = None) -> Page:
    """The page of a search, with times to values of the primary figure, and costs by the price of one node."""
    searched = Searched(runs)
    explained = importance.explained(searched)
    tables = [
        search_tables.trials(searched, targets, price),
        *search_tables.again(searched),
        search_tables.axes(searched, explained),
    ]
    shown = [*search_charts.charts(searched), charts.confusion(runs)]
    return Page(
        lead(searched),
        findings(searched, explained),
        [Section("Trials and axes", tables, notes=_notes(searched))],
        [chart for chart in shown if chart is not None],
    )


def lead(searched: Searched) -> str:
    """The best run in one sentence, and among how many it was chosen; empty where none has the figure."""
    if not searched.ranked:
        return ""
    (value, best), *others = searched.ranked
    second = (others[0][1].trial.name, others[0][0]) if others else None
    finished = (searched.repeated, second, len(searched.ranked), searched.images)
    told = winner.sentence(searched.goal.figure, best.trial.name, value, *finished)
    on_test = " on the test set" if searched.goal.subset == "test" else ""
    return f"The best run is {told}. It was chosen{on_test} among {_among(searched)}."


def _among(searched: Searched) -> str:
    """How many configurations competed, and how far each was trained."""
    competed = {candidate.trial.run_id for _, candidate in (*searched.ranked, *searched.stopped)}
    frame = searched.runs.frame
    number = frame.configuration[frame.run_id.isin(competed)].nunique()
    runs = f" ({len(competed)} runs)" if len(competed) != number else ""
    stopped = len(searched.stopped)
    ended = f", of which {stopped} {'was' if stopped == 1 else 'were'} stopped before the end" if stopped else ""
    return f"{counted(number, 'configuration')}{runs}{ended}"


def findings(searched: Searched, explained: Sequence[importance.Explained]) -> list[Finding]:
    """Main figures of the best run, and sentences on luck and on the axes."""
    first = searched.study.trials[0]
    title = f"{first.model} on {first.dataset}"
    if not searched.ranked:
        sentence = f"No run that finished has recorded {searched.goal.metric}, so there is no best one."
        return [Finding(title, list(_counts(searched)), [sentence])]
    tiles = [*_tiles(searched), *_counts(searched)]
    return [Finding(title, tiles, [*_luck(searched), *_most_explained(explained)])]


def _tiles(searched: Searched) -> Iterator[Highlight]:
    of, (value, best) = searched.goal.figure, searched.ranked[0]
    spaced = of.text(value).replace("%", " %")  # as the rest of a report has it
    yield Highlight("Best run", spaced, best.trial.name)
    if len(searched.ranked) > 1:
        second, other = searched.ranked[1]
        title = "Ahead of the second" if of.rank(searched.level) >= of.rank(second) else "Behind the second"
        by_luck = searched.by_luck(searched.level, second)
        told = "" if by_luck is None else f"; {_told(by_luck)}"
        yield Highlight(title, winner.apart(of, searched.level, second), f"{other.trial.name}{told}")
    primary = searched.runs.task.primary
    tested = primary.measure(best.trial)
    if tested is not None and not search_tables.is_on_test(searched):
        yield Highlight(f"{primary.title.removesuffix(' (%)')} in the test", primary.text(tested), _epoch(best.trial))


def _told(by_luck: float) -> str:
    return "more than chance" if by_luck < chance.CHANCE else "not distinguishable"


def _epoch(trial: Run) -> str:
    chosen = trial.metrics.get(CHOSEN_EPOCH)
    return "the best run, after its last epoch" if chosen is None else f"the best run, after epoch {chosen:.0f}"


def _counts(searched: Searched) -> Iterator[Highlight]:
    ends = Counter(map(search_tables.end, searched.candidates))
    yield Highlight("Trials", f"{len(searched.candidates)}", ", ".join(f"{n} {end}" for end, n in ends.items()))


def _luck(searched: Searched) -> Iterator[str]:
    """How much of the lead chance explains, and what that takes for granted."""
    goal, (value, _), *others = searched.goal, *searched.ranked
    if not others or searched.images is None:
        return
    n, number = searched.images, len(others)
    unit = f"{tasks.SUBSETS[goal.subset or 'test']} {goal.task.unit}"
    if number > 1:
        told = sum(number * chance.of_shares(searched.level, other, n) < chance.CHANCE for other, _ in others)
        rest = "" if told == number else ": the rest may be as good"
        yield (
            f"Of all {number} others that finished, Fisher's exact test tells it from {told or 'none'}, corrected for "
            f"{number} comparisons (Bonferroni, 5 %){rest}."
        )
        high = 100 * chance.best_by_luck(min(max(value, 0.0), 1.0), n, number + 1)
        yield (
            f"The best of {number + 1} runs that are all equally good would read up to {high:.2f} points too well by "
            f"the luck of the {unit} alone, so expect less of it on new {goal.task.unit}."
        )
    again = counted(len(searched.repeated), "other seed")
    seeds = f"the first was trained with {again}, the second with one" if searched.repeated else "each has one seed"
    yield (
        "Runs share images, so this test is cautious. As it counts both directions, the first against the second needs "
        f"no correction for the number of runs (Hung and Fithian, 2019). The luck of the seed is not in it: {seeds}."
    )


def _most_explained(explained: Sequence[importance.Explained]) -> Iterator[str]:
    known = [(of.alone, of) for of in explained if of.alone is not None]
    if known:
        most, of = max(known, key=lambda pair: pair[0])
        share = f"{100 * most:.0f} % of the variance (functional ANOVA, n = {of.n})"
        yield f"Of the axes, {of.axis.name} explains the most on its own: {share}."


def _notes(searched: Searched) -> list[str]:
    study, by = searched.study, {"random": "drawn at random", "optuna": "proposed by Optuna (TPE)"}
    chosen = by.get(study.search or "", "every combination")
    stops = f", and {study.scheduler} may stop runs early" if study.scheduler != "none" else ""
    return [f"Values: {chosen}{stops}. Objective: {searched.goal.metric}, {searched.goal.better}."]
