"""Record one run in MLflow, new or continued, and end it with its true status."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run, RunTag
from mlflow.exceptions import MlflowException

from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import Dataset
from cifar_ray.tasks import Subset, measured_on
from cifar_ray.tasks.spec import CHOSEN, CHOSEN_EPOCH
from cifar_ray.tracking import artifacts, mistakes, origin, step_times, store
from cifar_ray.tracking.record import Record
from cifar_ray.tracking.study import (
    BOUND_TAG,
    CHOSEN_BY_TAG,
    HARDWARE_TAG,
    MEASURE_TAG,
    MEASURED,
    STOPPED_BY_TAG,
    THREADS_TAG,
    TOPOLOGY_TAG,
    task_of,
)
from cifar_ray.training import bottleneck, samples
from cifar_ray.training.observer import Outcome, Row, SavedCheckpoint, Started
from cifar_ray.training.predictor import Predictor
from cifar_ray.training.rank_times import StepTimes

_CONFIG_FILE = "config.yaml"
_DECIDED = ("precision", "convolutions", "device")  # parameters that a run's start decides
_UNKEPT_FILE = "rows_after_checkpoint.json"


PROFILE = "profile"
"""Folder among a run's artifacts of what some steps were found to do."""


class RunRecord(Record):
    """Writes one driver's record of a training run.

    Attributes:
        config: the run's resolved config.
        name: the run's name in MLflow.
        tags_before: its tags when this process took it up.
        undrawn: why its picture cannot be drawn; empty when it can.
        task: what the run learns.
    """

    def __init__(self, client: MlflowClient, config: ResolvedConfig, run: Run, session: str) -> None:
        super().__init__(client, run, session)
        self.config = config
        self.name = run.info.run_name
        self._folder = run.data.tags.get(store.FOLDER_TAG, "")
        self.tags_before: Mapping[str, str] = dict(run.data.tags)
        self.undrawn = ""
        self.task = task_of(run.data.tags)
        # The same in all its attempts.
        measured: Subset = "val" if run.data.tags.get(CHOSEN_BY_TAG) == "val" else "test"
        self._score = self.task.primary.name if measured == "test" else self.task.primary.on(measured)
        self._started_ms = run.info.start_time
        self._ended: float | None = None
        self._held: list[Row] = []
        self._spent_at = 0
        self._covered = {"iteration": 0, "epoch": 0}

    @classmethod
    def create(
        cls,
        client: MlflowClient,
        config: ResolvedConfig,
        decided: Decided,
        name: str,
        key: str,
        folder: str,
        dataset: Dataset,
        begun: float,
        tags: Mapping[str, str] | None = None,
        experiment: str | None = None,
    ) -> RunRecord:
        """Create a run that began at ``begun``, a ``time.time()``, with ``tags`` beside its own.

        ``experiment`` is the id of its sweep's experiment; a run without a sweep has that of its data set.

        Raises:
            ConfigError: when the store refuses it.
        """
        session = uuid.uuid4().hex
        known = {store.KEY_TAG: key, store.FOLDER_TAG: folder, store.SESSION_TAG: session}
        with store.refusing(client.tracking_uri):
            name_of_own = store.experiment_name([config.dataset])
            experiment = experiment or store.experiment_id(client, name_of_own)
            note = {store.NOTE_TAG: origin.note(config, decided)}
            every = {**known, **note, **origin.run_tags(config, decided), **(tags or {})}
            if 0 < decided.gpus(config) < 1:  # others on the GPU may take their share of the time
                every[MEASURE_TAG] = "accuracy"
            try:
                run = client.create_run(experiment, start_time=round(1000 * begun), tags=every, run_name=name)
            except MlflowException:
                if (arrived := store.find_key(client, key)) is None:  # though its answer did not
                    raise
                run = arrived
        record = cls(client, config, run, session)
        record._sink.params({k: v for k, v in runfile.params(config, decided).items() if k not in _DECIDED})
        record._sink.call(lambda client, run_id: client.log_inputs(run_id, datasets=[origin.dataset_input(dataset)]))
        record.config_file(decided)
        return record

    @classmethod
    def reopen(cls, client: MlflowClient, config: ResolvedConfig, decided: Decided, run_id: str) -> RunRecord:
        """Continue the record of an earlier driver; the run is RUNNING again.

        Tags are those of ``config`` and this machine from now on; what they were is kept as
        ``cifar_ray.earlier.NAME``.

        Raises:
            ConfigError: when the store refuses it.
        """
        record = store.take_over(client, run_id, partial(cls, client, config))
        record.tags(origin.changed_tags(record.tags_before, origin.run_tags(config, decided)))
        record._sink.call(partial(store.forget, tag=STOPPED_BY_TAG))
        return record

    @classmethod
    def open(cls, uri, config, decided, *, name, key, folder, dataset, begun, tags=None, experiment=None):  # type: ignore
        client = MlflowClient(tracking_uri=uri)
        if (run := store.find_key(client, key)) is not None:
            return cls.reopen(client, config, decided, run.info.run_id)
        return cls.create(client, config, decided, name, key, folder, dataset, begun, tags, experiment)

    def add_segment(self, text):  # type: ignore
        self.tags({"cifar_ray.segments": text})

    def count_preemption(self):  # type: ignore
        self.tags({"cifar_ray.preemptions": "1"})

    def config_file(self, decided: Decided) -> None:
        """Log the config as an artifact that starts the same run again, with what is ``decided`` of this one."""
        self.text(_CONFIG_FILE, runfile.to_yaml(self.config, decided))

    def moved(self, decided: Decided) -> None:
        """Update the tags of a run that goes on as ``decided``; earlier values are kept as by :meth:`reopen`."""
        self._change(origin.run_tags(self.config, decided))

    def _change(self, now: Mapping[str, str]) -> None:
        """Set tags, and keep their earlier values."""

        def write(client: MlflowClient, run_id: str) -> None:
            changed = origin.changed_tags(client.get_run(run_id).data.tags, now)
            client.log_batch(run_id, tags=[RunTag(name, value) for name, value in changed.items()])

        self._sink.call(write)

    def placed(self, workers: Sequence[Mapping[str, Any]]) -> None:
        """Log the node and device of every worker as an artifact."""
        self._sink.call(lambda client, run_id: client.log_dict(run_id, list(workers), "placement.json"))

    def started(self, event: Started) -> None:
        """Record the start of the loop: re-send rows missing from the store, drop held rows of lost steps."""
        decided = event.decided
        self._sink.params({k: v for k, v in runfile.params(self.config, decided).items() if k in _DECIDED})
        measured = {"cifar_ray.precision": event.measured} if event.measured else {}
        now = {
            TOPOLOGY_TAG: decided.topology,
            HARDWARE_TAG: event.hardware,
            THREADS_TAG: str(decided.cpus),
            **measured,
        }
        if event.step:
            self._change(now)
        else:  # nothing that counts was trained before
            self._sink.tags(now)
        self.config_file(decided)
        self._held.clear()
        self._covered = {"iteration": event.step, "epoch": event.step // event.steps_per_epoch}
        for row in event.history:
            self._write(row)

    def row(self, row: Row) -> None:
        """Record metrics of an iteration or an epoch; they are written once a checkpoint covers them.

        Steps after the checkpoint may be computed again, to other values, and MLflow cannot take a value back.
        """
        if row.step <= self._covered[row.kind]:
            self._write(row)
        else:
            self._held.append(row)

    def _write(self, row: Row) -> None:
        metrics, primary = finite(row.metrics), self.task.primary
        if (measured := primary.on(measured_on(row.metrics))) in metrics:
            metrics[f"{MEASURED}{primary.name}"] = metrics[measured]
        self._sink.metrics(row.step, row.timestamp_ms, metrics)

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        """Record a reference to a checkpoint, and write the rows that it covers."""
        self._covered = {"iteration": saved.step, "epoch": saved.epoch}
        held, self._held = self._held, []
        for row in held:
            self.row(row)
        self.list_checkpoint(
            {
                "step": saved.step,
                "epoch": saved.epoch,
                "path": self._address(saved.path),
                "weights_sha256": saved.weights_sha256,
                self._score: saved.score,
            }
        )
        if saved.best:
            self._sink.tags({"cifar_ray.best_checkpoint": self._address(saved.path)})

    def _address(self, checkpoint: Path) -> str:
        """A checkpoint's final address; it may have been written to another disk first."""
        return f"{self._folder}/checkpoints/{checkpoint.name}"

    def system(self, timestamp_ms: int, metrics: Mapping[str, float]) -> None:
        """Record the load of one node; MLflow shows names with ``system/`` on a page of their own."""
        self._sink.metrics(self._second(timestamp_ms), timestamp_ms, {f"system/{n}": v for n, v in metrics.items()})

    def spent(self, metrics: Mapping[str, float]) -> None:
        """Record what the run has used so far, by the seconds since its start; each record has a step of its own."""
        now_ms = time.time_ns() // 1_000_000
        self._spent_at = max(self._second(now_ms), self._spent_at + 1)
        self._sink.metrics(self._spent_at, now_ms, dict(metrics))

    def _second(self, timestamp_ms: int) -> int:
        return max((timestamp_ms - self._started_ms) // 1000, 0)

    def halted(self, by: str, saved: SavedCheckpoint | None) -> None:
        """Record which limit has stopped the run, and its newest checkpoint if this driver has seen one."""
        tags = {STOPPED_BY_TAG: by}
        if saved is not None:
            tags["cifar_ray.weights_sha256"] = saved.weights_sha256
            tags["cifar_ray.checkpoint"] = self._address(saved.path)
        self._sink.tags(tags)

    def result(self, outcome: Outcome, dataset: Dataset) -> None:
        """Record the outcome: final metrics, and of a task with classes the confusion matrix and per-class table.

        ``dataset`` has the test images that were evaluated.
        """
        self._ended = outcome.ended
        self._held.clear()
        for row in outcome.history:  # what was lost on its way here
            self._write(row)
        last = outcome.epochs
        written = {name for row in outcome.history if (row.kind, row.step) == ("epoch", last) for name in row.metrics}
        final = {**outcome.times, **{name: value for name, value in outcome.metrics.items() if name not in written}}
        now = Row.now("epoch", last, finite(final))
        self._sink.metrics(last, now.timestamp_ms, now.metrics)
        chosen = {name.removeprefix(CHOSEN): final[name] for name in final if name.startswith(f"{CHOSEN}test/")}
        if chosen and (epoch := int(final[CHOSEN_EPOCH])) != last:  # MLflow shows them with that checkpoint's model
            self._sink.metrics(epoch, now.timestamp_ms, finite(chosen))
        address = self._address(Path(outcome.checkpoint))
        self._sink.tags({"cifar_ray.weights_sha256": outcome.weights_sha256, "cifar_ray.checkpoint": address})
        if outcome.steps is not None:
            self._steps(outcome.steps, last)
        names, confusion = dataset.spec.names, outcome.confusion
        wrong = mistakes.records(outcome.mistakes, dataset)

        def draw(client: MlflowClient, run_id: str) -> None:
            self.undrawn = artifacts.log_confusion(client, run_id, confusion, names, wrong, self.task.confused)

        if confusion:
            self._sink.call(draw)
        if outcome.per_class:
            kind = "class" if self.task.has_classes else "value"
            table = {kind: list(names), **{name: list(values) for name, values in outcome.per_class.items()}}
            self._sink.call(lambda client, run_id: client.log_table(run_id, table, "per_class.json"))
        figures = origin.figures(self.task, {**outcome.metrics, **outcome.times})
        self._sink.call(lambda client, run_id: store.describe(client, run_id, figures))

    def _steps(self, times: StepTimes, epoch: int) -> None:
        """Log the times of the steps by rank, and what bounds the run."""
        verdict = bottleneck.explain(times)
        now = Row.now("epoch", epoch, finite(step_times.metrics(times, verdict)))
        self._sink.metrics(epoch, now.timestamp_ms, now.metrics)
        self._sink.tags({BOUND_TAG: f"{verdict.kind}: {verdict.sentence}"})
        self._sink.call(lambda client, run_id: client.log_text(run_id, step_times.text(times), step_times.FILE))

    def masks(self, load: Callable[[], tuple[Predictor, str]], dataset: Dataset, column: str) -> None:
        """Log a picture of masks that a checkpoint predicts; arguments as of :func:`artifacts.log_masks`."""

        def draw(client: MlflowClient, run_id: str) -> None:
            self.undrawn = artifacts.log_masks(client, run_id, load, dataset, column) or self.undrawn

        self._sink.call(draw)

    def trace(self, on_disk: Callable[[], AbstractContextManager[Path]]) -> None:
        """Log the trace of some steps of a rank; ``on_disk`` has it as a file."""

        def log(client: MlflowClient, run_id: str) -> None:
            with on_disk() as path:
                client.log_artifact(run_id, str(path), PROFILE)

        self._sink.call(log)

    def model(self, which: str, load: Callable[[], tuple[Predictor, str]], dataset: Dataset, epoch: int) -> None:
        """Log a checkpoint as a model of the run; arguments as of :func:`artifacts.log_model`."""
        of = (which, load, dataset, self.task, epoch)
        if samples.of(dataset.spec, dataset.encoding).is_readable:
            self._sink.call(lambda client, run_id: artifacts.log_model(client, run_id, *of))

    def end(self, status: str, ended: float | None = None) -> bool:
        """End the run as :meth:`Record.end`; a run with a result ended when the result was there."""
        if self._held:
            rows = {"rows": [asdict(row) for row in self._held]}
            self._sink.call(lambda client, run_id: client.log_dict(run_id, rows, _UNKEPT_FILE))
        return super().end(status, ended or self._ended)


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Drop NaN and infinity, which stores would write as other values."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
