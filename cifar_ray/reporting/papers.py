"""Published studies' figures beside a study's own, with what of them can be compared and what cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from cifar_ray import tasks
from cifar_ray.config import errors, yaml
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.reporting import audit, figures, scaling
from cifar_ray.reporting.cells import SHARE, Group, measured
from cifar_ray.reporting.contents import Entry, Section, Table
from cifar_ray.reporting.figures import TRAINING_TIME
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.reporting.tables import parts
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking.study import HARDWARE_TAG, placement

_PAPERS = Path(__file__).with_name("papers.yaml")
_OURS = TaskFigures(tasks.USUAL)
_SHARE, _LOAD = "share", "gpu_utilisation"
# What papers.yaml calls their figures -> ours, and by what theirs is multiplied to be in its unit.
_PRINTED = {
    _SHARE: (SHARE, 1),
    "training_seconds": (TRAINING_TIME, 1),
    "seconds_per_iteration": (figures.ITERATION_TIME, 1000),
    "images_per_second": (_OURS.throughput, 1),
    **{figure.of.name: (figure, 100) for figure in _OURS.every if figure.of},
    "test_loss": (figures.LOSS, 1),
    _LOAD: (replace(figures.load("gpu"), title="Load (%)"), 100),
    "memory_gb": (figures.MEMORY, 1e9 / 2**20),  # MiB
}
_FOLDED = ("precision", "recall", "f1", "specificity")
_COMPUTED = "computed from measured steps for as many images"
_NONE = Entry(note="no finished run of the same kind")

_Row = Mapping[str, Any]
"""A published row: what identifies it, its figures as lists, and its ``base``, the row that it is a ``share`` of."""


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
    theirs = _rows(paper)
    main = [name for name in (_SHARE, *paper["header"]) if name in _PRINTED and name not in _FOLDED]
    quality = [name for name in paper["header"] if name in _FOLDED]
    tables: list[Table] = []
    folded: list[Table] = []
    for part in parts(runs):
        ours = [config for config in part.group.among if config.finished and config.dataset in paper["datasets"]]
        group, model = part.group._replace(among=ours), part.group.among[0].model
        rows = [row for row in theirs if row.get("model", model) == model]
        if any(_fits(row, config) for row in rows for config in ours):
            tables.append(_table(paper, group, rows, main))
            folded += [_table(paper, group, rows, quality, ": test metrics")] if quality else []
    if faults := list(_faults(paper, theirs)):
        folded.append(Table("baseline_faults", "Cannot be right, and why", ["Configuration", "Theirs"], faults))
    hardware = sorted({trial.tags.get(HARDWARE_TAG, "not recorded") for trial in runs.study.trials if trial.finished})
    notes = [f"Ours: {'; '.join(hardware)}.", *paper["notes"]]
    if not tables:
        notes = ["None of the finished runs has a configuration that they measured, so nothing is laid side by side."]
    return Section(title, tables, folded, (f"Theirs: {paper['hardware']}.", *notes))


def _rows(paper: Mapping[str, Any]) -> Sequence[_Row]:
    rows = [dict(zip(paper["header"], values, strict=True)) for values in paper["rows"]]
    for row in rows:
        wanted = {**{name: row[name] for name in paper["same"]}, **paper["base"]}
        row["base"] = next(other for other in rows if all(other[name] == of for name, of in wanted.items()))
        row[_SHARE] = 100 * row[paper["relative"]] / row["base"][paper["relative"]]
    return [
        {name: [of] if name in _PRINTED and not isinstance(of, list) else of for name, of in row.items()}
        for row in rows
    ]


def _label(row: _Row) -> str:
    """``ddp, 4 workers, global batch 256``."""
    words = [row[name] for name in ("topology", "strategy") if name in row]
    words += [counted(row["workers"], "worker")] if "workers" in row else []
    sizes = ("batch_size", "global_batch_size", "micro_batches")
    words += [f"{name.replace('_size', '').replace('_', ' ')} {row[name]}" for name in sizes if row.get(name)]
    return ", ".join(words)


def _fits(row: _Row, config: Configuration) -> bool:
    """Whether a configuration is one of theirs; a single worker of any strategy that then trains plainly will do."""
    single = config.devices == 1 and config.strategy in scaling.PLAIN_ALONE
    own = {
        "topology": config.topology if config.devices == config.world_size else "",  # theirs has one GPU a worker
        "batch_size": config.batch_size,
        "global_batch_size": config.global_batch_size,
        "workers": config.devices,
        "strategy": "single" if single else config.strategy,
        "micro_batches": int(figures.micro_batches(config.trials[0]) or 0),
    }
    return all(row[name] == value for name, value in own.items() if name in row)


def _table(
    paper: Mapping[str, Any], group: Group, theirs: Sequence[_Row], names: Sequence[str], about: str = ""
) -> Table:
    """A row for each of theirs and every configuration of ours that fits, theirs and ours side by side."""
    rows = []
    for row in theirs:
        fitting: list[Configuration | None] = [config for config in group.among if _fits(row, config)]
        for config in fitting or [None]:
            entries = []
            for name in names:
                entries += [_published(row, name), _NONE if config is None else _own(paper, group, row, config, name)]
            ours = f" (ours: {group.names.row(config)})" if config is not None and len(fitting) > 1 else ""
            rows.append((_label(row) + ours, entries))
    title = f"{group.among[0].model} on {group.among[0].dataset}{about}"
    titles = {name: _PRINTED[name][0].title for name in names}
    if _SHARE in titles:
        of = _PRINTED[paper["relative"]][0].title.split(" (")[0]
        titles[_SHARE] = f"{of}, % of {' '.join(paper['base'].values())}"
    headings = [f"{heading}, {side}" for heading in titles.values() for side in ("theirs", "ours")]
    return Table(re.sub(r"\W+", "_", f"baseline {title}"), title, ["Configuration", *headings], rows)


def _published(row: _Row, name: str) -> Entry:
    """Their figure in our unit, of each rank or device where they printed those."""
    figure, scale = _PRINTED[name]
    of_each = [scale * value for value in row[name]]
    note = "computed here from the published figures" if name == _SHARE else ""
    return Entry(" / ".join(map(figure.number, of_each)), fmean(of_each), note=note)


def _own(paper: Mapping[str, Any], group: Group, row: _Row, config: Configuration, name: str) -> Entry:
    figure, _ = _PRINTED[name]
    if name == _SHARE:
        return _own_share(paper, group, row, config)
    if name == _LOAD and config.device != "cuda":
        return measured(config, figures.load("cpu"))
    if figure is TRAINING_TIME and any(not trial.learned for trial in config.finished):
        return _whole_training(config)
    return measured(config, figure)


def _whole_training(config: Configuration) -> Entry:
    """Seconds of a whole training at the speed of the steps that were timed."""
    learned = [trial for trial in config.finished if trial.learned]
    trained = {trial.run_id: images for trial in learned if (images := figures.trained(trial))}
    speed = config.statistic(_OURS.throughput)
    if not trained or speed is None or speed.mean <= 0:
        return Entry(note="no whole training has finished for which measured steps would make a time")
    seconds, run_ids = fmean(trained.values()) / speed.mean, (*trained, *speed.run_ids)
    return Entry(TRAINING_TIME.number(seconds), seconds, n=speed.n, run_ids=run_ids, note=_COMPUTED)


def _own_share(paper: Mapping[str, Any], group: Group, row: _Row, config: Configuration) -> Entry:
    """Our share of the base; of a training's time it is that of an image, however many the runs trained on."""
    figure, _ = _PRINTED[paper["relative"]]
    is_time = figure is TRAINING_TIME
    compared = _OURS.throughput if is_time else figure
    alike = [other for other in group.among if _fits(row["base"], other)]
    bases = [other for other in alike if scaling.is_base(other, config, compared)]
    base = min(bases, key=lambda other: other.others != config.others, default=config)
    both = scaling.pairs(config, base, compared)
    if not bases or both is None or min(*both.own, *both.base) <= 0:
        return Entry(note="no finished run on their base with the same seeds")
    percent = 100 / both.ratio.mean if is_time else 100 * both.ratio.mean
    note = f"against {group.names.row(base)}" + f", {_COMPUTED}" * is_time
    return Entry(f"{percent:.1f}", percent, n=len(both.own), run_ids=both.run_ids, note=note)


def _faults(paper: Mapping[str, Any], theirs: Sequence[_Row]) -> Iterator[tuple[str, Sequence[Entry]]]:
    """What of theirs cannot be right, a row for each reason."""
    (dataset, *others), figure = paper["datasets"], _PRINTED[paper["relative"]][0]
    for row in theirs:
        nodes, each = placement(row.get("topology", "")) or (1, row.get("workers", 1))
        claim = audit.Claim(
            label=", ".join(filter(None, (row.get("model"), _label(row)))),
            dataset="" if others else dataset,
            figures={name: row[name] for name in paper["header"] if name in _PRINTED},
            strategy=row.get("strategy", ""),
            workers=nodes * each,
            speed_up=100 / row[_SHARE][0] if figure.better == "low" else row[_SHARE][0] / 100,
        )
        for fault in audit.faults(claim):
            yield claim.label, [Entry(fault)]
