"""The tables of a search: its trials, the best one with other seeds, and what the axes explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cifar_ray.reporting import chance, figures, importance
from cifar_ray.reporting.contents import Entry, Table
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.figures import TRAINING_TIME, Figure, Statistic, metric
from cifar_ray.reporting.search import Candidate, Searched
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.tracking.study import STOPPED_TAG, Run

_ENDS = {"KILLED": "ended early", "PENDING": "not begun"}


def trials(searched: Searched, targets: Sequence[float], price: Price | None) -> Table:
    """A row for every trial: those that finished by the objective, then the stopped ones, then the rest."""
    shown = [candidate for _, candidate in (*searched.ranked, *searched.stopped)]
    rows = [*shown, *(candidate for candidate in searched.candidates if candidate not in shown)]
    columns = _figures(searched, targets, price)
    columns = [figure for figure in columns if any(figure.measure(row.trial) is not None for row in rows)]
    objective = f"Objective: {searched.title[:1].lower()}{searched.title[1:]}"
    best, first = _is_told(searched), ("Rank", objective, "End", "Epochs")
    notes = [
        "Trials that finished come first, by the objective; then those that were stopped before the end, with what "
        "they had after their last epoch, which is not compared with the others.",
        *([_chosen(searched)] if any(CHOSEN_EPOCH in row.trial.metrics for row in rows) else []),
        *(figure.note for figure in columns if figure.note),
    ]
    return Table(
        "search_trials",
        "Trials",
        [*first, *(axis.name for axis in searched.axes), *(figure.title for figure in columns), "Run"],
        [
            (
                f"{number}" if row.value is not None else "-",
                [
                    *_row(searched, row, best and number == 1),
                    *(Entry(axis.text(row.trial), axis.number(row.trial)) for axis in searched.axes),
                    *(_entry(figure, row.trial) for figure in columns),
                    Entry(row.trial.name, link=row.trial.page or ""),
                ],
            )
            for number, row in enumerate(rows, 1)
        ],
        list(dict.fromkeys(notes)),
    )


def _is_told(searched: Searched) -> bool:
    """Whether the best is told from the second."""
    if len(searched.ranked) < 2:
        return False
    rank, (second, _) = searched.goal.figure.rank, searched.ranked[1]
    by_luck = searched.by_luck(searched.level, second)
    return rank(searched.level) > rank(second) and by_luck is not None and by_luck < chance.CHANCE


def _chosen(searched: Searched) -> str:
    primary = searched.runs.task.spec.primary
    return (
        f"Figures of the test are of the chosen epoch, the one with the best {primary.noun} on the validation images."
    )


def _figures(searched: Searched, targets: Sequence[float], price: Price | None) -> list[Figure]:
    task = searched.runs.task
    tested = [] if is_on_test(searched) else [task.primary]
    return [
        Figure("chosen_epoch", "Chosen epoch", metric(CHOSEN_EPOCH)),
        replace(task.validation, title=f"{task.validation.title}, chosen epoch"),
        *map(_of_test, (*tested, *task.beside)),
        TRAINING_TIME,
        *(figure for target in targets for figure in task.to_target(target)),
        *([figures.cost_of_run(price)] if price is not None else []),
    ]


def _of_test(figure: Figure) -> Figure:
    """A figure whose title says that it is of the test."""
    assert figure.of is not None
    return replace(figure, title=f"Test {figure.of.noun}{' (%)' * figure.of.percent}")


def _row(searched: Searched, row: Candidate, best: bool) -> list[Entry]:
    value = row.value if row.value is not None else row.last
    note = "" if row.value is not None or value is None else "after its last epoch, before the end"
    if row.trial.finished and value is None:
        note = f"no finite {searched.goal.metric}"
    objective = Entry(note=note)
    if value is not None:
        objective = replace(
            _objective_entry(searched, value, row.trial), best=best, note=note, partial=row.value is None
        )
    return [
        objective,
        Entry(end(row), note=row.trial.reason),
        Entry(f"{row.epochs}", row.epochs) if row.epochs else Entry(),
    ]


def _objective_entry(searched: Searched, value: float, trial: Run) -> Entry:
    text = searched.goal.figure.text(value).removesuffix("%")
    return Entry(text, value * searched.scale, n=1, run_ids=(trial.run_id,))


def _entry(figure: Figure, trial: Run) -> Entry:
    value = figure.measure(trial)
    if value is None:
        return Entry()
    return Entry(figure.cell(Statistic.of([value])), value, n=1, run_ids=(trial.run_id,))


def again(searched: Searched) -> list[Table]:
    """The best run with other seeds."""
    if not searched.repeats:
        return []
    primary = searched.runs.task.primary
    rows = []
    for trial in searched.repeats:
        value = searched.goal.value(trial.metrics)
        first = Entry() if value is None else _objective_entry(searched, value, trial)
        rows.append((trial.name, [first, _entry(primary, trial)]))
    columns = ["Run", searched.title, _of_test(primary).title]
    note = "Seeds by which nothing was chosen: their mean is what the configuration gives."
    return [Table("search_again", "The best run with other seeds", columns, rows, (note,))]


def axes(searched: Searched, explained: Sequence[importance.Explained]) -> Table:
    """A row for every axis: what it explains."""
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


def end(candidate: Candidate) -> str:
    """How a trial has ended, in a word."""
    status = candidate.trial.status
    return "stopped" if STOPPED_TAG in candidate.trial.tags else _ENDS.get(status, status.lower())


def is_on_test(searched: Searched) -> bool:
    """Whether the objective is the primary figure of the test itself, which then stands in one column."""
    primary = searched.runs.task.spec.primary
    return {primary.result(candidate.trial.metrics) for _, candidate in searched.ranked} == {searched.goal.metric}
