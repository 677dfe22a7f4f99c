"""What the records of a run, a sweep and a job share: a sink that writes, and a guard that ends the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from cifar_ray.tracking import pages, store
from cifar_ray.tracking.guard import Guard
from cifar_ray.tracking.sink import CLOCK, Sink
from cifar_ray.tracking.study import FAILURE_TAG
from cifar_ray.training.observer import Row

_PATIENCE_S = 30.0


class Record(Sink):
    """Writes one driver's record of an MLflow run. Only its end waits, and its beginning if it ``waits``.

    Attributes:
        uri: the tracking store.
    """

    def __init__(
        self, client: MlflowClient, session: str, begin: Callable[[MlflowClient], Run], waits: bool = True
    ) -> None:
        """Make a run with the tag of this session, or take it over, by ``begin``.

        Raises:
            ConfigError: when it ``waits``, and the store refuses it.
        """
        self.uri = client.tracking_uri
        self._checkpoints: dict[int, Mapping[str, Any]] = {}
        self._listed: dict[int, Mapping[str, Any]] = {}
        self._guard = Guard(self.uri, session)  # first, so that no run stays RUNNING whatever happens from now on
        try:
            with store.refusing(self.uri):
                super().__init__(client, begin, waits)
        except BaseException:
            self._guard.conclude(True, "")
            raise

    @property
    def page(self) -> str | None:
        """Address of the run's page, when the store is a server that has pages, and has the run."""
        return pages.run(self.uri, self.run) if self.run else None

    def text(self, name: str, text: str) -> None:
        """Log a text as an artifact."""
        self.call(lambda client, run_id: client.log_text(run_id, text, name))

    def json(self, name: str, value: Any) -> None:
        """Log plain values as an artifact."""
        self.call(lambda client, run_id: client.log_dict(run_id, value, name))

    def figures(self, metrics: Mapping[str, float]) -> None:
        """Record metrics as they are now."""
        self.write_row(Row.now(CLOCK, 0, metrics))

    def failed(self, reason: str) -> None:
        self.tags({FAILURE_TAG: reason})

    def list_checkpoint(self, entry: Mapping[str, Any]) -> None:
        """Add a checkpoint to ``checkpoints.json``, the list of those that this driver knows, by their ``step``."""
        self._checkpoints[entry["step"]] = entry
        self.call(self._write_checkpoints)

    def _write_checkpoints(self, client: MlflowClient, run_id: str) -> None:
        """Write what waits at once: checkpoints may come faster than a store takes a file."""
        entries = dict(self._checkpoints)
        if entries != self._listed:
            listed = {"checkpoints": [entries[step] for step in sorted(entries)]}
            client.log_dict(run_id, listed, "checkpoints.json")
            self._listed = entries

    def end(self, status: str, ended: float | None = None) -> bool:
        """Write everything that waits, then end the run as FINISHED, FAILED or KILLED, at ``ended`` or now.

        Returns:
            Whether that was done. If not, the store did not answer; the guard goes on trying for some minutes, and
            never with FINISHED, since the record is not complete.
        """
        if status == "FINISHED":
            self.forget(FAILURE_TAG)
        return self._guard.conclude(self.close(status, _PATIENCE_S, ended), status)
