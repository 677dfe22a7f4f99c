"""Display and record a run's events, and set its final status."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial, singledispatchmethod
from pathlib import Path
from typing import Any

from cifar_ray import storage
from cifar_ray.config import errors, limits
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import counted
from cifar_ray.config.model import USUAL
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import Dataset
from cifar_ray.display.run import cpu_note, made_up_note
from cifar_ray.display.terminal import View, tilde
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.run.events import (
    Heartbeat,
    Moved,
    NodeLeaving,
    NoRoom,
    Placed,
    Progress,
    RoomToGrow,
    Stopped,
    WorkersFailed,
)
from cifar_ray.orchestration.run.failures import Verdict
from cifar_ray.orchestration.run.limits import LimitReached, Spent
from cifar_ray.orchestration.run.listeners import Callback, Listeners
from cifar_ray.orchestration.run.train_result import TrainResult
from cifar_ray.orchestration.run.workers import gpu_tags
from cifar_ray.runs import checkpoints
from cifar_ray.runs.folder import RunFolder
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.tracking import pages
from cifar_ray.tracking import uri as stores
from cifar_ray.tracking.run import PROFILE, RunRecord
from cifar_ray.tracking.study import STOPPED_BY_TAG
from cifar_ray.training import arithmetic, profiling
from cifar_ray.training.observer import EpochRecord, Outcome, Row, SavedCheckpoint, Started, Traced

_SPENT_EVERY_S = 60.0


@dataclass
class RunSession:
    """A run between its start and its end in one driver: :meth:`handle` displays and records every event.

    Attributes:
        decided: what the config leaves open; the topology may change.
        unused_gpus: why it runs on CPUs although the cluster has GPUs and --device is auto; empty otherwise.
        verdict: on the last failure of the workers.
        spent: what the run has used so far, over all drivers.
        is_recorded: whether it has ended, and MLflow has it.
    """

    config: ResolvedConfig
    decided: Decided
    dataset: Dataset
    folder: RunFolder
    record: RunRecord
    view: View
    unused_gpus: str = ""
    callbacks: Sequence[Callback] = ()
    verdict: Verdict | None = None
    spent: Spent = field(default_factory=Spent)
    is_recorded: bool = False
    _placed: dict[int, Placed] = field(default_factory=dict)
    _traced: dict[int, Traced] = field(default_factory=dict)
    _had_no_room: bool = False
    _callbacks: Listeners = field(init=False)
    _spent_at: float = 0.0
    _rows: list[Row] = field(default_factory=list)
    _saved: SavedCheckpoint | None = None
    _trouble_shown: bool = False

    def __post_init__(self) -> None:
        config = self.config
        self._callbacks = Listeners(self.callbacks, lambda sentence: self.view.line(sentence))
        if self.unused_gpus:
            self.record.tags({"cifar_ray.unused_gpus": self.unused_gpus})
        if connection.shares_a_machine(config, self.decided):
            self.record.tags({"local_nodes": str(config.local_nodes), "times_are_a_clusters": "false"})

    @property
    def is_void(self) -> bool:
        """Whether the run failed before its first checkpoint with an error that cannot pass: resuming it is no use."""
        verdict = self.verdict
        return verdict is not None and verdict.final and verdict.first.saved == 0 and self._saved is None

    def announce(self) -> None:
        """Display what will be trained."""
        config, decided, view, unit = self.config, self.decided, self.view, self.record.task.unit
        view.heading(
            f"run {self.folder.name}: {config.model} on {config.dataset}, topology {decided.topology}, "
            f"{config.global_batch_size} {unit} per step ({config.share(decided.world_size)} per worker), "
            f"{config.strategy}"
        )
        if self.unused_gpus:
            view.heading(cpu_note(self.unused_gpus))
        if connection.shares_a_machine(config, decided):
            view.heading(made_up_note(config.local_nodes))
        view.doing("starting the workers")

    def handle(self, event: Any) -> None:
        """Display and record one event; those of types without a method of their own are for others."""
        self._on(event)
        if self.record.trouble and not self._trouble_shown:
            self._trouble_shown = True
            self.view.line(f"MLflow does not answer ({self.record.trouble}); training goes on, and keeps trying")

    @singledispatchmethod
    def _on(self, event: Any) -> None:
        pass

    @_on.register
    def _(self, event: Row) -> None:
        self.view.loss(event.metrics["train/loss"])
        self.record.row(event)
        self._callbacks.call("iteration", event)

    @_on.register
    def _(self, event: Progress) -> None:
        self.view.progress(event.epoch, event.step, event.images_per_s)

    @_on.register
    def _(self, event: EpochRecord) -> None:
        self._rows.append(event.row)
        self.view.epoch(event.row.step, event.row.metrics)
        self.record.row(event.row)
        self._callbacks.call("epoch", event)

    @_on.register
    def _(self, event: SavedCheckpoint) -> None:
        self._saved = event
        self.record.checkpoint(event)
        self._callbacks.call("checkpoint", event)

    @_on.register
    def _(self, event: Traced) -> None:
        self._traced[event.rank] = event
        if event.problem:
            self.view.line(f"no trace of rank {event.rank}: {event.problem}; training goes on")
        else:
            folder = self.folder.folder.below(profiling.FOLDER)
            self.record.trace(partial(folder.on_disk, event.path.name))
        if len(self._traced) == self.decided.world_size:
            tables = [self._traced[rank].operators for rank in sorted(self._traced)]
            self.record.text(f"{PROFILE}/operators.csv", profiling.together(tables))

    @_on.register
    def _(self, event: Heartbeat) -> None:
        if event.metrics:
            self.record.system(event.timestamp_ms, event.metrics)

    @_on.register
    def _(self, event: Spent) -> None:
        self.spent = event
        if (usd := event.usd(self.config.price)) is not None:
            self.view.cost(usd)
        if time.monotonic() - self._spent_at >= _SPENT_EVERY_S:
            self._record_spent()

    @_on.register
    def _(self, event: LimitReached) -> None:
        if event.by in limits.KEYS:  # of a sweep's, its board tells
            self.view.line(f"{self._limit(event.by)} is reached; stopping as soon as possible")

    @_on.register
    def _(self, event: NoRoom) -> None:
        self.view.no_room(event.seconds)
        self._had_no_room = True

    @_on.register
    def _(self, event: Placed) -> None:
        self._placed[event.rank] = event
        if self._had_no_room:
            self._had_no_room = False
            self.view.doing("starting the workers")
        if len(self._placed) == self.decided.world_size:
            workers = [self._placed[rank] for rank in sorted(self._placed)]
            self.record.json("placement.json", [asdict(worker) for worker in workers])
            if tags := gpu_tags(workers):
                self.record.tags(tags)
            for worker in workers:
                if worker.busy:
                    self.view.line(f"note: on node {worker.host}, {worker.busy}")

    @_on.register
    def _(self, event: Started) -> None:
        config, decided = self.config, event.decided
        self.decided = decided
        self._rows = [row for row in event.history if row.kind == "epoch"]
        with suppress(OSError):  # an earlier one exists, and the checkpoints have it, too
            storage.persistently(lambda: self.folder.write_config(config, decided))
        if config.elastic is not None:
            self.record.add_segment(f"{decided.topology} from step {event.step + 1}")
        self.record.started(event)
        for sentence in event.skipped:
            self.view.line(f"passed over: {sentence}")
        threads = counted(decided.cpus, "CPU thread")
        if event.resumed_from:
            self.view.line(f"continuing after step {event.step}")
        computed = arithmetic.Choice(decided.precision, decided.convolutions or USUAL).words
        computed += ", compiled" * config.compile
        self.view.started(f"training on {event.hardware}, {computed}, {threads} per worker")
        self.view.training(self.record.task, config.epochs, event.steps_per_epoch, event.step)
        self._callbacks.call("started", event)

    @_on.register
    def _(self, event: WorkersFailed) -> None:
        verdict = self.verdict = event.verdict
        self._placed.clear()
        for rank, stacks in event.stacks.items():
            self.record.text(f"hangs/failure{event.number}_rank{rank}.txt", stacks)
        if verdict.final or event.number > self.config.max_failures:
            if verdict.first.trace:
                self.view.line(verdict.first.trace)
            return
        self.record.tags({"cifar_ray.worker_failures": str(event.number)})
        self.view.line(
            f"workers failed ({verdict.reason}); restarting from the newest checkpoint, "
            f"failure {event.number} of at most {self.config.max_failures}"
        )

    @_on.register
    def _(self, event: NodeLeaving) -> None:
        self.record.count_preemption()
        left = f"in {max(event.deadline_ms / 1000 - time.time(), 0):.0f} s" if event.deadline_ms else "soon"
        address = next((f" ({it.address})" for it in self._placed.values() if it.node_id == event.node_id), "")
        self.view.line(
            f"node {event.node_id[:8]}{address} leaves {left}; stopping as soon as possible, which is no failure"
        )

    @_on.register
    def _(self, event: RoomToGrow) -> None:
        self.view.line(
            f"there is room for topology {event.topology}; stopping {self.decided.topology} as soon as possible"
        )

    @_on.register
    def _(self, event: Stopped) -> None:
        self.view.line(f"stopped after step {event.step} with a checkpoint")

    @_on.register
    def _(self, event: Moved) -> None:
        config, decided = self.config, event.decided
        if decided.topology != self.decided.topology:
            self.view.line(
                f"going on with topology {decided.topology}, "
                f"{config.global_batch_size} {self.record.task.unit} per step as before "
                f"({config.share(decided.world_size)} per worker)"
            )
            self.record.moved(decided)
        self.decided = decided
        self._placed.clear()
        self.view.doing("starting the workers")

    def finish(self, outcome: Outcome) -> None:
        """Record the outcome; :meth:`end` is still to be called."""
        self.record.result(outcome, self.dataset.tested_on(self.config.test_images))
        if outcome.stopped_by:
            self.record.tags({STOPPED_BY_TAG: outcome.stopped_by})
        if outcome.untested:
            self.view.line(f"{outcome.untested}; the figures are the last epoch's")
        wanted, best = self.config.log_models, int(outcome.metrics.get(CHOSEN_EPOCH, 0))
        final, load = Path(outcome.checkpoint).name, partial(checkpoints.load, self.folder.folder)
        if best and (wanted == "best" or (wanted == "all" and best != outcome.epochs)):
            self.record.model("best", partial(load, "best"), self.dataset, best)
        if wanted in ("final", "all"):
            self.record.model("final", partial(load, final), self.dataset, outcome.epochs)

    def halt(self, by: str) -> None:
        """Record that a limit has stopped the run; :meth:`end` is still to be called.

        No model is logged, since its figures were not measured where the run has stopped; the checkpoint has it.
        """
        self.record.halted(by, self._saved)

    @property
    def command(self) -> str:
        """The command that continues the run."""
        return f"cifar-ray resume {shlex.quote(self.record.name)}{stores.flag(self.record.uri)}"

    @property
    def interrupted(self) -> str:
        """The last line if a signal ends the run now."""
        return f"Stopped {self._when}. Continue with: {self.command}"

    @property
    def _when(self) -> str:
        return f"after epoch {self._rows[-1].step}" if self._rows else "within the first epoch"

    def halted(self, by: str) -> str:
        """The last line of a run that a limit has stopped."""
        after = f"after step {self._saved.step}" if self._saved else "before its first checkpoint"
        return f"stopped by {self._limit(by)} {after}, {self._when}; {self._more(by)}"

    def exhausted(self, outcome: Outcome) -> str:
        """The last line of a run that its patience has ended, with the epoch that was the best."""
        best = int(outcome.metrics.get(CHOSEN_EPOCH, 0))
        metric = self.record.task.primary.on(self.decided.facts.measured)
        since = f", {metric} was best after epoch {best}" if best else ""
        after = f"after epoch {outcome.epochs} of {self.config.epochs}"
        return f"stopped by {self._limit(outcome.stopped_by)} {after}{since}; {self._more(outcome.stopped_by)}"

    def _more(self, by: str) -> str:
        return f"`{self.command} {errors.flag_of(by)} MORE` goes on"

    def _limit(self, by: str) -> str:
        """A limit in words: ``--max-time 2h``, or ``the sweep's --max-time``."""
        return limits.named(by) if limits.is_of_sweep(by) else f"{limits.named(by)} {getattr(self.config, by)}"

    def _record_spent(self) -> None:
        self._spent_at = time.monotonic()
        if self.spent != Spent():  # it would replace what an earlier driver has recorded
            self.record.figures(self.spent.figures(self.config.price))

    def end(self, status: str, reason: str = "") -> None:
        """Set the run's final status in MLflow, FINISHED, FAILED or KILLED, and display what could not be written."""
        if reason:
            self.record.failed(reason)
        self._record_spent()
        written = self.is_recorded = self.record.end(status)
        self._callbacks.call("end", status)
        if not written:
            why = self.record.trouble or next(iter(self.record.refused), "no answer in time")
            self.view.line(
                f"MLflow at {self.record.uri} does not take the run's record ({why}); "
                f"the checkpoints have it, and `{self.command}` writes it when the store is back"
            )
            return
        for refused in dict.fromkeys(self.record.refused):
            self.view.line(f"something of the run is not in MLflow at {self.record.uri}: {refused}")

    def result(self, outcome: Outcome | None, stopped_by: str = "") -> TrainResult:
        """The run as plain values; without an outcome, since a limit has stopped it, with its last whole epoch."""
        rows, times = self._rows, {}
        metrics, weights, checkpoint = rows[-1].metrics if rows else {}, "", ""
        if self._saved is not None:
            weights, checkpoint = self._saved.weights_sha256, self._saved.path.name
        if outcome is not None:
            rows = [row for row in outcome.history if row.kind == "epoch"]
            metrics, times, weights = outcome.metrics, outcome.times, outcome.weights_sha256
            checkpoint = Path(outcome.checkpoint).name
        return TrainResult(
            name=self.folder.name,
            run_id=self.record.run_id,
            tracking_uri=self.record.uri,
            folder=self.folder.address,
            page=self.record.page,
            metrics=metrics,
            times={**times, **self.spent.figures(None)},
            history=[{"epoch": row.step, **row.metrics} for row in rows],
            weights_sha256=weights,
            checkpoint=self.folder.checkpoint(checkpoint) if checkpoint else "",
            task=self.record.task,
            cost_usd=self.spent.usd(self.config.price),
            stopped_by=stopped_by,
        )

    def locations(self, result: TrainResult) -> Sequence[tuple[str, str]]:
        """Rows of a table: what the run took, where somebody has asked, and where everything of it is."""
        asked, segments = self.config.price is not None or self.config.max_time is not None, self.record.segments
        return [
            *(self.spent.rows(self.config.price) if asked else []),
            *([("topologies", ", ".join(segments))] if len(segments) > 1 else []),
            ("run", f"{result.name} (MLflow id {result.run_id})"),
            ("folder", tilde(result.folder)),
            *([("weights sha256", result.weights_sha256)] if result.weights_sha256 else []),
            *self._traces(),
            ("open in MLflow", pages.way(self.record.uri, self.record.page)),
        ]

    def _traces(self) -> Sequence[tuple[str, str]]:
        """A row of a table on where the traces are, and how to open them; none without them."""
        if not (ranks := sorted(rank for rank, one in self._traced.items() if not one.problem)):
            return []
        files = " to ".join(f"rank{rank}.json.gz" for rank in sorted({ranks[0], ranks[-1]}))
        folder = f"{tilde(self.folder.address)}/{profiling.FOLDER}"
        return [("traces", f"{folder}, {files}, also in MLflow below {PROFILE}/; open one at https://ui.perfetto.dev")]
