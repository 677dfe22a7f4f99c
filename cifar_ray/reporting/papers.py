"""Published studies' figures beside a study's own, with what of them can be compared and what cannot."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from cifar_ray.config import errors, yaml
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import aggregate, audit, measures, peers, scaling
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.cells import Group, measured, micro_batches, unrecorded
from cifar_ray.reporting.contents import Entry, Section, Table
from cifar_ray.reporting.measures import Figure
from cifar_ray.reporting.tables import groups
from cifar_ray.tracking.study import HARDWARE_TAG, Study, placement

_PAPERS = Path(__file__).with_name("papers.yaml")
_GB = 1e9 / 2**20  # MiB
# How their figures are called in papers.yaml -> ours, and by what theirs is multiplied to be in its unit.
_PRINTED = {
    "training_seconds": (measures.TRAINING_TIME, 1),
    "seconds_per_iteration": (measures.ITERATION_TIME, 1000),
    "images_per_second": (measures.IMAGES_PER_S, 1),
    "accuracy": (measures.ACCURACY, 100),
    "precision": (measures.PRECISION, 100),
    "recall": (measures.RECALL, 100),
    "f1": (measures.F1, 100),
    "specificity": (measures.SPECIFICITY, 100),
    "test_loss": (measures.LOSS, 1),
    # Where the runs used no GPU, ours is that of the CPUs.
    "gpu_utilisation": (replace(measures.utilisation("gpu"), title="Load (%)"), 100),
    "memory_gb": (measures.MEMORY, _GB),
}
_FOLDED = ("precision", "recall", "f1", "specificity")
_OF_RANKS = "of every rank"
_SINGLE = "single"
_NONE = "no finished run of the same kind"


class _Row(NamedTuple):
    """One published row: what identifies it, and its figures, of each rank or device where they printed those."""

    place: Mapping[str, Any]
    figures: Mapping[str, Sequence[float]]


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
    title = f"Beside {paper['title']}"
    if "rows" not in paper:
        said = f"{key} has printed no figures, so nothing of it can be laid beside these runs."
        return Section(title, (), notes=(said,))
    rows = [_row(paper["header"], values) for values in paper["rows"]]
    tables: list[Table] = []
    folded: list[Table] = []
    for group in groups(study):
        ours = [one for one in group.among if one.finished and one.dataset in paper["datasets"]]
        theirs = [row for row in rows if _model(paper, row) in (None, group.among[0].model)]
        if any(_fits(one, row) for one in ours for row in theirs):
            group = group._replace(among=ours)
            names = list(theirs[0].figures)
            tables.append(_table(paper, group, theirs, [name for name in names if name not in _FOLDED], ""))
            if rest := [name for name in names if name in _FOLDED]:
                folded.append(_table(paper, group, theirs, rest, "test metrics"))
            if rest := [name for name in names if any(len(row.figures[name]) > 1 for row in theirs)]:
                folded.append(_table(paper, group, theirs, rest, _OF_RANKS))
    if faults := _faults(paper, rows):
        folded.append(Table("baseline_faults", "Cannot be right, because", ["Configuration", "Theirs"], faults))
    if not tables:
        said = "None of the finished runs has a configuration that they measured, so nothing is laid side by side."
        return Section(title, (), folded, notes=(f"Theirs: {paper['hardware']}.", said))
    hardware = {t.tags.get(HARDWARE_TAG, "not recorded") for t in study.trials if t.finished}
    notes = (f"Theirs: {paper['hardware']}.", f"Ours: {'; '.join(sorted(hardware))}.", *paper["notes"])
    return Section(title, tables, folded, notes)


def _row(header: Sequence[str], values: Sequence[Any]) -> _Row:
    whole = {name: value for name, value in zip(header, values, strict=True) if value is not None}
    place = {name: value for name, value in whole.items() if name not in _PRINTED}
    figures = {name: value if isinstance(value, list) else [value] for name, value in whole.items() if name in _PRINTED}
    return _Row(place, figures)


def _model(paper: Mapping[str, Any], row: _Row) -> str | None:
    return paper["ours"][row.place["model"]] if "model" in row.place else None


def _fits(one: Configuration, row: _Row) -> bool:
    """Whether a run is one of theirs; a single worker of any strategy that then trains plainly will do."""
    single = one.devices == 1 and one.strategy in scaling.PLAIN_ALONE and row.place.get("strategy") == _SINGLE
    own = {
        "topology": one.topology if one.devices == one.world_size else "",  # theirs has one GPU a worker
        "batch_size": one.batch_size,
        "global_batch_size": one.global_batch_size,
        "workers": one.devices,
        "strategy": _SINGLE if single else one.strategy,
        "micro_batches": int(micro_batches(one.trials[0]) or 0),
    }
    return all(own[name] == value for name, value in row.place.items() if name in own)


def _table(paper: Mapping[str, Any], group: Group, theirs: Sequence[_Row], names: Sequence[str], about: str) -> Table:
    """A row for each of theirs and every configuration of ours that fits, theirs and ours side by side."""
    relative = paper["relative"] if paper["relative"] in names else ""
    ranks = about == _OF_RANKS
    rows = []
    for row in theirs:
        fitting = [one for one in group.among if _fits(one, row)]
        for one in fitting or (None,):
            entries = [*_shares(paper, group, theirs, row, one)] if relative else []
            for name in names:
                entries += [_published(name, row, ranks), _own(one, name, ranks)]
            label = _label(row)
            label += f" (ours: {group.names.row(one)})" if one is not None and len(fitting) > 1 else ""
            rows.append((label, entries))
    base = " ".join(paper["base"].values())
    titles = [f"{_name(relative)}, % of {base}"] if relative else []
    titles += [_PRINTED[name][0].title for name in names]
    first = group.among[0]
    title = f"{first.model} on {first.dataset}" + (f": {about}" if about else "")
    columns = [f"{title}, {side}" for title in titles for side in ("theirs", "ours")]
    return Table(re.sub(r"\W+", "_", f"baseline {title}"), title, ["Configuration", *columns], rows)


def _computed(one: Configuration) -> Entry:
    """Seconds of a whole training at the speed of the steps that were timed."""
    learned = replace(one, trials=tuple(trial for trial in one.trials if trial.measure == "accuracy"))
    images, speed = learned.statistic(aggregate.images_trained), one.statistic(measures.IMAGES_PER_S.measure)
    if images is None or speed is None or speed.mean <= 0:
        return Entry(note="no whole training has finished for which measured steps would make a time")
    seconds = images.mean / speed.mean
    ids, text = (*images.run_ids, *speed.run_ids), measures.TRAINING_TIME.number(seconds)
    return Entry(text, seconds, None, speed.n, run_ids=ids, note="computed from measured steps for as many images")


def _faults(paper: Mapping[str, Any], rows: Sequence[_Row]) -> list[tuple[str, Sequence[Entry]]]:
    """What of theirs cannot be right, a row for each reason."""
    datasets, name = paper["datasets"], paper["relative"]
    found: list[tuple[str, Sequence[Entry]]] = []
    for row in rows:
        base, places = _base(paper, rows, row), placement(row.place.get("topology", ""))
        times = row.figures[name][0] / base.figures[name][0]
        claim = audit.Claim(
            label=", ".join(filter(None, (row.place.get("model"), _label(row)))),
            dataset=datasets[0] if len(datasets) == 1 else "",
            figures=row.figures,
            strategy=row.place.get("strategy", ""),
            workers=places[0] * places[1] if places else row.place.get("workers", 1),
            speed_up=None if row is base else 1 / times if _PRINTED[name][0].better == "low" else times,
        )
        found += [(claim.label, [Entry(fault)]) for fault in audit.faults(claim)]
    return found


def _base(paper: Mapping[str, Any], theirs: Sequence[_Row], row: _Row) -> _Row:
    """Their row that another one is told as a share of."""
    wanted = {**{key: row.place.get(key) for key in ("model", *paper["same"])}, **paper["base"]}
    return next(other for other in theirs if all(other.place.get(key) == value for key, value in wanted.items()))


def _label(row: _Row) -> str:
    return ", ".join(_told(name, value) for name, value in row.place.items() if name != "model")


def _name(printed: str) -> str:
    return _PRINTED[printed][0].title.split(" (")[0]


def _told(name: str, value: Any) -> str:
    words = {"topology": "{}", "strategy": "{}", "batch_size": "batch {}", "workers": "{} worker" + "s" * (value != 1)}
    return words.get(name, f"{name.replace('_size', '').replace('_', ' ')} {{}}").format(value)


def _published(name: str, row: _Row, ranks: bool) -> Entry:
    """Their figure in our unit: of each rank or device, or else the mean."""
    figure, scale = _PRINTED[name]
    of_each = [scale * value for value in row.figures[name]]
    mean = sum(of_each) / len(of_each)
    if ranks:
        return Entry(" / ".join(map(figure.number, of_each)), mean)
    return Entry(figure.number(mean), mean, note="the mean of what they printed" if len(of_each) > 1 else "")


def _own(one: Configuration | None, name: str, ranks: bool) -> Entry:
    if one is None:
        return Entry(note=_NONE)
    figure, _ = _PRINTED[name]
    if ranks:
        return _of_ranks(one, figure)
    if figure is measures.TRAINING_TIME and any(trial.measure == "times" for trial in one.finished):
        return _computed(one)
    entry = measured(one, figure, unrecorded)
    if not entry.text and name == "gpu_utilisation":
        entry = measured(one, measures.utilisation("cpu"), unrecorded)
        return replace(entry, note="; ".join(filter(None, ("of CPUs", entry.note)))) if entry.text else entry
    return entry


def _of_ranks(one: Configuration, figure: Figure) -> Entry:
    """Ours of every rank, of those that were recorded."""
    each = measures.memory_of_rank if figure is measures.MEMORY else partial(measures.of_rank, figure)
    found = [one.statistic(each(rank).measure) for rank in range(one.world_size)]
    known = [statistic for statistic in found if statistic is not None]
    if not known:
        return Entry(note="not recorded by rank (loss and accuracy: --per-rank-test)")
    text = " / ".join(figure.number(statistic.mean) for statistic in known)
    return Entry(text, statistics.fmean(one.mean for one in known), n=known[0].n, run_ids=known[0].run_ids)


def _shares(
    paper: Mapping[str, Any], group: Group, theirs: Sequence[_Row], row: _Row, one: Configuration | None
) -> tuple[Entry, Entry]:
    """Their figure and ours as a share of the base's; a time is computed from images/s where the images differ."""
    name = paper["relative"]
    figure, _ = _PRINTED[name]
    base = _base(paper, theirs, row)
    percent = 100 * row.figures[name][0] / base.figures[name][0]
    published = Entry(f"{percent:.1f}", percent, note="computed here from the published figures")
    if one is None:
        return published, Entry(note=_NONE)
    alone = [other for other in group.among if _fits(other, base) and scaling.same_work(other, one)]
    alone = [other for other in alone if scaling.may_be_base(other, one)]
    equal = [other for other in alone if figure.alike != "work" or not peers.difference((other, one), figure)]
    computed = not equal and figure is measures.TRAINING_TIME
    if computed:
        equal, figure = alone, measures.IMAGES_PER_S
    equal.sort(key=lambda other: other.others != one.others)
    both = scaling.pairs(one, equal[0], figure.measure) if equal else None
    if both is None or min(*both.own, *both.base) <= 0:
        lacking = "run on their base that trained on as many images"
        reason = "no images/s of a run on their base with the same seeds"
        return published, Entry(note=f"no finished {lacking}" if not alone else reason)
    ours = 100 / both.ratio.mean if computed else 100 * both.ratio.mean
    note = f"against {group.names.row(equal[0])}"
    note += ", computed from measured steps for as many images" if computed else ""
    return published, Entry(f"{ours:.1f}", ours, None, len(both.own), run_ids=both.run_ids, note=note)
