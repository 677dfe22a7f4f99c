"""The page of a search: its best run, how much of its lead may be luck, every trial, and what the axes explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cifar_ray import tasks
from cifar_ray.config.errors import counted
from cifar_ray.reporting import chance, charts, figures, importance, search_charts, winner
from cifar_ray.reporting.contents import Chart, Entry, Finding, Highlight, Section, Table
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.figures import TRAINING_TIME, Figure, Statistic, metric
from cifar_ray.reporting.frame import Runs
from cifar_ray.reporting.search import Axis, Candidate, Searched
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.tracking.study import Trial

_ENDS = {
    "FINISHED": "finished",
    "KILLED": "ended early",
    "STOPPED": "stopped",
    "FAILED": "failed",
    "SKIPPED": "skipped",
    "PENDING": "not begun",
    "RUNNING": "running",
}
_STOPPED = "stopped"


@dataclass(frozen=True)
class Page:
    """What a search's report says in place of a grid's.

    Attributes:
        lead: the best run in one sentence; empty where there is none.
        findings: main figures and sentences.
        sections: the trials, and what the axes explain.
        charts: the objective over the axes first.
    """

    lead: str
    findings: Sequence[Finding]
    sections: Sequence[Section]
    charts: Sequence[Chart]


def page(runs: Runs, targets: Sequence[float] = (), price: Price | None = None) -> Page:
    """The page of a search.

    Args:
        runs: its runs.
        targets: values of the primary figure, for the times to them.
        price: of one node, for what the runs cost; None for no costs.
    """
    searched = Searched(runs)
    explained = importance.explained(searched)
    tables = [_trials(searched, targets, price), *_again(searched), _axes(searched, explained)]
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
    said = winner.sentence(searched.goal, best.trial.name, value, searched.repeated, second, len(searched.ranked))
    on_test = " on the test set" if searched.goal.subset == "test" else ""
    return f"The best run is {said}. It was chosen{on_test} among {_among(searched)}."


def _among(searched: Searched) -> str:
    """How many configurations competed, and how far each was trained."""
    frame, competed = searched.runs.frame, {*map(_id, (pair[1] for pair in (*searched.ranked, *searched.stopped)))}
    number = frame.configuration[frame.run_id.isin(competed)].nunique()
    runs = f" ({len(competed)} runs)" if len(competed) != number else ""
    stopped = len(searched.stopped)
    ended = f", of which {stopped} {'was' if stopped == 1 else 'were'} stopped before the end" if stopped else ""
    return f"{counted(number, 'configuration')}{runs}{ended}"


def _id(candidate: Candidate) -> str:
    return candidate.trial.run_id


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
    goal, (value, best) = searched.goal, searched.ranked[0]
    yield Highlight("Best run", _spaced(goal.text(value)), best.trial.name)
    if len(searched.ranked) > 1:
        second, other = searched.ranked[1]
        title = "Ahead of the second" if goal.rank(searched.level) >= goal.rank(second) else "Behind the second"
        by_luck = searched.by_luck(searched.level, second)
        told = "" if by_luck is None else f"; {_told(by_luck)}"
        yield Highlight(title, goal.apart(searched.level, second), f"{other.trial.name}{told}")
    primary = searched.runs.task.primary
    tested = primary.measure(best.trial)
    if tested is not None and not _is_on_test(searched):
        yield Highlight(f"{primary.title.removesuffix(' (%)')} in the test", primary.text(tested), _epoch(best.trial))


def _spaced(text: str) -> str:
    """A figure with its unit apart, as the rest of a report has it: ``87.40 %``."""
    return text.replace("%", " %")


def _is_on_test(searched: Searched) -> bool:
    """Whether the objective is the primary figure of the test itself, which then stands in one column."""
    primary = searched.runs.task.spec.primary
    return {primary.result(candidate.trial.metrics) for _, candidate in searched.ranked} == {searched.goal.metric}


def _told(by_luck: float) -> str:
    return "more than chance" if by_luck < chance.CHANCE else "not distinguishable"


def _epoch(trial: Trial) -> str:
    chosen = trial.metrics.get(CHOSEN_EPOCH)
    return "the best run, after its last epoch" if chosen is None else f"the best run, after epoch {chosen:.0f}"


def _counts(searched: Searched) -> Iterator[Highlight]:
    ends = Counter(map(_end, searched.candidates))
    yield Highlight("Trials", f"{len(searched.candidates)}", ", ".join(f"{n} {end}" for end, n in ends.items()))


def _end(candidate: Candidate) -> str:
    return _STOPPED if candidate.stopped_early else _ENDS.get(candidate.trial.status, candidate.trial.status)


def _luck(searched: Searched) -> Iterator[str]:
    """How much of the lead chance explains, and what that takes for granted."""
    goal, (value, _), *others = searched.goal, *searched.ranked
    if not others:
        return
    second = others[0][0]
    if searched.images is None:
        again = "" if searched.repeated else " --repeat 3 trains the best run of a search again with other seeds."
        yield (
            f"How much of the lead is luck cannot be told from one run of the second: {goal.name} is no share of a "
            f"recorded number of {goal.task.unit}.{again}"
        )
        return
    n, number = searched.images, len(others)
    unit = f"{tasks.SUBSETS[goal.subset or 'test']} {goal.task.unit}"
    yield _against_second(searched, second, n, unit)
    if number > 1:
        told = sum(number * chance.of_shares(searched.level, other, n) < chance.CHANCE for other, _ in others)
        rest = "" if told == number else ": the rest may be as good"
        yield (
            f"Of all {number} others that finished, the same test tells it from {told or 'none'}, corrected for "
            f"{number} comparisons (Bonferroni, 5 %){rest}."
        )
        high = 100 * chance.best_by_luck(min(max(value, 0.0), 1.0), n, number + 1)
        yield (
            f"The best of {number + 1} runs that are all equally good would read up to {high:.2f} points too well by "
            f"the luck of the {unit} alone, so expect less of it on new {goal.task.unit}."
        )
    seeds = "one seed of each" if not searched.repeated else f"{len(searched.repeated)} against one of the second"
    yield (
        f"These figures take each run's {unit} for a sample of its own. All runs share them, which makes the test "
        "cautious. As it counts both directions, the first against the second needs no correction for the number of "
        f"runs (Hung and Fithian, 2019). The luck of the seed is not in them: there is {seeds}."
    )


def _against_second(searched: Searched, second: float, images: int, unit: str) -> str:
    """How likely chance alone sets the first two as far apart."""
    by_luck = chance.of_shares(searched.level, second, images)
    if searched.level == second:
        return f"The {images:,} {unit} do not tell the first from the second."
    is_ahead, is_told = searched.goal.rank(searched.level) > searched.goal.rank(second), by_luck < chance.CHANCE
    verdict = {
        (True, True): "so it is ahead by more than chance",
        (True, False): "so the lead may be luck",
        (False, True): "so it is the worse of the two",
        (False, False): "so either may be the better",
    }[is_ahead, is_told]
    return (
        f"If the first two were equally good, {images:,} {unit} would set them this far apart or further, either way, "
        f"with a probability of {_probability(by_luck)} (Fisher's exact test), {verdict}."
    )


def _probability(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.2g} %" if value >= 1e-4 else "less than 0.01 %"


def _most_explained(explained: Sequence[importance.Explained]) -> Iterator[str]:
    known = [(of.alone, of) for of in explained if of.alone is not None]
    if known:
        most, of = max(known, key=lambda pair: pair[0])
        share = f"{100 * most:.0f} % of the variance (functional ANOVA)"
        yield f"Of the axes, {of.axis.name} explains the most on its own: {share}."


def _notes(searched: Searched) -> list[str]:
    study, by = searched.study, {"random": "drawn at random", "optuna": "proposed by Optuna (TPE)"}
    assert study.search is not None
    chosen = by.get(study.search.by, "every combination")
    stops = f", and {study.search.scheduler} may stop runs early" if study.search.scheduler != "none" else ""
    return [f"Values: {chosen}{stops}. Objective: {searched.goal.metric}, {searched.goal.better}."]


def _trials(searched: Searched, targets: Sequence[float], price: Price | None) -> Table:
    """A row for every trial: those that finished by the objective, then the stopped ones, then the rest."""
    shown = [candidate for _, candidate in (*searched.ranked, *searched.stopped)]
    rows = [*shown, *(candidate for candidate in searched.candidates if candidate not in shown)]
    columns = _figures(searched, targets, price)
    columns = [figure for figure in columns if any(figure.measure(row.trial) is not None for row in rows)]
    best = _is_told(searched)
    notes = [
        "Trials that finished come first, by the objective after their last epoch; then those that were stopped before "
        "the end, with what they had by then. They are not compared with the others.",
        *([_chosen(searched)] if any(CHOSEN_EPOCH in row.trial.metrics for row in rows) else []),
        *(figure.note for figure in columns if figure.note),
    ]
    return Table(
        "search_trials",
        "Trials",
        [
            "Trial",
            "End",
            "Epochs",
            *(axis.name for axis in searched.axes),
            _objective(searched),
            *(f.title for f in columns),
        ],
        [
            (row.trial.name, [*_row(searched, row, best and number == 0), *(_entry(f, row.trial) for f in columns)])
            for number, row in enumerate(rows)
        ],
        list(dict.fromkeys(notes)),
    )


def _objective(searched: Searched) -> str:
    return f"Objective: {searched.title[:1].lower()}{searched.title[1:]}"


def _is_told(searched: Searched) -> bool:
    """Whether the best is told from the second."""
    if len(searched.ranked) < 2:
        return False
    by_luck = searched.by_luck(searched.ranked[0][0], searched.ranked[1][0])
    return by_luck is not None and by_luck < chance.CHANCE


def _chosen(searched: Searched) -> str:
    primary = searched.runs.task.spec.primary
    return (
        f"Figures of the test are of the chosen epoch, the one with the best {primary.noun} on the validation images."
    )


def _figures(searched: Searched, targets: Sequence[float], price: Price | None) -> list[Figure]:
    task = searched.runs.task
    tested = [] if _is_on_test(searched) else [task.primary]
    return [
        Figure("chosen_epoch", "Chosen epoch", metric(CHOSEN_EPOCH)),
        replace(task.validation, title=f"{task.validation.title}, chosen epoch"),
        *(replace(of, title=f"Test {of.of.noun}{' (%)' * of.of.percent}") for of in (*tested, *task.beside) if of.of),
        TRAINING_TIME,
        *(figure for target in targets for figure in task.to_target(target)),
        *([figures.cost_of_run(price)] if price is not None else []),
    ]


def _row(searched: Searched, row: Candidate, best: bool) -> list[Entry]:
    end = _end(row)
    value = row.value if row.value is not None else row.last
    note = "" if row.value is not None or value is None else "after its last epoch, before the end"
    if row.trial.finished and value is None:
        note = f"no finite {searched.goal.metric}"
    ids = (row.trial.run_id,) if row.trial.run_id else ()
    text = "" if value is None else _number(searched, value)
    shown = None if value is None else value * searched.scale
    return [
        Entry(end, note=row.trial.reason),
        Entry(f"{row.epochs}", row.epochs) if row.epochs else Entry(),
        *(_place(axis, row.trial) for axis in searched.axes),
        Entry(text, shown, n=1, best=best, run_ids=ids, note=note, partial=row.value is None),
    ]


def _number(searched: Searched, value: float) -> str:
    return searched.goal.text(value).removesuffix("%")


def _place(axis: Axis, trial: Trial) -> Entry:
    return Entry(axis.text(trial), axis.number(trial))


def _entry(figure: Figure, trial: Trial) -> Entry:
    value = figure.measure(trial)
    if value is None:
        return Entry()
    return Entry(figure.cell(Statistic.of([value])), value, n=1, run_ids=(trial.run_id,))


def _again(searched: Searched) -> list[Table]:
    """The best run with other seeds."""
    if not searched.repeats:
        return []
    primary = searched.runs.task.primary
    rows = []
    for trial in searched.repeats:
        value = searched.goal.value(trial.metrics)
        first = Entry() if value is None else Entry(_number(searched, value), value, n=1, run_ids=(trial.run_id,))
        rows.append((trial.name, [first, _entry(primary, trial)]))
    columns = ["Run", searched.title, f"Test: {primary.title}"]
    note = "Seeds by which nothing was chosen: their mean is what the configuration gives."
    return [Table("search_again", "The best run with other seeds", columns, rows, (note,))]


def _axes(searched: Searched, explained: Sequence[importance.Explained]) -> Table:
    epoch, _ = searched.compared
    columns = ["Axis", "Alone (%)", "Rank correlation", "Between groups (%)", "n"]
    rows = [
        (
            of.axis.name,
            [
                _share(of.alone, of.why),
                Entry() if of.correlation is None else Entry(f"{of.correlation:+.2f}", of.correlation, n=of.n),
                _share(of.between, ""),
                Entry(f"{of.n}", of.n),
            ],
        )
        for of in explained
    ]
    notes = (
        "Of the runs that finished, by the objective."
        if epoch is None
        else f"Of all runs by what they had after epoch {epoch}, the last that all of them came to.",
        "Alone: share of the variance that the axis explains on its own in a random forest fitted to these runs "
        "(functional ANOVA, by Optuna); what is missing to 100 % is in combinations of axes. It fits chance, too.",
        "Rank correlation is Spearman's, of numbers: near 0 also where the best value is in the middle. Between groups "
        "(eta squared) is the share of the variance between the means of the values, of axes that are no numbers.",
        f"Below {importance.LEAST} runs there are too few trials to say.",
    )
    return Table("search_axes", "How much each axis explains", columns, rows, notes)


def _share(value: float | None, why: str) -> Entry:
    return Entry(note=why) if value is None else Entry(f"{100 * value:.0f}", 100 * value)
