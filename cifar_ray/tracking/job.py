"""Record a Ray Train job of the user's own in MLflow: one run, however often its driver starts again."""

from __future__ import annotations

import argparse
import dataclasses
import re
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.tracking.context import registry

from cifar_ray import tracking
from cifar_ray.config import errors, schema
from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking import store
from cifar_ray.tracking.record import Record
from cifar_ray.tracking.run import finite

JOB_TAG = "cifar_ray.job"
"""Tag with the job's name: by it a later driver finds the run."""

FOLDER_TAG = "cifar_ray.job_folder"
"""Tag with the folder in which Ray Train keeps the job's checkpoints and their figures."""

_LONGEST_PARAM = 6000  # MLflow's limit
_NO_KEY = re.compile(r"[^\w\-. /:]")  # what MLflow's names may not have


class JobRecord(Record):
    """Writes one driver's record of a job.

    Attributes:
        is_continued: whether an earlier driver has begun the run.
        folder: in which Ray Train keeps the job, as an earlier driver has known it; empty of a new run.
        newest: the highest step that the run has.
    """

    def __init__(self, client: MlflowClient, run: Run, session: str, is_continued: bool) -> None:
        super().__init__(client, run, session)
        self.is_continued = is_continued
        self.folder = run.data.tags.get(FOLDER_TAG, "")
        histories = [client.get_metric_history(run.info.run_id, name) for name in run.data.metrics]
        self.newest = max((point.step for history in histories for point in history), default=0)
        self._until_end = ExitStack()

    @classmethod
    def open(cls, uri: str, experiment: str, name: str, params: Any) -> JobRecord:
        """Continue the newest run of the job ``name`` if it is not FINISHED and has these parameters, else begin one.

        Args:
            uri: the tracking store.
            experiment: receives a new run.
            name: of the job, and of a new run.
            params: a mapping, a dataclass or argparse's Namespace, nested or not.

        Raises:
            ConfigError: when the store does not answer, or the parameters are something else.
        """
        flat = flattened(params)
        quoted = store.escaped(name)
        with ExitStack() as stack:
            stack.enter_context(tracking.settings())  # so that an absent store does not make the end of the job wait
            client = store.connect(uri)
            with store.refusing(uri):
                home = store.experiment_id(client, experiment)
                runs = client.search_runs(
                    [home], f"tags.`{JOB_TAG}` = '{quoted}'", order_by=["attributes.start_time DESC"], max_results=1
                )
                is_continued = bool(runs) and _is_same(runs[0], flat)
                if is_continued:
                    record = store.take_over(client, runs[0].info.run_id, partial(cls, client, is_continued=True))
                else:
                    session = uuid.uuid4().hex
                    tags = {**registry.resolve_tags(), JOB_TAG: quoted, store.SESSION_TAG: session}
                    run = client.create_run(home, tags=tags, run_name=name)
                    record = cls(client, run, session, is_continued=False)
            record._until_end = stack.pop_all()
        record._sink.params(flat)
        return record

    def report(self, step: int, timestamp_ms: int, metrics: Mapping[str, Any]) -> None:
        """Record the finite numbers among ``metrics``; a step that the run has already is left as it is."""
        flat = schema.flatten(metrics).items()
        numbers = {_NO_KEY.sub("_", name): value for name, value in flat if isinstance(value, int | float)}
        self._sink.metrics(step, timestamp_ms, finite(numbers))

    def checkpoint(self, step: int, address: str) -> None:
        """Record a reference to a checkpoint."""
        self.list_checkpoint({"step": step, "path": address})
        self._sink.tags({"cifar_ray.checkpoint": address})

    def kept_in(self, folder: str) -> None:
        """Record where Ray Train keeps the job."""
        self.folder = folder
        self.tags({FOLDER_TAG: folder})

    def end(self, status: str, ended: float | None = None) -> bool:
        """End the run as :meth:`Record.end`; MLflow's settings are the user's again."""
        with self._until_end:
            return super().end(status, ended or time.time())


def flattened(params: Any) -> dict[str, str]:
    """Nested mappings and dataclasses as MLflow's parameters, their names joined by dots.

    Raises:
        ConfigError: when it is neither, nor argparse's Namespace.
    """
    values = _plain(vars(params) if isinstance(params, argparse.Namespace) else params)
    if not isinstance(values, Mapping):
        raise ConfigError(
            "params", f"must be a mapping, a dataclass or an argparse.Namespace, got {errors.brief(params)}"
        )
    flat = schema.flatten(values)
    return {_NO_KEY.sub("_", name): str(value)[:_LONGEST_PARAM] for name, value in flat.items()}


def _is_same(run: Run, params: Mapping[str, str]) -> bool:
    """Whether a run is not finished, and of the same configuration as far as it has recorded one."""
    recorded = run.data.params
    return run.info.status != "FINISHED" and all(params.get(name) == recorded[name] for name in recorded)


def _plain(values: Any) -> Any:
    """Mappings with names that are text, and mappings in place of dataclasses."""
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        values = dataclasses.asdict(values)
    if isinstance(values, Mapping):
        return {str(name): _plain(value) for name, value in values.items()}
    return values
