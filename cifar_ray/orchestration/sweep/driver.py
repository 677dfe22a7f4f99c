"""Train the cells of a sweep, and record them under one parent."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cifar_ray import storage, tracking
from cifar_ray.config import imports
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError, InterruptedRunError, RunFailedError, counted
from cifar_ray.config.limits import is_of_sweep
from cifar_ray.config.sweep import Range, SweepConfig
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.run import cpu_note, made_up_note, shared_note
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.cluster import allocation, connection
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.run.interrupts import RAY_LOST, connected, signals
from cifar_ray.orchestration.sweep import plan, preparation, tuning
from cifar_ray.orchestration.sweep.board import INTERRUPTED, CellSpec, News, Row, SweepBoard, Word
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.goal import chooser_of, goal_of
from cifar_ray.orchestration.sweep.plan import PlannedCell
from cifar_ray.orchestration.sweep.preparation import Preparation, configured
from cifar_ray.orchestration.sweep.tuning import NAME, Tuning
from cifar_ray.orchestration.sweep.winner import Winner, repeats_of, winner_of
from cifar_ray.reporting import report as reports
from cifar_ray.runs import checkpoints
from cifar_ray.runs.folder import RunFolder, discard
from cifar_ray.storage import Folder, Lock
from cifar_ray.tasks.choosing import Goal
from cifar_ray.tracking import parent, reading, store, uri
from cifar_ray.tracking.parent import SweepRecord
from cifar_ray.tracking.store import Client
from cifar_ray.tracking.study import MEASURE_TAG, Sweep
from cifar_ray.training import recipe
from cifar_ray.training.rank_times import PHASES

if TYPE_CHECKING:
    from ray.tune.search.optuna import OptunaSearch

_POLL_S, _LOOK_S, _CANCEL_S, _FIGURES_EVERY_S = 0.1, 1.0, 20.0, 60.0
_OF_STORES = re.compile(r"(MLFLOW|AWS|AZURE|GOOGLE|GCS|S3)_|(https?|no)_proxy$|(SSL_CERT|REQUESTS_CA|CURL_CA)_", re.I)
"""Variables of the driver that a store or a bucket may need."""


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
    config, cells, address = planned(config)
    with signals():
        tracking.quieten(config.base.verbose)
        client = store.connect(address)
        store.active_experiment(client, parent.experiment_name(config))
        folder, held = plan.create(config, client)
        record: SweepRecord | None = None

        def begin() -> SweepRecord:
            nonlocal record
            plan.write_cells(folder, [cell.described(config) for cell in cells])
            record = SweepRecord.create(client, config, folder.address, command)
            return record

        try:
            with held:
                return _Driver(config, folder, client, cells, begun).run(begin)
        finally:
            if record is None:  # nothing has begun, so the name is free again
                discard(folder)


def planned(config: SweepConfig) -> tuple[SweepConfig, list[PlannedCell], str]:
    """A new sweep that means the same from any folder, its cells, and its tracking URI.

    Raises:
        ConfigError: when it has cells that cannot run, or that cannot be compared.
    """
    config = plan.absolute(config)
    address = store.resolve_uri(config.base.tracking_uri)  # a module of the user's may set another one when imported
    cells = plan.planned(config)
    plan.refuse(config, cells)
    return config, plan.open_cells(config) if config.search == "optuna" else cells, address


def probes(config: SweepConfig, cells: Sequence[PlannedCell]) -> list[PlannedCell]:
    """Cells that tell what the open ones may need.

    Raises:
        ConfigError: when Optuna is to propose them and is not installed, or none of them can run.
    """
    if not any(cell.is_open for cell in cells):
        return []
    preparation.check_installed()
    found = plan.planned(config)
    plan.refuse(config, [*cells, *found])
    return found


@tracking.unchanged()
def resume(
    name: str,
    tracking_uri: str | None = None,
    begun: float | None = None,
    retry_failed: bool = False,
    limits: Mapping[str, Any] | None = None,
) -> SweepResult | None:
    """Train what is left of a sweep, under the same parent.

    Finished runs stay; an interrupted run goes on from its newest checkpoint.

    Args:
        name: the sweep's name.
        tracking_uri: the store that has it.
        begun: as for :func:`sweep`.
        retry_failed: whether runs that have failed go on from their newest checkpoints, too.
        limits: ``max_time`` and ``max_cost`` of the sweep from now on.

    Returns:
        None when nothing is left.

    Raises:
        ConfigError: when there is no such sweep, its folder is gone, another process works on it, it has reached its
            limits, or only failed runs are left and ``retry_failed`` is not given.
        InterruptedRunError: as for :func:`sweep`.
    """
    begun = begun or time.time()
    imports.refuse_while_importing()
    tracking.quieten(verbose=False)
    client, known = reading.open_sweep(store.resolve_uri(tracking_uri), name)
    config, cells = plan.read(known)
    config = dataclasses.replace(config, **limits or {})
    folder = storage.at(known.folder)
    with signals(), plan.lock(folder):
        find_again(client, known, folder, cells, retry_failed)
        goal = goal_of(config, [run for _, run in configured(cells)])
        if goal is not None and all(cell.state != boards.WAITING for cell in cells):
            cells += repeats_of(goal, config, cells)  # the earlier driver was killed before it had planned them
            plan.write_cells(folder, [cell.described(config) for cell in cells])
        if all(cell.state != boards.WAITING for cell in cells):
            if failed := sum(cell.state == boards.FAILED for cell in cells):
                left = f"nothing is left of it but {counted(failed, 'failed run')}"
                raise ConfigError("retry_failed", f"must be given to go on with sweep {name}: {left}")
            return None
        budget = Budget(config, cells, known.metrics.get("sweep/placed_s", 0.0))
        budget.refuse_reached(name)
        driver = _Driver(config, folder, client, cells, begun - known.metrics.get("sweep/wall_s", 0.0), budget)
        return driver.run(lambda: SweepRecord.reopen(client, known))


def find_again(
    client: Client,
    known: Sweep,
    folder: Folder,
    cells: Sequence[PlannedCell],
    retry_failed: bool,
    read_only: bool = False,
) -> None:
    """Read how far earlier drivers have come with the cells of a sweep; those that wait are to be trained."""
    earlier = {run.key: run for run in reading.trials(client, known)}
    for cell in cells:
        cell.find_again(folder, earlier, read_only)
        if retry_failed and cell.state == boards.FAILED:
            cell.row = cell.row.ended(boards.WAITING, "")


class _Driver:
    """A sweep in one driver."""

    def __init__(
        self,
        config: SweepConfig,
        folder: Folder,
        client: Client,
        cells: list[PlannedCell],
        begun: float,
        budget: Budget | None = None,
    ) -> None:
        self._config, self._folder, self._client, self._cells = config, folder, client, cells
        self._begun, self._budget = begun, budget or Budget(config, cells)
        self._probes = probes(config, cells)
        self._board = Board([cell.cell.name for cell in cells], begun)
        self._ready = Preparation(config.base, self._board)
        self._locks: dict[int, Lock] = {}  # by index of the cell
        self._kept: set[str] = set()  # digests of weights in the folder
        self._at_once, self._stop = 1, ""
        # By Ray Tune's ids of trials: the cells that they train, what they have to ask for one, and what ends without.
        self._tried: dict[str, PlannedCell] = {}
        self._asking: dict[str, Mapping[str, Any]] = {}
        self._skips: dict[str, Word] = {}
        self._record: SweepRecord

    def run(self, open_record: Callable[[], SweepRecord]) -> SweepResult:
        """Train all waiting cells; ``open_record`` makes or opens the sweep's own MLflow run once they can start."""
        config, board = self._config, self._board
        with board:
            self._ready.load_data(self._asked())
            self._ready.read_weights(self._asked(), self._client.tracking_uri)
            plan.refuse(config, [*self._cells, *self._probes])  # before a cluster is waited for
            functions = sorted({path for _, run in configured(self._asked()) for path in imports.functions(run)})
            room = preparation.room([*self._cells, *self._probes])
            with connected(config.base, board, functions, room) as check:
                self._fit_to_cluster(check)
                goal = goal_of(config, [run for _, run in configured([*self._cells, *self._probes])])
                self._record = open_record()
                self._record.cells([cell.described(config) for cell in self._cells])
                status = "FAILED"
                try:
                    self._announce()
                    if any(cell.state == boards.WAITING and not cell.repeats for cell in self._cells):
                        self._train(check, goal)
                    if goal is not None and not self._left:  # what limits have left may be better
                        self._add_repeats(goal)
                    if any(cell.is_waiting and cell.repeats for cell in self._cells):
                        self._train(check, None)
                    status = "FINISHED"
                except (InterruptedRunError, KeyboardInterrupt) as error:
                    status = "KILLED"
                    raise InterruptedRunError(getattr(error, "signum", signal.SIGINT), self._stopped()) from None
                finally:
                    self._end(status)
            winner = None if goal is None else winner_of(goal, self._cells)
            if goal is not None and winner is None:
                board.line(f"there is no best run: none that finished has recorded {goal.metric}")
            self._summarise(winner)
        return SweepResult(
            name=config.name,
            run_id=self._record.run_id,
            tracking_uri=self._record.uri,
            folder=self._folder.address,
            page=self._record.page,
            states={cell.cell.name: cell.state for cell in self._cells},
            figures=self._figures(),
            winner=winner,
        )

    def _asked(self) -> list[PlannedCell]:
        """What the cluster is to have room for: the cells to train, and such as may be proposed."""
        return [cell for cell in (*self._cells, *self._probes) if cell.is_waiting]

    @property
    def _left(self) -> int:
        """How many cells the limits have stopped, have not started, or have left to be proposed."""
        stopped = sum(is_of_sweep(cell.row.stopped_by) for cell in self._cells)
        refused = sum(cell.state == boards.SKIPPED and cell.config is not None for cell in self._cells)
        return stopped + refused + sum(cell.is_open for cell in self._cells)

    def _fit_to_cluster(self, check: Callable[..., bool]) -> None:
        """Decide what all runs share: devices, how many train at once, CPUs, and how they compute."""
        board, ready = self._board, self._ready
        before = [cell.decided.cpus_per_worker for cell, run in configured(self._cells) if run.cpus_per_worker is None]
        with NodeAllocator(board.waiting, check) as allocator:
            preparation.bring_nodes(allocator, self._asked())
            ready.place(self._asked())
            plan.refuse(self._config, [*self._cells, *self._probes])
            left = sum(cell.state == boards.WAITING for cell in self._cells)
            self._at_once = ready.at_once(self._config, self._folder, self._asked(), left)
            ready.divide_cpus(self._asked(), self._at_once, next(filter(None, before), None))
            preparation.check_gpus(self._asked())
        ready.decide_arithmetic([*self._cells, *self._probes])

    def _announce(self) -> None:
        board, config, asked = self._board, self._config, configured(self._asked())
        held = ""
        if len({run.world_size for _, run in asked}) > 1:
            held = "; the batch per worker is held, so the global batch grows with the workers"
            if config.held == "global_batch":
                held = "; the batch over all workers is held"
        left = counted(sum(cell.state == boards.WAITING for cell in self._cells), "run")
        board.line(f"sweep {config.name}: {left} of {len(self._cells)}, {self._at_once} at once{held}")
        for cell in self._cells:
            if cell.state == boards.SKIPPED:
                self._show_skipped(cell)
            elif cell.state != boards.WAITING:
                board.ended_before(cell.index, cell.row.shown, cell.row.times.get("time/wall_s", 0.0))
        notes = {cpu_note(cell.unused_gpus) for cell, _ in asked if cell.unused_gpus}
        for cell, run in asked:
            if connection.shares_a_machine(run, cell.decided):
                notes.add(made_up_note(run.local_nodes))
            if 0 < (gpus := cell.decided.gpus(run)) < 1:
                notes.add(shared_note(gpus))
            if cell.cell.config is not None:
                notes.update(recipe.notes(run, cell.cell.config))
        for note in sorted(notes):
            board.line(note)

    def _train(self, check: Callable[..., bool], goal: Goal | None) -> None:
        """Train the cells that wait, in Ray Tune; ``goal`` is None for the repeats of the best run."""
        turn = [cell for cell in self._cells if cell.is_waiting and (goal is None or not cell.repeats)]
        for cell in turn:
            if cell.folder is not None and cell.index not in self._locks:
                self._locks[cell.index] = cell.folder.lock()
        scheduler, search, samples = None, None, 0
        if goal is not None:  # by the epochs of all runs: after a resume, the same
            runs = [run for _, run in configured([*self._cells, *self._probes])]
            scheduler = tuning.scheduler_of(self._config, goal, runs)
            if self._config.search == "optuna":
                samples = sum(cell.is_open for cell in self._cells) + len(turn)
                search = self._search(goal, turn)
        names = [cell.cell.name for cell in turn]
        board, notes = SweepBoard(), self._folder.disk / "ray_tune"
        running = Tuning(board.handle, names, search, samples, self._ready.datasets, notes, self._at_once, scheduler)
        self._tried, self._asking, self._skips = {}, {}, {}
        self._board.start(self._at_once)
        looked = noted = time.monotonic()
        try:
            while running.running:
                self._stop = INTERRUPTED if check(True) else self._stop
                self._hear(board.exchange(*self._words(goal)))
                self._answer(goal)
                running.wait(_POLL_S)
                now = time.monotonic()
                if now - looked >= _LOOK_S:
                    self._look(now - looked)
                    looked = now
                if now - noted >= _FIGURES_EVERY_S:  # a driver that is killed has then forgotten a minute at most
                    self._record.figures(self._figures())
                    noted = now
            self._hear(board.exchange({}, Word(), True))
        except RAY_LOST:
            raise
        except BaseException:
            board.exchange({}, Word(stop=INTERRUPTED, is_released=True), True)
            running.wait(_CANCEL_S)
            allocation.remove_abandoned()
            raise
        check()
        self._close(running.trouble)

    def _search(self, goal: Goal, turn: Sequence[PlannedCell]) -> OptunaSearch:
        """What proposes the open cells, knowing how the others came out."""
        proposed = [(cell, cell.proposal) for cell in self._cells if cell.proposal is not None]
        known = [
            (proposal, None if cell.state == boards.FAILED else goal.value(cell.row.figures))
            for cell, proposal in proposed
            if cell not in turn
        ]
        return tuning.search_of(self._config, goal, known, [proposal for cell, proposal in proposed if cell in turn])

    def _look(self, seconds: float) -> None:
        """What has happened without a word in the seconds since the last look."""
        allocation.remove_abandoned()  # the process of a cell may have been killed
        self._budget.passed(seconds)
        self._board.usd = self._budget.usd
        if not self._stop and (reached := self._budget.reached):
            self._board.line(f"{self._budget.words(reached)} is reached; runs stop with a checkpoint")
            self._stop = reached

    def _words(self, goal: Goal | None) -> tuple[dict[str, Word], Word, bool]:
        """What to say to each cell and to all others, and whether Ray Tune is to end.

        A cell whose training has ended hands its place to the next one while it is recorded. Where no other waits, it
        keeps it, since Ray Tune kills what lasts longer than its loop.
        """
        tried = set(self._tried.values())
        waiting = (cell for cell in self._cells if cell.is_open or (cell.is_waiting and cell not in tried))
        more = not self._stop and any(goal is None or not cell.repeats for cell in waiting)
        is_over = not more and all(cell.row.is_recorded for cell in tried)
        usual = Word(skip=is_over, stop=self._stop, is_released=more or is_over)  # one may ask that no cell is left for
        begin = {
            key: replace(usual, begin=self._spec(cell, cell.config))
            for key, cell in self._tried.items()
            if cell.is_waiting and cell.config is not None and not cell.row.is_recorded
        }
        return {**self._skips, **begin}, usual, is_over

    def _hear(self, news: News) -> None:
        """Show and keep what is new of the cells."""
        for key, (asked, row) in news.rows.items():
            if (cell := self._tried.get(key)) is None:
                self._asking.setdefault(key, asked)
            elif row.state != boards.WAITING or row.is_recorded:  # it has heard which cell it is
                self._take(cell, row)
        for key in news.dead:
            self._asking.pop(key, None)
            if (cell := self._tried.get(key)) is not None and not cell.row.is_recorded:
                row = cell.row
                if row.state in (boards.WAITING, boards.RUNNING):
                    row = row.ended(boards.FAILED, "the process that drove it has died")
                self._take(cell, replace(row, is_recorded=True))

    def _take(self, cell: PlannedCell, row: Row) -> None:
        before, cell.row = cell.row, row
        self._board.show(cell.index, row.shown)
        if row.is_lost and not before.is_lost:
            self._board.line_once(f"the cluster has lost nodes ({row.shown.note}); runs that still fit go on")
        if before.state != row.state and row.state not in (boards.WAITING, boards.RUNNING):
            self._record.figures(self._figures())

    def _answer(self, goal: Goal | None) -> None:
        """Give each trial that asks a cell, in the order of the cells, or let it end without training."""
        if self._stop:
            return
        named = {cell.cell.name: cell for cell in self._cells}
        asking = [(key, asked, named.get(asked.get(NAME, ""))) for key, asked in self._asking.items()]
        for key, asked, cell in sorted(asking, key=lambda each: each[2].index if each[2] else 0):
            cell = cell or (None if goal is None else self._proposed(key, asked, goal))
            if cell is None and key not in self._skips:
                continue  # nothing is left to propose, and others are still to end
            del self._asking[key]
            if cell is None:
                continue
            running = [one for one in self._tried.values() if one.state in (boards.WAITING, boards.RUNNING)]
            if reason := self._budget.refusal(cell, running):
                self._take(cell, replace(cell.row.ended(boards.SKIPPED, reason), is_recorded=True))
                self._skips[key] = Word(skip=True, is_released=True)
            else:
                self._tried[key] = cell

    def _proposed(self, key: str, asked: Mapping[str, Any], goal: Goal) -> PlannedCell | None:
        """The cell with the values that were proposed: one of an earlier driver, or an open one.

        None where there is none to train: another has the same values, or they do not fit together.
        """
        proposal = tuning.proposal_of(self._config, asked)
        twin = next((cell for cell in self._cells if cell.proposal == proposal), None)
        if twin is not None and twin.is_waiting and twin not in self._tried.values():
            return twin
        if (cell := next((cell for cell in self._cells if cell.is_open), None)) is None:
            return None
        others = [other.cell for other in self._cells if other.proposal is not None]
        values = None if twin is not None else sweeps.proposed(self._config, proposal, others)
        if values is None:
            value = goal.value(twin.row.figures) if twin is not None and twin.state == boards.FINISHED else None
            figures = {} if value is None else {goal.metric: value}
            self._skips[key] = Word(skip=True, figures=figures, is_released=True)
            return None
        cell.proposal = proposal
        cell.assign(values, chooser_of(self._config))
        self._board.rows[cell.index].name = cell.cell.name
        if cell.config is not None:
            self._ready.prepare(cell, self._client.tracking_uri)
        if cell.config is None:
            self._show_skipped(cell)
            self._skips[key] = Word(skip=True, is_released=True)
        lists = [of for of in self._config.grid[0].values() if not isinstance(of, Range)]
        if len(lists) == len(self._config.grid[0]) and len(others) + 1 == math.prod(map(len, lists)):
            self._drop_open()
        self._save_cells()  # before the folder is made, so that a later driver knows whose it is
        return cell if cell.config is not None else None

    def _show_skipped(self, cell: PlannedCell) -> None:
        self._board.show(cell.index, cell.row.ended(boards.SKIPPED, cell.reason).shown)

    def _drop_open(self) -> None:
        for cell in self._cells:
            if cell.is_open:
                cell.refuse("Optuna proposes nothing that has not been tried")
                self._show_skipped(cell)

    def _close(self, trouble: str) -> None:
        """What is left of cells that Ray Tune has ended with.

        Raises:
            RunFailedError: when it has failed, or cells have no room any more.
        """
        for cell in self._tried.values():
            if not cell.row.is_recorded:
                row = cell.row.ended(boards.FAILED, trouble or "Ray Tune has ended without it")
                self._take(cell, replace(row, is_recorded=True))
        if trouble:
            raise RunFailedError(f"Ray Tune has failed: {trouble}")
        if lost := [cell for cell in self._tried.values() if cell.row.is_lost]:
            left, reason = counted(len(lost), "run"), lost[0].row.shown.note
            raise RunFailedError(f"the cluster has lost nodes, and {left} could not begin: {reason}")
        if not self._stop and any(cell.is_open for cell in self._cells):
            self._drop_open()
            self._save_cells()

    def _add_repeats(self, goal: Goal) -> None:
        """Add the cells, if any, that train the best run again with other seeds."""
        for cell in repeats_of(goal, self._config, self._cells):
            self._ready.prepare(cell, self._client.tracking_uri)
            self._cells.append(cell)
            self._board.add(cell.cell.name)
            if cell.config is None:
                self._show_skipped(cell)
        if left := [cell for cell in self._cells if cell.repeats and cell.is_waiting]:
            again = counted(len(left), "other seed")
            self._board.line(f"the best run, {left[0].repeats}, is trained again with {again}")
        self._save_cells()

    def _save_cells(self) -> None:
        described = [cell.described(self._config) for cell in self._cells]
        plan.write_cells(self._folder, described)
        self._record.cells(described)

    def _spec(self, cell: PlannedCell, config: ResolvedConfig) -> CellSpec:
        """What a cell's process gets; its folder is made if it has none."""
        if cell.folder is None:
            if (digest := cell.decided.weights_digest) is not None and digest not in self._kept:
                checkpoints.keep_initial(self._folder, digest, self._ready.weights[digest])
                self._kept.add(digest)
            cell.folder, held = RunFolder.create(config, cell.decided, self._folder, cell.slug)
            self._locks[cell.index] = held
        sweep = self._config
        tags = {**self._record.child_tags, store.SWEEP_TAG: sweep.name, MEASURE_TAG: sweep.measure}
        scheduler = "none" if cell.repeats else sweep.scheduler
        of_store = (self._record.uri, tags, self._record.experiment_id, scheduler, _variables())
        return CellSpec(config, cell.decided, cell.folder, cell.row, cell.cell.name, *of_store)

    def _end(self, status: str) -> None:
        """Release the cells' folders, and record the end of the sweep."""
        for held in self._locks.values():
            held.release()
        checkpoints.remove_copies(self._folder)
        described = [cell.described(self._config) for cell in self._cells]
        lost = [cell for cell in self._cells if cell.state == boards.FAILED and not cell.row.has_run]
        for cell in lost:  # they have no MLflow run of their own to say why
            described[cell.index]["reason"] = cell.row.shown.note
        if lost or any(cell.state == boards.SKIPPED and cell.config for cell in self._cells):
            self._record.cells(described)
        self._record.figures(self._figures())
        if status != "FINISHED":
            self._board.line(f"`{self._command}` continues the sweep")
        elif self._left:
            self._board.line(
                f"the limits have left {counted(self._left, 'run')}; `{self._command}` with a larger one goes on"
            )
        if not self._record.end(status):
            self._board.line(f"MLflow at {self._record.uri} does not take all of the sweep's own record")

    @property
    def _command(self) -> str:
        """The command that continues the sweep."""
        return f"cifar-ray sweep --resume {self._config.name}{uri.flag(self._client.tracking_uri)}"

    def _stopped(self) -> str:
        ended = sum(cell.state in (boards.FINISHED, boards.FAILED, boards.STOPPED) for cell in self._cells)
        planned = sum(cell.state != boards.SKIPPED for cell in self._cells)
        return f"Stopped after {ended} of {planned} runs. Continue with: {self._command}"

    def _summarise(self, winner: Winner | None) -> None:
        """Display the means of a grid, and have the sweep's page in MLflow say what a report would say first.

        Its record is complete without.
        """
        self._board.show_doing("summing up")
        name, address = self._config.name, self._record.uri
        ways = [f"`cifar-ray report {name}{uri.flag(address)}` adds a page with charts and tables."]
        if winner is not None:
            ways.append(f"The best run is {winner.sentence}. Train it longer:\n\n    {winner.command}")
        try:
            study = reading.study(address, name)
            if not self._config.is_search:
                for line in reports.means(study):
                    self._board.line(line)
            with store.refusing(address):
                store.describe(self._client, self._record.run_id, [*ways, *reports.summary(study)])
        except ConfigError as error:
            self._board.line(f"the sweep's page in MLflow has no summary: {error}")

    def _figures(self) -> dict[str, float]:
        """Seconds by phase over all runs so far, wall time, concurrency, and the share of time outside training."""
        times, wall = [cell.row.times for cell in self._cells], time.time() - self._begun
        sums = {f"sweep/{phase}_s": sum(of.get(f"time/{phase}_s", 0.0) for of in times) for phase in PHASES}
        if (usd := self._budget.usd) is not None:
            sums["cost/usd"] = usd
        outside = max(1 - sums["sweep/training_s"] / (wall * self._at_once), 0.0)
        own = {"wall_s": wall, "placed_s": self._budget.placed_s, "concurrency": float(self._at_once)}
        return {
            **sums,
            **{f"sweep/{name}": value for name, value in own.items()},
            "sweep/share_outside_training": outside,
        }


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _OF_STORES.match(name)}
