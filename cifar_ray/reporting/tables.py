"""The tables of a report: a row for every configuration, a column for every figure.

A table is a :class:`Spec`; one function fills any of them. A column that no row has is left out, and so is a table
without columns, so that a spec may name whatever some study might have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from cifar_ray.reporting import aggregate, cells, measures, peers, scaling
from cifar_ray.reporting.aggregate import Configuration, Statistic
from cifar_ray.reporting.cells import Column, Group
from cifar_ray.reporting.contents import Entry, Section, Table
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.measures import ACCURACY, ITERATION_TIME, LOSS, Figure
from cifar_ray.reporting.names import Names
from cifar_ray.tracking.study import HARDWARE_TAG, Study, Trial

_ALL = {"None", "0"}  # of the steps of an epoch or of the test images, when it says nothing


@dataclass(frozen=True)
class Spec:
    """One table.

    Attributes:
        key: short name.
        title: heading.
        columns: in their order.
        notes: sentences below it, besides those of its figures.
        every: whether configurations without any of its figures have a row, too.
    """

    key: str
    title: str
    columns: Sequence[Column]
    notes: Sequence[str] = ()
    every: bool = False


class Filled(NamedTuple):
    """A spec with its entries: the columns that have any, and a row for each configuration."""

    spec: Spec
    columns: Sequence[Column]
    rows: Sequence[tuple[Configuration, Sequence[Entry]]]


def groups(study: Study) -> list[Group]:
    """The configurations by model and data set, in the order of the study."""
    every = aggregate.configurations(study)
    found = []
    for kind in dict.fromkeys((one.model, one.dataset) for one in every):
        among = [one for one in every if (one.model, one.dataset) == kind]
        among.sort(key=lambda one: (one.device, one.devices, one.nodes, one.topology, aggregate.column(study, one)))
        found.append(Group(study, among, Names.of(study, among)))
    return found


def sections(study: Study, targets: Sequence[float], price: Price | None) -> list[Section]:
    """All tables, one section for every model and data set.

    Args:
        study: the runs.
        targets: test accuracies, 0 to 1, for the times to them; none for the one that all runs of a model reach.
        price: of one node; None for no costs.
    """
    found = []
    for group in groups(study):
        made = [_table(group, one) for one in filled(group, targets, price)]
        notes = [*_settings(group), *_targets(group, targets), *_missing(group)]
        first = group.among[0]
        found.append(Section(f"{first.model} on {first.dataset}", made[:1], made[1:], notes))
    return found


def filled(group: Group, targets: Sequence[float], price: Price | None) -> Iterator[Filled]:
    """Every table that these configurations have a figure for, the main one first.

    Args:
        group: the configurations.
        targets: as for :func:`sections`.
        price: of one node; None for no costs.
    """
    if not any(one.finished for one in group.among):
        return
    for spec in _specs(group, _goals(group, targets), price):
        rows = [(one, [column.make(group, one) for column in spec.columns]) for one in group.among]
        rows = [row for row in rows if spec.every or any(entry.value is not None for entry in row[1])]
        shown = [at for at in range(len(spec.columns)) if any(entries[at].text for _, entries in rows)]
        columns = [spec.columns[at] for at in shown]
        if any(entries[at].n for _, entries in rows for at in shown):
            yield Filled(spec, columns, _marked(columns, [(one, [row[at] for at in shown]) for one, row in rows]))


def _specs(group: Group, goals: Sequence[float], price: Price | None) -> list[Spec]:
    ranks = range(max(one.world_size for one in group.among))
    specs = [
        Spec(
            "main",
            "Time, speed and accuracy",
            [
                cells.count("Global batch", lambda one: one.global_batch_size),
                *cells.columns(measures.TRAINING_TIME, measures.IMAGES_PER_S),
                *(cells.columns(ITERATION_TIME) if group.names.strategies else ()),
                Column(cells.SPEED_UP, partial(cells.ratio, cells.SPEED_UP)),
                Column(cells.EFFICIENCY, partial(cells.ratio, cells.EFFICIENCY)),
                *cells.columns(ACCURACY, measures.F1, measures.MEMORY),
                *(cells.columns(_comparable(group, measures.cost_of_run(price), price)) if price is not None else ()),
            ],
            ("Accuracy and F1, a macro average, are those of the last epoch.",),
            every=True,
        ),
        Spec(
            "quality",
            "Test metrics, precision to specificity as macro averages",
            cells.columns(measures.PRECISION, measures.RECALL, measures.F1, measures.SPECIFICITY, LOSS),
        ),
        *(
            Spec(
                f"{figure.key}_by_rank",
                f"{figure.title} of every rank's own replica",
                cells.columns(measures.over_ranks(figure), *(measures.of_rank(figure, rank) for rank in ranks)),
                (
                    "A replica has its own batch-norm statistics where the strategy has them; where all ranks share "
                    "one model, its figure stands for each.",
                ),
            )
            for figure in (LOSS, ACCURACY)
        ),
        Spec("phases", "Where the time went", cells.columns(*measures.PHASES, measures.TOTAL, measures.EPOCH_TIME)),
        Spec(
            "steps",
            "Where a step's time goes",
            [
                *cells.columns(*measures.STEP_PARTS, why=cells.unsplit),
                *cells.columns(measures.NOT_SPLIT, why=cells.exceeded),
                *cells.columns(replace(ITERATION_TIME, better=""), measures.ITERATION_P95),
                Column(cells.SHARE, cells.share_of_single),
            ],
            (
                "Parts are means over steps and ranks. Exposed communication is what the backward pass does not hide.",
                "The share is of a single worker's time for a global batch of the same size: with two workers, half "
                "of it would be perfect.",
            ),
        ),
    ]
    for goal in goals:
        figures = [*measures.to_target(goal)]
        if price is not None:
            figures.append(_comparable(group, measures.cost_to_target(price, goal), price))
        key, title = measures.key_of_target(goal), f"To {goal * 100:.4g} % test accuracy"
        specs.append(Spec(key, title, cells.columns(*figures, why=cells.unreached(goal)), every=True))
    return [
        *specs,
        Spec(
            "load", "Load", cells.columns(measures.utilisation("cpu"), measures.utilisation("gpu"), why=cells.unsampled)
        ),
        Spec("memory", "Peak memory of every worker (MiB)", cells.columns(*map(measures.memory_of_rank, ranks))),
        Spec(
            "bubble",
            "Pipeline bubble: the share of the time in which a stage idles",
            [cells.setting("Micro-batches", cells.micro_batches), *cells.columns(*measures.BUBBLE)],
            ("Theory is (stages - 1) / (micro-batches + stages - 1), with stages that take equally long.",),
        ),
        Spec(
            "staleness",
            "Staleness: updates by other workers between reading the weights and applying the gradient",
            [
                cells.setting("Push every", cells.parameter("push_every")),
                cells.setting("Servers", cells.parameter("servers")),
                cells.setting("Bound", cells.parameter("max_staleness")),
                cells.setting("Weighting", cells.parameter("staleness_weighting")),
                *cells.columns(measures.STALENESS),
                Column(measures.MOST_STALE, cells.most_stale),
            ],
        ),
    ]


def _comparable(group: Group, cost: Figure, price: Price) -> Figure:
    """A cost of which none is marked as the best where runs used another kind of device than the machine has."""
    alike = all(one.device == price.device for one in group.among if one.finished)
    return cost if alike else replace(cost, better="")


def _marked(
    columns: Sequence[Column], rows: Sequence[tuple[Configuration, Sequence[Entry]]]
) -> list[tuple[Configuration, list[Entry]]]:
    """The rows with the best entry of every column marked, if it is told from all others by :func:`peers.distinct`.

    A mean over only some of the runs is no candidate.
    """
    found = [(one, list(entries)) for one, entries in rows]
    for at, column in enumerate(columns):
        measured = [(one, entries) for one, entries in found if entries[at].value is not None]
        better = peers.better(column.figure, [one for one, _ in measured])
        ranked = [(entries[at].value or 0.0, entries) for _, entries in measured if not entries[at].partial]
        if not better or len(ranked) < 2:
            continue
        images = peers.images(column.figure, [one for one, _ in measured])
        ranked.sort(key=lambda pair: pair[0], reverse=better == "high")
        (_, top), *others = ranked
        if all(_better(column.figure, top[at], entries[at], images) for _, entries in others):
            top[at] = replace(top[at], best=True)
    return found


def _better(figure: Figure, top: Entry, other: Entry, images: float | None) -> bool:
    """Whether two entries differ, and as the table shows them."""

    def statistic(entry: Entry) -> Statistic:
        # The reference of a ratio has none; other ratios are also of the reference's runs.
        exact = entry.std is None and 1 < entry.n == len(entry.run_ids)
        return Statistic(entry.value or 0.0, 0.0 if exact else entry.std, entry.n, ())

    one, rival = statistic(top), statistic(other)
    return figure.number(one.mean) != figure.number(rival.mean) and peers.distinct(one, rival, images) is True


def _table(group: Group, one: Filled) -> Table:
    counts = {entry.n for _, entries in one.rows for entry in entries if entry.n}
    runs = f"n = {min(counts)}" + (f" to {max(counts)}" if len(counts) > 1 else "")
    several = any(entry.std is not None for _, entries in one.rows for entry in entries)
    spread = ", means ± sample standard deviations over the seeds" if several else ""
    notes = dict.fromkeys([column.figure.note for column in one.columns if column.figure.note])
    first = group.among[0]
    return Table(
        re.sub(r"\W", "_", f"{first.model}_{first.dataset}_{one.spec.key}"),
        one.spec.title,
        ["Configuration", *(column.figure.title for column in one.columns)],
        [(_label(group, configuration), entries) for configuration, entries in one.rows],
        (f"{runs}{spread}.", *one.spec.notes, *notes),
    )


def _label(group: Group, one: Configuration) -> str:
    status = "" if one.finished else f" ({', '.join(dict.fromkeys(trial.status for trial in one.trials))})"
    return group.names.row(one) + status


def _goals(group: Group, targets: Sequence[float]) -> Sequence[float]:
    reached = None if targets else aggregate.default_target(group.among)
    return list(dict.fromkeys(targets)) if reached is None else [reached]


def _targets(group: Group, targets: Sequence[float]) -> list[str]:
    if goals := _goals(group, targets):
        why = "as asked for" if targets else "the largest multiple of 5 % that the best epoch of all reaches"
        return [f"Target accuracy: {', '.join(f'{goal * 100:.4g} %' for goal in goals)}; {why}."]
    if any(one.finished for one in group.among):
        return ["There is no target accuracy: not all runs reach 5 %, or --target names another."]
    return []


def _settings(group: Group) -> list[str]:
    """How all these runs were trained, where they agree."""
    trials = [trial for one in group.among for trial in one.trials]
    made_for = dict.fromkeys(trial.measure for trial in trials if trial.finished)
    kinds = {"All of them": trials}
    if len(made_for) > 1:
        kinds = {f"Made for {measure}": [t for t in trials if t.measure == measure] for measure in sorted(made_for)}
    notes = [f"{which}: {shared}." for which, those in kinds.items() if (shared := _shared(those))]
    hardware = sorted({t.tags[HARDWARE_TAG] for t in trials if HARDWARE_TAG in t.tags})
    if hardware:
        notes.append(f"Hardware: {'; '.join(hardware)}.")
    if len({one.devices for one in group.among}) > 1:
        held = group.study.hold == "global_batch"
        kind = "strong: the global batch stays" if held else "weak: the batch per worker stays, the global batch grows"
        counted = "" if scaling.unit(group.among) == "workers" else ", GPUs counted where a worker drives several"
        notes.append(f"Scaling is {kind}; speed-up is in images/s, against the fewest workers{counted}.")
    of_times, of_accuracy = (peers.difference(group.among, figure) for figure in (measures.TRAINING_TIME, ACCURACY))
    if unequal := of_times or of_accuracy:
        lost = "seconds and costs" if of_times else "accuracies"
        lost = "seconds, costs and accuracies" if of_times and of_accuracy else lost
        notes.append(f"{unequal[0].upper()}{unequal[1:]}: no best of {lost} is marked.")
    return notes


def _shared(trials: Sequence[Trial]) -> str:
    """The settings in which runs agree."""
    names = ("epochs", "optimizer", "lr", "lr_scaling", "schedule", "strategy", "precision", "accumulate")
    shared = []
    for name in ("steps_per_epoch", "test_images", *names):
        values = {trial.params[name] for trial in trials if name in trial.params}
        if len(values) == 1 and not values <= _ALL:
            shared.append(f"{name} {values.pop()}")
    return ", ".join(shared)


def _missing(group: Group) -> list[str]:
    """A sentence for every configuration that has no figure at all, or fewer runs than asked for."""
    lost = [(one, [outcome(trial) for trial in one.trials if not trial.finished]) for one in group.among]
    return [f"{group.names.row(one)}: {'; '.join(outcomes)}." for one, outcomes in lost if outcomes]


def outcome(trial: Trial) -> str:
    """What became of a run, such as ``bs16 2x2 seed1 FAILED: out of memory``."""
    return f"{trial.name} {trial.status}" + (f": {trial.reason.rstrip('.')}" if trial.reason else "")


def runs_table(study: Study) -> Table:
    """One row for every run: what became of it, where it is, and what makes it again."""
    columns = ["Run", "Status", "Run id", "Commit", "Machine and hardware", "Command"]
    rows = [(trial.name, _run_row(trial)) for trial in study.trials]
    return Table("runs", "Runs", columns, rows, ("A run's id leads to its page in MLflow, where the store has pages.",))


def _run_row(trial: Trial) -> list[Entry]:
    ids = (trial.run_id,) if trial.run_id else ()
    origin = {name: trial.tags.get(tag, "") for name, tag in aggregate.ORIGIN.items()}

    def words(text: str, note: str = "", link: str = "") -> Entry:
        return Entry(text, run_ids=ids if text else (), note=note, link=link)

    return [
        words(trial.status, trial.reason),
        words(trial.run_id, link=trial.page or ""),
        words(origin["commit"]),
        words(", ".join(filter(None, (origin["machine"], origin["hardware"])))),
        words(origin["command"]),
    ]
