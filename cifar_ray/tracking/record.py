"""What the records of a run, a sweep and a job share: a sink that writes, and a guard that ends the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from cifar_ray.tracking import pages, store
from cifar_ray.tracking.guard import Guard
from cifar_ray.tracking.sink import Sink

_PATIENCE_S = 30.0
_CHECKPOINTS = "checkpoints.json"


class Record:
    """Writes one driver's record of an MLflow run. Only creating and ending it wait or raise.

    Attributes:
        run_id: MLflow's id of the run.
        uri: the tracking store.
        page: address of the run's page, when the store is a server that has pages.
    """

    def __init__(self, client: MlflowClient, run: Run, session: str) -> None:
        self.run_id = run.info.run_id
        self.uri = client.tracking_uri
        self.page = pages.run(self.uri, run)
        self._guard = Guard(self.uri, self.run_id, session)
        self._sink = Sink(client, self.run_id)
        self._listed: dict[int, Mapping[str, Any]] = {}
        self._unlisted: list[Mapping[str, Any]] = []

    @property
    def trouble(self) -> str:
        """Why MLflow cannot be written to now; empty when it can."""
        return self._sink.trouble

    @property
    def refused(self) -> Sequence[str]:
        """The reasons of writes that MLflow refused."""
        return self._sink.refused

    def tags(self, values: Mapping[str, str]) -> None:
        self._sink.tags(values)

    def text(self, name: str, text: str) -> None:
        """Log a text as an artifact."""
        self._sink.call(lambda client, run_id: client.log_text(run_id, text, name))

    def failed(self, reason: str) -> None:
        self.tags({store.FAILURE_TAG: reason})

    def list_checkpoint(self, entry: Mapping[str, Any]) -> None:
        """Add a checkpoint to ``checkpoints.json``; it replaces an earlier one of the same ``step``."""
        self._unlisted.append(entry)
        self._sink.call(self._write_checkpoints)

    def _write_checkpoints(self, client: MlflowClient, run_id: str) -> None:
        """Write what waits at once: checkpoints may come faster than a store takes a file."""
        fresh, entries = list(self._unlisted), dict(self._listed)
        if not fresh:
            return
        if not entries and (earlier := store.read_json(client, run_id, _CHECKPOINTS)):  # of earlier processes
            entries = {entry["step"]: entry for entry in earlier["checkpoints"]}
        entries |= {entry["step"]: entry for entry in fresh}
        client.log_dict(run_id, {"checkpoints": [entries[step] for step in sorted(entries)]}, _CHECKPOINTS)
        del self._unlisted[: len(fresh)]
        self._listed = entries

    def end(self, status: str, ended: float | None = None) -> bool:
        """Write everything that waits, then end the run as FINISHED, FAILED or KILLED.

        Args:
            status: of the run.
            ended: ``time.time()`` at which it ended; when this is written, if None.

        Returns:
            Whether that was done. If not, the store did not answer; the guard goes on trying to end the run
            for some minutes, and never as FINISHED, since its record is not complete.
        """
        if status == "FINISHED":
            self._sink.call(partial(store.forget, tag=store.FAILURE_TAG))
        return self._guard.conclude(self._sink.close(status, _PATIENCE_S, ended), status)
