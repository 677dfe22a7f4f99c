"""MLflow for any Ray Train job: a context manager around ``TorchTrainer(...).fit()`` in a script of the user's own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.train import Checkpoint, Result, RunConfig, UserCallback

from cifar_ray.orchestration.run.events import Mailbox, open_mailbox
from cifar_ray.tracking import store
from cifar_ray.tracking.job import JobRecord

_POLL_S, _LAST_POLL_S = 0.5, 10.0


@dataclass(frozen=True)
class _Reported:
    """What all workers have reported together: rank 0's metrics, and where their checkpoint is.

    Attributes:
        number: which report of the job it is, from 1.
    """

    number: int
    timestamp_ms: int
    metrics: Mapping[str, Any]
    checkpoint: str


@dataclass(frozen=True)
class _Failed:
    reason: str


@dataclass(frozen=True)
class _Journal:
    """Every report of the job is in this file, too."""

    path: str


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
        params: Any = None,
        experiment: str = "ray_train",
        tracking_uri: str | None = None,
        step: str = "epoch",
    ) -> None:
        """Describe the run; nothing is recorded yet.

        Args:
            name: of the job; the same name continues it.
            params: its configuration: a mapping, a dataclass or argparse's Namespace, nested or not.
            experiment: MLflow experiment.
            tracking_uri: the store; ``MLFLOW_TRACKING_URI``, else ``~/.cifar_ray/mlflow.db``.
            step: the reported metric that counts the steps. Reports without it are counted by themselves, from 1.
        """
        self._name, self._params, self._experiment = name, {} if params is None else params, experiment
        self._uri = store.resolve_uri(tracking_uri)
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
        _complete(self._record.journal, self.run_id)
        self.callback = _Poster(self._mailbox, self.run_id)
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
                for event in _kept(self._record.journal, self.run_id):  # what was posted last may not have been sent
                    self._handle(event)
                return

    def _handle(self, event: _Reported | _Journal | _Failed) -> None:
        try:
            if isinstance(event, _Failed):
                self._record.failed(event.reason)
            elif isinstance(event, _Journal):
                self._record.kept_in(event.path)
            else:
                self._report(event)
        except Exception as error:  # whatever it is, it is not the training's
            self.trouble = _sentence(error)

    def _report(self, event: _Reported) -> None:
        counted = event.metrics.get(self._step)
        step = event.number
        if isinstance(counted, int) or (isinstance(counted, float) and counted.is_integer()):
            step = int(counted)
        self._record.report(step, event.timestamp_ms, event.metrics)
        if event.checkpoint:
            self._record.checkpoint(step, event.checkpoint)


class _Poster(UserCallback):
    """Posts what Ray Train's controller hears to the driver; it never waits, and nothing that it does ends training.

    A driver that is killed takes with it what it has not written yet, and the next one goes on after the newest
    checkpoint. So every report is in a file beside the checkpoints as well, and is posted again by the next controller.
    """

    def __init__(self, mailbox: Mailbox, run_id: str) -> None:
        self._mailbox, self._run_id = mailbox, run_id
        self._count: int | None = None

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None) -> None:
        with suppress(Exception):  # it would end the job
            now, address = time.time_ns() // 1_000_000, "" if checkpoint is None else _address(checkpoint)
            journal = _journal(run_context.run_config)
            if self._count is None:
                self._count = self._post_again(journal)
            self._count += 1
            figures = {name: _number(value) for name, value in metrics[0].items()}
            event = _Reported(self._count, now, figures, address)
            self._mailbox.post(event)
            if journal is not None:
                _keep(journal, self._run_id, event)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        with suppress(Exception):
            reasons = [f"rank {rank}: {_sentence(error)}" for rank, error in sorted(worker_exceptions.items())]
            self._mailbox.post(_Failed("; ".join(reasons)))

    def _post_again(self, journal: Path | None) -> int:
        """Post the reports of earlier controllers; return how many there were."""
        if journal is None:
            return 0
        self._mailbox.post(_Journal(str(journal)))
        earlier = _kept(str(journal), self._run_id)
        for event in earlier:
            self._mailbox.post(event)
        return len(earlier)


def _kept(journal: str, run_id: str) -> list[_Reported]:
    """One run's reports in the file of a job; none where it is not on this machine."""
    reports = []
    if journal and Path(journal).is_file():
        for line in Path(journal).read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError, KeyError):  # cut by a kill
                values = json.loads(line)
                if values.pop("run") == run_id:
                    reports.append(_Reported(**values))
    return reports


def _keep(journal: Path, run_id: str, event: _Reported) -> None:
    with journal.open("a", encoding="utf-8") as file:  # the line before may have been cut by a kill
        file.write("\n" + json.dumps({"run": run_id, **asdict(event)}))


def _complete(journal: str, run_id: str) -> None:
    """Add the newest report to the file of a job if it is missing.

    Ray Train keeps a checkpoint before it tells the callbacks, and a driver that is killed between the two is
    continued after that checkpoint. Ray keeps its metrics as well.
    """
    with suppress(Exception):  # the folder is not on this machine, or has no checkpoint yet
        newest = Result.from_path(Path(journal).parent)
        address = _address(newest.checkpoint)
        reports = _kept(journal, run_id)
        if address not in [report.checkpoint for report in reports]:
            after_ms = max(
                [Path(address).stat().st_mtime_ns // 1_000_000, *(report.timestamp_ms + 1 for report in reports)]
            )
            _keep(Path(journal), run_id, _Reported(len(reports) + 1, after_ms, newest.metrics, address))


def _journal(config: RunConfig) -> Path | None:
    """The file of a job's reports; None where its storage is no folder of this machine."""
    folder = Path(str(config.storage_path)).expanduser() / str(config.name)
    return folder / "cifar_ray_reports.jsonl" if folder.is_dir() else None


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
