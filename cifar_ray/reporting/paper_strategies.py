"""The two published studies that compare strategies, beside our runs of the same strategies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cifar_ray.reporting import beside, measures, strategies, strategy_tables
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.beside import Others
from cifar_ray.reporting.measures import ACCURACY, IMAGES_PER_S, LOSS, SECONDS_PER_ITERATION, Figure
from cifar_ray.reporting.table import Entry, Table

_ALONE = "single"
_NONE = "no finished run of the same kind"
_Fitting = dict[str, list[Configuration]]
_Kinds = dict[str, _Fitting]


class _Place(NamedTuple):
    """Where a strategy of theirs was measured; micro-batches only of a pipeline."""

    devices: int
    batch: int
    micro_batches: int | None = None


def iterations(paper: Mapping[str, Any], ours: list[Configuration]) -> tuple[list[Table], list[str]]:
    """Seconds per iteration, test loss and test accuracy by strategy, at their global batch.

    Args:
        paper: the study ``vgg11_group_report`` of ``papers.yaml``.
        ours: our configurations with a finished run.

    Returns:
        The tables, none when nothing fits, and sentences on what can be compared.
    """
    batch, theirs = paper["global_batch"], paper["strategies"]
    mine = [one for one in ours if (one.model, one.dataset) == (paper["model"], paper["dataset"])]
    mine = [one for one in mine if one.global_batch_size == batch]
    notes = [
        f"Comparable: the time per iteration as a share of a single worker's, with a global batch of {batch}.",
        "With caution: loss and accuracy. Theirs are those of every rank after one epoch, and so depend on how many "
        "steps that was.",
        "Not comparable: seconds, which are those of other hardware.",
        *(f"They also compared {name}, without printed figures." for name in paper["also_compared"]),
    ]
    kinds = _by_kind(mine, {name: _Place(one["world"], batch) for name, one in theirs.items()})
    if not kinds:
        return [], notes
    tables = [
        _iteration(theirs, kinds, batch),
        _ranks(theirs, kinds, LOSS, "baseline_vgg11_test_loss_by_rank", "vgg11: test loss by strategy and rank"),
        _ranks(
            theirs,
            kinds,
            ACCURACY,
            "baseline_vgg11_test_accuracy_by_rank_percent",
            "vgg11: test accuracy by strategy and rank (%)",
        ),
        _counts(theirs, mine, paper["nodes_drawn"], batch),
    ]
    return tables, notes


def _iteration(theirs: Mapping[str, Any], kinds: _Kinds, batch: int) -> Table:
    """One row for every strategy of theirs and kind of ours."""
    base = theirs[_ALONE]["seconds_per_iteration"]
    columns = ["Strategy", "share of single, theirs", "share of single, ours", "per iteration, theirs"]
    columns += ["per iteration, ours", "test loss, theirs", "test loss, ours"]
    columns += ["test accuracy, theirs", "test accuracy, ours"]
    rows = []
    for name, label, kind, found in _each(theirs, kinds):
        seconds = theirs[name]["seconds_per_iteration"]
        entries = [
            beside.share(seconds, base),
            _own_relative(found[name], found[_ALONE], SECONDS_PER_ITERATION),
            beside.plain(seconds, None, " s"),
            _own(found[name], SECONDS_PER_ITERATION),
        ]
        for figure in (LOSS, ACCURACY):
            of_ranks = _printed(theirs[name], figure)
            mean = _published(sum(of_ranks) / len(of_ranks), figure)
            if len(of_ranks) > 1:
                mean = replace(mean, note=f"mean over the ranks, {beside.COMPUTED}")
            entries += [mean, _own_mean(found[name], figure)]
        rows.append((f"{label}{kind}", entries))
    return Table("baseline_vgg11", f"vgg11: one iteration with a global batch of {batch}", columns, rows)


def _ranks(theirs: Mapping[str, Any], kinds: _Kinds, figure: Figure, key: str, title: str) -> Table:
    """Their ranks and ours, rank by rank."""
    ranks = range(max(one["world"] for one in theirs.values()))
    rows = []
    for name, label, kind, found in _each(theirs, kinds):
        entries = []
        for rank in ranks:
            printed = _printed(theirs[name], figure)
            if rank < len(printed):
                entries += [_published(printed[rank], figure), _own(found[name], measures.of_rank(figure, rank))]
            else:
                entries += [Entry(), Entry()]
        rows.append((f"{label}{kind}", entries))
    columns = ["Strategy", *(f"rank {rank}, {side}" for rank in ranks for side in ("theirs", "ours"))]
    notes = ("Ours are recorded with --per-rank-test. A single worker has one rank.",)
    return Table(key, title, columns, rows, notes)


def _counts(theirs: Mapping[str, Any], mine: Sequence[Configuration], counts: Sequence[int], batch: int) -> Table:
    """Seconds per iteration by number of nodes; of ours it is the number of workers, on one node or on several."""
    several = [name for name in theirs if name != _ALONE]
    columns = [f"{count} {'node' if count == 1 else 'nodes'}, theirs" for count in counts]
    own = [f"{count} {'worker' if count == 1 else 'workers'}, ours" for count in counts]
    columns = [heading for pair in zip(columns, own) for heading in pair]
    fitting = {count: _by_kind(mine, dict.fromkeys(several, _Place(count, batch))) for count in counts}
    every = list(dict.fromkeys(kind for kinds in fitting.values() for kind in kinds))
    rows = []
    for name in several:
        for kind in every:
            entries = []
            for count in counts:
                printed = [one for key, one in theirs.items() if one["world"] == count and key in (name, _ALONE)]
                entries.append(
                    beside.plain(printed[0]["seconds_per_iteration"], None, " s")
                    if printed
                    else Entry(note="drawn in a figure, without its number")
                )
                entries.append(_own(fitting[count].get(kind, {}).get(name, []), SECONDS_PER_ITERATION))
            rows.append((f"{name}{kind}", entries))
    title = "vgg11: seconds per iteration by number of nodes, not comparable"
    return Table("baseline_vgg11_s_per_iteration_by_nodes", title, ["Strategy", *columns], rows)


def _printed(theirs: Mapping[str, Any], figure: Figure) -> Sequence[float]:
    """Their figures of the ranks."""
    found: Sequence[float] = theirs["test_loss" if figure is LOSS else "test_accuracy"]
    return found


def _published(value: float, figure: Figure) -> Entry:
    return beside.plain(value, 4, "") if figure is LOSS else beside.plain(value * 100, 0, " %")


def speeds(paper: Mapping[str, Any], ours: list[Configuration]) -> tuple[list[Table], list[str]]:
    """Images per second, utilisation and memory by strategy, at their batch and number of GPUs, by model of ours.

    Args:
        paper: the study ``comparative_analysis_asu`` of ``papers.yaml``.
        ours: our configurations with a finished run.

    Returns:
        The tables, none when nothing fits, and sentences on what can be compared.
    """
    notes = [
        "Comparable: the speed as a multiple of a single worker's. Their single worker has a batch of 128 and their "
        "two have 256 together.",
        "With caution: how memory is spread over the devices, since they do not state how they measured it; and "
        "utilisation, theirs being of GPUs and ours of whole machines with whatever else ran on them.",
        "Not comparable: images per second. The hardware is another, and they do not state the model.",
    ]
    theirs = paper["strategies"]
    tables = []
    for model, dataset in dict.fromkeys((one.model, one.dataset) for one in ours):
        mine = [one for one in ours if (one.model, one.dataset) == (model, dataset)]
        places = {name: _Place(one["gpus"], one["batch"], one.get("micro_batches")) for name, one in theirs.items()}
        kinds = _by_kind(mine, places)
        if dataset not in paper["datasets"] or not kinds:
            continue
        prefix, title = re.sub(r"\W", "_", f"baseline_{model}_{dataset}"), f"{model} on {dataset}"
        tables += [_speed(theirs, kinds, prefix, title), _devices(theirs, kinds, prefix, title)]
    return tables, notes


def _speed(theirs: Mapping[str, Any], kinds: _Kinds, prefix: str, title: str) -> Table:
    base = theirs[_ALONE]["images_per_second"]
    rows = []
    for name, _, kind, found in _each(theirs, kinds):
        speed = theirs[name]["images_per_second"]
        entries = [beside.share(speed, base), _own_relative(found[name], found[_ALONE], IMAGES_PER_S)]
        entries += [beside.plain(speed, 0, "/s"), _own(found[name], IMAGES_PER_S)]
        rows.append((f"{name} (batch {theirs[name]['batch']}){kind}", entries))
    columns = ["Strategy", "share of single, theirs", "share of single, ours", "images/s, theirs", "images/s, ours"]
    return Table(f"{prefix}_images_per_s", f"{title}: images per second by strategy", columns, rows)


def _devices(theirs: Mapping[str, Any], kinds: _Kinds, prefix: str, title: str) -> Table:
    """Load and memory of the devices."""
    rows = []
    for name, _, kind, found in _each(theirs, kinds):
        load, used = theirs[name]["gpu_utilisation"], theirs[name]["memory_gb"]
        entries = [
            beside.plain(load * 100, 0, " %"),
            _load(found[name]),
            Entry(f"{' / '.join(f'{value:g}' for value in used)} GB", note="as published"),
            _shown(found[name], strategy_tables.memory(found[name][0])) if found[name] else Entry(note=_NONE),
        ]
        rows.append((f"{name} (batch {theirs[name]['batch']}){kind}", entries))
    columns = ["Strategy", "utilisation, theirs (GPU)", "utilisation, ours"]
    columns += ["memory per device, theirs", "peak memory by rank, ours"]
    return Table(f"{prefix}_devices", f"{title}: utilisation and memory per device by strategy", columns, rows)


def _load(fitting: Sequence[Configuration]) -> Entry:
    """Of the GPUs where the run had them, else of the CPUs."""
    if not fitting:
        return Entry(note=_NONE)
    device = "GPU" if fitting[0].device == "cuda" else "CPU"
    entry = _own(fitting, measures.utilisation("gpu" if device == "GPU" else "cpu"))
    return replace(entry, text=f"{entry.text} ({device})") if entry.text else entry


def _each(theirs: Mapping[str, Any], kinds: _Kinds) -> list[tuple[str, str, str, _Fitting]]:
    """For every row: their strategy, how it is called with its workers, the end of the label, and what fits."""
    labels = {n: f"{n} ({one['world']} workers)" if one.get("world", 1) > 1 else n for n, one in theirs.items()}
    return [(name, labels[name], kind, found) for name in theirs for kind, found in kinds.items()]


def _by_kind(ours: Sequence[Configuration], theirs: Mapping[str, _Place]) -> _Kinds:
    """Our configurations for each of theirs, apart from those that differ in more than the strategy.

    Theirs is by strategy; returned is end of a row's label -> strategy -> those that fit.
    """
    kinds: dict[tuple[str, str, str, Others], _Fitting] = {}
    for one in ours:
        for name, place in theirs.items():
            if _fits(one, name, place):
                kinds.setdefault(one.kind, {other: [] for other in theirs})[name].append(one)
    singles = [one for one in ours if _ALONE in theirs and _fits(one, _ALONE, theirs[_ALONE])]
    for found in kinds.values():
        first = next(one for fitting in found.values() for one in fitting)
        if not found.get(_ALONE, singles):
            found[_ALONE] = [one for one in singles if strategies.same_work(one, first)]
        for name, fitting in found.items():
            fitting.sort(key=lambda one: strategies.strategy(one) != name)
    several = len({device for _, _, device, _ in kinds}) > 1
    labels = [beside.told(device if several else "", others) for _, _, device, others in kinds]
    return {"".join(f", {word}" for word in label): found for label, found in zip(labels, kinds.values())}


def _fits(one: Configuration, strategy: str, place: _Place) -> bool:
    """Whether it is one of theirs; a single worker of any strategy that then trains plainly will do."""
    if (one.devices, one.global_batch_size) != (place.devices, place.batch):
        return False
    if place.micro_batches is not None and strategies.micro_batches(one.trials[0]) != str(place.micro_batches):
        return False
    own = strategies.strategy(one)
    return own == strategy or (place.devices == 1 and own in strategies.PLAIN_ALONE)


def _own(fitting: Sequence[Configuration], figure: Figure) -> Entry:
    return _shown(fitting, beside.own(fitting[0], figure)) if fitting else Entry(note=_NONE)


def _own_mean(fitting: Sequence[Configuration], figure: Figure) -> Entry:
    """The mean over the ranks as theirs is, or else the run's one figure."""
    mean = _own(fitting, measures.over_ranks(figure))
    if not mean.text:
        return _own(fitting, figure)
    return replace(mean, note=f"mean over the ranks; {mean.note}")


def _shown(fitting: Sequence[Configuration], entry: Entry) -> Entry:
    return replace(entry, note="; ".join(filter(None, (_which(fitting), entry.note))))


def _which(fitting: Sequence[Configuration]) -> str:
    """The one that is shown, and that it is not the only one."""
    more = f", the first of {len(fitting)} that fit" if len(fitting) > 1 else ""
    return f"{fitting[0].row}{more}"


def _own_relative(fitting: Sequence[Configuration], alone: Sequence[Configuration], figure: Figure) -> Entry:
    if not fitting or not alone:
        return Entry(note=f"{_NONE}, or none with a single worker")
    return beside.relative(fitting[0], alone[0], figure, f"{_which(fitting)}, against {_which(alone)}")
