"""Tables in the layout of the published studies: configurations down, batch sizes across."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from cifar_ray.reporting import aggregate, measures, peers, scaling, strategy_tables
from cifar_ray.reporting.aggregate import Configuration, Statistic
from cifar_ray.reporting.contents import Section
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.entries import marked, measured, reasons, unrecorded, unsampled
from cifar_ray.reporting.measures import Figure
from cifar_ray.reporting.table import Entry, Table
from cifar_ray.tracking.study import Study, Trial

_CORNER = "Configuration"
# Both are read from two configurations; here is how they are called and written.
_SPEED_UP = Figure("speed_up", "Speed-up (times)", lambda _: None, " times", 2, "high")
_EFFICIENCY = Figure("scaling_efficiency_percent", "Scaling efficiency (%)", lambda _: None, " %", 1, "")
_Cell = Callable[[Configuration], Entry]
_WHOLE_EPOCH = {"None", "0"}  # of steps_per_epoch, when it says nothing


def sections(study: Study, target: float | None, price: Price | None) -> list[Section]:
    """All tables, one section for every model and data set.

    Args:
        study: the runs.
        target: test accuracy, 0 to 1, for the time to a target; None for the one that all runs of a model reach.
        price: of one node; None for no tables of costs.
    """
    every = aggregate.configurations(study)
    kinds = dict.fromkeys((one.model, one.dataset) for one in every)
    return [
        _section(study, [one for one in every if (one.model, one.dataset) == kind], target, price) for kind in kinds
    ]


def _section(study: Study, among: list[Configuration], target: float | None, price: Price | None) -> Section:
    goal = target if target is not None else aggregate.default_target(among)
    first = among[0]
    maker = _Maker(study, among, re.sub(r"\W", "_", f"{first.model}_{first.dataset}"))
    tables = [
        maker.grid(measures.TRAINING_TIME),
        maker.rows("test_metrics_percent", "Test metrics (%), precision to specificity as macro averages", _quality()),
        *(maker.grid(figure) for figure in measures.QUALITY),
        maker.grid(measures.EPOCH_TIME),
        maker.grid(_iteration(study), also=measures.ITERATION_P95),
        maker.grid(measures.IMAGES_PER_S),
        *maker.scaling(),
        maker.rows("where_the_time_went_s", "Where the time went (s)", [*measures.PHASES, measures.TOTAL]),
    ]
    if goal is not None:
        tables += [maker.grid(figure, _unreached(goal)) for figure in measures.to_target(goal)]
    tables.append(maker.grid(_memory(among)))
    tables.append(maker.grid(measures.utilisation("cpu"), unsampled))
    if any(one.device == "cuda" for one in among):
        tables.append(maker.grid(measures.utilisation("gpu"), unsampled))
    if price is not None:
        tables.append(maker.grid(measures.cost_of_run(price)))
        if goal is not None:
            tables.append(maker.grid(measures.cost_to_target(price, goal), _unreached(goal)))
    tables += strategy_tables.tables(study, among, maker.prefix)
    shown = tables if any(one.finished for one in among) else []
    notes = [*_settings(study, among, goal, target is None), *maker.missing()]
    return Section(f"{first.model} on {first.dataset}", shown, notes)


def _iteration(study: Study) -> Figure:
    """Time per iteration; a column has a best one only where all its iterations are of as many images."""
    same = study.hold == "global_batch"
    return measures.ITERATION_TIME if same else dataclasses.replace(measures.ITERATION_TIME, better="")


def _quality() -> list[Figure]:
    names = ("Accuracy", "Precision", "Recall", "F1", "Specificity")
    return [dataclasses.replace(figure, title=name) for figure, name in zip(measures.QUALITY, names)]


def _memory(among: Sequence[Configuration]) -> Figure:
    """Of a GPU and of a process, memory is not the same thing, and so none is the best of both."""
    several = len({one.device for one in among if one.finished}) > 1
    return dataclasses.replace(measures.MEMORY, better="") if several else measures.MEMORY


class _Maker:
    """Makes the tables of one model on one data set."""

    def __init__(self, study: Study, among: list[Configuration], prefix: str) -> None:
        self._study, self.prefix = study, prefix
        self._among = sorted(among, key=lambda one: (one.device, one.devices, one.nodes))
        self._labels = list(dict.fromkeys(one.row for one in self._among))
        self._batches = sorted({aggregate.column(study, one) for one in among})
        self._places = {(one.row, aggregate.column(study, one)): one for one in self._among}

    def grid(
        self, figure: Figure, why_empty: Callable[[Trial], str] | None = None, also: Figure | None = None
    ) -> Table:
        """One figure by configuration and batch size."""

        def cell(one: Configuration) -> Entry:
            entry = measured(one, figure, why_empty or unrecorded)
            more = one.statistic(also.measure) if also is not None and entry.text else None
            notes = [entry.note, self._batch_note(one) if entry.text else ""]
            if also is not None and more is not None:
                notes.insert(0, f"{also.title.split(' (')[0]} {also.text(more)}")
            return dataclasses.replace(entry, note="; ".join(filter(None, notes)))

        return self._grid(figure, cell, figure.notes)

    def scaling(self) -> list[Table]:
        """Speed-up and scaling efficiency, from the images per second."""
        if self._study.hold == "global_batch":
            kind = "Strong scaling: the global batch stays, and each worker's share of it shrinks."
        else:
            kind = "Weak scaling: the batch per worker stays, and the global batch grows with the workers."
        basis = "From the images per second, against the configuration with the fewest workers in the same column."

        def cell(efficiency: bool) -> _Cell:
            def make(one: Configuration) -> Entry:
                found = scaling.ratio(self._study, one, self._among)
                own = one.statistic(measures.IMAGES_PER_S.measure)
                if found is None or own is None:
                    return Entry(note=reasons(one) or "images per second were not recorded")
                if found.reference is one and one.devices > 1:
                    return Entry(note="nothing with fewer workers to compare with")
                shown = _EFFICIENCY if efficiency else _SPEED_UP
                value, std = (found.efficiency, found.efficiency_std) if efficiency else (found.speed_up, found.std)
                scale = 100 if efficiency else 1
                whole = Statistic(value * scale, None if std is None else std * scale, own.n, found.run_ids)
                text = shown.text(whole) + (f" (n={own.n})" if std is None and own.n > 1 else "")
                notes = [f"against {found.reference.row}", found.spread, self._batch_note(one)]
                note = "; ".join(filter(None, notes))
                return Entry(text, whole.mean, whole.std, whole.n, run_ids=whole.run_ids, note=note)

            return make

        if any(one.devices != one.world_size for one in self._among):
            basis += " Where a worker drives several GPUs, they are counted in its place."
        share = "Speed-up divided by how many times the workers are: 100 % is perfect."
        return [
            self._grid(of, cell(of is _EFFICIENCY), (kind, basis, *more))
            for of, more in ((_SPEED_UP, ()), (_EFFICIENCY, (share,)))
        ]

    def rows(self, key: str, title: str, figures: Sequence[Figure]) -> Table:
        """Several figures, one row for every configuration and batch size."""
        rows = []
        for one in sorted(self._places.values(), key=lambda one: aggregate.column(self._study, one)):
            label = f"{one.row}, {self._batch(aggregate.column(self._study, one))}"
            rows.append((label, [measured(one, figure, unrecorded) for figure in figures]))
        columns = [_CORNER, *(figure.title for figure in figures)]
        rows = marked(rows, [peers.better(figure, self._among) for figure in figures])
        return Table(f"{self.prefix}_{key}", title, columns, rows)

    def _grid(self, figure: Figure, cell: _Cell, notes: Sequence[str]) -> Table:
        rows = [(row, [self._entry(cell, row, batch) for batch in self._batches]) for row in self._labels]
        columns = [_CORNER, *(self._batch(batch) for batch in self._batches)]
        groups = (
            [one for one in self._among if aggregate.column(self._study, one) == batch] for batch in self._batches
        )
        rows = marked(rows, [peers.better(figure, group) for group in groups])
        return Table(f"{self.prefix}_{figure.key}", figure.title, columns, rows, tuple(notes))

    def _entry(self, cell: _Cell, row: str, batch: int) -> Entry:
        one = self._places.get((row, batch))
        return cell(one) if one is not None else Entry(note="not asked for")

    def _batch(self, batch: int) -> str:
        return f"global batch {batch}" if self._study.hold == "global_batch" else f"batch {batch} per worker"

    def _batch_note(self, one: Configuration) -> str:
        if self._study.hold == "global_batch":
            return f"batch {one.batch_size} per worker"
        return f"global batch {one.global_batch_size}"

    def missing(self) -> list[str]:
        """A sentence for every configuration that has no figure at all, or fewer runs than asked for."""
        found = []
        for one in self._among:
            if lost := reasons(one):
                found.append(f"{one.row}, {self._batch(aggregate.column(self._study, one))}: {lost}.")
        return found


def _unreached(target: float) -> Callable[[Trial], str]:
    def why(trial: Trial) -> str:
        best, epochs = aggregate.best_accuracy(trial), aggregate.epochs_to(target)(trial)
        if epochs is not None:
            return f"reached in epoch {epochs:.0f}, but not every epoch until then has its figures recorded"
        if best is None:
            return "not recorded"
        if aggregate.reaches(best, target):
            return f"reached, since the best epoch has {best:.2%}, but the epoch is not recorded"
        return f"not reached: the best epoch has {best:.2%}"

    return why


def _settings(study: Study, among: Sequence[Configuration], goal: float | None, chosen: bool) -> list[str]:
    """How all these runs were trained, where they agree, and what the target is."""
    trials = [trial for one in among for trial in one.trials]
    names = ("epochs", "optimizer", "lr", "lr_scaling", "schedule", "strategy", "precision", "accumulate")
    shared = []
    for name in ("steps_per_epoch", *names):
        values = {trial.params[name] for trial in trials if name in trial.params}
        if len(values) == 1 and not (name == "steps_per_epoch" and values <= _WHOLE_EPOCH):
            shared.append(f"{name} {values.pop()}")
    notes = [f"All of them: {', '.join(shared)}."] if shared else []
    hardware = sorted({t.tags["cifar_ray.hardware"] for t in trials if "cifar_ray.hardware" in t.tags})
    if hardware:
        notes.append(f"Hardware: {'; '.join(hardware)}.")
    if unequal := peers.difference(among):
        best = "seconds, costs and accuracies have a best only among those of equal work"
        notes.append(f"{unequal[0].upper()}{unequal[1:]}: {best}.")
    if goal is not None:
        why = "the largest multiple of 5 % that every finished run's best epoch reaches" if chosen else "as asked for"
        notes.append(f"Target accuracy: {goal * 100:.4g} %, {why}.")
    elif any(one.finished for one in among):
        notes.append("There is no target accuracy: not all runs reach 5 %, or --target names another.")
    return notes


def runs_table(study: Study) -> Table:
    """One row for every run: what became of it, where it is, and what makes it again."""
    columns = ["Run", "Status", "Run id", "Commit", "Machine and hardware", "Test accuracy", "Training time", "Command"]
    rows = [(trial.name, _run_row(trial)) for trial in study.trials]
    return Table("runs", "Runs", columns, rows, ("A run's id leads to its page in MLflow, where the store has pages.",))


def _run_row(trial: Trial) -> list[Entry]:
    ids = (trial.run_id,) if trial.run_id else ()
    tags = trial.tags
    machine = ", ".join(filter(None, (tags.get("cifar_ray.machine"), tags.get("cifar_ray.hardware"))))

    def words(text: str, note: str = "", link: str = "") -> Entry:
        return Entry(text, run_ids=ids if text else (), note=note, link=link)

    def figure(of: Figure) -> Entry:
        value = of.measure(trial)
        return Entry() if value is None else Entry(f"{of.number(value)}{of.unit}", value, n=1, run_ids=ids)

    return [
        words(trial.status, trial.reason),
        words(trial.run_id, link=trial.page or ""),
        words(tags.get("mlflow.source.git.commit", "")),
        words(machine),
        figure(measures.ACCURACY),
        figure(measures.TRAINING_TIME),
        words(tags.get("cifar_ray.command", "")),
    ]
