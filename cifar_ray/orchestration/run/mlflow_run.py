"""MLflow for any Ray Train job: a context manager around ``TorchTrainer(...).fit()`` in a script of the user's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.train import Checkpoint, Result, RunConfig, UserCallback

from cifar_ray.orchestration.run.events import Mailbox, open_mailbox
from cifar_ray.tracking.job import JobRecord
from cifar_ray.tracking.uri import resolve_uri

_POLL_S, _LAST_POLL_S = 0.5, 10.0


@dataclass(frozen=True)
class _Reported:
    """What all workers have reported together: rank 0's metrics, and where their checkpoint and the job's folder are.

    The folder is empty where it is not on the controller's machine.
    """

    timestamp_ms: int
    metrics: Mapping[str, Any]
    checkpoint: str
    folder: str


class MLflowRun:
    """One MLflow run for one Ray Train job, however often its workers or its driver start again.

    ::

        with MLflowRun("fashion", params=config) as run:
            TorchTrainer(loop, ..., run_config=RunConfig(name="fashion", callbacks=[run.callback])).fit()

    What rank 0 gives to ``ray.train.report`` becomes metrics, once for each step, and the checkpoints become
    ``checkpoints.json`` with their addresses. The run ends FINISHED, FAILED with the reason, or, after Ctrl-C or when
    this process is killed, KILLED. The next ``with`` of that name and these parameters continues a run that is not
    FINISHED; give ``RunConfig`` that name, too, or Ray starts from the beginning. Call ``ray.init`` before the
    ``with``, if at all. Training does not wait for the store: what it does not take is tried again until the job ends.

    Attributes:
        run_id: MLflow's id of the run.
        page: address of the run's page, when the store is a server that has pages.
        callback: for ``RunConfig(callbacks=[...])``.
        trouble: why something could not be recorded; empty when all was.
    """

    def __init__(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        experiment: str = "ray_train",
        tracking_uri: str | None = None,
        step: str = "epoch",
    ) -> None:
        """Describe the run; nothing is recorded yet.

        Args:
            name: of the job; the same name continues it.
            params: its configuration, nested or not, such as ``vars(args)`` or ``dataclasses.asdict(config)``.
            experiment: MLflow experiment.
            tracking_uri: the store; ``MLFLOW_TRACKING_URI``, else ``~/.cifar_ray/mlflow.db``.
            step: the reported metric that counts the steps. Reports without it are counted by themselves, from 1.
        """
        self._name, self._params, self._experiment = name, {} if params is None else params, experiment
        self._uri = resolve_uri(tracking_uri)
        self._step = step
        self.trouble = ""

    def __enter__(self) -> MLflowRun:
        """Start Ray, unless the script has, and open the run.

        Raises:
            ConfigError: when the store does not answer.
        """
        if not ray.is_initialized():
            ray.init()
        self._mailbox = open_mailbox()
        self._record = JobRecord.open(self._uri, self._experiment, self._name, self._params)
        self.run_id, self.page, self.trouble = self._record.run_id, self._record.page, ""
        self._count = self._record.newest
        self._recover()
        self.callback = _Poster(self._mailbox)
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True, name="mlflow-run")
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run with its true status."""
        self._over.set()
        self._reader.join()
        status = "FINISHED"
        if error is not None:
            status = "FAILED" if isinstance(error, Exception) else "KILLED"
            reason = _sentence(error) if status == "FAILED" else "stopped by Ctrl-C, a signal or sys.exit"
            self._record.failed(reason)
        if not self._record.end(status):
            self.trouble = self.trouble or "the store did not answer; a process of its own goes on trying"
        self.trouble = self.trouble or "; ".join(dict.fromkeys(self._record.refused))

    def _read(self) -> None:
        """Record what arrives, and at the end what has arrived by then."""
        while True:
            last = self._over.wait(_POLL_S)
            try:
                while events := self._mailbox.take(_LAST_POLL_S if last else _POLL_S):
                    for event in events:
                        self._handle(event)
            except Exception as error:  # the script has ended Ray
                self.trouble = _sentence(error)
            if last:
                self._recover()  # what was posted last may not have been sent
                return

    def _handle(self, event: _Reported | str) -> None:
        try:
            if isinstance(event, str):  # why workers have failed
                self._record.failed(event)
                return
            if event.folder != self._record.folder:
                self._record.kept_in(event.folder)
            self._count += 1
            self._report(event.metrics, event.timestamp_ms, event.checkpoint, self._count)
        except Exception as error:  # whatever it is, it is not the training's
            self.trouble = _sentence(error)

    def _recover(self) -> None:
        """Record what Ray Train has kept with the job's checkpoints and the store lacks.

        Ray keeps a checkpoint before it tells the callbacks, and a driver that is killed takes with it what it has not
        written yet. The next one goes on after the newest checkpoint.
        """
        with suppress(Exception):  # the folder is not on this machine, or has no checkpoint yet
            for checkpoint, metrics in Result.from_path(self._record.folder).best_checkpoints:
                address = _address(checkpoint)
                self._report(metrics, _time_ms(address), address)

    def _report(self, metrics: Mapping[str, Any], timestamp_ms: int, checkpoint: str, count: int | None = None) -> None:
        """Record one report under the step that it names, or else under ``count``, if there is one."""
        counted = metrics.get(self._step)
        step = int(counted) if isinstance(counted, int | float) and float(counted).is_integer() else count
        if step is not None:
            self._record.report(step, timestamp_ms, metrics)
            if checkpoint:
                self._record.checkpoint(step, checkpoint)


class _Poster(UserCallback):
    """Posts what Ray Train's controller hears to the driver; it never waits, and nothing that it does ends training."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None) -> None:
        with suppress(Exception):  # it would end the job
            address = "" if checkpoint is None else _address(checkpoint)
            figures = {name: _number(value) for name, value in metrics[0].items()}
            self._mailbox.post(_Reported(_time_ms(address), figures, address, _folder(run_context.run_config)))

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        with suppress(Exception):
            reasons = [f"rank {rank}: {_sentence(error)}" for rank, error in sorted(worker_exceptions.items())]
            self._mailbox.post("; ".join(reasons))


def _time_ms(address: str) -> int:
    """When a checkpoint was made, so that one recorded later keeps its place; now where that cannot be read."""
    folder = Path(address)
    return round(1000 * (folder.stat().st_mtime if address and folder.is_dir() else time.time()))


def _folder(config: RunConfig) -> str:
    """The folder of a job; empty where its storage is no folder of this machine."""
    folder = Path(str(config.storage_path)).expanduser() / str(config.name)
    return str(folder) if folder.is_dir() else ""


def _number(value: Any) -> Any:
    """A number of NumPy's or torch's as Python's; everything else as it is, if it can be sent."""
    if isinstance(value, Mapping):
        return {name: _number(inner) for name, inner in value.items()}
    try:
        return value.item()
    except (AttributeError, RuntimeError, ValueError):
        return value if isinstance(value, bool | int | float | str) else str(value)


def _address(checkpoint: Checkpoint) -> str:
    kind = checkpoint.filesystem.type_name
    return checkpoint.path if kind == "local" else f"{kind}://{checkpoint.path}"


def _sentence(error: BaseException) -> str:
    """The type of an error and the last line of its text, which is the cause of one that Ray has wrapped."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
