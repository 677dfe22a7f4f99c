"""The page of a search: its best run, how much of its lead may be luck, every trial, and what the axes explain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from cifar_ray import tasks
from cifar_ray.config.errors import counted
from cifar_ray.reporting import chance, charts, figures, importance, misread, search_charts
from cifar_ray.reporting.contents import Entry, Finding, Highlight, Report, Section, Table
from cifar_ray.reporting.figures import TRAINING_TIME, Figure, Statistic, metric
from cifar_ray.reporting.frame import Runs
from cifar_ray.reporting.search import Searched, as_number, setting, shown
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.tracking.study import Run


def finding(runs: Runs) -> Finding:
    """What a search came to."""
    searched, first = Searched(runs), runs.study.trials[0]
    title = f"{first.model} on {first.dataset}"
    return Finding(title, list(_highlights(searched)), list(_sentences(searched)))


def page(made: Report, targets: Sequence[float] = (), price: float | None = None) -> Report:
    """A report with the tables and charts of a search in place of a grid's: ``lead`` is the best run in one sentence.

    It has times to values of the primary figure, and costs by the price of one node.
    """
    runs = Runs(made.study)
    searched = Searched(runs)
    tables = [_trials(searched, targets, price), _axes(searched, importance.explained(searched))]
    drawn = [*search_charts.charts(searched), charts.confusion(runs)]
    return replace(
        made,
        lead=lead(searched),
        sections=[Section("Trials and axes", tables, notes=[_how(searched)]), *misread.sections(runs)],
        charts=[chart for chart in drawn if chart is not None],
    )


def lead(searched: Searched) -> str:
    """The best run in one sentence, and among how many it was chosen; empty where none has the figure."""
    if searched.lead is None:
        return ""
    on_test = " on the test set" if searched.goal.subset == "test" else ""
    stopped = len(searched.known) - len(searched.ranked)
    among = counted(len(searched.known), "trial") + f", {stopped} of them stopped before the end" * bool(stopped)
    return f"The best run is {searched.lead.sentence}. It was chosen{on_test} among {among}."


def _highlights(searched: Searched) -> Iterator[Highlight]:
    """Main figures of the best run, and how the trials ended."""
    if (best := searched.lead) is not None:
        (name, value), *others = best.ranked
        yield Highlight("Best run", best.of.text(value).replace("%", " %"), name)  # as the rest of a report has it
        if others:
            told = "more than chance" if best.is_told else "not distinguishable"
            second = others[0][0] + (f"; {told}" if best.by_chance is not None else "")
            title = "Ahead of the second" if best.ahead >= 0 else "Behind the second"
            yield Highlight(title, best.apart(abs(best.ahead)), second)
        primary = searched.runs.task.primary
        tested = primary.measure(searched.ranked.trial[0])
        if tested is not None and searched.goal.subset != "test":
            yield Highlight(f"{primary.title.removesuffix(' (%)')} in the test", primary.text(tested), "the best run")
    ends = searched.trials.end.value_counts(sort=False)
    yield Highlight("Trials", f"{len(searched.trials)}", ", ".join(f"{n} {end}" for end, n in ends.items()))


def _sentences(searched: Searched) -> Iterator[str]:
    """How many others the best run beats by more than chance, and how much luck flatters it."""
    best, goal = searched.lead, searched.goal
    if best is None:
        yield f"No run that finished has recorded {goal.metric}, so there is no best one."
    elif len(best.ranked) > 2 and best.images is not None:
        n, others = best.images, [value for _, value in best.ranked[1:]]
        told = sum(len(others) * chance.of_shares(best.level, value, n) < chance.CHANCE for value in others)
        yield f"Of the {len(others)} others, Fisher's exact test tells it from {told or 'none'} (5 %, Bonferroni)."
        high = 100 * chance.best_by_luck(min(max(best.ranked[0][1], 0.0), 1.0), n, len(best.ranked))
        luck = f"the luck of the {tasks.SUBSETS[goal.subset or 'test']} {goal.task.unit} alone"
        yield f"The best of {len(best.ranked)} equally good runs would read {high:.2f} points too well by {luck}."


def _how(searched: Searched) -> str:
    """How the values were chosen, and by what."""
    study, by = searched.study, {"random": "drawn at random", "optuna": "proposed by Optuna (TPE)"}
    chosen = by.get(study.search or "", "every combination")
    stops = f", and {study.scheduler} may stop runs early" if study.scheduler != "none" else ""
    return f"Values: {chosen}{stops}. Objective: {searched.goal.metric}, {searched.goal.better}."


def _trials(searched: Searched, targets: Sequence[float], price: float | None) -> Table:
    """A row for every trial, in the order of :attr:`Searched.trials`."""
    columns = _figures(searched, targets, price)
    columns = [figure for figure in columns if any(figure.measure(run) is not None for run in searched.trials.trial)]
    notes = [
        "By the objective: first the trials that finished, then those that were stopped, by their last epoch, and then "
        "the rest, by which nothing was chosen.",
        *dict.fromkeys(figure.note for figure in columns if figure.note),
    ]
    title, names = searched.objective.title, list(searched.axes)
    first = ["Rank", f"Objective: {title[:1].lower()}{title[1:]}", "End", "Epochs"]
    rows = [
        (
            f"{number}" if number <= len(searched.ranked) else "-",
            [
                _objective(searched, row),
                Entry(row.end, note=row.trial.reason),
                Entry(f"{row.epochs}", row.epochs) if row.epochs else Entry(),
                *(Entry(shown(value), as_number(value)) for value in (setting(row.trial, name) for name in names)),
                *(_entry(figure, row.trial) for figure in columns),
                Entry(row.trial.name, link=row.trial.page or ""),
            ],
        )
        for number, row in enumerate(searched.trials.itertuples(), 1)
    ]
    return Table("search_trials", "Trials", [*first, *names, *(figure.title for figure in columns), "Run"], rows, notes)


def _figures(searched: Searched, targets: Sequence[float], price: float | None) -> list[Figure]:
    """Columns beside the objective, without a figure that is the objective itself."""
    task, primary, objective = searched.runs.task, searched.runs.task.spec.primary, searched.goal.metric
    note = f"Figures of the test are of the chosen epoch, with the best {primary.noun} on the validation images."
    return [
        Figure("chosen_epoch", "Chosen epoch", metric(CHOSEN_EPOCH), note=note),
        *([task.validation] if objective != primary.on("val") else []),
        *([task.tested] if objective != primary.metric else []),
        *(replace(each, title=f"Test {each.of.noun}{' (%)' * each.of.percent}") for each in task.beside if each.of),
        TRAINING_TIME,
        *(figure for target in targets for figure in task.to_target(target)),
        *([figures.cost_of_run(price)] if price is not None else []),
    ]


def _objective(searched: Searched, row: Any) -> Entry:
    """What a trial has of the objective, marked as the best where chance alone does not explain its lead."""
    entry = _entry(searched.objective, row.trial)
    if row.Index >= len(searched.ranked):
        if not entry.text:
            return Entry(note=f"no finite {searched.goal.metric}" if row.trial.finished else "")
        return replace(entry, partial=True, note="" if row.trial.finished else "after its last epoch, before the end")
    lead = searched.lead
    return replace(entry, best=row.Index == 0 and lead is not None and lead.ahead > 0 and lead.is_told)


def _entry(figure: Figure, trial: Run) -> Entry:
    value = figure.measure(trial)
    if value is None:
        return Entry()
    return Entry(figure.cell(Statistic.of([value])), value, n=1, run_ids=(trial.run_id,))


def _axes(searched: Searched, explained: Any) -> Table:
    """A row for every axis: what it explains, see :func:`importance.explained`."""
    epoch, _ = searched.compared
    rows = [(row.Index, [_number(100 * row.alone), _number(row.n)]) for row in explained.itertuples()]
    notes = (
        "Alone: share of the variance that an axis explains on its own in a random forest (functional ANOVA, by "
        f"Optuna), of axes that all runs have; the rest is in combinations. It takes {importance.LEAST} runs.",
        "Of the runs that finished." if epoch is None else f"By epoch {epoch}, the last that all runs have recorded.",
    )
    return Table("search_axes", "How much each axis explains", ["Axis", "Alone (%)", "n"], rows, notes)


def _number(value: float) -> Entry:
    return Entry() if pd.isna(value) else Entry(f"{value:.0f}", value)
