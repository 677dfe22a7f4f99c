"""Published studies' figures beside a study's own, with what of them can be compared and what cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cifar_ray import strict
from cifar_ray.reporting import aggregate, measures
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.contents import Section
from cifar_ray.reporting.measures import Figure
from cifar_ray.reporting.study import Study
from cifar_ray.reporting.table import Entry, Table
from cifar_ray.strict import ConfigError

_PAPERS = Path(__file__).with_name("papers.yaml")
_ALONE = "single"
_Others = tuple[tuple[str, str], ...]
_SECONDS = Figure("s", "", aggregate.metric("time/iteration_mean_s"), " s", 3, "")


@cache
def known() -> Mapping[str, Any]:
    """Key -> a published study's figures, as ``papers.yaml`` has them."""
    return strict.read_yaml(_PAPERS)


def check(key: str) -> None:
    """Refuse what is no published study's key.

    Raises:
        ConfigError: with the keys that there are.
    """
    if key not in known():
        near = strict.suggestion(key, known())
        raise ConfigError("baseline", f"must be {strict.one_of(known())}, got {key!r}{near}")


def comparison(study: Study, key: str) -> Section:
    """A published study beside this one, as far as the configurations are the same.

    Args:
        study: the runs.
        key: which published study, by its key in ``papers.yaml``.

    Raises:
        ConfigError: when there is no such key.
    """
    check(key)
    paper = known()[key]
    makers: dict[str, Callable[[Mapping[str, Any], list[Configuration]], tuple[list[Table], list[str]]]] = {
        "rangoju_katneni_2025": _topologies,
        "vgg11_group_report": _iterations,
        "comparative_analysis_asu": _speeds,
    }
    title = f"Beside {paper['title']}"
    if key not in makers:
        return Section(title, (), (f"{key} has printed no figures, so nothing of it can be laid beside these runs.",))
    ours = [one for one in aggregate.configurations(study) if one.finished]
    tables, notes = makers[key](paper, ours)
    hardware = sorted({t.tags.get("cifar_ray.hardware", "not recorded") for one in ours for t in one.finished})
    about = [f"Theirs: {paper['hardware']}.", f"Ours: {'; '.join(hardware) or 'no finished run'}."]
    if not tables:
        notes = ["None of the finished runs has a configuration that they measured, so nothing is laid side by side."]
    return Section(title, tables, (*about, *notes))


def _topologies(paper: Mapping[str, Any], ours: list[Configuration]) -> tuple[list[Table], list[str]]:
    """Training time and accuracy by model, topology and batch per worker."""
    notes = [
        "Comparable: how the training time shrinks with the topology, as a share of the time on 1x1 with the same "
        "batch per worker, since hardware and epochs largely cancel out of it.",
        "With caution: the accuracy. They do not state the epochs, the optimizer and the learning rate, so neither "
        "side shows what the other would have reached.",
        "Not comparable: seconds. They are those of other hardware and of an unknown number of epochs.",
    ]
    tables = []
    for theirs, model in paper["ours"].items():
        mine = [one for one in ours if (one.model, one.dataset) == (model, paper["dataset"])]
        seconds, right = paper["training_seconds"][theirs], paper["metrics"][theirs]
        batches = {batch for row in seconds.values() for batch in row}
        if not any(one.topology in seconds and one.batch_size in batches for one in mine):
            continue
        name = model if model == theirs else f"{model} (theirs: {theirs})"
        sides = _Sides(f"baseline_{model}", mine, list(seconds), sorted(batches))
        tables += [
            sides.table(
                "share_of_1x1_time_percent",
                f"{name}: training time as a share of that on 1x1 (%)",
                {
                    top: {n: _share(value, seconds["1x1"][n]) for n, value in row.items()}
                    for top, row in seconds.items()
                },
                lambda one: _own_share(one, ours),
            ),
            sides.table(
                "accuracy_percent",
                f"{name}: test accuracy (%)",
                {
                    top: {n: _plain(all_five[0] * 100, 2, " %") for n, all_five in row.items()}
                    for top, row in right.items()
                },
                lambda one: _own(one, measures.ACCURACY),
            ),
            sides.table(
                "training_time_s",
                f"{name}: training time (s), not comparable",
                {top: {n: _plain(value, 2, " s") for n, value in row.items()} for top, row in seconds.items()},
                lambda one: _own(one, measures.TRAINING_TIME),
            ),
        ]
    return tables, notes


class _Sides:
    """Tables with a column for each side of every batch size."""

    def __init__(self, prefix: str, ours: Sequence[Configuration], topologies: list[str], batches: list[int]) -> None:
        self._prefix, self._topologies, self._batches = prefix, topologies, batches
        self._places = {(one.topology, one.device, one.others, one.batch_size): one for one in ours}
        found = [one for one in ours if one.topology in topologies]
        self._kinds = list(dict.fromkeys((one.device, one.others) for one in found))
        self._several = len({device for device, _ in self._kinds}) > 1

    def table(
        self,
        key: str,
        title: str,
        theirs: Mapping[str, Mapping[int, Entry]],
        own: Callable[[Configuration], Entry],
    ) -> Table:
        """Theirs and ours by topology; several rows where our runs differ in device or something else too."""
        sides = [(batch, side) for batch in self._batches for side in ("theirs", "ours")]
        rows = []
        for topology in self._topologies:
            for device, others in self._kinds:
                label = ", ".join([topology, *_told(device if self._several else "", others)])
                entries = []
                for batch, side in sides:
                    one = self._places.get((topology, device, others, batch))
                    if side == "theirs":
                        entries.append(theirs[topology][batch])
                    else:
                        entries.append(own(one) if one is not None else Entry(note="no finished run"))
                rows.append((label, entries))
        columns = ["Topology", *(f"batch {batch} per worker, {side}" for batch, side in sides)]
        return Table(f"{self._prefix}_{key}", title, columns, rows)


def _told(device: str, others: _Others) -> list[str]:
    """What tells our runs apart, for the label of a row."""
    return [*([device] if device else []), *(f"{name}={value}" for name, value in others)]


def _plain(value: float, digits: int, unit: str) -> Entry:
    """A published figure."""
    return Entry(f"{value:,.{digits}f}{unit}", value, note="as published")


def _share(value: float, of: float) -> Entry:
    return _plain(value / of * 100, 1, " %")


def _own(one: Configuration, figure: Figure) -> Entry:
    found = one.statistic(figure.measure)
    if found is None:
        return Entry(note="not recorded")
    note = f"global batch {one.global_batch_size}"
    text = figure.text(found, len(one.finished))
    return Entry(text, found.mean, found.std, found.n, run_ids=found.run_ids, note=note)


def _own_share(one: Configuration, among: Sequence[Configuration]) -> Entry:
    wanted = ("1x1", one.batch_size, one.kind)
    alone = [a for a in among if (a.topology, a.batch_size, a.kind) == wanted]
    alone.sort(key=lambda a: a.others != one.others)
    if not alone:
        return Entry(note="no finished run on 1x1 with the same batch")
    note = f"against {alone[0].row}; global batch {one.global_batch_size}"
    return _relative(one, alone[0], measures.TRAINING_TIME, note)


def _relative(one: Configuration, other: Configuration, figure: Figure, note: str) -> Entry:
    """One's figure as a share of the other's."""
    value, base = one.statistic(figure.measure), other.statistic(figure.measure)
    if value is None or base is None or base.mean <= 0:
        return Entry(note="not recorded")
    share = value.mean / base.mean * 100
    ids = tuple(dict.fromkeys((*value.run_ids, *base.run_ids)))
    return Entry(f"{share:.1f} %", share, None, value.n, run_ids=ids, note=note)


def _iterations(paper: Mapping[str, Any], ours: list[Configuration]) -> tuple[list[Table], list[str]]:
    """Seconds per iteration by strategy, at their global batch."""
    batch = paper["global_batch"]
    mine = [one for one in ours if (one.model, one.dataset) == (paper["model"], paper["dataset"])]
    mine = [one for one in mine if one.global_batch_size == batch]
    notes = [
        f"Comparable: the time per iteration as a share of a single worker's, with a global batch of {batch}.",
        "With caution: the accuracy, theirs being the mean over the ranks after one epoch.",
        "Not comparable: seconds, which are those of other hardware.",
    ]
    strategies = paper["strategies"]
    kinds = _by_kind(mine, {name: (theirs["world"], batch) for name, theirs in strategies.items()})
    if not kinds:
        return [], notes
    base = strategies[_ALONE]["seconds_per_iteration"]
    columns = ["Strategy", "share of single, theirs", "share of single, ours", "per iteration, theirs"]
    columns += ["per iteration, ours", "test accuracy, theirs", "test accuracy, ours"]
    rows = []
    for name, theirs in strategies.items():
        label = f"{name} ({theirs['world']} workers)" if theirs["world"] > 1 else name
        seconds, right = theirs["seconds_per_iteration"], theirs["test_accuracy"]
        for kind, found in kinds.items():
            entries = [
                _share(seconds, base),
                _own_relative(found[name], found[_ALONE], _SECONDS),
                _plain(seconds, 3, " s"),
                _beside(found[name], _SECONDS),
                _plain(sum(right) / len(right) * 100, 2, " %"),
                _beside(found[name], measures.ACCURACY),
            ]
            rows.append((f"{label}{kind}", entries))
    return [Table("baseline_vgg11", f"vgg11: one iteration with a global batch of {batch}", columns, rows)], notes


def _speeds(paper: Mapping[str, Any], ours: list[Configuration]) -> tuple[list[Table], list[str]]:
    """Images per second by strategy, at their batch and number of GPUs, for every model of ours."""
    notes = [
        "Comparable: the speed as a multiple of a single worker's. Their single worker has a batch of 128 and their "
        "two have 256 together.",
        "Not comparable: images per second. The hardware is another, and they do not state the model.",
    ]
    strategies = paper["strategies"]
    tables = []
    for model, dataset in dict.fromkeys((one.model, one.dataset) for one in ours):
        mine = [one for one in ours if (one.model, one.dataset) == (model, dataset)]
        kinds = _by_kind(mine, {name: (theirs["gpus"], theirs["batch"]) for name, theirs in strategies.items()})
        if dataset not in paper["datasets"] or not kinds:
            continue
        base = strategies[_ALONE]["images_per_second"]
        rows = []
        for name, theirs in strategies.items():
            speed = theirs["images_per_second"]
            for kind, found in kinds.items():
                entries = [_share(speed, base), _own_relative(found[name], found[_ALONE], measures.IMAGES_PER_S)]
                entries += [_plain(speed, 0, "/s"), _beside(found[name], measures.IMAGES_PER_S)]
                rows.append((f"{name} (batch {theirs['batch']}){kind}", entries))
        columns = ["Strategy", "share of single, theirs", "share of single, ours", "images/s, theirs", "images/s, ours"]
        key = re.sub(r"\W", "_", f"baseline_{model}_{dataset}_images_per_s")
        tables.append(Table(key, f"{model} on {dataset}: images per second by strategy", columns, rows))
    return tables, notes


def _by_kind(
    ours: Sequence[Configuration], theirs: Mapping[str, tuple[int, int]]
) -> dict[str, dict[str, list[Configuration]]]:
    """Our configurations for each of theirs, apart from those that differ in more than the strategy.

    Theirs is strategy -> workers and global batch; returned is end of a row's label -> strategy -> those that fit.
    """
    kinds: dict[tuple[str, str, str, _Others], dict[str, list[Configuration]]] = {}
    for one in ours:
        for name, (workers, batch) in theirs.items():
            if _fits(one, name, workers, batch):
                kinds.setdefault(one.kind, {other: [] for other in theirs})[name].append(one)
    several = len({device for _, _, device, _ in kinds}) > 1
    labels = [_told(device if several else "", others) for _, _, device, others in kinds]
    return {"".join(f", {word}" for word in label): found for label, found in zip(labels, kinds.values())}


def _fits(one: Configuration, strategy: str, workers: int, batch: int) -> bool:
    """Whether it is one of theirs; a single worker is the same under every strategy."""
    if (one.world_size, one.global_batch_size) != (workers, batch):
        return False
    return workers == 1 or one.finished[0].params.get("strategy") == strategy


def _beside(fitting: Sequence[Configuration], figure: Figure) -> Entry:
    if not fitting:
        return Entry(note="no finished run of the same kind")
    entry = _own(fitting[0], figure)
    return replace(entry, note=f"{_which(fitting)}; {entry.note}")


def _which(fitting: Sequence[Configuration]) -> str:
    """The one that is shown, and that it is not the only one."""
    more = f", the first of {len(fitting)} that fit" if len(fitting) > 1 else ""
    return f"{fitting[0].row}{more}"


def _own_relative(fitting: Sequence[Configuration], alone: Sequence[Configuration], figure: Figure) -> Entry:
    if not fitting or not alone:
        return Entry(note="no finished run of the same kind, or none with a single worker")
    return _relative(fitting[0], alone[0], figure, f"{_which(fitting)}, against {_which(alone)}")
