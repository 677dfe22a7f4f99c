"""Record a Ray Train job of the user's own in MLflow: one run, however often its driver starts again."""

from __future__ import annotations

import dataclasses
import math
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.tracking.context import registry

from cifar_ray.config import schema
from cifar_ray.tracking import artifacts, pages, store
from cifar_ray.tracking.guard import Guard
from cifar_ray.tracking.sink import Sink

JOB_TAG = "cifar_ray.job"
"""Tag with the job's name: by it a later driver finds the run."""

_PATIENCE_S = 30.0
_PARAMS_AT_ONCE, _LONGEST_PARAM = 100, 6000  # MLflow's limits
_NO_KEY = re.compile(r"[^\w\-. /:]")  # what MLflow's names may not have


class JobRecord:
    """Writes one driver's record of a job. Only opening and ending it wait or raise.

    Attributes:
        run_id: MLflow's id of the run.
        page: address of the run's page, when the store is a server that has pages.
        is_continued: whether an earlier driver has begun the run.
    """

    def __init__(self, client: MlflowClient, run: Run, session: str, is_continued: bool) -> None:
        self.run_id = run.info.run_id
        self.page = pages.run(client.tracking_uri, run)
        self.is_continued = is_continued
        self._guard = Guard(client.tracking_uri, self.run_id, session)
        self._sink = Sink(client, self.run_id)
        self._checkpoints = artifacts.CheckpointList()

    @classmethod
    def open(cls, uri: str, experiment: str, name: str, params: Any) -> JobRecord:
        """Continue the newest run of the job ``name`` if it is not FINISHED, else begin one.

        Args:
            uri: the tracking store.
            experiment: receives a new run.
            name: of the job, and of a new run.
            params: a mapping or a dataclass, nested or not; those that the run has already stay as they are.

        Raises:
            ConfigError: when the store does not answer.
        """
        session = uuid.uuid4().hex
        client = store.connect(uri)
        with store.refusing(uri):
            home = store.experiment_id(client, experiment)
            quoted = name.replace("'", "")
            found = store.search(client, [home], f"tags.`{JOB_TAG}` = '{quoted}'")
            known = found[0] if found and found[0].info.status != "FINISHED" else None
            if known is None:
                tags = {**registry.resolve_tags(), JOB_TAG: quoted, store.SESSION_TAG: session}
                run = client.create_run(home, tags=tags, run_name=name)
            else:
                run = known
                store.take_over(client, run.info.run_id, session)
        record = cls(client, run, session, known is not None)
        flat = list(flattened(params).items())
        for start in range(0, len(flat), _PARAMS_AT_ONCE):
            record._sink.params(dict(flat[start : start + _PARAMS_AT_ONCE]))
        return record

    def report(self, step: int, timestamp_ms: int, metrics: Mapping[str, Any]) -> None:
        """Record the finite numbers among ``metrics``; a step that the run has already is left as it is."""
        numbers = {name: value for name, value in schema.flatten(metrics).items() if _is_number(value)}
        self._sink.metrics(step, timestamp_ms, {_NO_KEY.sub("_", name): float(of) for name, of in numbers.items()})

    def checkpoint(self, step: int, address: str) -> None:
        """Record a reference to a checkpoint."""
        self._checkpoints.add({"step": step, "path": address})
        self._sink.call(self._checkpoints.write)
        self._sink.tags({"cifar_ray.checkpoint": address})

    def failed(self, reason: str) -> None:
        """Record the reason of a failure."""
        self._sink.tags({store.FAILURE_TAG: reason})

    def end(self, status: str) -> bool:
        """Write everything that waits, then end the run as FINISHED, FAILED or KILLED.

        Returns:
            Whether that was done. If not, the store did not answer; the guard goes on trying for some minutes.
        """
        if status == "FINISHED":
            self._sink.call(store.forget_failure)
        return self._guard.conclude(self._sink.close(status, _PATIENCE_S, time.time()), status)


def flattened(params: Any) -> dict[str, str]:
    """Nested mappings and dataclasses as MLflow's parameters, their names joined by dots."""
    flat = schema.flatten(_plain(params))
    return {_NO_KEY.sub("_", name): str(value)[:_LONGEST_PARAM] for name, value in flat.items()}


def _plain(values: Any) -> Any:
    """Mappings with names that are text, and mappings in place of dataclasses."""
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        values = dataclasses.asdict(values)
    if isinstance(values, Mapping):
        return {str(name): _plain(value) for name, value in values.items()}
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
