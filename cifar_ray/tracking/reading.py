"""Find, list and read runs and sweeps: the only module that makes a ``Run`` or a ``Sweep`` of what MLflow has.

What is public here raises ConfigError when the store does not answer, or does not have what is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run as Entity
from mlflow.exceptions import MlflowException
from pydantic import TypeAdapter

from cifar_ray import tracking
from cifar_ray.config import limits
from cifar_ray.config.errors import ConfigError
from cifar_ray.tasks import LOSS, SUBSETS
from cifar_ray.tracking import pages, parent, store, study
from cifar_ray.tracking.study import Point, Run, Sweep
from cifar_ray.tracking.uri import exists, flag
from cifar_ray.training.rank_times import StepTimes

_HISTORIES = ("train/epoch_loss", "epoch_s", "train/loss")
_SIZES = ("batch_size", "global_batch_size")
_NEEDED = ("model", "dataset", "topology", *_SIZES)
_NO_CELLS = "The sweep's list of its runs, cells.json, could not be read: runs that never began are missing here."


class AmbiguousRunError(ConfigError):
    """Several runs have the name that was given."""


def _no_such(uri: str, name: str, kind: str = "run or sweep") -> ConfigError:
    return ConfigError("", f"there is no {kind} {name!r} in {uri}; give its name or MLflow id")


def run_of(client: MlflowClient, entity: Entity) -> Run:
    """A run as MLflow has it."""
    info, tags, reason = entity.info, dict(entity.data.tags), ""
    status, stopped_by = "PENDING" if info.status == "SCHEDULED" else info.status, tags.get(study.STOPPED_BY_TAG, "")
    if status == "FINISHED" and limits.is_halted(stopped_by):
        status, reason = "STOPPED", f"stopped by {limits.named(stopped_by)}"
    return Run(
        name=info.run_name,
        run_id=info.run_id,
        status=status,
        reason=tags.get(study.FAILURE_TAG, reason) if status in ("FAILED", "KILLED", "STOPPED") else "",
        page=pages.run(client.tracking_uri, entity),
        params=dict(entity.data.params),
        tags=tags,
        metrics=dict(entity.data.metrics),
        started=_moment(entity),
    )


def sweep_of(client: MlflowClient, entity: Entity, trials: Sequence[Run] = ()) -> Sweep:
    """A sweep as MLflow has it, by its own run."""
    tags = dict(entity.data.tags)
    return Sweep(
        name=tags.get(study.SWEEP_TAG, entity.info.run_name),
        trials=trials,
        store=store.shown(client.tracking_uri),
        command=tags.get("cifar_ray.command", ""),
        hold=tags.get("cifar_ray.hold", "batch"),
        axes=tuple(axis.strip() for axis in tags.get("cifar_ray.axes", "").split(",") if axis.strip()),
        run_id=entity.info.run_id,
        page=pages.run(client.tracking_uri, entity),
        status=entity.info.status,
        metrics=dict(entity.data.metrics),
        tags=tags,
        started=_moment(entity),
        **json.loads(tags.get(parent.SEARCH_TAG, "{}")),
    )


def _moment(entity: Entity) -> str:
    return datetime.fromtimestamp(entity.info.start_time / 1000, timezone.utc).isoformat(timespec="seconds")


def find_run(client: MlflowClient, name: str) -> Run:
    """Find a run of this program by its name or MLflow id; by its name, rather one whose folder is kept.

    Raises:
        AmbiguousRunError: when there are several of that name.
    """
    for key in ("attributes.run_id", "attributes.run_name", f"tags.`{study.SWEEP_TAG}`"):
        entities = _search(client, f"{key} = '{store.escaped(name)}'")
        if matches := [run for run in (run_of(client, entity) for entity in entities) if run.key]:
            break
    else:
        raise _no_such(client.tracking_uri, name)
    if key == f"tags.`{study.SWEEP_TAG}`":
        command = f"cifar-ray runs {name}{flag(client.tracking_uri)}"
        raise ConfigError("", f"{name!r} is a sweep, and a run is wanted; `{command}` lists its runs")
    matches = [run for run in matches if run.tags.get(study.FOLDER_TAG) != ""] or matches
    if len(matches) > 1:
        sweeps = {run.run_id: run.tags.get(study.SWEEP_TAG) for run in matches}
        ids = ", ".join(f"{run_id} (of sweep {sweep})" if sweep else run_id for run_id, sweep in sweeps.items())
        raise AmbiguousRunError("", f"there are {len(matches)} runs named {name!r}; take one of their ids: {ids}")
    return matches[0]


def _search(client: MlflowClient, condition: str) -> list[Entity]:
    """All runs that meet a condition, newest first."""
    with store.refusing(client.tracking_uri):
        return store.search(client, store.all_experiments(client), condition)


def open_run(uri: str, name: str) -> tuple[MlflowClient, Run]:
    """Open a run by its name or MLflow id; also return the client. A missing store is not created."""
    client = _client(uri, name)
    return client, find_run(client, name)


def with_key(uri: str, key: str) -> Run | None:
    """Find the run with this key; None when the store does not exist."""
    if not exists(uri):
        return None
    with store.refusing(uri):
        client = store.connect(uri)
        entity = store.find_key(client, key)
    return run_of(client, entity) if entity else None


def find_sweep(client: MlflowClient, name: str) -> Sweep | None:
    """Find the newest sweep of that name, or the one with that MLflow id; its runs are still to be read."""
    for key in (f"tags.`{study.SWEEP_TAG}`", "attributes.run_id"):
        condition = f"tags.`{parent.KIND_TAG}` = '{parent.KIND}' and {key} = '{store.escaped(name)}'"
        if entities := _search(client, condition):
            return sweep_of(client, entities[0])
    return None


def open_sweep(uri: str, name: str) -> tuple[MlflowClient, Sweep]:
    """Open a sweep by its name; also return the client of its store."""
    client = _client(uri, name)
    if (sweep := find_sweep(client, name)) is None:
        raise _no_such(uri, name, "sweep")
    return client, sweep


def _client(uri: str, name: str) -> MlflowClient:
    """A client of a store, which is not made where it does not exist: then nothing of this ``name`` is there."""
    tracking.quieten(verbose=False)
    if not exists(uri):
        raise _no_such(uri, name)
    return store.connect(uri)


def trials(client: MlflowClient, sweep: Sweep) -> list[Run]:
    """The runs of a sweep, oldest first."""
    newest_first = _search(client, f"tags.`{parent.PARENT_TAG}` = '{sweep.run_id}'")
    return [run_of(client, entity) for entity in reversed(newest_first)]


def everything(uri: str) -> list[Run | Sweep]:
    """All sweeps, and all runs that belong to none, newest first; the runs of a sweep are the oldest first."""
    tracking.quieten(verbose=False)
    if not exists(uri):
        return []
    client = store.connect(uri)
    ours = (study.KEY_TAG, parent.KIND_TAG)  # a run has one, a sweep the other; others' runs are not asked for
    entities = [entity for tag in ours for entity in _search(client, f"tags.`{tag}` LIKE '%'")]
    children: dict[str, list[Entity]] = {}
    for entity in sorted(entities, key=lambda entity: entity.info.start_time):
        children.setdefault(entity.data.tags.get(parent.PARENT_TAG, ""), []).append(entity)
    return [
        sweep_of(client, entity, [run_of(client, child) for child in children.get(entity.info.run_id, ())])
        if parent.KIND_TAG in entity.data.tags
        else run_of(client, entity)
        for entity in reversed(children.get("", ()))
    ]


def sweeps_or_runs(uri: str, names: Sequence[str]) -> list[Sweep]:
    """Read for each name the newest sweep of that name; without one, the run of that name or MLflow id."""
    client = _client(uri, names[0])
    sweeps = [(name, find_sweep(client, name)) for name in names]
    return _measured(client, [_planned(client, sweep) if sweep else _named(client, [name]) for name, sweep in sweeps])


def runs(uri: str, names: Sequence[str]) -> Sweep:
    """Read runs of trainings by these names or MLflow ids, in the order given; one named twice counts once."""
    client = _client(uri, names[0])
    return _measured(client, [_named(client, names)])[0]


def _measured(client: MlflowClient, sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Sweeps with what reports show of their runs, each of which is read once."""
    read: dict[str, dict[str, Any]] = {"": {}}  # of a cell without a run, nothing
    with store.refusing(client.tracking_uri):
        for trial in (trial for sweep in sweeps for trial in sweep.trials):
            if trial.run_id not in read:
                read[trial.run_id] = _shown(client, trial)
    return [replace(of, trials=[replace(trial, **read[trial.run_id]) for trial in of.trials]) for of in sweeps]


def _planned(client: MlflowClient, sweep: Sweep) -> Sweep:
    """A sweep with its cells."""
    with store.refusing(client.tracking_uri):
        cells = (_json(client, sweep.run_id, parent.CELLS_FILE) or {}).get("cells")
        trials = [trial for trial in _cells(client, sweep, cells or ()) if _is_placed(trial)]
    return replace(sweep, trials=trials, cautions=(_NO_CELLS,) if cells is None else ())


def _named(client: MlflowClient, names: Sequence[str]) -> Sweep:
    """Runs named one by one."""
    uri, found = client.tracking_uri, [find_run(client, name) for name in names]
    trials = [*{run.run_id: run for run in found}.values()]
    for trial in trials:
        if not _is_placed(trial):
            raise ConfigError("", f"run {trial.name!r} in {uri} cannot be compared: it is no training with parameters")
    held = len({trial.global_batch_size for trial in trials}) == 1 and len({trial.batch_size for trial in trials}) > 1
    command = f"cifar-ray compare {' '.join(names)}" if len(names) > 1 else trials[0].tags.get("cifar_ray.command", "")
    name = ", ".join(trial.name for trial in trials)
    return Sweep(name, trials, store.shown(uri), command, hold="global_batch" if held else "")


def _shown(client: MlflowClient, trial: Run) -> dict[str, Any]:
    """A run's histories and its confusion matrix, each of which is a request, by the fields of ``Run``."""
    confusion = (trial.finished and _json(client, trial.run_id, "confusion_matrix.json")) or {}
    followed = [name for name in trial.metrics if _is_followed(name, trial)]
    return {
        "history": {name: _history(client, trial.run_id, name) for name in followed},
        "confusion": confusion.get("counts"),
        "class_names": tuple(confusion.get("classes", ())),
        "mistakes": tuple(confusion.get("mistakes", ())),
    }


def _cells(client: MlflowClient, sweep: Sweep, cells: Sequence[Mapping[str, Any]]) -> list[Run]:
    """Every cell in the grid's order, with its newest run if it has one; runs of no cell come last."""
    begun = {run.name: run for run in trials(client, sweep)}
    every = []
    for cell in cells:
        name, params, reason = cell["name"], cell["params"], cell.get("reason") or ""
        if (run := begun.pop(name, None)) is not None:  # it may have ended before logging parameters
            run = replace(run, params={**params, **run.params})
        else:
            status = "SKIPPED" if cell["state"] == "SKIPPED" else "FAILED" if reason else "PENDING"
            run = Run(name, "", status, reason, params=params)
        every.append(replace(run, repeats=cell.get("repeats", "")))
    return [*every, *begun.values()]


def _is_placed(trial: Run) -> bool:
    """Whether its parameters tell where it stands in a table."""
    return all(key in trial.params for key in _NEEDED) and all(trial.params[key].isdecimal() for key in _SIZES)


def _is_followed(name: str, trial: Run) -> bool:
    of_a_rank = name.startswith("train/loss_rank") and trial.params.get("per_rank_test") == "True"
    measured = [figure.on(subset) for figure in (LOSS, trial.task.primary) for subset in SUBSETS]
    return name in (*_HISTORIES, *measured) or study.LOAD.fullmatch(name) is not None or of_a_rank


def _history(client: MlflowClient, run_id: str, name: str) -> list[Point]:
    points = client.get_metric_history(run_id, name)
    return sorted(
        (Point(point.step, point.timestamp, point.value) for point in points),
        key=lambda point: (point.step, point.timestamp_ms),
    )


def _json(client: MlflowClient, run_id: str, name: str) -> dict[str, Any] | None:
    """Read a JSON artifact; None when it is missing or unreadable, since reports can do without."""
    try:
        value = store.read_json(client, run_id, name)
    except (MlflowException, OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def step_times(uri: str, run: str) -> tuple[str, StepTimes]:
    """Read the name of a run of that name or MLflow id, and the times of its steps."""
    client, known = open_run(uri, run)
    try:
        return known.name, TypeAdapter(StepTimes).validate_python(_json(client, known.run_id, study.STEP_TIMES))
    except ValueError:
        missing = "has no times of its steps by rank that can be read"
        raise ConfigError("", f"run {run!r} {missing}: they are written when it finishes") from None
