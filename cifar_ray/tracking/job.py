"""Record a Ray Train job of the user's own in MLflow: one run, however often its driver starts again."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
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
from cifar_ray.training.observer import Row

JOB_TAG = "cifar_ray.job"
"""Tag with the job's name: by it a later driver finds the run."""

FOLDER_TAG = "cifar_ray.job_folder"
"""Tag with the folder in which Ray Train keeps the job's checkpoints and their figures."""

_REPORT = "report"
_LONGEST = 6000  # characters that MLflow keeps of a parameter
_NO_KEY = re.compile(r"[^\w\-. /:]")  # what MLflow's names may not have


class JobRecord(Record):
    """Writes one driver's record of a job.

    Attributes:
        folder: in which Ray Train keeps the job, as an earlier driver has known it; empty of a new run.
        newest: the highest step that earlier drivers have sent.
    """

    def __init__(self, client: MlflowClient, session: str, begin: Callable[[MlflowClient], Run]) -> None:
        super().__init__(client, session, begin)
        assert self.run is not None
        self.folder = self.run.data.tags.get(FOLDER_TAG, "")
        self.newest = self.sent.get(_REPORT, 0)
        self._until_end = ExitStack()

    @classmethod
    def open(cls, uri: str, experiment: str, name: str, params: Mapping[str, Any]) -> JobRecord:
        """Continue the newest run of the job ``name`` if it is not FINISHED and has these parameters, else begin one.

        Args:
            uri: the tracking store.
            experiment: receives a new run.
            name: of the job, and of a new run.
            params: its configuration; names of nested mappings are joined by dots.

        Raises:
            ConfigError: when the store does not answer, or the parameters are no mapping.
        """
        if not isinstance(params, Mapping):
            rule = "must be a mapping, such as vars(args) or dataclasses.asdict(config)"
            raise ConfigError("params", f"{rule}, got {errors.brief(params)}")
        flat = {_NO_KEY.sub("_", key): str(value)[:_LONGEST] for key, value in schema.flatten(params).items()}
        quoted, session = store.escaped(name), uuid.uuid4().hex

        def begin(client: MlflowClient) -> Run:
            home = store.experiment_id(client, experiment)
            runs = store.search(client, [home], f"tags.`{JOB_TAG}` = '{quoted}'")
            # as far as the run has recorded its parameters
            if runs and runs[0].info.status != "FINISHED" and runs[0].data.params.items() <= flat.items():
                return store.take_over(client, runs[0], session)
            tags = {**registry.resolve_tags(), JOB_TAG: quoted, store.SESSION_TAG: session}
            return client.create_run(home, tags=tags, run_name=name)

        with ExitStack() as stack:
            stack.enter_context(tracking.settings())  # so that an absent store does not make the end of the job wait
            record = cls(store.connect(uri), session, begin)
            record._until_end = stack.pop_all()
        record.params(flat)
        return record

    def report(self, step: int, timestamp_ms: int, metrics: Mapping[str, Any]) -> None:
        """Record the finite numbers among ``metrics``; a step that the run has already is left as it is."""
        flat = schema.flatten(metrics).items()
        numbers = {_NO_KEY.sub("_", name): value for name, value in flat if isinstance(value, int | float)}
        self.write_row(Row(_REPORT, step, timestamp_ms, finite(numbers)))

    def checkpoint(self, step: int, address: str) -> None:
        """Record a reference to a checkpoint."""
        self.list_checkpoint({"step": step, "path": address})
        self.tags({"cifar_ray.checkpoint": address})

    def kept_in(self, folder: str) -> None:
        """Record where Ray Train keeps the job."""
        self.folder = folder
        self.tags({FOLDER_TAG: folder})

    def end(self, status: str, patience_s: float = 30.0) -> bool:
        """End the run now, as :meth:`Record.end`; MLflow's settings are the user's again."""
        self.ended = time.time()
        with self._until_end:
            return super().end(status, patience_s)
