"""Sweeping: the driver's side, from a grid to runs recorded under one parent."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
import ray.tune

from cifar_ray import data, storage, tracking
from cifar_ray.config import sweep as sweeps
from cifar_ray.config import topology
from cifar_ray.config import train as configs
from cifar_ray.config.errors import ConfigError, InterruptedRunError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Board, RunView
from cifar_ray.orchestration.cluster import connection, preflight
from cifar_ray.orchestration.run import attempt, checkpoints, events
from cifar_ray.orchestration.run import folder as runs
from cifar_ray.orchestration.run.attempt import RunFailedError
from cifar_ray.orchestration.run.events import Inbox
from cifar_ray.orchestration.run.folder import RunFolder
from cifar_ray.orchestration.run.interrupts import session, signals
from cifar_ray.orchestration.run.session import Work, cpu_note, made_up_note
from cifar_ray.orchestration.sweep.planner import Trial, create, draw, lock, plan, read, refuse, write_cells
from cifar_ray.orchestration.sweep.trial import Begun, Ended, Plan, Told, drive
from cifar_ray.orchestration.sweep.tuning import Fitting, Listener, asha
from cifar_ray.storage import Folder, Lock
from cifar_ray.tracking import parent, store
from cifar_ray.tracking.parent import SweepRecord
from cifar_ray.tracking.run import RunRecord
from cifar_ray.tracking.store import Client
from cifar_ray.training import hardware
from cifar_ray.training.observer import PHASES, EpochRecord, Launch

_POLL_S = 0.1
_STORE_PATIENCE_S = 60.0
_LOCKS_AT_ONCE = 64
_HEAD = {"node:__internal_head__": 0.001}
"""A trial's process costs no CPU and sits on the head, which is no spot instance."""


@dataclass(frozen=True)
class SweepResult:
    """A sweep that has come to its end.

    Attributes:
        name: its name.
        run_id: MLflow's id of its own run, the parent of the others.
        tracking_uri: the store that has them.
        folder: address of its folder.
        states: name of every run -> ``finished``, ``failed``, ``stopped`` or ``skipped``.
        figures: seconds by phase over all runs, wall time, and the share of it outside training.
    """

    name: str
    run_id: str
    tracking_uri: str
    folder: str
    states: dict[str, str]
    figures: dict[str, float]

    @property
    def failed(self) -> list[str]:
        """Names of the runs that have failed."""
        return [name for name, state in self.states.items() if state == boards.FAILED]


def sweep(config: SweepConfig, command: str = "", begun: float | None = None) -> SweepResult:
    """Train every cell of a sweep, and record all runs under one parent.

    Args:
        config: what to do.
        command: what a person would type to do the same.
        begun: ``time.time()`` from which wall time is counted; now when None.

    Raises:
        ConfigError: on a user's mistake, before anything has run.
        InterruptedRunError: on SIGINT or SIGTERM; the sweep is KILLED in MLflow and can be resumed.
        RunFailedError: when Ray Tune itself fails, or another driver has taken a run over; the sweep is FAILED in
            MLflow and can be resumed.
    """
    begun = begun or time.time()
    trials = plan(sweeps.cells(config, draw(config)))
    refuse(config, trials)
    base = config.base
    with signals():
        tracking.quieten(base.verbose)
        client = store.connect(store.resolve_uri(base.tracking_uri))
        folder, held = create(config, client)
        record: SweepRecord | None = None

        def begin() -> SweepRecord:
            nonlocal record
            write_cells(folder, trials)
            record = SweepRecord.create(client, config, folder.address, command)
            return record

        try:
            with held:
                return _Sweep(config, folder, client, trials, begun).run(begin)
        finally:
            if record is None:  # nothing has begun, and the name is free again
                runs.discard(folder)


def resume(name: str, tracking_uri: str | None = None, begun: float | None = None) -> SweepResult | None:
    """Train what is left of a sweep, under the same parent.

    Finished runs stay, and so do failed ones; an interrupted run goes on from its newest checkpoint.

    Args:
        name: the sweep's name.
        tracking_uri: the store that has it.
        begun: as for :func:`sweep`.

    Returns:
        None when nothing is left.

    Raises:
        ConfigError: when there is no such sweep, its folder is gone, or another process works on it.
        InterruptedRunError: as for :func:`sweep`.
    """
    begun = begun or time.time()
    tracking.quieten(verbose=False)
    client, known = parent.connect(name, tracking_uri)
    config, trials = read(known)
    folder = storage.at(known.folder)
    with signals(), lock(folder):
        there = parent.trials(client, known)
        for trial in trials:
            trial.find_again(folder, there)
        if all(trial.state != boards.WAITING for trial in trials):
            return None
        work = _Sweep(config, folder, client, trials, begun - known.wall_s)
        return work.run(lambda: SweepRecord.reopen(client, known))


class _Sweep:
    """One driver's work on one sweep."""

    def __init__(self, config: SweepConfig, folder: Folder, client: Client, trials: list[Trial], begun: float) -> None:
        self._config, self._folder, self._client, self._trials = config, folder, client, trials
        self._begun = begun
        self._base = self._session_config()
        self._board = Board([trial.cell.name for trial in trials])
        self._datasets: dict[str, Dataset] = {}
        self._at_once = 1
        self._unused_gpus: dict[int, str] = {}
        self._record: SweepRecord | None = None
        self._locks: list[Lock] = []

    def run(self, record: Callable[[], SweepRecord]) -> SweepResult:
        """Train all that waits; ``record`` makes or opens the sweep's own run when nothing stands in the way."""
        with self._board as board:
            self._read_data()
            board.doing(connection.note(self._base))
            with session(self._base, board.line, self._locks) as check:
                self._fit_to_cluster()
                self._record = record()
                self._record.cells([trial.described(self._config) for trial in self._trials])
                status = "FAILED"
                try:
                    self._announce()
                    if self._waiting():
                        self._train(check)
                    status = "FINISHED"
                except (InterruptedRunError, KeyboardInterrupt):
                    status = "KILLED"
                    raise
                finally:
                    self._end(status)
        return self._result()

    def _session_config(self) -> TrainConfig:
        """The Ray that all runs share: where it is, and how large when it is started here."""
        waiting = [trial.config for trial in self._trials if trial.config]
        nodes = max(config.placement.nodes for config in waiting)
        workers = max(config.placement.workers_per_node for config in waiting)
        cpus = max(config.cpus_per_worker for config in waiting)
        return dataclasses.replace(self._config.base, topology=f"{nodes}x{workers}", cpus_per_worker=cpus)

    def _read_data(self) -> None:
        for name in dict.fromkeys(trial.config.dataset for trial in self._waiting()):
            present = data.present(name, self._base.data_dir)
            self._board.doing(f"{'reading' if present else 'downloading'} {name}")
            self._datasets[name] = data.load(name, self._base.data_dir)

    def _waiting(self) -> list[Any]:
        return [trial for trial in self._trials if trial.state == boards.WAITING and trial.config]

    def _fit_to_cluster(self) -> None:
        """Decide every run's device, and how many runs go on at once."""
        for trial in self._waiting():
            asked = trial.config
            try:
                trial.config, _ = attempt.with_device(asked)
                self._unused_gpus[trial.index] = attempt.unused_gpus(asked, trial.config)
            except ConfigError as error:
                trial.reason, trial.config = str(error), None
        refuse(self._config, self._trials)
        preflight.check_storage(self._folder, max((t.config for t in self._waiting()), key=preflight.checkpoint_bytes))
        nodes = connection.nodes()
        gpus = max((t.config.gpus_reserved for t in self._waiting()), default=0)
        room = topology.copies(self._base.placement, nodes, self._base.cpus_per_worker, gpus)
        if self._base.oversubscribe:  # more at once than the machine computes would only slow each other down
            needed = self._base.world_size * self._base.cpus_per_worker
            room = min(room, hardware.allowed_cpus() // needed)
        limits = [max(room, 1), len(self._waiting()), self._config.max_concurrent or room or 1]
        self._at_once = max(min(limits), 1)

    def _announce(self) -> None:
        board, config = self._board, self._config
        waiting = self._waiting()
        held = "per worker is held, so the global batch grows with the workers"
        if config.held == "global_batch":
            held = "over all workers is held"
        count = len(waiting)
        board.line(
            f"sweep {config.name}: {count} run{'s' if count != 1 else ''} of {len(self._trials)}, "
            f"{self._at_once} at once; the batch {held}"
        )
        for trial in self._trials:
            if trial.state == boards.SKIPPED:
                board.skip(trial.index, trial.reason)
            elif trial.state != boards.WAITING:
                board.rows[trial.index].state = trial.state
        shared = next((trial.config for trial in waiting if connection.shares_a_machine(trial.config)), None)
        if shared is not None:
            board.line(made_up_note(shared))
        for reason in sorted(set(filter(None, self._unused_gpus.values()))):
            board.line(cpu_note(reason))

    def _train(self, check: Callable[[], None]) -> None:
        inbox = events.open_mailbox(Launch(self._begun, 0.0))
        fitting = Fitting(*self._tuner(inbox.actor))
        self._board.start(self._at_once)
        try:
            while fitting.thread.is_alive():
                check()
                fitting.thread.join(_POLL_S)
                self._catch_up(fitting.listener.take(), inbox)
            self._catch_up(fitting.listener.take(), inbox)
        except BaseException:
            fitting.cancel()
            raise
        for trial in self._trials:
            if trial.state in (boards.WAITING, boards.RUNNING):
                self._close(trial, boards.FAILED, fitting.trouble or "Ray Tune has ended without it")
        if fitting.trouble:
            raise RunFailedError(f"Ray Tune has failed: {fitting.trouble}")

    def _tuner(self, mailbox: Any) -> tuple[ray.tune.Tuner, Listener]:
        waiting = self._waiting()
        plans = {}
        self._lock_again([trial.folder for trial in waiting if trial.folder is not None])
        for trial in waiting:
            if trial.folder is None:
                config = dataclasses.replace(trial.config, storage=self._folder.address, run_name=trial.slug)
                trial.folder, held = runs.create(config)
                self._locks.append(held)
            plans[trial.index] = Plan(configs.to_mapping(trial.config), trial.folder.folder)
        references = {name: ray.put(dataset) for name, dataset in self._datasets.items()}
        trainable = ray.tune.with_parameters(drive, plans=plans, datasets=references, mailbox=mailbox)
        racing = self._config.scheduler == "asha"
        listener = Listener()
        tuner = ray.tune.Tuner(
            ray.tune.with_resources(trainable, _HEAD),
            param_space={"index": ray.tune.grid_search([trial.index for trial in waiting])},
            tune_config=ray.tune.TuneConfig(
                max_concurrent_trials=self._at_once,
                reuse_actors=not racing,  # a run that is stopped in its middle leaves its process in no fit state
                scheduler=asha([trial.config for trial in waiting]) if racing else None,
            ),
            run_config=ray.tune.RunConfig(
                name=f"attempt-{time.time_ns()}",
                storage_path=str(self._folder.disk / "ray_tune"),
                callbacks=[listener],
                verbose=0,
            ),
        )
        return tuner, listener

    def _lock_again(self, folders: Sequence[RunFolder]) -> None:
        """Lock the runs that an earlier driver has begun.

        In an object store, each is watched for a minute if that driver was killed on another machine; so all at once.
        """
        if not folders:
            return
        self._board.doing(f"taking over {len(folders)} run(s) of an earlier driver")
        with ThreadPoolExecutor(_LOCKS_AT_ONCE) as pool:
            list(pool.map(lambda folder: self._locks.append(folder.lock()), folders))

    def _hear(self, told: Sequence[Any]) -> None:
        for message in told:
            if not isinstance(message, Told):
                continue
            trial, event = self._trials[message.index], message.event
            if isinstance(event, EpochRecord):  # of a run that fails or is stopped, this is what is known
                before = trial.times.get("time/training_s", 0.0)
                trial.times = {**trial.times, "time/training_s": before + event.row.metrics["epoch_s"]}
            if isinstance(event, Begun):
                self._begin(trial, event.at)
            elif isinstance(event, Ended):
                self._ended(trial, event)
            elif trial.work is not None:
                trial.work.listen(event)

    def _begin(self, trial: Trial, at: float) -> None:
        assert trial.config is not None
        assert trial.folder is not None
        assert self._record is not None
        self._board.begin(trial.index)
        trial.state = boards.RUNNING
        trial.work = Work(
            trial.config,
            self._datasets[trial.config.dataset],
            trial.folder,
            self._open_record(trial, at),
            RunView(self._board, trial.index),
            self._unused_gpus.get(trial.index, ""),
        )

    def _open_record(self, trial: Trial, begun: float) -> RunRecord:
        """The trial's run in MLflow; a store that is away for a moment does not end the sweep."""
        end = time.monotonic() + _STORE_PATIENCE_S
        while True:
            try:
                return self._record_of(trial, begun)
            except ConfigError:
                if time.monotonic() > end:
                    raise
                time.sleep(1)

    def _record_of(self, trial: Trial, begun: float) -> RunRecord:
        assert trial.config is not None
        assert trial.folder is not None
        assert self._record is not None
        if trial.run_id:
            return RunRecord.reopen(self._client, trial.config, trial.run_id)
        tags = {**self._record.child_tags, parent.SWEEP_TAG: self._config.name}
        dataset, folder = self._datasets[trial.config.dataset], trial.folder
        return RunRecord.create(
            self._client, trial.config, trial.cell.name, folder.key, folder.address, dataset, begun, tags
        )

    def _ended(self, trial: Trial, event: Ended) -> None:
        if event.outcome is None:
            self._close(trial, boards.FAILED, event.reason)
            return
        trial.outcome, trial.times = event.outcome, event.outcome.times
        accuracy, seconds = event.outcome.metrics["test/accuracy"], event.outcome.times["time/training_s"]
        rate = event.outcome.times.get("images_per_s")
        note = f"accuracy {accuracy:.2%}, training {seconds:.1f} s" + (f", {rate:,.0f} images/s" if rate else "")
        self._close(trial, boards.FINISHED, note)

    def _close(self, trial: Trial, state: str, note: str) -> None:
        """Show and record a run's end; the store is written to in a thread, as the next run may begin."""
        trial.state, trial.reason = state, "" if state == boards.FINISHED else note
        self._board.end(trial.index, state, note)
        work = trial.work
        if work is not None:
            if trial.outcome is not None:
                work.finish(trial.outcome)
            if state == boards.STOPPED:
                work.record.tags({parent.STOPPED_TAG: "asha"})
            status = {boards.FINISHED: "FINISHED", boards.FAILED: "FAILED"}.get(state, "KILLED")
            _record_end(trial, work, status, trial.reason)
        self._tell_figures()

    def _catch_up(self, ended: Sequence[tuple[int, bool]], inbox: Inbox) -> None:
        """Hear what is new, and see to the trials that have ended without a word: stopped by the scheduler, or dead.

        Args:
            ended: the places of trials that Ray Tune has ended, and whether with an error.
            inbox: the sweep's.
        """
        self._hear(inbox.take(timeout_s=5))
        if ended:  # what was heard just now may have been asked for before they ended
            self._hear(inbox.take(timeout_s=30))
        for index, failed in ended:
            trial = self._trials[index]
            if trial.state not in (boards.RUNNING, boards.WAITING):
                continue
            if failed or self._config.scheduler == "none":
                self._close(trial, boards.FAILED, "the process that drove it has died")
            else:
                self._close(trial, boards.STOPPED, "stopped early by asha, whose best runs were ahead of it")

    def _end(self, status: str) -> None:
        assert self._record is not None
        for trial in self._trials:
            if trial.state == boards.RUNNING and trial.work is not None:
                _record_end(trial, trial.work, "KILLED")
        for trial in self._trials:
            if trial.recording is not None:
                trial.recording.join()
        lost = [t for t in self._trials if t.state == boards.FAILED and t.work is None and not t.run_id]
        if lost:  # they have no run of their own that could say why
            cells = [trial.described(self._config) for trial in self._trials]
            for trial in lost:
                cells[trial.index]["reason"] = trial.reason
            self._record.cells(cells)
        self._tell_figures()
        for held in self._locks:
            held.release()
        checkpoints.remove_copies(self._folder)
        for trial in self._trials:
            if trial.folder is not None:
                checkpoints.remove_copies(trial.folder.folder)
        if status != "FINISHED":
            self._board.line(f"`cifar-ray sweep --resume {self._config.name}` continues the sweep")
        if not self._record.end(status):
            self._board.line(f"MLflow at {self._record.uri} does not take all of the sweep's own record")

    def _tell_figures(self) -> None:
        assert self._record is not None
        self._record.figures(self.figures())

    def figures(self) -> dict[str, float]:
        """Where the sweep's time has gone so far."""
        sums = {f"sweep/{phase}_s": 0.0 for phase in PHASES}
        for trial in self._trials:
            for phase in PHASES:
                sums[f"sweep/{phase}_s"] += trial.times.get(f"time/{phase}_s", 0.0)
        wall = time.time() - self._begun
        sums["sweep/wall_s"] = wall
        sums["sweep/concurrency"] = float(self._at_once)
        sums["sweep/share_outside_training"] = max(1 - sums["sweep/training_s"] / (wall * self._at_once), 0.0)
        return sums

    def _result(self) -> SweepResult:
        assert self._record is not None
        return SweepResult(
            name=self._config.name,
            run_id=self._record.run_id,
            tracking_uri=self._record.uri,
            folder=self._folder.address,
            states={trial.cell.name: trial.state for trial in self._trials},
            figures=self.figures(),
        )


def _record_end(trial: Trial, work: Work, status: str, reason: str = "") -> None:
    """Write a run's end in a thread: a store that does not answer holds up neither the next run nor another's end."""
    trial.recording = threading.Thread(target=work.end, args=[status, reason])
    trial.recording.start()
