"""Train the runs of a sweep in one driver, and record them under one parent."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ray.tune.schedulers import TrialScheduler

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError, InterruptedRunError, RunFailedError, counted
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.run import cpu_note, made_up_note, shared_note
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.cluster import connection, reservations
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.run import events
from cifar_ray.orchestration.run.interrupts import RAY_LOST, connected
from cifar_ray.orchestration.sweep import planner, preparation, proposals
from cifar_ray.orchestration.sweep.goal import goal_of
from cifar_ray.orchestration.sweep.limits import Budget
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.orchestration.sweep.proposals import OptunaProposer
from cifar_ray.orchestration.sweep.recorder import SweepRecorder
from cifar_ray.orchestration.sweep.trial import TrialSpec
from cifar_ray.orchestration.sweep.tuning import Tuning, scheduler_of
from cifar_ray.orchestration.sweep.winner import Winner, repeats_of, winner_of
from cifar_ray.reporting import report as reports
from cifar_ray.runs import checkpoints
from cifar_ray.runs.folder import RunFolder
from cifar_ray.storage import Folder, Lock
from cifar_ray.tasks.choosing import Goal
from cifar_ray.tracking import reading, store, uri
from cifar_ray.tracking.parent import SweepRecord
from cifar_ray.tracking.store import Client
from cifar_ray.training import recipe

_POLL_S, _LOOK_S = 0.1, 1.0


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
        winner: the best run of a search; None of other sweeps, or when no run has the figure.
    """

    name: str
    run_id: str
    tracking_uri: str
    folder: str
    page: str | None
    states: dict[str, str]
    figures: dict[str, float]
    winner: Winner | None = None

    @property
    def failed(self) -> list[str]:
        """Names of the runs that have failed."""
        return [name for name, state in self.states.items() if state == boards.FAILED]


class Driver:
    """A sweep in one driver."""

    def __init__(
        self,
        config: SweepConfig,
        folder: Folder,
        client: Client,
        trials: list[PlannedTrial],
        begun: float,
        budget: Budget | None = None,
    ) -> None:
        self._config, self._folder, self._client, self._trials = config, folder, client, trials
        self._begun, self._budget = begun, budget or Budget(config, trials)
        self._probes: list[PlannedTrial] = []
        if any(trial.is_open for trial in trials):
            proposals.check_installed()
            self._probes = planner.planned(config)
            planner.refuse(config, [*trials, *self._probes])
        self._room = preparation.room([*trials, *self._probes])
        self._board = Board([trial.cell.name for trial in trials], begun)
        self._ready = Preparation(config.base, self._board)
        self._locks: dict[int, Lock] = {}  # by index of the trial
        self._kept: set[str] = set()  # digests of weights in the folder

    def run(self, open_record: Callable[[], SweepRecord]) -> SweepResult:
        """Train all waiting runs; ``open_record`` makes or opens the sweep's own MLflow run once they can start."""
        with self._board as board:
            self._ready.load_data(self._asked())
            self._ready.read_weights(self._asked(), self._client.tracking_uri)
            planner.refuse(self._config, [*self._trials, *self._probes])  # before a cluster is waited for
            configs = [config for _, config in preparation.configured(self._asked())]
            functions = sorted({path for config in configs for path in imports.functions(config)})
            with connected(self._config.base, board, functions, self._room) as check:
                with NodeAllocator(board.waiting, check, board.line) as allocator:
                    preparation.bring_nodes(allocator, self._asked())
                    at_once = self._fit_to_cluster()
                    preparation.check_gpus(self._asked())
                self._ready.decide_arithmetic(self._asked(), self._trials)
                all_trials = preparation.configured([*self._trials, *self._probes])
                goal = goal_of(self._config, [config for _, config in all_trials])
                record = open_record()
                record.cells([trial.described(self._config) for trial in self._trials])
                common = (self._config, self._trials, board, self._client, record, self._ready.datasets)
                recorder = SweepRecorder(*common, self._begun, at_once, self._budget)
                status = "FAILED"
                try:
                    self._announce(at_once)
                    if self._first_turn():
                        self._train(recorder, at_once, goal, check)
                    if goal is not None and not recorder.left:  # what limits have left may be better
                        self._add_repeats(goal, record)
                    if any(trial.repeats for trial, _ in self._waiting()):
                        self._train(recorder, at_once, None, check)
                    status = "FINISHED"
                except (InterruptedRunError, KeyboardInterrupt) as error:
                    status = "KILLED"
                    raise InterruptedRunError(getattr(error, "signum", signal.SIGINT), self._stopped()) from None
                finally:
                    recorder.end_runs()
                    self._release()
                    recorder.end(status)
            winner = None if goal is None else winner_of(goal, self._trials)
            if goal is not None and winner is None:
                board.line(f"there is no best run: none that finished has recorded {goal.metric}")
            self._summarise(record, winner)
        return SweepResult(
            name=self._config.name,
            run_id=record.run_id,
            tracking_uri=record.uri,
            folder=self._folder.address,
            page=record.page,
            states={trial.cell.name: trial.state for trial in self._trials},
            figures=recorder.figures(),
            winner=winner,
        )

    def _summarise(self, record: SweepRecord, winner: Winner | None) -> None:
        """Display the means of a grid, and have the sweep's page in MLflow say what a report would say first.

        Its record is complete without.
        """
        self._board.show_doing("summing up")
        name = self._config.name
        ways = [f"`cifar-ray report {name}{uri.flag(record.uri)}` adds a page with charts and tables."]
        if winner is not None:
            ways.append(f"The best run is {winner.sentence}. Train it longer:\n\n    {winner.command}")
        try:
            study = reading.study(record.uri, name)
            if not self._config.is_search:
                for line in reports.means(study):
                    self._board.line(line)
            summary = reports.summary(study)
            with store.refusing(record.uri):
                store.describe(self._client, record.run_id, [*ways, *summary])
        except ConfigError as error:
            self._board.line(f"the sweep's page in MLflow has no summary: {error}")

    def _stopped(self) -> str:
        ended = sum(trial.state in (boards.FINISHED, boards.FAILED, boards.STOPPED) for trial in self._trials)
        planned = sum(trial.state != boards.SKIPPED for trial in self._trials)
        store_flag = uri.flag(self._client.tracking_uri)
        return (
            f"Stopped after {ended} of {planned} runs. "
            f"Continue with: cifar-ray sweep --resume {self._config.name}{store_flag}"
        )

    def _waiting(self) -> list[tuple[PlannedTrial, ResolvedConfig]]:
        """Trials to train, with their configs; without those whose values are still to be proposed."""
        return preparation.configured([trial for trial in self._trials if trial.state == boards.WAITING])

    def _left(self) -> int:
        """How many trials are to be trained, with those whose values are still to be proposed."""
        return sum(trial.state == boards.WAITING for trial in self._trials)

    def _first_turn(self) -> list[PlannedTrial]:
        """The trials that are to be trained before the repeats of the best run, which no scheduler may stop."""
        return [trial for trial in self._trials if trial.state == boards.WAITING and not trial.repeats]

    def _scheduler(self, goal: Goal) -> TrialScheduler | None:
        """The scheduler of the first turn, by the epochs of all runs of the sweep: after a resume, the same."""
        runs = preparation.configured([*self._trials, *self._probes])
        return scheduler_of(self._config, goal, [config for _, config in runs])

    def _asked(self) -> list[PlannedTrial]:
        """What the cluster is to have room for: the trials to train, and such as may be proposed."""
        return [trial for trial, _ in self._waiting()] + [probe for probe in self._probes if probe.config]

    def _fit_to_cluster(self) -> int:
        """Decide every run's device and CPUs; return how many runs train at once."""
        following = [trial for trial, config in preparation.configured(self._trials) if config.cpus_per_worker is None]
        before = next((cpus for trial in following if (cpus := trial.decided.cpus_per_worker)), None)
        self._ready.place(self._asked())
        planner.refuse(self._config, [*self._trials, *self._probes])
        at_once = self._ready.at_once(self._config, self._folder, self._asked(), self._left())
        self._ready.divide_cpus(self._asked(), at_once, before)
        return at_once

    def _announce(self, at_once: int) -> None:
        board, config = self._board, self._config
        asked = [run for _, run in preparation.configured(self._asked())]
        held = ""
        if len({run.world_size for run in asked}) > 1:
            held = "; the batch per worker is held, so the global batch grows with the workers"
            if config.held == "global_batch":
                held = "; the batch over all workers is held"
        left = counted(self._left(), "run")
        board.line(f"sweep {config.name}: {left} of {len(self._trials)}, {at_once} at once{held}")
        for trial in self._trials:
            if trial.state == boards.SKIPPED:
                board.skip(trial.index, trial.reason)
            elif trial.state != boards.WAITING:
                note = trial.reason if trial.score is None else trial.result(trial.score)
                board.ended_before(trial.index, trial.state, note, trial.times.get("time/wall_s", 0.0))
        runs = [(trial.config, trial.decided) for trial in self._asked() if trial.config]
        shared = next((run for run, decided in runs if connection.shares_a_machine(run, decided)), None)
        if shared is not None:
            board.line(made_up_note(shared.local_nodes))
        if shared_gpus := sorted({gpus for run, decided in runs if 0 < (gpus := decided.gpus(run)) < 1}):
            board.line(shared_note(shared_gpus[0]))
        given = [(trial.config, trial.cell.config) for trial in self._asked() if trial.config and trial.cell.config]
        for note in sorted({note for run, cell in given for note in recipe.notes(run, cell)}):
            board.line(note)
        for reason in sorted({trial.unused_gpus for trial in self._trials if trial.unused_gpus}):
            board.line(cpu_note(reason))

    def _train(self, recorder: SweepRecorder, at_once: int, goal: Goal | None, check: Callable[[], object]) -> None:
        mailbox = events.open_mailbox()
        turn = self._waiting() if goal is None else preparation.configured(self._first_turn())
        scheduler = None if goal is None else self._scheduler(goal)
        notes = self._folder.disk / "ray_tune"
        proposed, proposer = sum(trial.is_open for trial in self._trials), None
        if goal is not None and proposed:
            begin, drop = partial(self._begin, recorder.record), partial(self._drop, recorder.record)
            proposer = OptunaProposer(self._config, goal, self._trials, begin, drop)
        admit = recorder.admit if self._budget.limited else None
        trials = (self._specs(turn), self._ready.datasets, mailbox, notes, at_once)
        tuning = Tuning(*trials, scheduler, proposer, proposed, admit)
        recorder.expect()
        self._board.start(at_once)
        looked = time.monotonic()
        try:
            while tuning.running:
                check()
                if time.monotonic() - looked >= _LOOK_S:  # the process of a trial may have been killed
                    reservations.remove_abandoned()
                    looked = time.monotonic()
                    if reached := self._budget.reached:  # each time: a mailbox that was restarted forgot it
                        self._board.line_once(f"{self._budget.words(reached)} is reached; runs stop with a checkpoint")
                        mailbox.ask_to_stop()
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
            waits = trial.is_open or (trial.repeats and goal is not None)
            if trial.state in (boards.WAITING, boards.RUNNING) and not waits and trial.index not in recorder.too_large:
                recorder.close(trial, boards.FAILED, tuning.trouble or "Ray Tune has ended without it")
        if tuning.trouble:
            raise RunFailedError(f"Ray Tune has failed: {tuning.trouble}")
        if recorder.too_large:
            left, reason = counted(len(recorder.too_large), "run"), next(iter(recorder.too_large.values()))
            raise RunFailedError(f"the cluster has lost nodes, and {left} could not begin: {reason}")

    def _add_repeats(self, goal: Goal, record: SweepRecord) -> None:
        """Add the trials, if any, that train the best run again with other seeds."""
        added = repeats_of(goal, self._config, self._trials)
        for trial in added:
            self._ready.prepare(trial, self._client.tracking_uri)
            self._trials.append(trial)
            self._board.add(trial.cell.name)
        for trial in added:
            if trial.config is None:
                self._drop(record, trial, trial.reason)
        left = [trial for trial in added if trial.config is not None]
        if left:
            again = counted(len(left), "other seed")
            self._board.line(f"the best run, {left[0].repeats}, is trained again with {again}")
            self._save_cells(record)

    def _begin(self, record: SweepRecord, trial: PlannedTrial) -> TrialSpec | None:
        """Prepare and record a trial that was proposed; None when it cannot run here, which is recorded, too."""
        self._board.rename(trial.index, trial.cell.name)
        if trial.config is not None:
            self._ready.prepare(trial, self._client.tracking_uri)
        if trial.config is None:
            self._drop(record, trial, trial.reason)
            return None
        self._save_cells(record)  # before the folder is made, so that a later driver knows whose it is
        return self._spec(trial, trial.config)

    def _drop(self, record: SweepRecord, trial: PlannedTrial, reason: str) -> None:
        trial.state, trial.reason, trial.is_open = boards.SKIPPED, reason, False
        self._board.skip(trial.index, reason)
        self._save_cells(record)

    def _save_cells(self, record: SweepRecord) -> None:
        cells = [trial.described(self._config) for trial in self._trials]
        planner.write_cells(self._folder, cells)
        record.cells(cells)

    def _specs(self, turn: Sequence[tuple[PlannedTrial, ResolvedConfig]]) -> list[TrialSpec]:
        """Make or lock the folders of these trials."""
        for trial, _ in turn:
            if trial.folder is not None and trial.index not in self._locks:
                self._locks[trial.index] = trial.folder.lock()
        return [self._spec(trial, config) for trial, config in turn]

    def _spec(self, trial: PlannedTrial, config: ResolvedConfig) -> TrialSpec:
        """What a trial's process gets; its folder is made if it has none."""
        if trial.folder is None:
            if (digest := trial.decided.weights_digest) is not None and digest not in self._kept:
                checkpoints.keep_initial(self._folder, digest, self._ready.weights[digest])
                self._kept.add(digest)
            trial.folder, held = RunFolder.create(config, trial.decided, self._folder, trial.slug)
            self._locks[trial.index] = held
        return TrialSpec(trial.index, config, trial.decided, trial.folder.folder)

    def _release(self) -> None:
        for held in self._locks.values():
            held.release()
        checkpoints.remove_copies(self._folder)
        for trial in self._trials:
            if trial.folder is not None:
                checkpoints.remove_copies(trial.folder.folder)
