"""A sweep's own run in MLflow: the parent of its trials."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from cifar_ray.config import sweep as sweeps
from cifar_ray.config.sweep import Range, SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.tracking import pages, store
from cifar_ray.tracking.record import Record
from cifar_ray.tracking.study import FOLDER_TAG, PLANNED_TAG, SWEEP_TAG, WITHOUT_RUN_TAG, Sweep

KIND_TAG, KIND = "cifar_ray.kind", "sweep"
PARENT_TAG = "mlflow.parentRunId"
SEARCH_TAG = "cifar_ray.search"  # of a sweep that searches: how, as JSON
CELLS_FILE = "cells.json"
OPEN = "OPEN"  # state of a cell whose values are still to be proposed

_REPORT = "report"


class SweepRecord(Record):
    """Writes one driver's record of a sweep. Where the store refuses to begin it, that is a ConfigError."""

    @classmethod
    def create(cls, client: MlflowClient, sweep: SweepConfig, folder: str, command: str) -> SweepRecord:
        """Create the MLflow run of a new sweep."""
        from cifar_ray.tracking.origin import origin_tags  # loads torch, which readers of sweeps do without

        session = uuid.uuid4().hex
        tags = {
            KIND_TAG: KIND,
            SWEEP_TAG: sweep.name,
            FOLDER_TAG: folder,
            store.SESSION_TAG: session,
            "cifar_ray.hold": sweep.held,
            "cifar_ray.axes": ",".join(sweep.axes),
            "cifar_ray.command": command,
            **({SEARCH_TAG: json.dumps(_search(sweep))} if sweep.is_search else {}),
            "mlflow.source.name": "cifar-ray sweep",
            store.NOTE_TAG: f"Sweep over {', '.join(sweep.axes)}\n\n    {command}".rstrip(),  # none from Python
            **origin_tags(),
        }

        def begin(client: MlflowClient) -> Run:
            experiment = store.experiment_id(client, experiment_name(sweep))
            return client.create_run(experiment, tags=tags, run_name=sweep.name)

        record = cls(client, session, begin)
        record.text("sweep.yaml", sweeps.to_yaml(sweep))
        return record

    @classmethod
    def reopen(cls, client: MlflowClient, sweep: Sweep) -> SweepRecord:
        """Continue the record of an earlier driver; the sweep is RUNNING again."""
        session = uuid.uuid4().hex
        return cls(client, session, lambda client: store.take_over(client, client.get_run(sweep.run_id), session))

    @property
    def experiment_id(self) -> str:
        """Id of the experiment that has all of its runs."""
        assert self.run is not None
        return str(self.run.info.experiment_id)

    def cells(self, cells: Sequence[Mapping[str, Any]]) -> None:
        """Record what a report needs of all cells, in the grid's order."""
        needed = [
            {key: cell[key] for key in ("name", "params", "state", "reason", "repeats") if key in cell}
            for cell in cells
            if cell["state"] != OPEN
        ]
        self.json(CELLS_FILE, {"cells": needed})
        planned = [cell for cell in cells if cell["state"] != "SKIPPED"]
        failed = sum(bool(cell["reason"]) for cell in planned)
        self.tags({PLANNED_TAG: str(len(planned)), WITHOUT_RUN_TAG: str(failed)})


def _search(sweep: SweepConfig) -> dict[str, Any]:
    """How a sweep searches, by the fields of :class:`Sweep`."""
    drawn = {field: of.kind for grid in sweep.grid for field, of in grid.items() if isinstance(of, Range)}
    # Of a sweep that holds the global batch, an axis of batches has that name.
    ranges = {field if field in sweep.axes else "global_batch_size": kind for field, kind in drawn.items()}
    return {"search": sweep.search, "scheduler": sweep.scheduler, "objective": sweep.objective, "ranges": ranges}


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
