"""A study as one file, from which its report can be made again anywhere, and several of them as one study."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cifar_ray.config import errors, runfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import frame
from cifar_ray.reporting.frame import ORIGIN
from cifar_ray.tracking.study import EARLIER, Run, Sweep

VERSION = 1
"""It changes when an old file would mean something else."""

_DECIDED = ("precision", "convolutions", "device", "cpus_per_worker")
"""Parameters that a run's start decides, so that a cell without a run has other ones."""

_AT_ONCE = "sweep/concurrency"
_LOCAL = re.compile(r"mlflow\.|cifar_ray\.(folder|checkpoint|best_checkpoint|session|key|sent)$")
"""Tags that say where a run is, and may name people; the commit does not."""

_FLAGS = [errors.flag_of(name) for name in (*runfile.WHERE, "out") if name not in ("run_name", "verbose")]
_PLACE = re.compile(rf"\0({'|'.join(_FLAGS).replace('-', '[-_]')})[=\0][^\0]*")
"""Flags with addresses, which may hold names of people's folders, and passwords; words end in NUL."""

_HOME = re.compile(r"/(home|Users)/[^/\s,:'\"\\]+")
_PATH = re.compile(r"""(?<![^\s,:='"(\[])(~|/(?!/))[^\s,:'"\\]+""")


def text(study: Sweep) -> str:
    """A study as JSON, with all that a report needs of its runs: no weights, images, or addresses of folders and pages.

    A history is three lists, ``step``, ``timestamp_ms`` and ``value``.
    """
    command = "\n".join(map(_without_places, study.command.splitlines()))
    whole = asdict(replace(study, store="", page=None, trials=(), command=command, tags={}))
    whole |= {"cifar_ray_study": VERSION, "trials": list(map(_plain, study.trials))}
    return _shortener(study)(json.dumps(whole, separators=(",", ":"), allow_nan=False, ensure_ascii=False)) + "\n"


def _plain(trial: Run) -> dict[str, Any]:
    tags = {
        name: _without_places(value) if name.endswith(ORIGIN["command"]) else value
        for name, value in trial.tags.items()
        if name == ORIGIN["commit"] or not _LOCAL.match(name.removeprefix(EARLIER))
    }
    plain = asdict(replace(trial, tags=tags, mistakes=(), page=None))
    for name, points in plain["history"].items():
        plain["history"][name] = {key: [point[key] for point in points] for key in ("step", "timestamp_ms", "value")}
    return plain


def _without_places(command: str) -> str:
    """A command without the flags that say where its files are; empty where it is none of a shell."""
    with suppress(ValueError):
        words = "\0".join(shlex.split(command))
        return shlex.join(_PLACE.sub("", words).split("\0")) if words else ""
    return ""


def as_in_a_file(study: Sweep) -> Sweep:
    """A study of a store, with its data sets and weights called as :func:`text` has them."""
    shorten = _shortener(study)
    params = [{name: shorten(value) for name, value in trial.params.items()} for trial in study.trials]
    return replace(study, trials=[replace(trial, params=of) for trial, of in zip(study.trials, params)])


def _shortener(study: Sweep) -> Callable[[str], str]:
    """A function that leaves of each path in a text its last part; in the order of the runs, twins get numbers."""
    known: dict[str, dict[str, int]] = {}

    def named(path: re.Match[str]) -> str:
        folder, _, name = path[0].rstrip("/").rpartition("/")
        twins = known.setdefault(name, {})
        before = twins.setdefault(folder, len(twins))
        return f"{name}-{before + 1}" if before else name

    def shorten(text: str) -> str:
        return _PATH.sub(named, _HOME.sub("~", text))

    for trial in study.trials:
        shorten(" ".join(trial.params.values()))
    return shorten


def read(path: Path) -> Sweep:
    """The study of a file that :func:`text` has made; its store is the file's name.

    Raises:
        ConfigError: when the file cannot be read, or is none of these.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole["cifar_ray_study"] != VERSION:
            raise ValueError
        for trial in whole["trials"]:
            for name, columns in trial["history"].items():
                points = zip(*columns.values(), strict=True)
                trial["history"][name] = [dict(zip(columns, point, strict=True)) for point in points]
        study = TypeAdapter(Sweep).validate_json(json.dumps(whole, allow_nan=False), strict=True)
        frame.Runs(study)  # raises on a parameter that is missing, or no number
    except OSError as error:
        raise ConfigError("", f"cannot read {path}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ConfigError("", f"{path} is no study that `cifar-ray export` of this version has written") from None
    return replace(study, store=path.name)


def together(studies: Sequence[Sweep], hold: str | None = None) -> Sweep:
    """Several studies as one: runs that differ in the seed alone are one configuration, wherever they were trained.

    What differs between the studies tells configurations apart, also the hardware, so that times of different
    machines never share a mean. Runs that were made for their times and runs that were made for what they learn are
    those of one configuration, of which each tells one part. A run that several files have counts once.

    Args:
        studies: one or more.
        hold: the batch size that a column shares, ``batch`` or ``global_batch``; None is what all studies have held.

    Raises:
        ConfigError: when some hold the batch per worker and others the global batch, and ``hold`` is None.
    """
    studies = _newest([replace(study, hold=hold) for study in studies] if hold else studies)
    if len(studies) == 1:
        return studies[0]
    if len({study.hold for study in studies}) > 1:
        held = "; ".join(f"{study.name}: {study.hold or 'neither'}" for study in studies)
        problem = f"must be batch or global_batch, for all columns, since the sweeps have not held the same: {held}"
        raise ConfigError("hold", problem)
    unfinished = [study for study in studies if study.status != "FINISHED"]
    cautions = [f"The sweep {study.name} is {study.status}." for study in unfinished]
    cautions += [caution for study in studies for caution in study.cautions]
    trials = _each_once([trial for study in studies for trial in study.trials])
    names = list(dict.fromkeys(study.name for study in studies))
    models, datasets = (", ".join(dict.fromkeys(getattr(each, of) for each in trials)) for of in ("model", "dataset"))
    return Sweep(
        name=" and ".join(names) if len(names) < 3 else f"{models} on {datasets}: {len(names)} sweeps",
        trials=trials,
        store=", ".join(dict.fromkeys(study.store for study in studies)),
        command="\n".join(dict.fromkeys(study.command for study in studies if study.command)),
        hold=studies[0].hold,
        axes=_axes(studies),
        status=unfinished[0].status if unfinished else "FINISHED",
        metrics={_AT_ONCE: max(study.metrics.get(_AT_ONCE, 1.0) for study in studies)},
        cautions=tuple(dict.fromkeys(cautions)),
    )


def _newest(studies: Sequence[Sweep]) -> list[Sweep]:
    """Each sweep once: of several exports of it the one with the most finished runs."""
    keys = [(study.run_id or id(study), *(trial.name for trial in study.trials)) for study in studies]
    ends = [(sum(trial.finished for trial in study.trials), study.status == "FINISHED") for study in studies]
    newest = {keys[at]: at for at in sorted(range(len(studies)), key=ends.__getitem__)}
    return [study for at, study in enumerate(studies) if newest[keys[at]] == at]


def _each_once(trials: Sequence[Run]) -> list[Run]:
    """Every run once, as the file knows it in which it has finished; a cell without a run only where none has one."""
    known = {trial.run_id: trial for trial in sorted(trials, key=lambda trial: trial.finished)}

    def is_trained(cell: Run) -> bool:
        params = {name: value for name, value in cell.params.items() if name not in _DECIDED}
        return any(cell.name == run.name and params.items() <= run.params.items() for run in trials if run.run_id)

    return [trial for trial in trials if (known[trial.run_id] is trial if trial.run_id else not is_trained(trial))]


def _axes(studies: Sequence[Sweep]) -> tuple[str, ...]:
    """The axes that any study has, with what differs between studies; none when one is of runs named one by one."""
    if not all(study.axes or study.run_id for study in studies):  # a sweep of one cell has no axes
        return ()
    axes = dict.fromkeys(axis for study in studies for axis in study.axes)
    settings = [frame.Runs(study).settings for study in studies]
    names = {name for of_study in settings for values in of_study.values() for name in values}
    known: dict[tuple[object, ...], set[frozenset[str]]] = {}
    for study, of_study in zip(studies, settings):
        for name, (section, values) in itertools.product(names, of_study.items()):
            # Runs that were made for other figures may have other settings, but no times of another machine.
            made_for = study.measure != "accuracy" if name == frame.HARDWARE else study.measure
            known.setdefault((name, section, made_for), set()).add(frozenset(values.get(name, set()) - {""}))
    return (*axes, *sorted({str(name) for (name, *_), of in known.items() if len(of) > 1} - axes.keys()))
