"""The tables of a report: a row for every configuration, a column for every figure.

A column that no row has is left out, and so is a table without columns, so that a table may ask for whatever some study
might have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from cifar_ray import tasks
from cifar_ray.config.errors import some
from cifar_ray.reporting import cells, chance, figures, frame, scaling
from cifar_ray.reporting.cells import Group
from cifar_ray.reporting.chance import Measured, Ranking
from cifar_ray.reporting.contents import Entry, Section, Table
from cifar_ray.reporting.figures import ITERATION_TIME, LOSS, TRAINING_TIME, Figure, Statistic
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.reporting.names import Names
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking.study import HARDWARE_TAG, Run, Sweep

_ALL = {"None", "0"}  # of the steps of an epoch or of the test images, when it says nothing


@dataclass(frozen=True)
class Part:
    """What a report shows of one model on one data set.

    Attributes:
        group: its configurations.
        targets: values of the primary figure, for the times to them; none for the one that all runs of a model reach.
        price: of one node; None for no costs.
    """

    group: Group
    targets: Sequence[float] = ()
    price: float | None = None

    @property
    def task(self) -> TaskFigures:
        return self.group.among[0].runs.task

    @cached_property
    def goals(self) -> Sequence[float]:
        if self.targets:
            return list({self.task.target_key(target): target for target in self.targets}.values())
        reached = self.task.default_target(trial for config in self.group.among for trial in config.finished)
        return [] if reached is None else [reached]

    @cached_property
    def tables(self) -> Sequence[Table]:
        """Every table that these configurations have a figure for, the main one first."""
        return [*filter(None, _tables(self))] if any(config.finished for config in self.group.among) else []

    @property
    def section(self) -> Section:
        """The tables, with notes on what all runs share."""
        first = self.group.among[0]
        return Section(f"{first.model} on {first.dataset}", self.tables[:1], self.tables[1:], list(_notes(self)))


def parts(runs: Runs, targets: Sequence[float] = (), price: float | None = None) -> list[Part]:
    """The configurations by model and data set, in the order of the study."""
    sections: dict[tuple[str, str], list[Configuration]] = {}
    for config in sorted(runs.configurations, key=lambda config: (config.device, *config.size)):
        sections.setdefault((config.model, config.dataset), []).append(config)
    among = [sections[section] for section in runs.sections]
    return [Part(Group(configurations, Names(configurations)), targets, price) for configurations in among]


def means(runs: Runs) -> list[Table]:
    """The main figures of every configuration with its number of runs, for each model and data set, in few columns."""
    tables = []
    for part in parts(runs):
        first, of = part.group.among[0], part.task
        shown = [replace(figure, better="", note="") for figure in (of.validation, of.tested, of.throughput)]
        title = f"{first.model} on {first.dataset}"
        tables.append(filled(part.group, "means", title, [cells.RUNS, *shown], every=True))
    return [*filter(None, tables)]


def _tables(part: Part) -> list[Table | None]:
    table = partial(filled, part.group)
    strategies, ranks = part.group.names.strategies, range(max(config.world_size for config in part.group.among))
    task, measured_on = part.task, part.group.among[0].runs.measured_on
    primary = task.spec.primary
    is_chosen = measured_on == tasks.SUBSETS["val"]  # the best is that of validation
    learned = [task.validation, replace(task.tested, better="") if is_chosen else task.primary, *task.beside]
    speed = [TRAINING_TIME, task.throughput, *([ITERATION_TIME] if strategies else [])]
    speed += [cells.SPEED_UP, cells.EFFICIENCY]
    chosen = "Figures of the test are of the epoch that validation chose, else of the last."
    macro = [of.noun for of in task.spec.figures if of.macro]
    means = f"Macro averages: {some(macro)}." if macro else ""
    steps = [*figures.PARTS, figures.NOT_SPLIT, replace(ITERATION_TIME, better=""), figures.ITERATION_P95, cells.SHARE]
    parts = (
        "Parts are means over steps and ranks. Exposed communication is what the backward pass does not hide. The "
        "share is of a single worker's time for as large a global batch with the same seeds."
    )
    bubble = "Theory is (stages - 1) / (micro-batches + stages - 1), with stages that take equally long."
    stale = "Staleness: updates by other workers between reading the weights and applying the gradient"
    explain = "`cifar-ray explain RUN` names the rank and the numbers, and says what to try."
    cost = [] if part.price is None else [figures.cost_of_run(part.price)]
    main = [cells.GLOBAL_BATCH, *speed, *learned, figures.MEMORY, *cost]
    return [
        table("main", f"Time, speed and {primary.noun}", main, chosen, every=True),
        table("quality", "Test metrics", [*task.every[1:], LOSS], means),
        *(
            table(
                f"{figure.key}_by_rank",
                f"{figure.title} of every rank's own replica",
                [figures.over_ranks(figure), *(figures.of_rank(figure, rank) for rank in ranks)],
                "Where all ranks share one model, its figure stands for each.",
            )
            for figure in (LOSS, task.primary)
        ),
        table("phases", "Where the time went", [*figures.PHASE_TIMES, figures.TOTAL, figures.EPOCH_TIME]),
        table("steps", "Where a step's time goes", steps, parts),
        table("bounds", "What bounds each configuration", [cells.BOUND, figures.BOUND_COST], explain),
        *(
            table(
                task.target_key(goal),
                f"To {task.target_text(goal)} {measured_on} {primary.noun}",
                task.to_target(goal),
                every=True,
            )
            for goal in part.goals
        ),
        table("load", "Load", [figures.load("cpu"), figures.load("gpu")]),
        table("memory", "Peak memory of every worker (MiB)", [figures.of_rank(figures.MEMORY, rank) for rank in ranks]),
        table("bubble", "Pipeline bubble: the idle share of a stage", [cells.MICRO_BATCHES, *figures.BUBBLE], bubble),
        table("staleness", stale, [figures.STALENESS, cells.MOST_STALE], "Most is the largest of all runs."),
    ]


def filled(
    group: Group, key: str, title: str, figures: Sequence[Figure], note: str = "", every: bool = False
) -> Table | None:
    """A table with the columns that any configuration has a figure for, and rows of those that have any; None of none.

    With ``every``, all configurations have a row. The best entry of a column is marked, if the test tells it from all
    others.
    """
    rows = [(config, [cells.entry(figure, config, group) for figure in figures]) for config in group.among]
    rows = [row for row in rows if every or any(entry.value is not None for entry in row[1])]
    shown = [at for at in range(len(figures)) if any(entries[at].text for _, entries in rows)]
    columns = [figures[at] for at in shown]
    rows = [(config, [entries[at] for at in shown]) for config, entries in rows]
    counts = {entry.n for _, entries in rows for entry in entries if entry.n}
    if not counts:
        return None
    for at, figure in enumerate(columns):
        _mark(figure, at, rows)
    runs = f"n = {min(counts)}" + (f" to {max(counts)}" if len(counts) > 1 else "")
    several = any(entry.std is not None for _, entries in rows for entry in entries)
    spread = ", means ± sample standard deviations over the seeds" if several else ""
    first = group.among[0]
    return Table(
        re.sub(r"\W", "_", f"{first.model}_{first.dataset}_{key}"),
        title,
        ["Configuration", *(figure.title for figure in columns)],
        [(_label(group, config), entries) for config, entries in rows],
        (f"{runs}{spread}.", *dict.fromkeys(filter(None, (note, *(figure.note for figure in columns))))),
        columns,
        [config for config, _ in rows],
    )


def _mark(figure: Figure, at: int, rows: Sequence[tuple[Configuration, list[Entry]]]) -> None:
    """Mark the best entry of a column. A mean over only some of the runs is no candidate."""
    known = {config: entries[at] for config, entries in rows if entries[at].value is not None}
    if not figure.better or not chance.comparable(figure, list(known)):
        return
    measured = [Measured(config, Statistic(one.value or 0.0, one.std, one.n)) for config, one in known.items()]
    candidates = [each for each in measured if not known[each.config].partial]
    if len(candidates) > 1 and not (ranking := Ranking.of(figure, candidates, measured)).ties:
        best, *others = (each.config for each in ranking.ranked)
        if known[best].text.split()[0] not in {known[other].text.split()[0] for other in others}:  # as they are shown
            next(entries for config, entries in rows if config is best)[at] = replace(known[best], best=True)


def _label(group: Group, config: Configuration) -> str:
    status = "" if config.finished else f" ({', '.join(dict.fromkeys(trial.status for trial in config.trials))})"
    return group.names.row(config) + status


def _notes(part: Part) -> Iterator[str]:
    """How all these runs were trained, where they agree, and their targets."""
    among, task = part.group.among, part.task
    trials = [trial for config in among for trial in config.trials]
    made_for = sorted({trial.measure for trial in trials if trial.finished})
    for measure in made_for:
        those = [trial for trial in trials if trial.measure == measure or len(made_for) < 2]
        if shared := _shared(those):
            yield f"{f'Made for {measure}' if len(made_for) > 1 else 'All of them'}: {shared}."
    if hardware := sorted({trial.tags[HARDWARE_TAG] for trial in trials if HARDWARE_TAG in trial.tags}):
        yield f"Hardware: {'; '.join(hardware)}."
    if len({config.devices for config in among}) > 1:
        held = among[0].runs.study.hold == "global_batch"
        kind = "strong: the global batch stays" if held else "weak: the batch per worker stays, the global batch grows"
        yield f"Scaling is {kind}; speed-up is in {task.spec.unit}/s, against the fewest {scaling.unit(among)}."
    if unequal := chance.unequal_work(among, TRAINING_TIME) or chance.unequal_work(among, task.primary):
        yield f"{unequal[0].upper()}{unequal[1:]}: no best of what depends on that is marked."
    if part.goals:
        why = "as asked for" if part.targets else "the largest multiple of 5 % that the best epoch of all reaches"
        yield f"Target {task.spec.primary.noun}: {', '.join(map(task.target_text, part.goals))}; {why}."


def _shared(trials: Sequence[Run]) -> str:
    names = ("epochs", "optimizer", "lr", "lr_scaling", "schedule", "strategy", "precision", "accumulate")
    given = {
        name: {t.params[name] for t in trials if name in t.params}
        for name in ("steps_per_epoch", "test_images", *names)
    }
    return ", ".join(
        f"{name} {values.pop()}" for name, values in given.items() if len(values) == 1 and not values <= _ALL
    )


def outcome(trial: Run) -> str:
    """What became of a run, such as ``bs16 2x2 seed1 FAILED: out of memory``."""
    return f"{trial.name} {trial.status}" + (f": {trial.reason.rstrip('.')}" if trial.reason else "")


def runs_table(study: Sweep) -> Table:
    """One row for every run: what became of it, where it is, and what makes it again."""
    rows = []
    for trial in study.trials:
        commit, machine, hardware, command = (trial.tags.get(tag, "") for tag in frame.ORIGIN.values())
        texts = (commit, ", ".join(filter(None, (machine, hardware))), command)
        ended = [Entry(trial.status, note=trial.reason), Entry(trial.run_id, link=trial.page or "")]
        rows.append((trial.name, [*ended, *map(Entry, texts)]))
    columns = ["Run", "Status", "Run id", "Commit", "Machine and hardware", "Command"]
    return Table("runs", "Runs", columns, rows, ("A run's id leads to its page in MLflow, where the store has pages.",))
