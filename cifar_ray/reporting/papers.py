"""Published studies' figures beside a study's own, with what of them can be compared and what cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from cifar_ray import tasks
from cifar_ray.config import errors, yaml
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import audit, figures, scaling
from cifar_ray.reporting.cells import SHARE, Group, measured
from cifar_ray.reporting.contents import Entry, Section, Table
from cifar_ray.reporting.figures import TRAINING_TIME, Figure
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.reporting.tables import parts
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking.study import placement

_PAPERS = Path(__file__).with_name("papers.yaml")
_OURS = TaskFigures(tasks.USUAL)
_SHARE = "share"
# What papers.yaml calls their figures -> ours, and by what theirs is multiplied to be in its unit.
_PRINTED: dict[str, tuple[Figure, float]] = {
    _SHARE: (SHARE, 1),
    "training_seconds": (TRAINING_TIME, 1),
    "seconds_per_iteration": (figures.ITERATION_TIME, 1000),
    "images_per_second": (_OURS.throughput, 1),
    **{figure.of.name: (figure, 100) for figure in _OURS.every if figure.of},
    "test_loss": (figures.LOSS, 1),
    "gpu_utilisation": (figures.load("gpu"), 100),
    "memory_gb": (figures.MEMORY, 1e9 / 2**20),  # MiB
}
_FOLDED = ("precision", "recall", "f1", "specificity")


@cache
def known() -> Mapping[str, Any]:
    """Key -> a published study's figures, as ``papers.yaml`` has them."""
    return yaml.read(_PAPERS)


def find(key: str) -> Mapping[str, Any]:
    """A published study's figures, by its key; a ConfigError names the keys that there are."""
    if key not in known():
        raise ConfigError("baseline", f"must be {errors.one_of(known())}, got {key!r}{errors.suggestion(key, known())}")
    return known()[key]


def comparison(runs: Runs, key: str) -> Section:
    """A published study, by its key in ``papers.yaml``, beside this one, as far as the configurations are the same."""
    paper = find(key)
    rows = [{**paper, **dict(zip(paper["header"], values, strict=True))} for values in paper["rows"]]
    for row in rows:
        wanted = {**{name: row[name] for name in paper["same"]}, **paper["base"]}
        row["base"] = next(other for other in rows if all(other[name] == of for name, of in wanted.items()))
        row[_SHARE] = 100 * row[paper["relative"]] / row["base"][paper["relative"]]
        row["power"] = -1 if _PRINTED[paper["relative"]][0].better == "low" else 1  # which makes a share a speed-up
    shown = [name for name in (_SHARE, *paper["header"]) if name in _PRINTED]
    tables: dict[bool, list[Table]] = {False: [], True: []}  # the folded ones are True
    for part in parts(runs):
        ours = [config for config in part.group.among if config.finished and config.dataset in paper["datasets"]]
        group, model = part.group._replace(among=ours), part.group.among[0].model
        theirs = [row for row in rows if row.get("model", model) == model]
        if any(_fits(row, config) for row in theirs for config in ours):
            for folded, those in tables.items():
                names = [name for name in shown if (name in _FOLDED) is folded]
                those += [_table(group, theirs, names, ": test metrics" * folded)] if names else []
    if faults := [(_label(row), [Entry(fault)]) for row in rows for fault in _faults(row)]:
        tables[True] += [Table("baseline_faults", "Cannot be right, and why", ["Configuration", "Theirs"], faults)]
    notes = paper["notes"] if tables[False] else ["None of their configurations is here."]
    return Section(f"Beside {paper['title']}", tables[False], tables[True], (f"Theirs: {paper['hardware']}.", *notes))


def _label(row: Mapping[str, Any]) -> str:
    """``vgg11, ddp, workers 4, global batch 256``."""
    names = ("model", "topology", "strategy", "workers", "batch_size", "global_batch_size", "micro_batches")
    words = {name.replace("_size", "").replace("_", " "): row[name] for name in names if row.get(name)}
    return ", ".join(value if isinstance(value, str) else f"{name} {value}" for name, value in words.items())


def _fits(row: Mapping[str, Any], config: Configuration) -> bool:
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


def _table(group: Group, theirs: Sequence[Mapping[str, Any]], names: Sequence[str], about: str) -> Table:
    """A row for each of theirs and every configuration of ours that fits, theirs and ours side by side."""
    rows = []
    for row in theirs:
        fitting: list[Configuration | None] = [config for config in group.among if _fits(row, config)]
        for config in fitting or [None]:
            entries = []
            for name in names:
                figure, scale = _PRINTED[name]
                printed = np.atleast_1d(row[name]) * scale
                entries.append(Entry(" / ".join(map(figure.number, printed)), float(printed.mean())))
                entries.append(_own(group, row, config, name))
            ours = f" (ours: {group.names.row(config)})" if config is not None and len(fitting) > 1 else ""
            rows.append((_label(row) + ours, entries))
    share = f"{_PRINTED[theirs[0]['relative']][0].title.split(' (')[0]}, % of base"
    headings = [share if name == _SHARE else _PRINTED[name][0].title for name in names]
    columns = ["Configuration", *(f"{heading}, {side}" for heading in headings for side in ("theirs", "ours"))]
    title = f"{group.among[0].model} on {group.among[0].dataset}{about}"
    return Table(re.sub(r"\W+", "_", f"baseline {title}"), title, columns, rows)


def _own(group: Group, row: Mapping[str, Any], config: Configuration | None, name: str) -> Entry:
    """Our figure; a share of their base, and the time of a training that was not timed, are by the speed."""
    if config is None:
        return Entry(note="no finished run of the same kind")
    figure, speed = _PRINTED[name][0], config.statistic(_OURS.throughput)
    trained = [figures.trained(trial) or 0.0 for trial in config.finished if trial.learned]
    if figure is TRAINING_TIME and len(trained) < len(config.finished):  # some were made for their times alone
        if not trained or speed is None:
            return Entry(note="no whole training was timed")
        seconds = fmean(trained) / speed.mean
        return Entry(figure.number(seconds), seconds, n=speed.n, run_ids=speed.run_ids, note="by images/s")
    if name != _SHARE:
        return measured(config, figure)
    bases = [one for one in group.among if _fits(row["base"], one) and scaling.is_base(one, config, _OURS.throughput)]
    bases.sort(key=lambda one: one.others != config.others)
    both = scaling.pairs(config, bases[0], _OURS.throughput) if bases else None
    if both is None:
        return Entry(note="no finished run on their base with the same seeds")
    percent = 100 * both.ratio.mean ** row["power"]
    note = f"by images/s, against {group.names.row(bases[0])}"
    return Entry(f"{percent:.1f}", percent, n=len(both.own), run_ids=both.run_ids, note=note)


def _faults(row: Mapping[str, Any]) -> Iterator[str]:
    """Why a row of theirs cannot be right."""
    yield from audit.faults(row, row["datasets"][0] if len(row["datasets"]) == 1 else "")
    nodes, each = placement(row.get("topology", "")) or (1, row.get("workers", 1))
    yield from audit.too_fast((row[_SHARE] / 100) ** row["power"], nodes * each)
