"""Read a sweep, or runs named one by one, from the tracking store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from cifar_ray import tracking
from cifar_ray.config import limits, runfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import Range
from cifar_ray.tasks import LOSS, SUBSETS
from cifar_ray.tracking import pages, parent, store
from cifar_ray.tracking.study import LOAD, MEASURE_TAG, STOPPED_BY_TAG, Point, Search, Study, Trial
from cifar_ray.tracking.uri import no_such_name, no_such_run

_CONFUSION = "confusion_matrix.json"
_HISTORIES = ("train/epoch_loss", "epoch_s", "train/loss")
_SIZES = ("batch_size", "global_batch_size")
_NEEDED = ("model", "dataset", "topology", *_SIZES)
_NO_CELLS = (
    f"The sweep's list of its runs, {parent.CELLS_FILE}, could not be read: runs that have not begun or were skipped "
    "are missing here."
)


def study(uri: str, name: str) -> Study:
    """Read the newest sweep of that name, with every cell of its grid.

    Raises:
        ConfigError: when there is none, or the store does not answer.
    """
    client, parent = sweep(uri, name)
    with store.refusing(uri):
        return _measured(client, [_planned(client, name, parent)])[0]


def sweeps_or_runs(uri: str, names: Sequence[str]) -> list[Study]:
    """Read for each name the newest sweep of that name; without one, the run of that name or MLflow id.

    Raises:
        ConfigError: when there is neither, or the store does not answer.
    """
    tracking.quieten(verbose=False)
    if not store.exists(uri):
        raise no_such_name(uri, names[0])
    client, studies = store.connect(uri), []
    with store.refusing(uri):
        for name in names:
            if (known := parent.find(client, name)) is not None:
                studies.append(_planned(client, name, client.get_run(known.run_id)))
            else:
                alone = _named(client, [name], no_such_name)
                studies.append(replace(alone, command=alone.trials[0].tags.get("cifar_ray.command", "")))
        return _measured(client, studies)


def runs(uri: str, names: Sequence[str]) -> Study:
    """Read runs of these names or MLflow ids, in the order given; one named twice counts once.

    Raises:
        ConfigError: when one of them is not there or is no run of a training, or the store does not answer.
    """
    tracking.quieten(verbose=False)
    if not store.exists(uri):
        raise no_such_run(uri, names[0])
    client = store.connect(uri)
    with store.refusing(uri):
        return _measured(client, [_named(client, names)])[0]


def _planned(client: MlflowClient, name: str, sweep_run: Run) -> Study:
    """A sweep by its own run, without what :func:`_measured` reads."""
    tags = sweep_run.data.tags
    listed = (_json(client, sweep_run.info.run_id, parent.CELLS_FILE) or {}).get("cells")
    trials = _cells(client, sweep_run, listed or ())
    return Study(
        name=name,
        trials=[trial for trial in trials if _is_placed(trial)],
        store=store.shown(client.tracking_uri),
        command=tags.get("cifar_ray.command", ""),
        hold=tags.get("cifar_ray.hold", "batch"),
        axes=tuple(axis.strip() for axis in tags.get("cifar_ray.axes", "").split(",") if axis.strip()),
        run_id=sweep_run.info.run_id,
        page=pages.run(client.tracking_uri, sweep_run),
        status=sweep_run.info.status,
        metrics=dict(sweep_run.data.metrics),
        cautions=(_NO_CELLS,) if listed is None else (),
        search=_search(client, sweep_run.info.run_id),
    )


def _search(client: MlflowClient, run_id: str) -> Search | None:
    """How a sweep has searched; None of a plain grid, and where its configuration is not one of this version."""
    try:
        values = store.read_artifact(client, run_id, parent.CONFIG_FILE, runfile.read)
        config = None if values is None else sweeps.from_mapping(values)
    except (MlflowException, OSError, ValueError):
        return None
    if config is None or not config.is_search:
        return None
    drawn = {field: of.kind for grid in config.grid for field, of in grid.items() if isinstance(of, Range)}
    # Of a sweep that holds the global batch, an axis of batches has that name.
    ranges = {name if name in config.axes else "global_batch_size": drawn[name] for name in drawn}
    return Search(config.search, config.scheduler, config.objective, ranges)


def _named(
    client: MlflowClient, names: Sequence[str], absent: Callable[[str, str], ConfigError] = no_such_run
) -> Study:
    """Runs named one by one, without what :func:`_measured` reads; ``absent`` as for :func:`store.find`."""
    ids = dict.fromkeys(store.find(client, name, absent).run_id for name in names)
    trials = [_trial(client, client.get_run(run_id), {}, "") for run_id in ids]
    uri = client.tracking_uri
    for trial in trials:
        if not _is_placed(trial):
            raise ConfigError("", f"run {trial.name!r} in {uri} cannot be compared: it is no training with parameters")
    name = ", ".join(trial.name for trial in trials)
    held = len({trial.global_batch_size for trial in trials}) == 1 and len({trial.batch_size for trial in trials}) > 1
    hold = "global_batch" if held else ""
    return Study(name, trials, store.shown(uri), command=f"cifar-ray compare {' '.join(names)}", hold=hold)


def _measured(client: MlflowClient, studies: Sequence[Study]) -> list[Study]:
    """Studies with the histories and confusion matrices of their runs: each is a request, so each is read once."""
    begun = {trial.run_id: trial for study in studies for trial in study.trials if trial.run_id}
    read = {run_id: _read(client, trial) for run_id, trial in begun.items()}
    return [
        replace(study, trials=[replace(trial, **read.get(trial.run_id, {})) for trial in study.trials])
        for study in studies
    ]


def _read(client: MlflowClient, trial: Trial) -> dict[str, Any]:
    followed = [name for name in trial.metrics if _is_followed(name, trial)]
    confusion = (trial.finished and _json(client, trial.run_id, _CONFUSION)) or {}
    return {
        "history": {name: _history(client, trial.run_id, name) for name in followed},
        "confusion": confusion.get("counts"),
        "class_names": tuple(confusion.get("classes", ())),
        "mistakes": tuple(confusion.get("mistakes", ())),
    }


def sweep(uri: str, name: str) -> tuple[MlflowClient, Run]:
    """Find the newest sweep of that name: its own run, and the client of its store.

    Raises:
        ConfigError: when there is none, or the store does not answer.
    """
    tracking.quieten(verbose=False)
    client, known = parent.connect(name, uri)
    with store.refusing(uri):
        return client, client.get_run(known.run_id)


def _cells(client: MlflowClient, sweep_run: Run, cells: Sequence[Mapping[str, Any]]) -> list[Trial]:
    """Every cell in the grid's order, with its newest run if it has one; runs of no cell come last."""
    children = {run.info.run_name: run for run in parent.children(client, sweep_run)}
    purposes = [run.data.tags[MEASURE_TAG] for run in children.values() if MEASURE_TAG in run.data.tags]
    purpose = {MEASURE_TAG: purposes[0]} if purposes else {}  # all runs of a sweep are made for the same
    trials = []
    for cell in cells:
        params, reason = cell["params"], cell.get("reason") or ""
        run = children.pop(cell["name"], None)
        if run is not None:
            trials.append(replace(_trial(client, run, params, reason), repeats=cell.get("repeats", "")))
        else:
            status = "SKIPPED" if cell["state"] == "SKIPPED" else "PENDING"
            if status == "PENDING" and reason:
                status = "FAILED"
            elif status == "PENDING" and sweep_run.info.status == "FINISHED":
                reason = "MLflow does not have it (any more)"
            trials.append(
                Trial(cell["name"], "", status, reason, params=params, tags=purpose, repeats=cell.get("repeats", ""))
            )
    return trials + [_trial(client, run, {}, "") for run in children.values()]


def _is_placed(trial: Trial) -> bool:
    """Whether its parameters tell where it stands in a table."""
    return all(key in trial.params for key in _NEEDED) and all(trial.params[key].isdecimal() for key in _SIZES)


def _trial(client: MlflowClient, run: Run, params: Mapping[str, str], reason: str) -> Trial:
    """Read one run; ``params`` and ``reason`` are used where it ended before logging its own."""
    info, data = run.info, run.data
    status = "PENDING" if info.status == "SCHEDULED" else info.status
    stopped_by = data.tags.get(STOPPED_BY_TAG, "")
    if status == "FINISHED" and limits.is_halted(stopped_by):
        status, reason = "STOPPED", f"stopped by {limits.named(stopped_by)}"
    return Trial(
        name=info.run_name,
        run_id=info.run_id,
        status=status,
        reason=data.tags.get(store.FAILURE_TAG, reason) if status in ("FAILED", "KILLED", "STOPPED") else "",
        page=pages.run(client.tracking_uri, run),
        params={**params, **data.params},
        tags=dict(data.tags),
        metrics=dict(data.metrics),
    )


def _is_followed(name: str, trial: Trial) -> bool:
    of_a_rank = name.startswith("train/loss_rank") and trial.params.get("per_rank_test") == "True"
    measured = [figure.on(subset) for figure in (LOSS, trial.task.primary) for subset in SUBSETS]
    return name in (*_HISTORIES, *measured) or LOAD.fullmatch(name) is not None or of_a_rank


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
