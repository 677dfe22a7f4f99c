"""Tables that lay strategies beside each other: their steps, their ranks, their devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cifar_ray.reporting import measures, pace, strategies
from cifar_ray.reporting.aggregate import Configuration, Statistic
from cifar_ray.reporting.entries import marked, measured, reasons, unrecorded, unsampled
from cifar_ray.reporting.measures import ACCURACY, LOSS, SECONDS_PER_ITERATION, Figure
from cifar_ray.reporting.table import Entry, Table
from cifar_ray.tracking.study import Study, Trial

_CORNER = "Strategy"
_EXPOSED = "Exposed communication is what the backward pass does not hide."
_SHARE = Figure("share_percent", "", lambda _: None, " %", 1, "")
_MOST = measures.STALENESS[1]
_Row = tuple[str, list[Entry]]
_Setting = Callable[[Trial], "str | None"]


def tables(study: Study, among: Sequence[Configuration], prefix: str) -> list[Table]:
    """What there is to tell of the strategies of one model on one data set; nothing where there is one of them.

    A pipeline's bubble and an asynchronous strategy's staleness are told wherever they were measured.

    Args:
        study: the runs.
        among: its configurations of this model and data set.
        prefix: what the tables' keys begin with.
    """
    maker = _Maker(study, among, prefix)
    found = []
    if strategies.compared(among) and any(one.finished for one in among):
        found += [
            maker.by_topology(),
            maker.by_count(),
            maker.by_rank(LOSS, "test_loss_by_rank", "Test loss"),
            maker.by_rank(ACCURACY, "test_accuracy_by_rank_percent", "Test accuracy"),
            maker.steps(),
            maker.devices(),
        ]
    return [table for table in (*found, maker.bubbles(), maker.staleness()) if table is not None]


class _Maker:
    """Makes the tables of one model on one data set."""

    def __init__(self, study: Study, among: Sequence[Configuration], prefix: str) -> None:
        self._study, self._prefix = study, prefix
        self._among = strategies.by_size(among)
        self._several = len({one.device for one in among if one.finished}) > 1
        self._called = strategies.names(study, among).of
        self._labels = list(dict.fromkeys(self._name(one) for one in among))

    def _name(self, one: Configuration) -> str:
        return self._called(one) + (f", {one.device}" if self._several else "")

    def by_topology(self) -> Table:
        """Seconds per iteration, a column for every topology."""
        found: dict[tuple[str, int], list[Configuration]] = {}
        for one in self._among:
            found.setdefault((one.topology, one.devices), []).append(one)
        rows = []
        for label in self._labels:
            own = [next((one for one in group if self._name(one) == label), None) for group in found.values()]
            rows.append((label, [self._seconds(one) for one in own]))
        headings = [self._heading(group[0]) for group in found.values()]
        rows = marked(rows, [strategies.better(SECONDS_PER_ITERATION, group) for group in found.values()])
        notes = SECONDS_PER_ITERATION.notes
        return self._table("s_per_iteration_by_strategy", "Seconds per iteration by strategy", headings, rows, notes)

    def by_count(self) -> Table | None:
        """Seconds per iteration, and their share of a single worker's, for every number of workers or nodes."""
        word, count = strategies.counted([one for one in self._among if one.finished] or self._among)
        numbers = sorted({count(one) for one in self._among if one.finished})
        if len(numbers) < 2:
            return None
        rows: list[_Row] = []
        for label in self._labels:
            entries = []
            for number in numbers:
                own = [one for one in self._among if self._name(one) == label and count(one) == number]
                fastest = _fastest(own)
                entries.append(self._seconds(fastest, of=own))
                if number > 1:
                    entries.append(self._share(fastest))
            rows.append((label, entries))
        headings = []
        for number in numbers:
            what = f"{number} {word if number > 1 else word[:-1]}"
            headings += [what] if number == 1 else [what, f"{what}, share of a single worker's (%)"]
        notes = (
            f"Where several topologies have as many {word}, it is the fastest of them.",
            "A share is of a single worker's time for a global batch of the same size; half of it with two workers "
            "would be perfect.",
        )
        title = f"Seconds per iteration by number of {word}"
        return self._table(f"s_per_iteration_by_{word.lower()}", title, headings, rows, notes)

    def by_rank(self, figure: Figure, key: str, title: str) -> Table | None:
        """A figure of the test, also of every rank's own replica where that was tested."""
        ranks = range(max(one.world_size for one in self._among))
        each = [measures.of_rank(figure, rank) for rank in ranks]
        recorded = [one for one in each if any(other.statistic(one.measure) for other in self._among)]
        if not recorded and not any(one.statistic(figure.measure) for one in self._among):
            return None
        shown = [replace(figure, title="Of the run")]
        notes: tuple[str, ...] = ("After the last epoch, over all test images.",)
        if recorded:
            shown += [measures.over_ranks(figure), *each]
            notes += (
                "A rank's figure is that of its own replica, with its own batch-norm statistics, where the strategy "
                "has them; where all ranks share one model, it is that one's, again for each. "
                "A rank that a topology does not have is blank.",
            )
        rows = []
        for one in self._among:
            entries = [measured(one, shown[0], unrecorded)]
            for place, column in enumerate(shown[1:], -1):
                exists = place < one.world_size
                entries.append(measured(one, column, _untested) if exists else Entry())
            rows.append((self._placed(one), entries))
        rows = marked(rows, [strategies.better(figure, self._among), *[""] * (len(shown) - 1)])
        ending = "strategy and rank" if recorded else "strategy"
        return self._table(key, f"{title} by {ending}", [one.title for one in shown], rows, notes)

    def steps(self) -> Table | None:
        """The mean iteration by what it is spent on."""
        if not any(one.statistic(part.measure) for one in self._among for part in measures.STEP_PARTS):
            return None
        whole = replace(measures.ITERATION_TIME, title="Whole iteration", digits=None, better="")
        rows = []
        for one in self._among:
            entries = [measured(one, part, _unsplit) for part in measures.STEP_PARTS]
            entries += [measured(one, measures.NOT_SPLIT, _exceeded), measured(one, whole, unrecorded)]
            rows.append((self._placed(one), entries))
        headings = [figure.title for figure in (*measures.STEP_PARTS, measures.NOT_SPLIT, whole)]
        notes = (f"Means over steps and ranks in steady state. {_EXPOSED}", "Not split is the rest of the iteration.")
        return self._table("where_a_step_goes_ms", "Where a step's time goes (ms)", headings, rows, notes)

    def devices(self) -> Table:
        """Speed, load of the machines, and memory of every worker."""
        speed = replace(measures.IMAGES_PER_S, title="Images per second")
        shown = [speed, measures.utilisation("cpu")]
        if any(one.device == "cuda" for one in self._among):
            shown.append(measures.utilisation("gpu"))
        rows = []
        for one in self._among:
            entries = [measured(one, speed, unrecorded), *(measured(one, load, unsampled) for load in shown[1:])]
            rows.append((self._placed(one), [*entries, memory(one)]))
        rows = marked(rows, [strategies.better(speed, self._among), *[""] * len(shown)])
        notes = [note for figure in shown for note in figure.notes]
        notes.append("Peak memory is that of every worker, by rank: of its GPU where it has one, else of its process.")
        title = "Throughput, utilisation and memory per device by strategy"
        headings = [*(figure.title for figure in shown), "Peak memory by rank (MiB)"]
        return self._table("throughput_and_memory_by_strategy", title, headings, rows, notes)

    def bubbles(self) -> Table | None:
        """The share of its time in which a pipeline's stage idles."""
        note = (
            "Share of a pipeline's time in which a stage idles. "
            "Theory is (stages - 1) / (micro-batches + stages - 1), with stages that take equally long."
        )
        given = [("Micro-batches", strategies.micro_batches)]
        return self._of_some("pipeline_bubble_percent", "Pipeline bubble (%)", measures.BUBBLE, given, note)

    def staleness(self) -> Table | None:
        """How old the weights are that a gradient was computed with."""
        note = "Updates by other workers between reading the weights and applying the gradient."
        given = [("Bound", _parameter("max_staleness")), ("Weighting", _parameter("staleness_weighting"))]
        return self._of_some("staleness_updates", "Staleness (updates)", measures.STALENESS, given, note)

    def _of_some(
        self, key: str, title: str, figures: Sequence[Figure], given: Sequence[tuple[str, _Setting]], note: str
    ) -> Table | None:
        """A table of those alone that have one of the figures, with the settings that they were given."""
        those = [one for one in self._among if any(one.statistic(figure.measure) for figure in figures)]
        if not those:
            return None
        rows = []
        for one in those:
            entries = [_setting(one, read) for _, read in given]
            entries += [_largest(one) if of is _MOST else measured(one, of, unrecorded) for of in figures]
            rows.append((self._placed(one), entries))
        headings = [*(heading for heading, _ in given), *(figure.title for figure in figures)]
        return self._table(key, title, headings, rows, (note,))

    def _table(
        self, key: str, title: str, headings: Sequence[str], rows: Sequence[_Row], notes: Sequence[str]
    ) -> Table:
        return Table(f"{self._prefix}_{key}", title, [_CORNER, *headings], rows, tuple(notes))

    def _heading(self, one: Configuration) -> str:
        """With several devices, the rows say which."""
        return one.topology if self._several and one.devices == one.world_size else strategies.where(one)

    def _placed(self, one: Configuration) -> str:
        return f"{self._name(one)}, {one.topology}"

    def _seconds(self, one: Configuration | None, of: Sequence[Configuration] = ()) -> Entry:
        if one is None:
            return Entry(note="; ".join(dict.fromkeys(filter(None, map(reasons, of)))) or "not asked for")
        entry = measured(one, SECONDS_PER_ITERATION, unrecorded)
        several = f"of {one.topology}" if len(of) > 1 else ""
        return replace(entry, note="; ".join(filter(None, (several, entry.note))))

    def _share(self, one: Configuration | None) -> Entry:
        """Of a single worker's time; empty without one."""
        value = one.statistic(SECONDS_PER_ITERATION.measure) if one is not None else None
        if one is None or value is None:
            return Entry(note="no finished run" if one is None else "the run did not record it")
        alone = strategies.single_worker(one, self._among, SECONDS_PER_ITERATION.measure)
        base = alone.statistic(SECONDS_PER_ITERATION.measure) if alone is not None else None
        if alone is None or base is None or base.mean <= 0:
            return Entry(note="no single worker with a global batch of the same size was measured")
        ids = tuple(dict.fromkeys((*value.run_ids, *base.run_ids)))
        share = Statistic(100 * value.mean / base.mean, None, value.n, ids)
        note = f"against {self._placed(alone)}"
        return Entry(_SHARE.text(share), share.mean, None, share.n, run_ids=ids, note=note)


def memory(one: Configuration) -> Entry:
    """Peak memory of every worker by rank, such as ``512 / 498 MiB``; of the largest where no other is known."""
    found = [one.statistic(measures.memory_of_rank(rank).measure) for rank in range(one.world_size)]
    known = [statistic for statistic in found if statistic is not None]
    if not known:
        entry = measured(one, measures.MEMORY, unrecorded)
        told = "of the worker that took most; not recorded by rank" if entry.text and one.world_size > 1 else ""
        return replace(entry, note="; ".join(filter(None, (told, entry.note))), value=None)
    text = " / ".join("–" if statistic is None else f"{statistic.mean:,.0f}" for statistic in found)
    counts, runs = [statistic.n for statistic in known], len(one.finished)
    count = min(counts)
    ids = tuple(dict.fromkeys(run_id for statistic in known for run_id in statistic.run_ids))
    lacking = f"not every rank was recorded in every one of {runs} finished runs" if count < runs else ""
    several = f" (mean, n={count}{f' of {runs}' if count < runs else ''})" if runs > 1 else ""
    note = "; ".join(filter(None, (*measures.MEMORY.remarks(one.finished), lacking, reasons(one))))
    return Entry(f"{text} MiB{several}", n=count, run_ids=ids, note=note, partial=count < runs)


def _largest(one: Configuration) -> Entry:
    """The largest staleness with any seed."""
    entry = measured(one, _MOST, unrecorded)
    if entry.n < 2:
        return entry
    largest = max(value for trial in one.finished if (value := _MOST.measure(trial)) is not None)
    return replace(entry, text=f"{_MOST.number(largest)} (largest, n={entry.n})", value=largest, std=None)


def _fastest(among: Sequence[Configuration]) -> Configuration | None:
    """The one with the shortest iteration; if none has one, the first that has finished."""
    times = [(found.mean, one) for one in among if (found := one.statistic(SECONDS_PER_ITERATION.measure)) is not None]
    if times:
        return min(times, key=lambda pair: pair[0])[1]
    return next((one for one in among if one.finished), None)


def _parameter(name: str) -> _Setting:
    return lambda trial: trial.params.get(name)


def _setting(one: Configuration, read: _Setting) -> Entry:
    found = [(value, trial.run_id) for trial in one.finished if (value := read(trial)) is not None]
    values, ids = dict.fromkeys(value for value, _ in found), tuple(run_id for _, run_id in found)
    return (
        Entry(", ".join(values).replace("None", "none"), run_ids=ids)
        if values
        else Entry(note="the run did not record it")
    )


def _untested(_: Trial) -> str:
    return "not tested rank by rank (--per-rank-test)"


def _unsplit(trial: Trial) -> str:
    recorded = any(part.measure(trial) is not None for part in measures.STEP_PARTS)
    return "not measured apart from the rest" if recorded else "the run did not split its steps"


def _exceeded(trial: Trial) -> str:
    if measures.ITERATION_TIME.measure(trial) is None:
        return unrecorded(trial)
    if pace.own_paces(trial):
        return "not known where ranks have a pace each: the parts are means over the ranks"
    return "the parts come to more than the mean iteration"
