"""Run a sweep: from a grid to runs recorded under one parent."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cifar_ray import data, storage, tasks, tracking
from cifar_ray.config import imports, topology
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError, InterruptedRunError, RunFailedError, counted
from cifar_ray.config.option import is_own
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.display import sweep as boards
from cifar_ray.display.run import cpu_note, made_up_note, shared_note
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.cluster import allocation, connection, preflight, reservations
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.run import checkpoints, events, run_folder
from cifar_ray.orchestration.run.interrupts import RAY_LOST, connected, signals
from cifar_ray.orchestration.sweep import planner, shared_arithmetic, shared_weights
from cifar_ray.orchestration.sweep.planner import PlannedTrial
from cifar_ray.orchestration.sweep.recorder import SweepRecorder
from cifar_ray.orchestration.sweep.trial import TrialSpec
from cifar_ray.orchestration.sweep.tuning import Tuning
from cifar_ray.reporting import report as reports
from cifar_ray.storage import Folder, Lock
from cifar_ray.tracking import parent, reading, store, uri
from cifar_ray.tracking.parent import SweepRecord
from cifar_ray.tracking.store import Client
from cifar_ray.training import hardware, recipe

_POLL_S, _LOOK_S = 0.1, 1.0
_LOCKS_AT_ONCE = 64


@dataclass(frozen=True)
class SweepResult:
    """A finished sweep.

    Attributes:
        name: its name.
        run_id: MLflow's id of its own run, the parent of the others.
        tracking_uri: the store that has them.
        folder: address of its folder.
        page: address of that run's page, when the store is a server that has pages.
        states: name of every run -> ``finished``, ``failed``, ``stopped`` or ``skipped``.
        figures: seconds by phase over all runs, wall time, and the share of it outside training.
    """

    name: str
    run_id: str
    tracking_uri: str
    folder: str
    page: str | None
    states: dict[str, str]
    figures: dict[str, float]

    @property
    def failed(self) -> list[str]:
        """Names of the runs that have failed."""
        return [name for name, state in self.states.items() if state == boards.FAILED]


@tracking.unchanged()
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
    imports.refuse_while_importing()
    config = planner.absolute(config)
    base = config.base
    address = store.resolve_uri(base.tracking_uri)  # a module of the user's may set another one when it is imported
    trials = planner.plan(sweeps.cells(config, planner.draw(config)), config.gpus_per_worker)
    planner.refuse(config, trials)
    with signals():
        tracking.quieten(base.verbose)
        client = store.connect(address)
        folder, held = planner.create(config, client)
        record: SweepRecord | None = None

        def begin() -> SweepRecord:
            nonlocal record
            planner.write_cells(folder, [trial.described(config) for trial in trials])
            record = SweepRecord.create(client, config, folder.address, command)
            return record

        try:
            with held:
                return _Sweep(config, folder, client, trials, begun).run(begin)
        finally:
            if record is None:  # nothing has begun, so the name is free again
                run_folder.discard(folder)


@tracking.unchanged()
def resume(
    name: str, tracking_uri: str | None = None, begun: float | None = None, retry_failed: bool = False
) -> SweepResult | None:
    """Train what is left of a sweep, under the same parent.

    Finished runs stay; an interrupted run goes on from its newest checkpoint.

    Args:
        name: the sweep's name.
        tracking_uri: the store that has it.
        begun: as for :func:`sweep`.
        retry_failed: whether runs that have failed go on from their newest checkpoints, too.

    Returns:
        None when nothing is left.

    Raises:
        ConfigError: when there is no such sweep, its folder is gone, another process works on it, or only failed runs
            are left and ``retry_failed`` is not given.
        InterruptedRunError: as for :func:`sweep`.
    """
    begun = begun or time.time()
    imports.refuse_while_importing()
    tracking.quieten(verbose=False)
    client, known = parent.connect(name, tracking_uri)
    config, trials = planner.read(known)
    folder = storage.at(known.folder)
    with signals(), planner.lock(folder):
        earlier = parent.trials(client, known)
        for trial in trials:
            trial.find_again(folder, earlier)
            if retry_failed and trial.state == boards.FAILED:
                trial.state, trial.reason = boards.WAITING, ""
        if all(trial.state != boards.WAITING for trial in trials):
            if failed := sum(trial.state == boards.FAILED for trial in trials):
                left = f"nothing is left of it but {counted(failed, 'failed run')}"
                raise ConfigError("retry_failed", f"must be given to go on with sweep {name}: {left}")
            return None
        return _Sweep(config, folder, client, trials, begun - known.wall_s).run(
            lambda: SweepRecord.reopen(client, known)
        )


class _Sweep:
    """A sweep in one driver."""

    def __init__(
        self, config: SweepConfig, folder: Folder, client: Client, trials: list[PlannedTrial], begun: float
    ) -> None:
        self._config, self._folder, self._client, self._trials = config, folder, client, trials
        self._begun = begun
        self._base = self._session_config()
        self._board = Board([trial.cell.name for trial in trials], begun)
        self._locks: list[Lock] = []
        self._weights: dict[str, bytes] = {}

    def run(self, open_record: Callable[[], SweepRecord]) -> SweepResult:
        """Train all waiting runs; ``open_record`` makes or opens the sweep's own MLflow run once they can start."""
        with self._board as board:
            datasets = self._load_data()
            self._weights = shared_weights.find(
                [trial for trial, _ in self._waiting()], self._client.tracking_uri, board.line
            )
            functions = sorted({path for _, config in self._waiting() for path in imports.functions(config)})
            with connected(self._base, board, self._locks, functions) as check:
                with allocation.allocator(board.waiting, check, board.line) as allocator:
                    self._bring_nodes(allocator)
                    at_once = self._fit_to_cluster()
                    self._check_gpus()
                shared_arithmetic.decide([trial for trial, _ in self._waiting()], board.line)
                record = open_record()
                record.cells([trial.described(self._config) for trial in self._trials])
                recorder = SweepRecorder(
                    self._config, self._trials, board, self._client, record, datasets, self._begun, at_once
                )
                status = "FAILED"
                try:
                    self._announce(at_once)
                    if self._waiting():
                        self._train(recorder, datasets, at_once, check)
                    status = "FINISHED"
                except (InterruptedRunError, KeyboardInterrupt) as error:
                    status = "KILLED"
                    raise InterruptedRunError(getattr(error, "signum", signal.SIGINT), self._stopped()) from None
                finally:
                    recorder.end_runs()
                    self._release()
                    recorder.end(status)
            self._summarise(record)
        return SweepResult(
            name=self._config.name,
            run_id=record.run_id,
            tracking_uri=record.uri,
            folder=self._folder.address,
            page=record.page,
            states={trial.cell.name: trial.state for trial in self._trials},
            figures=recorder.figures(),
        )

    def _summarise(self, record: SweepRecord) -> None:
        """Have the sweep's page in MLflow say what a report would say first; its record is complete without."""
        self._board.show_doing("summing up")
        name = self._config.name
        way = f"`cifar-ray report {name}{uri.flag(record.uri)}` adds a page with charts and tables."
        try:
            summary = reports.summary(reading.study(record.uri, name))
            with store.refusing(record.uri):
                store.describe(self._client, record.run_id, [way, *summary])
        except ConfigError as error:
            self._board.line(f"the sweep's page in MLflow has no summary: {error}")

    def _stopped(self) -> str:
        """How far the sweep has come, and what continues it."""
        ended = sum(trial.state in (boards.FINISHED, boards.FAILED, boards.STOPPED) for trial in self._trials)
        planned = sum(trial.state != boards.SKIPPED for trial in self._trials)
        store_flag = uri.flag(self._client.tracking_uri)
        return (
            f"stopped after {ended} of {planned} runs; "
            f"continue with `cifar-ray sweep --resume {self._config.name}{store_flag}`"
        )

    def _session_config(self) -> TrainConfig:
        """The Ray that all runs share: where it is, and how large when it is started here."""
        waiting = [trial.config for trial in self._trials if trial.config]
        nodes = max(config.placement.nodes for config in waiting)
        workers = max(config.placement.workers_per_node for config in waiting)
        cpus = max(config.cpus_reserved for config in waiting)
        return dataclasses.replace(self._config.base, topology=f"{nodes}x{workers}", cpus_per_worker=cpus)

    def _load_data(self) -> dict[str, Dataset]:
        """The data sets of the runs that wait, whose configs then have what was found in them."""
        read: dict[tuple[object, ...], Dataset] = {}
        datasets: dict[str, Dataset] = {}
        for trial, config in self._waiting():
            name = config.dataset
            which = (name, config.task, config.image_size, config.test_share)
            if which not in read:
                present = is_own(name) or data.present(name, self._base.data_dir)
                self._board.doing(f"{'reading' if present else 'downloading'} {name}")
                read[which] = data.read(config, partial(self._board.decoding, name))
                if is_own(name):
                    self._board.line(f"{config.dataset_name}: {read[which].contents(tasks.spec(config).answer)}")
            trial.config = recipe.with_images(config, read[which])
            datasets[trial.config.dataset_key] = read[which]
        return datasets

    def _waiting(self) -> list[tuple[PlannedTrial, ResolvedConfig]]:
        """Trials to train, with their configs."""
        return [(trial, trial.config) for trial in self._trials if trial.state == boards.WAITING and trial.config]

    def _bring_nodes(self, allocator: NodeAllocator) -> None:
        """Wait for the nodes of the largest topology that the cluster can have, on which all smaller ones fit.

        Raises:
            RunFailedError: when they have not come in time.
        """
        sizes = {asked.topology: asked for _, asked in self._waiting()}.values()
        for asked in sorted(sizes, key=lambda asked: (asked.world_size, asked.placement.nodes), reverse=True):
            with suppress(ConfigError):  # that topology is skipped, as _fit_to_cluster says
                allocator.allocate(asked)
                return

    def _fit_to_cluster(self) -> int:
        """Decide every run's device; return how many runs train at once."""
        for trial, asked in self._waiting():
            try:
                chosen = allocation.at_topology(asked)
                trial.config, trial.unused_gpus = chosen.config, chosen.unused_gpus
            except ConfigError as error:
                trial.reason, trial.config = str(error), None
        planner.refuse(self._config, self._trials)
        waiting = [config for _, config in self._waiting()]
        if not waiting:  # what an earlier driver left cannot run here
            return 1
        preflight.check_storage(self._folder, max(waiting, key=preflight.checkpoint_bytes))
        gpus = max(config.gpus_reserved for config in waiting)
        room = topology.copies(self._base.placement, connection.nodes(), self._base.cpus_reserved, gpus)
        if self._base.oversubscribe:  # more at once than there are CPUs would only slow each other down
            needed = self._base.world_size * self._base.cpus_reserved
            room = min(room, hardware.allowed_cpus() // needed)
        most = max(min(max(room, 1), self._config.max_concurrent or room or 1), 1)
        at_once = min(most, len(waiting))
        self._share_cpus(at_once)
        return at_once

    def _check_gpus(self) -> None:
        """Refuse GPUs that PyTorch cannot use, before each run would meet them."""
        used = any(config.device == "cuda" for _, config in self._waiting())
        if problems := preflight.gpu_problems(connection.nodes()) if used else []:
            raise ConfigError("device", f"must be cpu here: {'; '.join(problems)}")

    def _share_cpus(self, at_once: int) -> None:
        """Where none are given, give each worker as many CPUs as all runs at once leave: the same number in every run.

        More runs at once come first, since many runs of one thread each are done earlier than one run after another.
        With the same number in every run, their times tell what the workers do, and not what the threads do. The
        sweep's folder keeps it: a sweep that is continued goes on with it.
        """
        nodes, sharing = connection.nodes(), [config for _, config in self._waiting() if config.cpus_follow]
        cpus = min((config.cpus_reserved for config in sharing), default=1)
        while cpus > 1 and any(
            topology.copies(config.placement, nodes, cpus, config.gpus_reserved) < at_once for config in sharing
        ):
            cpus -= 1
        for trial, config in self._waiting():
            if config.cpus_follow:
                trial.config = dataclasses.replace(config, cpus_per_worker=cpus, cpus_follow=False)

    def _announce(self, at_once: int) -> None:
        board, config = self._board, self._config
        waiting = self._waiting()
        held = ""
        if len({run.world_size for _, run in waiting}) > 1:
            held = "; the batch per worker is held, so the global batch grows with the workers"
            if config.held == "global_batch":
                held = "; the batch over all workers is held"
        runs = counted(len(waiting), "run")
        board.line(f"sweep {config.name}: {runs} of {len(self._trials)}, {at_once} at once{held}")
        for trial in self._trials:
            if trial.state == boards.SKIPPED:
                board.skip(trial.index, trial.reason)
            elif trial.state != boards.WAITING:
                note = trial.reason if trial.score is None else trial.result(trial.score)
                board.ended_before(trial.index, trial.state, note, trial.times.get("time/wall_s", 0.0))
        shared = next((config for _, config in waiting if connection.shares_a_machine(config)), None)
        if shared is not None:
            board.line(made_up_note(shared.local_nodes, shared.oversubscribe))
        if any(run.gpu_share < 1 for _, run in waiting):
            board.line(shared_note(config.gpus_per_worker))
        for reason in sorted({trial.unused_gpus for trial in self._trials if trial.unused_gpus}):
            board.line(cpu_note(reason))

    def _train(
        self, recorder: SweepRecorder, datasets: dict[str, Dataset], at_once: int, check: Callable[[], object]
    ) -> None:
        mailbox = events.open_mailbox()
        racing = [config for _, config in self._waiting()] if self._config.scheduler == "asha" else None
        notes = self._folder.disk / "ray_tune"
        tuning = Tuning(self._specs(), datasets, mailbox, notes, at_once, racing)
        self._board.start(at_once)
        looked = time.monotonic()
        try:
            while tuning.running:
                check()
                if time.monotonic() - looked >= _LOOK_S:  # the process of a trial may have been killed
                    reservations.remove_abandoned()
                    looked = time.monotonic()
                tuning.wait(_POLL_S)
                recorder.catch_up(mailbox, tuning.take_ended())
            recorder.catch_up(mailbox, tuning.take_ended())
            recorder.settle(check)
        except RAY_LOST:
            raise
        except BaseException:
            tuning.cancel()
            reservations.remove_abandoned()
            raise
        for trial in self._trials:
            if trial.state in (boards.WAITING, boards.RUNNING) and trial.index not in recorder.too_large:
                recorder.close(trial, boards.FAILED, tuning.trouble or "Ray Tune has ended without it")
        if tuning.trouble:
            raise RunFailedError(f"Ray Tune has failed: {tuning.trouble}")
        if recorder.too_large:
            left, reason = counted(len(recorder.too_large), "run"), next(iter(recorder.too_large.values()))
            raise RunFailedError(f"the cluster has lost nodes, and {left} could not begin: {reason}")

    def _specs(self) -> dict[int, TrialSpec]:
        """Make or lock the folder of every waiting trial."""
        begun = [trial.folder for trial, _ in self._waiting() if trial.folder is not None]
        if begun:  # in an object store, each is watched for a minute if its driver was killed on another machine
            self._board.doing(f"taking over {counted(len(begun), 'run')} of an earlier driver")
            with ThreadPoolExecutor(_LOCKS_AT_ONCE) as pool:
                list(pool.map(lambda folder: self._locks.append(folder.lock()), begun))
        specs = {}
        for trial, config in self._waiting():
            if trial.folder is None:
                trial.folder, held = run_folder.create(config, self._client.tracking_uri, self._folder, trial.slug)
                self._locks.append(held)
                if config.weights_digest is not None:
                    checkpoints.keep_initial(trial.folder.folder, self._weights[config.weights_digest])
            specs[trial.index] = TrialSpec(config, trial.folder.folder)
        return specs

    def _release(self) -> None:
        for held in self._locks:
            held.release()
        checkpoints.remove_copies(self._folder)
        for trial in self._trials:
            if trial.folder is not None:
                checkpoints.remove_copies(trial.folder.folder)
