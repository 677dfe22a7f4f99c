"""Published studies' figures beside a study's own, with what of them can be compared and what cannot."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cifar_ray import tasks
from cifar_ray.config import errors, yaml
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import audit, chance, figures, scaling
from cifar_ray.reporting.cells import Group, measured
from cifar_ray.reporting.contents import Entry, Section, Table
from cifar_ray.reporting.figures import Figure
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.reporting.tables import parts
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking.study import HARDWARE_TAG, placement

_PAPERS = Path(__file__).with_name("papers.yaml")
_GB = 1e9 / 2**20  # MiB
_OURS = TaskFigures(tasks.USUAL)
# How their figures are called in papers.yaml -> ours, and by what theirs is multiplied to be in its unit.
_PRINTED = {
    "training_seconds": (figures.TRAINING_TIME, 1),
    "seconds_per_iteration": (figures.ITERATION_TIME, 1000),
    "images_per_second": (_OURS.throughput, 1),
    **{figure.of.name: (figure, 100) for figure in _OURS.every if figure.of},
    "test_loss": (figures.LOSS, 1),
    # Where the runs used no GPU, ours is that of the CPUs.
    "gpu_utilisation": (replace(figures.load("gpu"), title="Load (%)"), 100),
    "memory_gb": (figures.MEMORY, _GB),
}
_FOLDED = ("precision", "recall", "f1", "specificity")
_OF_RANKS = "of every rank"
_SINGLE = "single"
_NONE = "no finished run of the same kind"


class _Row(NamedTuple):
    """One published row: what identifies it, and its figures, of each rank or device where they printed those."""

    place: Mapping[str, Any]
    figures: Mapping[str, Sequence[float]]

    @property
    def label(self) -> str:
        """``ddp, 4 workers, global batch 256``."""
        return ", ".join(_told(name, value) for name, value in self.place.items() if name != "model")

    def fits(self, config: Configuration) -> bool:
        """Whether a run is one of theirs; a single worker of any strategy that then trains plainly will do."""
        single = (
            config.devices == 1 and config.strategy in scaling.PLAIN_ALONE and self.place.get("strategy") == _SINGLE
        )
        own = {
            "topology": config.topology if config.devices == config.world_size else "",  # theirs has one GPU a worker
            "batch_size": config.batch_size,
            "global_batch_size": config.global_batch_size,
            "workers": config.devices,
            "strategy": _SINGLE if single else config.strategy,
            "micro_batches": int(figures.micro_batches(config.trials[0]) or 0),
        }
        return all(own[name] == value for name, value in self.place.items() if name in own)


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


def comparison(runs: Runs, key: str) -> Section:
    """A published study, by its key in ``papers.yaml``, beside this one, as far as the configurations are the same.

    Raises:
        ConfigError: when there is no such key.
    """
    check(key)
    paper = known()[key]
    title = f"Beside {paper['title']}"
    if "rows" not in paper:
        nothing = f"{key} has printed no figures, so nothing of it can be laid beside these runs."
        return Section(title, (), notes=(nothing,))
    rows = [_row(paper["header"], values) for values in paper["rows"]]
    tables: list[Table] = []
    folded: list[Table] = []
    for part in parts(runs):
        ours = [config for config in part.group.among if config.finished and config.dataset in paper["datasets"]]
        theirs = [row for row in rows if _model(paper, row) in (None, part.group.among[0].model)]
        if any(row.fits(config) for config in ours for row in theirs):
            group, names = part.group._replace(among=ours), list(theirs[0].figures)
            tables.append(_table(paper, group, theirs, [name for name in names if name not in _FOLDED], ""))
            if rest := [name for name in names if name in _FOLDED]:
                folded.append(_table(paper, group, theirs, rest, "test metrics"))
            if rest := [name for name in names if any(len(row.figures[name]) > 1 for row in theirs)]:
                folded.append(_table(paper, group, theirs, rest, _OF_RANKS))
    if faults := _faults(paper, rows):
        folded.append(Table("baseline_faults", "Cannot be right, and why", ["Configuration", "Theirs"], faults))
    if not tables:
        nothing = "None of the finished runs has a configuration that they measured, so nothing is laid side by side."
        return Section(title, (), folded, notes=(f"Theirs: {paper['hardware']}.", nothing))
    hardware = {trial.tags.get(HARDWARE_TAG, "not recorded") for trial in runs.study.trials if trial.finished}
    notes = (f"Theirs: {paper['hardware']}.", f"Ours: {'; '.join(sorted(hardware))}.", *paper["notes"])
    return Section(title, tables, folded, notes)


def _row(header: Sequence[str], values: Sequence[Any]) -> _Row:
    whole = {name: value for name, value in zip(header, values, strict=True) if value is not None}
    place = {name: value for name, value in whole.items() if name not in _PRINTED}
    figures = {name: value if isinstance(value, list) else [value] for name, value in whole.items() if name in _PRINTED}
    return _Row(place, figures)


def _model(paper: Mapping[str, Any], row: _Row) -> str | None:
    return paper["ours"][row.place["model"]] if "model" in row.place else None


def _told(name: str, value: Any) -> str:
    words = {"topology": "{}", "strategy": "{}", "batch_size": "batch {}", "workers": "{} worker" + "s" * (value != 1)}
    return words.get(name, f"{name.replace('_size', '').replace('_', ' ')} {{}}").format(value)


def _table(paper: Mapping[str, Any], group: Group, theirs: Sequence[_Row], names: Sequence[str], about: str) -> Table:
    """A row for each of theirs and every configuration of ours that fits, theirs and ours side by side."""
    relative = paper["relative"] if paper["relative"] in names else ""
    ranks = about == _OF_RANKS
    rows = []
    for row in theirs:
        fitting = [config for config in group.among if row.fits(config)]
        for config in fitting or (None,):
            entries = [*_shares(paper, group, theirs, row, config)] if relative else []
            for name in names:
                entries += [_published(name, row, ranks), _own(config, name, ranks)]
            ours = f" (ours: {group.names.row(config)})" if config is not None and len(fitting) > 1 else ""
            rows.append((row.label + ours, entries))
    titles = [_PRINTED[name][0].title for name in names]
    if relative:
        base = " ".join(paper["base"].values())
        titles.insert(0, f"{_PRINTED[relative][0].title.split(' (')[0]}, % of {base}")
    first = group.among[0]
    title = f"{first.model} on {first.dataset}" + (f": {about}" if about else "")
    columns = [f"{heading}, {side}" for heading in titles for side in ("theirs", "ours")]
    return Table(re.sub(r"\W+", "_", f"baseline {title}"), title, ["Configuration", *columns], rows)


def _faults(paper: Mapping[str, Any], rows: Sequence[_Row]) -> list[tuple[str, Sequence[Entry]]]:
    """What of theirs cannot be right, a row for each reason."""
    datasets, name = paper["datasets"], paper["relative"]
    faults: list[tuple[str, Sequence[Entry]]] = []
    for row in rows:
        base, places = _base(paper, rows, row), placement(row.place.get("topology", ""))
        times = row.figures[name][0] / base.figures[name][0]
        claim = audit.Claim(
            label=", ".join(filter(None, (row.place.get("model"), row.label))),
            dataset=datasets[0] if len(datasets) == 1 else "",
            figures=row.figures,
            strategy=row.place.get("strategy", ""),
            workers=places[0] * places[1] if places else row.place.get("workers", 1),
            speed_up=None if row is base else 1 / times if _PRINTED[name][0].better == "low" else times,
        )
        faults += [(claim.label, [Entry(fault)]) for fault in audit.faults(claim)]
    return faults


def _base(paper: Mapping[str, Any], theirs: Sequence[_Row], row: _Row) -> _Row:
    """Their row that another one is told as a share of."""
    wanted = {**{key: row.place.get(key) for key in ("model", *paper["same"])}, **paper["base"]}
    return next(other for other in theirs if all(other.place.get(key) == value for key, value in wanted.items()))


def _published(name: str, row: _Row, ranks: bool) -> Entry:
    """Their figure in our unit: of each rank or device, or else the mean."""
    figure, scale = _PRINTED[name]
    of_each = [scale * value for value in row.figures[name]]
    mean = sum(of_each) / len(of_each)
    if ranks:
        return Entry(" / ".join(map(figure.number, of_each)), mean)
    return Entry(figure.number(mean), mean, note="the mean of what they printed" if len(of_each) > 1 else "")


def _own(config: Configuration | None, name: str, ranks: bool) -> Entry:
    if config is None:
        return Entry(note=_NONE)
    figure, _ = _PRINTED[name]
    if ranks:
        return _of_ranks(config, figure)
    if figure is figures.TRAINING_TIME and any(not trial.learned for trial in config.finished):
        return _computed(config)
    entry = measured(config, figure)
    if not entry.text and name == "gpu_utilisation":
        entry = measured(config, figures.load("cpu"))
        return replace(entry, note="; ".join(filter(None, ("of CPUs", entry.note)))) if entry.text else entry
    return entry


def _computed(config: Configuration) -> Entry:
    """Seconds of a whole training at the speed of the steps that were timed."""
    learned = [trial for trial in config.finished if not trial.timed]
    images = {trial.run_id: count for trial in learned if (count := figures.trained(trial)) is not None}
    speed = config.statistic(_OURS.throughput)
    if not images or speed is None or speed.mean <= 0:
        return Entry(note="no whole training has finished for which measured steps would make a time")
    seconds = statistics.fmean(images.values()) / speed.mean
    note = "computed from measured steps for as many images"
    return Entry(
        figures.TRAINING_TIME.number(seconds), seconds, n=speed.n, run_ids=(*images, *speed.run_ids), note=note
    )


def _of_ranks(config: Configuration, figure: Figure) -> Entry:
    """Ours of every rank, of those that were recorded."""
    ranks = [config.statistic(figures.of_rank(figure, rank)) for rank in range(config.world_size)]
    known = [statistic for statistic in ranks if statistic is not None]
    if not known:
        return Entry(note="not recorded by rank (loss and accuracy: --per-rank-test)")
    text = " / ".join(figure.number(statistic.mean) for statistic in known)
    mean = statistics.fmean(statistic.mean for statistic in known)
    return Entry(text, mean, n=known[0].n, run_ids=known[0].run_ids)


def _shares(
    paper: Mapping[str, Any], group: Group, theirs: Sequence[_Row], row: _Row, config: Configuration | None
) -> tuple[Entry, Entry]:
    """Their figure and ours as a share of the base's; a time is computed from images/s where the images differ."""
    name, base = paper["relative"], _base(paper, theirs, row)
    figure, _ = _PRINTED[name]
    percent = 100 * row.figures[name][0] / base.figures[name][0]
    published = Entry(f"{percent:.1f}", percent, note="computed here from the published figures")
    if config is None:
        return published, Entry(note=_NONE)
    alone = [
        other
        for other in sorted(group.among, key=lambda other: other.others != config.others)
        if base.fits(other) and scaling.same_work(other, config) and scaling.may_be_base(other, config)
    ]
    equal = [other for other in alone if figure.alike != "work" or not chance.unequal_work((other, config), figure)]
    computed = not equal and figure is figures.TRAINING_TIME
    if computed:
        equal, figure = alone, _OURS.throughput
    both = scaling.pairs(config, equal[0], figure) if equal else None
    if both is None or min(*both.own, *both.base) <= 0:
        lacking = "no finished run on their base that trained on as many images"
        return published, Entry(note="no images/s of a run on their base with the same seeds" if alone else lacking)
    ours = 100 / both.ratio.mean if computed else 100 * both.ratio.mean
    note = f"against {group.names.row(equal[0])}"
    note += ", computed from measured steps for as many images" if computed else ""
    return published, Entry(f"{ours:.1f}", ours, n=len(both.own), run_ids=both.run_ids, note=note)
