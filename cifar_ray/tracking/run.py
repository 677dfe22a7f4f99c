"""Record one run in MLflow, new or continued, and end it with its true status."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from pydantic_core import to_json

from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import Dataset, modality
from cifar_ray.tasks import measured_on
from cifar_ray.tasks.spec import CHOSEN, CHOSEN_EPOCH
from cifar_ray.tracking import artifacts, origin, store, study
from cifar_ray.tracking.record import CLOCK, Record
from cifar_ray.training import bottleneck
from cifar_ray.training.observer import Outcome, Row, SavedCheckpoint, Started
from cifar_ray.training.predictor import Predictor

_DECIDED = ("precision", "convolutions", "device")  # parameters that a run's start decides

SEGMENTS_TAG, PREEMPTIONS_TAG = "cifar_ray.segments", "cifar_ray.preemptions"
"""Tags of a run: its topologies, each with its first step, and how many nodes were taken back under it."""

PROFILE = "profile"  # folder among a run's artifacts of what some steps were found to do


class RunRecord(Record):
    """Writes one driver's record of a training run, without waiting for the store.

    Attributes:
        config: the run's resolved config.
        name: the run's name.
        task: what the run learns.
    """

    def __init__(
        self,
        client: MlflowClient,
        config: ResolvedConfig,
        decided: Decided,
        *,
        name: str,
        key: str,
        folder: str,
        dataset: Dataset,
        begun: float,
        tags: Mapping[str, str] | None = None,
        experiment: str | None = None,
    ) -> None:
        """Go on with the run of this key, or where MLflow has none, create it; that is the first write.

        Tags of a run that goes on are those of ``config`` and this machine from now on; what they were is kept as
        ``cifar_ray.earlier.NAME``. ``name``, ``folder``, ``begun`` (a ``time.time()``), and the id of the
        ``experiment``, by default that of the data set, are those of a new run; ``tags`` come to its own.
        """
        session, home = uuid.uuid4().hex, store.experiment_name([config.dataset])
        now = {**origin.run_tags(config, decided), **(tags or {})}
        if 0 < decided.gpus(config) < 1:  # others on the GPU may take their share of the time
            now[study.MEASURE_TAG] = "accuracy"
        known = {study.KEY_TAG: key, study.FOLDER_TAG: folder, store.SESSION_TAG: session}
        every = {**known, store.NOTE_TAG: f"    {now['cifar_ray.command']}\n", **now}

        def begin(client: MlflowClient) -> Run:
            if run := store.find_key(client, key):  # also one whose answer has not arrived
                return store.take_over(client, run, session)
            where = experiment or store.experiment_id(client, home)
            return client.create_run(where, start_time=round(1000 * begun), tags=every, run_name=name)

        super().__init__(client, session, begin, waits=False)
        self.config, self.name, self.task, self._folder = config, name, study.task_of(now), folder
        primary = self.task.primary  # the same in all attempts of the run
        self._score = primary.on("val") if now[study.CHOSEN_BY_TAG] == "val" else primary.name
        self._held: list[Row] = []
        self._covered = {"iteration": 0, "epoch": 0}
        self._figures: dict[int, list[Row]] = {}  # by epoch, of a run that has ended
        self._change(now)
        self.forget(study.STOPPED_BY_TAG)
        params = runfile.params(config, decided)
        self.params({name: params[name] for name in params if name not in _DECIDED})
        self.call(lambda client, run_id: client.log_inputs(run_id, datasets=[origin.dataset_input(dataset)]))
        self.text("config.yaml", runfile.to_yaml(config, decided))

    def moved(self, decided: Decided) -> None:
        """Update the tags of a run that goes on as ``decided``, and keep their earlier values."""
        self._change(origin.run_tags(self.config, decided))

    def _change(self, now: Mapping[str, str]) -> None:
        """Set tags; what they have been comes to tags of their names after :data:`study.EARLIER`."""

        def changed(known: Mapping[str, str]) -> dict[str, str]:
            fresh = {name: value for name, value in now.items() if known.get(name) != value}
            before = {f"{study.EARLIER}{name}": known[name] for name in fresh if name in known}
            return fresh | {name: _listed(known.get(name), value) for name, value in before.items()}

        self.tags(changed)

    def add_segment(self, segment: str) -> None:
        """Record with which topology the run goes on from which step, after those before."""
        self.tags(lambda known: {SEGMENTS_TAG: _listed(known.get(SEGMENTS_TAG), segment)})

    @property
    def segments(self) -> list[str]:
        """All topologies so far that MLflow has."""
        return [segment for segment in self.known_tags.get(SEGMENTS_TAG, "").split(", ") if segment]

    def count_preemption(self) -> None:
        """Record that the cluster takes back a node."""
        self.tags(lambda known: {PREEMPTIONS_TAG: str(int(known.get(PREEMPTIONS_TAG, 0)) + 1)})

    def started(self, event: Started) -> None:
        """Record the start of the loop: send the rows that the store may lack, drop held rows of lost steps."""
        decided = event.decided
        self.params(runfile.params(self.config, decided))  # those that it has already stay
        now = {
            study.TOPOLOGY_TAG: decided.topology,
            study.HARDWARE_TAG: event.hardware,
            study.THREADS_TAG: str(decided.cpus),
            **({"cifar_ray.precision": event.measured} if event.measured else {}),
        }
        self._change(now) if event.step else self.tags(now)  # before, nothing that counts was trained
        self.text("config.yaml", runfile.to_yaml(self.config, decided))
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
            metrics[f"{study.MEASURED}{primary.name}"] = metrics[measured]
        self.write_row(replace(row, metrics=metrics))

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
            self.tags({"cifar_ray.best_checkpoint": self._address(saved.path)})

    def _address(self, checkpoint: Path) -> str:
        """A checkpoint's final address; it may have been written to another disk first."""
        return f"{self._folder}/checkpoints/{checkpoint.name}"

    def system(self, timestamp_ms: int, metrics: Mapping[str, float]) -> None:
        """Record the load of one node; MLflow shows names with ``system/`` on a page of their own."""
        self.write_row(Row(CLOCK, 0, timestamp_ms, {f"system/{n}": v for n, v in metrics.items()}))

    def halted(self, by: str, saved: SavedCheckpoint | None) -> None:
        """Record which limit has stopped the run, and its newest checkpoint if this driver has seen one."""
        tags = {study.STOPPED_BY_TAG: by}
        if saved is not None:
            tags["cifar_ray.weights_sha256"] = saved.weights_sha256
            tags[study.CHECKPOINT_TAG] = self._address(saved.path)
        self.tags(tags)

    def result(self, outcome: Outcome, dataset: Dataset) -> None:
        """Record the outcome: final metrics, and of a task with classes the confusion matrix and per-class table.

        ``dataset`` has the test images that were evaluated.
        """
        self.ended = outcome.ended  # when the result was there
        self._held.clear()
        for row in outcome.history:  # some may have been lost on their way here
            self._write(row)
            if row.kind == "epoch":
                self._figures[row.step] = [replace(row, metrics=finite(row.metrics))]
        last, steps = outcome.epochs, outcome.steps
        written = {name for row in self._figures.get(last, ()) for name in row.metrics}
        final = {**outcome.times, **{name: value for name, value in outcome.metrics.items() if name not in written}}
        chosen = {name.removeprefix(CHOSEN): final[name] for name in final if name.startswith(f"{CHOSEN}test/")}
        if chosen and (epoch := int(final[CHOSEN_EPOCH])) != last:  # MLflow shows them with that checkpoint's model
            self._result(epoch, chosen)
        address = self._address(Path(outcome.checkpoint))
        tags = {"cifar_ray.weights_sha256": outcome.weights_sha256, study.CHECKPOINT_TAG: address}
        if steps is not None:
            verdict = bottleneck.explain(steps)
            if verdict.kind != "not enough evidence":
                final[study.BOUND_SHARE] = verdict.share or 0.0
            tags[study.BOUND_TAG] = f"{verdict.kind}: {verdict.sentence}"
            self.text(study.STEP_TIMES, to_json(steps, indent=1).decode())
        self._result(last, final)
        self.tags(tags)
        names, confusion = list(dataset.spec.names), outcome.confusion
        if confusion:
            wrong = artifacts.mistakes(outcome.mistakes, dataset)
            counts = {"classes": names, "counts": confusion, **({"mistakes": wrong} if wrong else {})}
            self.json("confusion_matrix.json", counts)
            unit = self.task.confused
            self.call(lambda client, run_id: artifacts.log_matrix(client, run_id, confusion, names, unit))
        if outcome.per_class:
            kind = "class" if self.task.has_classes else "value"
            table = {kind: names, **{name: list(values) for name, values in outcome.per_class.items()}}
            self.call(lambda client, run_id: client.log_table(run_id, table, "per_class.json"))

    def _result(self, epoch: int, metrics: Mapping[str, float]) -> None:
        row = Row.now("result", epoch, finite(metrics))
        self.write_row(row)
        self._figures.setdefault(epoch, []).append(row)

    def trace(self, on_disk: Callable[[], AbstractContextManager[Path]]) -> None:
        """Log the trace of some steps of a rank; ``on_disk`` has it as a file."""

        def log(client: MlflowClient, run_id: str) -> None:
            with on_disk() as path:
                client.log_artifact(run_id, str(path), PROFILE)

        self.call(log)

    def model(self, which: str, load: Callable[[], tuple[Predictor, str]], dataset: Dataset, epoch: int) -> None:
        """Log the checkpoint of an epoch as a model of the run; arguments as of :func:`artifacts.log_model`."""
        if modality.of(dataset.spec, dataset.encoding).is_readable:
            of = (which, load, dataset, self.task, epoch, self._figures.get(epoch, []))
            self.call(lambda client, run_id: artifacts.log_model(client, run_id, *of))


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Drop NaN and infinity, which stores would write as other values."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _listed(before: str | None, value: str) -> str:
    """The list in a tag with one more value."""
    return f"{before}, {value}" if before else value
