"""Training and resuming a run: the driver's side, from a config to a recorded result."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from cifar_ray import config as configs
from cifar_ray import data, tracking
from cifar_ray.config import TrainConfig
from cifar_ray.console import Console
from cifar_ray.data import Dataset
from cifar_ray.orchestration import attempt, cluster, runs
from cifar_ray.orchestration.attempt import RunFailedError
from cifar_ray.orchestration.events import Placed, Progress, SystemSample, WorkersFailed
from cifar_ray.orchestration.runs import RunFolder
from cifar_ray.tracking import store
from cifar_ray.tracking.run import RunRecord
from cifar_ray.training import checkpoint, recipe
from cifar_ray.training.observer import EpochRecord, Launch, Outcome, Row, SavedCheckpoint, Started


class InterruptedRunError(BaseException):
    """A signal has ended the run; like KeyboardInterrupt, it is not for ``except Exception``."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"interrupted by {signal.Signals(signum).name}")


@dataclass(frozen=True)
class TrainResult:
    """A finished run.

    Attributes:
        name: the run's name.
        run_id: MLflow's id of it.
        tracking_uri: the store that has it.
        folder: its folder, with the config and the checkpoints.
        metrics: the last epoch's figures, and ``best/accuracy`` and ``best/epoch``.
        times: seconds by phase (``time/...``) and steady-state ``images_per_s``.
        weights_sha256: SHA-256 of the final weights file.
        checkpoint: folder of the final checkpoint.
    """

    name: str
    run_id: str
    tracking_uri: str
    folder: Path
    metrics: dict[str, float]
    times: dict[str, float]
    weights_sha256: str
    checkpoint: Path


def train(config: TrainConfig, begun: float | None = None) -> TrainResult:
    """Train as ``config`` says, and record it.

    Args:
        config: what to do.
        begun: ``time.time()`` from which start-up is counted; now when None.

    Raises:
        ConfigError: on a user's mistake, before anything is started or recorded.
        RunFailedError: when training fails; the run is FAILED in MLflow and can be resumed.
        InterruptedRunError: on SIGINT or SIGTERM; a run that has begun is KILLED in MLflow and can be resumed.
    """
    begun = begun or time.time()
    config = recipe.resolve(config)
    with _signals(), Console() as console:
        tracking.quieten(config.verbose)
        client = store.connect(store.resolve_uri(config.tracking_uri))
        folder = runs.create(config)
        record = None
        try:
            with folder.lock():
                dataset, data_s = _read(config, console)
                with _session(config, console) as check:
                    config, placement = attempt.with_device(config)
                    record = RunRecord.create(client, config, folder.name, folder.key, folder.path, dataset)
                    work = _Work(config, placement, dataset, folder, record, console, check)
                    return work.run(Launch(begun, data_s))
        finally:
            if record is None:  # nothing has begun, and the name is free again
                shutil.rmtree(folder.path, ignore_errors=True)


def resume(run: str, changes: Mapping[str, Any] | None = None, begun: float | None = None) -> TrainResult | None:
    """Continue a run at the step after its newest usable checkpoint, in the same MLflow run.

    Args:
        run: its name or MLflow id.
        changes: ``TrainConfig`` fields that say where it runs and is found; all others stay as they were.
        begun: as for :func:`train`.

    Returns:
        None when it was finished already.

    Raises:
        CheckpointError: when the run has checkpoints and none can be used.
        ConfigError: when there is no such run, its folder is gone, or the changes do not fit it.
        RunFailedError: as for :func:`train`.
        InterruptedRunError: as for :func:`train`.
    """
    begun = begun or time.time()
    changes = dict(changes or {})
    tracking.quieten(changes.get("verbose", False))
    client, known = store.open_run(store.resolve_uri(changes.get("tracking_uri")), run)
    if known.status == "FINISHED":
        return None
    folder = runs.open_existing(known.folder, known.key)
    with _signals(), folder.lock(), Console() as console:
        newest = checkpoint.latest(folder.checkpoints)
        config = _moved(newest[1].config if newest else folder.config(), changes)
        dataset, data_s = _read(config, console)
        with _session(config, console) as check:
            config, placement = attempt.with_device(config)
            record = RunRecord.reopen(client, config, known.run_id)
            for saved in checkpoint.existing(folder.checkpoints):  # the store may have been away when they were made
                record.checkpoint(saved)
            work = _Work(config, placement, dataset, folder, record, console, check)
            return work.run(Launch(begun, data_s))


@dataclass
class _Work:
    """One driver's work on one run, with everything at hand."""

    config: TrainConfig
    placement: list[str]
    dataset: Dataset
    folder: RunFolder
    record: RunRecord
    console: Console
    check: Callable[[], None]
    placed: dict[int, Placed] = field(default_factory=dict)
    failures: int = 0
    trouble_told: bool = False

    def run(self, launch: Launch) -> TrainResult:
        """Train to the end, and end the run truthfully whatever happens."""
        self._announce()
        status = "FAILED"
        try:
            outcome = attempt.run(
                self.config, self.placement, self.dataset, self.folder.checkpoints, launch, self.listen, self.check
            )
            self.console.doing("recording the result")
            self.record.result(outcome, self.dataset)
            status = "FINISHED"
        except (InterruptedRunError, KeyboardInterrupt):
            status = "KILLED"
            raise
        except RunFailedError as error:
            self.record.failed(str(error))
            raise
        finally:
            if not self.record.end(status):
                self.console.line(
                    f"MLflow at {self.record.uri} does not answer ({self.record.trouble}); "
                    f"`cifar-ray resume {self.folder.name}{self._store_flag()}` completes its record when it is back"
                )
            for reason in self.record.refused:
                self.console.line(f"MLflow at {self.record.uri} has not taken something: {reason}")
        return self._result(outcome)

    def listen(self, event: Any) -> None:
        """Show and record one event of the run."""
        console, record = self.console, self.record
        if isinstance(event, Row):
            console.loss(event.metrics["train/loss"])
            record.row(event)
        elif isinstance(event, Progress):
            console.progress(event.epoch, event.step, event.images_per_s)
        elif isinstance(event, EpochRecord):
            console.epoch(event.row.step, event.row.metrics)
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
        if record.trouble and not self.trouble_told:
            self.trouble_told = True
            console.line(f"MLflow does not answer ({record.trouble}); training goes on, and it is tried again")

    def _announce(self) -> None:
        config, console = self.config, self.console
        console.line(
            f"run {self.folder.name}: {config.model} on {config.dataset}, topology {config.topology}, "
            f"{config.images_per_step} images per step ({config.batch_size} per worker), {config.strategy}"
        )
        if cluster.is_made_up(config):
            console.line(
                f"note: {config.local_nodes} Ray node(s) on this one machine"
                + (", counting more CPUs than it has" if config.oversubscribe else "")
                + "; its times are not those of a cluster"
            )
            self.record.tags(
                {
                    "local_nodes": str(config.local_nodes),
                    "oversubscribe": str(config.oversubscribe).lower(),
                    "times_are_a_clusters": "false",
                }
            )
        console.doing("starting the workers")

    def _on_placed(self, event: Placed) -> None:
        self.placed[event.rank] = event
        if len(self.placed) == self.config.world_size:
            self.record.placed([asdict(self.placed[rank]) for rank in sorted(self.placed)])

    def _on_started(self, event: Started) -> None:
        config = configs.from_mapping(event.config)
        self.folder.write_config(config)
        self.record.started(event)
        for sentence in event.skipped:
            self.console.line(f"passed over: {sentence}")
        where = f"{event.hardware}, {config.precision}, {config.cpus_per_worker} CPU thread(s) per worker"
        origin = f"continuing after step {event.step}" if event.resumed_from else "training"
        self.console.line(f"{origin} on {where}")
        self.console.training(config.epochs, event.steps_per_epoch, event.step)

    def _on_failed(self, event: WorkersFailed) -> None:
        self.failures += 1
        self.placed.clear()
        reasons = "; ".join(f"rank {rank}: {reason}" for rank, reason in sorted(event.reasons.items()))
        if event.final or self.failures > self.config.max_failures:
            return
        self.record.tags({"cifar_ray.worker_failures": str(self.failures)})
        self.console.line(
            f"workers failed ({reasons}); restarting from the newest checkpoint, "
            f"failure {self.failures} of at most {self.config.max_failures}"
        )

    def _store_flag(self) -> str:
        return f" --tracking-uri {self.record.uri}" if self.config.tracking_uri else ""

    def _result(self, outcome: Outcome) -> TrainResult:
        result = TrainResult(
            name=self.folder.name,
            run_id=self.record.run_id,
            tracking_uri=self.record.uri,
            folder=self.folder.path,
            metrics=outcome.metrics,
            times=outcome.times,
            weights_sha256=outcome.weights_sha256,
            checkpoint=Path(outcome.checkpoint),
        )
        places = [
            ("run", f"{result.name} (MLflow id {result.run_id})"),
            ("folder", str(result.folder)),
            ("weights sha256", result.weights_sha256),
            ("look at it", self.record.page or f"with cifar-ray ui{self._store_flag()}"),
        ]
        self.console.summary(result.metrics, result.times, places)
        return result


def _read(config: TrainConfig, console: Console) -> tuple[Dataset, float]:
    """The data set, and the seconds that it took."""
    begin = time.perf_counter()
    if data.present(config.dataset, config.data_dir):
        console.doing(f"reading {config.dataset}")
        dataset = data.load(config.dataset, config.data_dir)
    else:
        with console.aside(f"downloading {config.dataset} to {data.folder(config.data_dir)}"):
            dataset = data.load(config.dataset, config.data_dir)
    return dataset, time.perf_counter() - begin


@contextmanager
def _session(config: TrainConfig, console: Console) -> Iterator[Callable[[], None]]:
    """Ray for the run, and what to call now and then to be interrupted by a signal.

    An exception out of a signal handler is not safe inside Ray's compiled code.
    """
    console.doing("joining Ray" if cluster.address(config) else "starting Ray")
    pending: list[int] = []

    def check() -> None:
        if pending:
            console.line("interrupted; stopping Ray")
            raise InterruptedRunError(pending[0])

    # Twice, since Ray's compiled part sets a handler of its own when it starts.
    with _signals(pending), cluster.session(config), _signals(pending):
        check()
        yield check


def _moved(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """The config of a run that goes on elsewhere; the global batch stays what it was."""
    images = config.images_per_step
    moved = configs.merge(config, {**changes, "global_batch_size": images} if "topology" in changes else changes)
    return recipe.resolve(moved)


@contextmanager
def _signals(pending: list[int] | None = None) -> Iterator[None]:
    """Within it, SIGINT and SIGTERM raise :class:`InterruptedRunError` in the main thread.

    With a list, the first signal is only noted in it, and the second raises.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, _: FrameType | None) -> None:
        if pending is None or pending:
            raise InterruptedRunError(signum)
        pending.append(signum)

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
