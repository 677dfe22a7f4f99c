"""Published studies' figures beside a study's own, with what of them can be compared and what cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cifar_ray.config import errors, yaml
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import aggregate, beside, measures, paper_strategies, peers, strategies
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.contents import Section
from cifar_ray.reporting.table import Entry, Table
from cifar_ray.tracking.study import Study

_PAPERS = Path(__file__).with_name("papers.yaml")


@cache
def known() -> Mapping[str, Any]:
    """Key -> a published study's figures, as ``papers.yaml`` has them."""
    return yaml.read(_PAPERS)


def check(key: str) -> None:
    """Refuse what is no published study's key.

    Raises:
        ConfigError: with the keys that there are.
    """
    if key not in known():
        near = errors.suggestion(key, known())
        raise ConfigError("baseline", f"must be {errors.one_of(known())}, got {key!r}{near}")


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
        "vgg11_group_report": paper_strategies.iterations,
        "comparative_analysis_asu": paper_strategies.speeds,
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
        mine = [one for one in mine if one.devices == one.world_size]  # theirs has one GPU a worker
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
                    top: {n: beside.share(value, seconds["1x1"][n]) for n, value in row.items()}
                    for top, row in seconds.items()
                },
                lambda one: _own_share(one, ours),
            ),
            sides.table(
                "accuracy_percent",
                f"{name}: test accuracy (%)",
                {
                    top: {n: beside.plain(all_five[0] * 100, 2, " %") for n, all_five in row.items()}
                    for top, row in right.items()
                },
                lambda one: beside.own(one, measures.ACCURACY),
            ),
            sides.table(
                "training_time_s",
                f"{name}: training time (s), not comparable",
                {top: {n: beside.plain(value, 2, " s") for n, value in row.items()} for top, row in seconds.items()},
                lambda one: beside.own(one, measures.TRAINING_TIME),
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
                label = ", ".join([topology, *beside.told(device if self._several else "", others)])
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


def _own_share(one: Configuration, among: Sequence[Configuration]) -> Entry:
    wanted = ("1x1", one.batch_size, one.kind)
    alone = [a for a in among if (a.topology, a.batch_size, a.kind) == wanted and strategies.may_be_base(a, one)]
    alone = [a for a in alone if not peers.difference((a, one))]
    alone.sort(key=lambda a: a.others != one.others)
    if not alone:
        return Entry(note="no finished run on 1x1 with the same batch that trained on as many images")
    note = f"against {alone[0].row}; global batch {one.global_batch_size}"
    return beside.relative(one, alone[0], measures.TRAINING_TIME, note)
