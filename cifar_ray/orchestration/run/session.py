"""A driver's work on one run: every event of it is shown and recorded, and its end is a truthful one."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cifar_ray import storage
from cifar_ray.config import train as configs
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.run.events import Placed, Progress, Silent, SystemSample, WorkersFailed
from cifar_ray.orchestration.run.folder import RunFolder
from cifar_ray.tracking.run import RunRecord
from cifar_ray.training import recipe
from cifar_ray.training.observer import EpochRecord, Outcome, Row, SavedCheckpoint, Started

_SEGMENTS_TAG, _PREEMPTIONS_TAG = "cifar_ray.segments", "cifar_ray.preemptions"


@dataclass(frozen=True)
class TrainResult:
    """A finished run.

    Attributes:
        name: the run's name.
        run_id: MLflow's id of it.
        tracking_uri: the store that has it.
        folder: address of its folder, with the config and the checkpoints.
        metrics: the last epoch's figures, and ``best/accuracy`` and ``best/epoch``.
        times: seconds by phase (``time/...``) and steady-state ``images_per_s``.
        weights_sha256: SHA-256 of the final weights file.
        checkpoint: address of the final checkpoint.
    """

    name: str
    run_id: str
    tracking_uri: str
    folder: str
    metrics: dict[str, float]
    times: dict[str, float]
    weights_sha256: str
    checkpoint: str


class View(Protocol):
    """Where a run's course is shown."""

    def line(self, text: str) -> None:
        """A sentence that stays."""

    def doing(self, text: str) -> None:
        """What is going on before the first step."""

    def training(self, epochs: int, steps_per_epoch: int, step: int) -> None:
        """Steps run from ``step`` on."""

    def loss(self, value: float) -> None:
        """The latest mean loss."""

    def progress(self, epoch: int, step: int, images_per_s: float) -> None:
        """Where the run is."""

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        """An epoch is done."""


@dataclass
class Work:
    """One driver's work on one run.

    Attributes:
        config: the resolved config, with its device decided.
        unused_gpus: why it runs on CPUs though the cluster has GPUs and nobody asked for CPUs; empty otherwise.
        failures: how often workers have failed so far.
    """

    config: TrainConfig
    dataset: Dataset
    folder: RunFolder
    record: RunRecord
    view: View
    unused_gpus: str = ""
    failures: int = 0
    _placed: dict[int, Placed] = field(default_factory=dict)
    _segments: list[str] = field(init=False)
    _preemptions: int = field(init=False)
    _trouble_told: bool = False

    def __post_init__(self) -> None:
        config = self.config
        before = self.record.tags_before  # of a run that an earlier driver began
        self._segments = [segment for segment in before.get(_SEGMENTS_TAG, "").split(", ") if segment]
        self._preemptions = int(before.get(_PREEMPTIONS_TAG, "0"))
        if self.unused_gpus:
            self.record.tags({"cifar_ray.unused_gpus": self.unused_gpus})
        if connection.shares_a_machine(config):
            self.record.tags(
                {
                    "local_nodes": str(config.local_nodes),
                    "oversubscribe": str(config.oversubscribe).lower(),
                    "times_are_a_clusters": "false",
                }
            )

    def announce(self) -> None:
        """Say what is about to be done."""
        config, view = self.config, self.view
        view.line(
            f"run {self.folder.name}: {config.model} on {config.dataset}, topology {config.topology}, "
            f"{config.images_per_step} images per step ({config.batch_size} per worker), {config.strategy}"
        )
        if self.unused_gpus:
            view.line(cpu_note(self.unused_gpus))
        if connection.shares_a_machine(config):
            view.line(made_up_note(config))
        view.doing("starting the workers")

    def listen(self, event: Any) -> None:
        """Show and record one event of the run."""
        view, record = self.view, self.record
        if isinstance(event, Row):
            view.loss(event.metrics["train/loss"])
            record.row(event)
        elif isinstance(event, Progress):
            view.progress(event.epoch, event.step, event.images_per_s)
        elif isinstance(event, EpochRecord):
            view.epoch(event.row.step, event.row.metrics)
            record.row(event.row)
        elif isinstance(event, SavedCheckpoint):
            record.checkpoint(event)
        elif isinstance(event, SystemSample):
            record.system(event.timestamp_ms, event.metrics)
        elif isinstance(event, Placed):
            self._on_placed(event)
        elif isinstance(event, Started):
            self._on_started(event)
        elif isinstance(event, WorkersFailed):
            self._on_failed(event)
        elif isinstance(event, Silent):
            view.line(
                f"waiting for rank {event.rank}, whose process has not answered for {event.seconds:.0f} s; the workers "
                f"are restarted after {self.config.hang_timeout_s:g} s (--hang-timeout-s)"
            )
        if record.trouble and not self._trouble_told:
            self._trouble_told = True
            view.line(f"MLflow takes nothing ({record.trouble}); training goes on, and it is tried again")

    def workers_by_node(self) -> Counter[str]:
        """Node id -> workers that have reported from there since they last started."""
        return Counter(placed.node_id for placed in self._placed.values())

    def preempted(self, node_id: str, deadline_ms: int) -> None:
        """A node with workers on it is about to leave; they are asked to stop."""
        self._preemptions += 1
        self.record.tags({_PREEMPTIONS_TAG: str(self._preemptions)})
        left = f"in {max(deadline_ms / 1000 - time.time(), 0):.0f} s" if deadline_ms else "soon"
        address = next(placed.address for placed in self._placed.values() if placed.node_id == node_id)
        self.view.line(
            f"node {node_id[:8]} ({address}) leaves {left}; stopping as soon as possible, which is no failure"
        )

    def stopped(self, step: int) -> None:
        """The workers have stopped as they were asked to."""
        self.view.line(f"stopped after step {step} with a checkpoint")

    def move(self, config: TrainConfig) -> None:
        """The run goes on with ``config``, which differs from before in its topology at most."""
        if config.topology != self.config.topology:
            self.view.line(
                f"going on with topology {config.topology}, {config.images_per_step} images per step as before "
                f"({config.batch_size} per worker)"
            )
            self.record.moved(config)
        self.config = config
        self._placed.clear()
        self.view.doing("starting the workers")

    def finish(self, outcome: Outcome) -> None:
        """Record what the run has come to; its end is still to be written."""
        self.record.result(outcome, self.dataset)
        wanted, best = self.config.log_models, int(outcome.metrics["best/epoch"])
        if wanted == "best" or (wanted == "all" and best != outcome.epochs):
            self.record.model("best", lambda: self.folder.classifier("best"), self.dataset, best)
        if wanted in ("final", "all"):
            final = Path(outcome.checkpoint).name
            self.record.model("final", lambda: self.folder.classifier(final), self.dataset, outcome.epochs)

    def end(self, status: str, reason: str = "") -> None:
        """Write the run's end, and say what could not be written.

        Args:
            status: FINISHED, FAILED or KILLED.
            reason: why it is not FINISHED, if there is more to say.
        """
        if reason:
            self.record.failed(reason)
        if not self.record.end(status):
            resume = f"cifar-ray resume {shlex.quote(self.record.name)}{self.store_flag()}"
            why = self.record.trouble or next(iter(self.record.refused), "no answer in time")
            self.view.line(
                f"MLflow at {self.record.uri} does not take the run's record ({why}); "
                f"the checkpoints have it, and `{resume}` writes it when the store is back"
            )
            return
        for refused, times in Counter(self.record.refused).items():
            often = f" ({times} times)" if times > 1 else ""
            self.view.line(f"MLflow at {self.record.uri} has not taken something: {refused}{often}")

    def result(self, outcome: Outcome) -> TrainResult:
        """The finished run in plain values."""
        return TrainResult(
            name=self.folder.name,
            run_id=self.record.run_id,
            tracking_uri=self.record.uri,
            folder=self.folder.address,
            metrics=outcome.metrics,
            times=outcome.times,
            weights_sha256=outcome.weights_sha256,
            checkpoint=self.folder.checkpoint(Path(outcome.checkpoint).name),
        )

    def places(self, result: TrainResult) -> Sequence[tuple[str, str]]:
        """Where everything of the run is, in words."""
        several = [("topologies", ", ".join(self._segments))] if len(self._segments) > 1 else []
        return [
            *several,
            ("run", f"{result.name} (MLflow id {result.run_id})"),
            ("folder", result.folder),
            ("weights sha256", result.weights_sha256),
            ("look at it", self.record.page or f"with cifar-ray ui{self.store_flag()}"),
        ]

    def store_flag(self) -> str:
        """The flag that leads another command to this run's store, when it is not the usual one."""
        return f" --tracking-uri {self.record.uri}" if self.config.tracking_uri else ""

    def _on_placed(self, event: Placed) -> None:
        self._placed[event.rank] = event
        if len(self._placed) == self.config.world_size:
            self.record.placed([asdict(self._placed[rank]) for rank in sorted(self._placed)])

    def _on_started(self, event: Started) -> None:
        config = self.config = configs.from_mapping(event.config)
        try:
            storage.persistently(lambda: self.folder.write_config(recipe.widest(config)))
        except OSError as error:  # an earlier one is there, and the checkpoints have it, too
            self.view.line(
                f"{self.folder.address}/config.yaml cannot be written: {storage.reason(error)}; training goes on"
            )
        if config.elastic is not None:
            self._segments.append(f"{config.topology} from step {event.step + 1}")
            self.record.tags({_SEGMENTS_TAG: ", ".join(self._segments)})
        self.record.started(event)
        for sentence in event.skipped:
            self.view.line(f"passed over: {sentence}")
        where = f"{event.hardware}, {config.precision}, {config.cpus_per_worker} CPU thread(s) per worker"
        origin = f"continuing after step {event.step}" if event.resumed_from else "training"
        self.view.line(f"{origin} on {where}")
        self.view.training(config.epochs, event.steps_per_epoch, event.step)

    def _on_failed(self, event: WorkersFailed) -> None:
        self.failures += 1
        self._placed.clear()
        if event.final or self.failures > self.config.max_failures:
            return
        reasons = "; ".join(f"rank {rank}: {reason}" for rank, reason in sorted(event.reasons.items()))
        self.record.tags({"cifar_ray.worker_failures": str(self.failures)})
        self.view.line(
            f"workers failed ({reasons}); restarting from the newest checkpoint, "
            f"failure {self.failures} of at most {self.config.max_failures}"
        )


def cpu_note(reason: str) -> str:
    """What to know of a run that could have had GPUs, had there been more of them."""
    return f"note: training on CPUs, though the cluster has GPUs: {reason}"


def made_up_note(config: TrainConfig) -> str:
    """What to keep in mind of a run whose nodes or CPUs are only counted."""
    return (
        f"note: {config.local_nodes} Ray node(s) on this one machine"
        + (", counting more CPUs than it has" if config.oversubscribe else "")
        + "; its times are not those of a cluster"
    )
