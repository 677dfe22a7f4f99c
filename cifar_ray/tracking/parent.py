"""A sweep's own run in MLflow: the parent of its trials."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from cifar_ray.config import limits
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.tracking import pages, store
from cifar_ray.tracking.record import Record
from cifar_ray.tracking.study import STOPPED_BY_TAG, STOPPED_TAG, task_of
from cifar_ray.tracking.uri import no_such_sweep
from cifar_ray.training.observer import step_of

KIND_TAG, KIND = "cifar_ray.kind", "sweep"
PLANNED_TAG, WITHOUT_RUN_TAG = "cifar_ray.runs", "cifar_ray.failed_without_run"
"""Tags of a sweep: how many runs it is to have, and how many of them have failed before MLflow had them."""

CELLS_FILE, CONFIG_FILE = "cells.json", "sweep.yaml"
OPEN = "OPEN"
"""State of a cell whose values are still to be proposed."""

PARENT_TAG = "mlflow.parentRunId"
_REPORT = "report"


@dataclass(frozen=True)
class KnownSweep:
    """A sweep found in the tracking store.

    Attributes:
        run_id: MLflow's id of its own run.
        folder: address of its folder, with its config and the runs' folders.
        wall_s: seconds that its earlier drivers have worked on it.
        placed_s: seconds of them in which runs were on their nodes.
    """

    run_id: str
    folder: str
    wall_s: float
    placed_s: float = 0.0


class SweepRecord(Record):
    """Writes one driver's record of a sweep; ``experiment_id`` is the experiment's that has all of its runs."""

    def __init__(self, client: MlflowClient, run: Run, session: str) -> None:
        super().__init__(client, run, session)
        self.experiment_id = run.info.experiment_id
        self._steps = int(run.data.metrics.get("sweep/updates", 0))

    @classmethod
    def create(cls, client: MlflowClient, sweep: SweepConfig, folder: str, command: str) -> SweepRecord:
        """Create the MLflow run of a new sweep.

        Raises:
            ConfigError: when the store refuses it.
        """
        from cifar_ray.tracking.origin import origin_tags  # loads torch, which readers of sweeps do without

        session = uuid.uuid4().hex
        tags = {
            KIND_TAG: KIND,
            store.SWEEP_TAG: sweep.name,
            store.FOLDER_TAG: folder,
            store.SESSION_TAG: session,
            "cifar_ray.hold": sweep.held,
            "cifar_ray.axes": ",".join(sweep.axes),
            "cifar_ray.command": command,
            "mlflow.source.type": "LOCAL",
            "mlflow.source.name": "cifar-ray sweep",
            store.NOTE_TAG: f"Sweep over {', '.join(sweep.axes)}\n\n    {command}".rstrip(),  # none from Python
            **origin_tags(),
        }
        with store.refusing(client.tracking_uri):
            experiment = store.experiment_id(client, experiment_name(sweep))
            run = client.create_run(experiment, tags=tags, run_name=sweep.name)
        record = cls(client, run, session)
        record.text(CONFIG_FILE, sweeps.to_yaml(sweep))
        return record

    @classmethod
    def reopen(cls, client: MlflowClient, known: KnownSweep) -> SweepRecord:
        """Continue the record of an earlier driver; the sweep is RUNNING again.

        Raises:
            ConfigError: when the store refuses it.
        """
        return store.take_over(client, known.run_id, partial(cls, client))

    @property
    def child_tags(self) -> dict[str, str]:
        """Tags that make a run a child of this sweep."""
        return {PARENT_TAG: self.run_id}

    def cells(self, cells: Sequence[Mapping[str, Any]]) -> None:
        """Record what a report needs of all cells, in the grid's order."""
        needed = [
            {key: cell[key] for key in ("name", "params", "state", "reason", "repeats") if key in cell}
            for cell in cells
            if cell["state"] != OPEN
        ]
        self._sink.call(lambda client, run_id: client.log_dict(run_id, {"cells": needed}, CELLS_FILE))
        planned = [cell for cell in cells if cell["state"] != "SKIPPED"]
        failed = sum(bool(cell["reason"]) for cell in planned)
        self._sink.tags({PLANNED_TAG: str(len(planned)), WITHOUT_RUN_TAG: str(failed)})

    def figures(self, metrics: Mapping[str, float]) -> None:
        """Record the sweep's metrics so far."""
        self._steps += 1
        values = {**metrics, "sweep/updates": float(self._steps)}
        self._sink.metrics(self._steps, time.time_ns() // 1_000_000, values)


def experiment_name(sweep: SweepConfig) -> str:
    """The experiment of a sweep and its runs."""
    default = sweep.train.get("dataset", TrainConfig.dataset)
    named = [axes.get("dataset", default) for axes in sweep.grid or ({},)]
    datasets = {dataset for names in named for dataset in ([names] if isinstance(names, str) else names)}
    return store.experiment_name(datasets)


def attach(uri: str, run_id: str, page: Path, tables: Sequence[Path], summary: Sequence[str]) -> str:
    """Log a report's files as artifacts of the sweep's run, in place of an earlier report's, and describe the run.

    ``page`` is the report with its charts, ``summary`` what it says first, as paragraphs in Markdown.

    Returns:
        Why the store does not take them: a report may be of somebody else's sweep; empty when it does.
    """
    client = MlflowClient(tracking_uri=uri)
    try:
        for file in (page, *tables):
            client.log_artifact(run_id, str(file), _REPORT)
        experiment = client.get_run(run_id).info.experiment_id
        address = f"#/experiments/{experiment}/runs/{run_id}/artifacts/{_REPORT}/{page.name}?{pages.TRAINING}"
        store.describe(client, run_id, [f"[The report]({address}), with charts and tables", *summary])
    except Exception as error:  # also those of object stores
        return store.reason(error)
    return ""


def find(client: MlflowClient, name: str) -> KnownSweep | None:
    """Find the newest sweep of that name, or the one with that MLflow id.

    Raises:
        ConfigError: when the store does not answer.
    """
    with store.refusing(client.tracking_uri):
        for key in (f"tags.`{store.SWEEP_TAG}`", "attributes.run_id"):
            condition = f"tags.`{KIND_TAG}` = '{KIND}' and {key} = '{store.escaped(name)}'"
            if runs := store.search(client, store.all_experiments(client), condition):
                folder, metrics = runs[0].data.tags.get(store.FOLDER_TAG, ""), runs[0].data.metrics
                seconds = (metrics.get(f"sweep/{name}_s", 0.0) for name in ("wall", "placed"))
                return KnownSweep(runs[0].info.run_id, folder, *seconds)
    return None


@dataclass(frozen=True)
class KnownTrial:
    """A run of a sweep, found in the tracking store.

    Attributes:
        run_id: its id.
        status: FINISHED, FAILED, KILLED or RUNNING.
        stopped: whether the sweep's scheduler has stopped it, or a limit of its own.
        times: seconds by phase, ``time/PHASE_s``, and the throughput, as far as they are recorded.
        score: the task's primary figure on the test, of the chosen checkpoint or after the last epoch recorded.
        reason: why it has failed or was stopped; empty otherwise.
        figures: the latest value of each of its metrics.
        left: whether a limit of the sweep has stopped it, so that it goes on when the sweep does.
        name: its name.
        steps: of its last checkpoint, once it has a result.
    """

    run_id: str
    status: str
    stopped: bool
    times: Mapping[str, float]
    score: float | None = None
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    left: bool = False
    name: str = ""
    steps: int = 0


def children(client: MlflowClient, parent: Run) -> list[Run]:
    """The runs of a sweep, oldest first, by the sweep's own run.

    Raises:
        MlflowException: when the store does not answer.
    """
    of_sweep = f"tags.`{PARENT_TAG}` = '{parent.info.run_id}'"
    return store.search(client, [parent.info.experiment_id], of_sweep)[::-1]


def trials(client: MlflowClient, sweep: KnownSweep) -> dict[str, KnownTrial]:
    """Key of every run of the sweep -> what is known of it.

    Raises:
        ConfigError: when the store does not answer.
    """
    with store.refusing(client.tracking_uri):
        runs = children(client, client.get_run(sweep.run_id))
    return {run.data.tags[store.KEY_TAG]: _known(run) for run in runs}


def _known(run: Run) -> KnownTrial:
    task, metrics = task_of(run.data.tags), run.data.metrics
    stopped_by = run.data.tags.get(STOPPED_BY_TAG, "")
    left = limits.is_of_sweep(stopped_by)
    return KnownTrial(
        run.info.run_id,
        run.info.status,
        STOPPED_TAG in run.data.tags or (limits.is_halted(stopped_by) and not left),
        {name: value for name, value in metrics.items() if name.startswith(("time/", task.throughput))},
        metrics.get(task.primary.result(metrics)),
        run.data.tags.get(store.FAILURE_TAG, limits.named(stopped_by) if limits.is_halted(stopped_by) else ""),
        metrics,
        left,
        run.info.run_name,
        max(step_of(run.data.tags.get("cifar_ray.checkpoint", "").rpartition("/")[2]), 0),
    )


def connect(name: str, tracking_uri: str | None) -> tuple[MlflowClient, KnownSweep]:
    """Open a sweep by its name; also return the client of its store.

    Raises:
        ConfigError: when there is none, or the store does not answer.
    """
    uri = store.resolve_uri(tracking_uri)
    client = store.connect(uri) if store.exists(uri) else None
    if client is None or (known := find(client, name)) is None:
        raise no_such_sweep(uri, name)
    return client, known
