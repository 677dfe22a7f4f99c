"""What the records of a run, a sweep and a job share: a sink that writes, and a guard that ends the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlflow import MlflowClient
from mlflow.entities import Run

from cifar_ray.tracking import pages, store
from cifar_ray.tracking.guard import Guard
from cifar_ray.tracking.sink import Sink

_PATIENCE_S = 30.0


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

    @property
    def trouble(self) -> str:
        """Why MLflow cannot be written to now; empty when it can."""
        return self._sink.trouble

    @property
    def refused(self) -> Sequence[str]:
        """The reasons of writes that MLflow refused."""
        return self._sink.refused

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags."""
        self._sink.tags(values)

    def failed(self, reason: str) -> None:
        """Record the reason of a failure."""
        self.tags({store.FAILURE_TAG: reason})

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
            self._sink.call(store.forget_failure)
        return self._guard.conclude(self._sink.close(status, _PATIENCE_S, ended), status)
