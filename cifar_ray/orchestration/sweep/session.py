"""One driver's work on a sweep: it prepares the cells, gives them to Ray Tune's trials, and records their ends."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError, InterruptedRunError, RunFailedError, counted, first_line
from cifar_ray.config.limits import is_of_sweep
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.run import made_up_note, shared_note
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.cluster import allocation, connection, preflight
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.run.interrupts import RAY_LOST, connected
from cifar_ray.orchestration.sweep import plan, preparation, tuning
from cifar_ray.orchestration.sweep.board import INTERRUPTED, CellSpec, News, Row, SweepBoard, Word
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.goal import chooser_of, goal_of
from cifar_ray.orchestration.sweep.plan import PlannedCell, configured
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.orchestration.sweep.proposals import Proposals
from cifar_ray.orchestration.sweep.result import SweepResult, Winner, repeats_of, winner_of
from cifar_ray.orchestration.sweep.tuning import CELL
from cifar_ray.reporting import report as reports
from cifar_ray.runs import checkpoints
from cifar_ray.runs import folder as runs
from cifar_ray.runs.folder import RunFolder
from cifar_ray.storage import Folder, Lock
from cifar_ray.tasks.choosing import Goal
from cifar_ray.tracking import reading, store, uri
from cifar_ray.tracking.parent import PARENT_TAG, SweepRecord
from cifar_ray.tracking.store import Client
from cifar_ray.tracking.study import MEASURE_TAG, SWEEP_TAG
from cifar_ray.training import recipe
from cifar_ray.training.rank_times import PHASES

_POLL_S, _LOOK_S, _CANCEL_S, _FIGURES_EVERY_S = 0.1, 1.0, 20.0, 60.0
_OF_STORES = re.compile(r"(MLFLOW|AWS|AZURE|GOOGLE|GCS|S3)_|(https?|no)_proxy$|(SSL_CERT|REQUESTS_CA|CURL_CA)_", re.I)
"""Variables of the driver that a store or a bucket may need."""


class SweepSession:
    """The sweep between its plan and its recorded end."""

    def __init__(
        self,
        config: SweepConfig,
        folder: Folder,
        client: Client,
        cells: list[PlannedCell],
        probes: Sequence[PlannedCell],
        budget: Budget,
        begun: float,
    ) -> None:
        """Work on these cells; ``probes`` tell what the open ones may need, and are not trained."""
        self._config, self._folder, self._client, self._cells = config, folder, client, cells
        self._planned = [*cells, *probes]
        self._begun, self._budget = begun, budget
        self._board = Board([cell.cell.name for cell in cells], begun)
        self._ready = Preparation(config.base, self._board)
        self._proposals: Proposals | None = None
        self._locks: list[Lock] = []
        self._at_once, self._stop = 1, ""
        self._turn: Sequence[PlannedCell] = ()
        # By Ray Tune's ids of trials: the cells that they train, and those that they ask for.
        self._tried: dict[str, PlannedCell] = {}
        self._asking: dict[str, PlannedCell] = {}
        self._record: SweepRecord

    def run(self, open_record: Callable[[], SweepRecord]) -> SweepResult:
        """Train all waiting cells; ``open_record`` makes or opens the sweep's own MLflow run once they can start."""
        config, board = self._config, self._board
        with board:
            self._ready.load_data(self._asked())
            self._ready.read_weights(self._asked(), self._client.tracking_uri)
            plan.refuse(config, self._planned)  # before a cluster is waited for
            functions = sorted({path for _, run in configured(self._asked()) for path in imports.functions(run)})
            with connected(config.base, board, functions, preparation.room(self._planned)) as check:
                self._fit_to_cluster(check)
                goal = goal_of(config, [run for _, run in configured(self._planned)])
                self._record = open_record()
                self._record.cells(self._described)
                status = "FAILED"
                try:
                    self._announce()
                    first = [cell for cell in self._cells if cell.state == boards.WAITING and not cell.repeats]
                    self._train(check, first, goal)
                    if goal is not None and not self._left:  # what limits have left may be better
                        self._add_repeats(goal)
                    self._train(check, [cell for cell in self._cells if cell.is_waiting and cell.repeats], None)
                    status = "FINISHED"
                except (InterruptedRunError, KeyboardInterrupt) as error:
                    status = "KILLED"
                    raise InterruptedRunError(getattr(error, "signum", signal.SIGINT), self._stopped) from None
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
        return [cell for cell in self._planned if cell.is_waiting]

    @property
    def _left(self) -> int:
        """How many cells the limits have stopped, have not started, or have left to be proposed."""
        stopped = sum(is_of_sweep(cell.row.stopped_by) for cell in self._cells)
        refused = sum(cell.state == boards.SKIPPED and cell.config is not None for cell in self._cells)
        return stopped + refused + sum(cell.is_open for cell in self._cells)

    def _fit_to_cluster(self, check: Callable[..., bool]) -> None:
        """Decide what all runs share: devices, how many train at once, CPUs, and how they compute."""
        config, ready = self._config, self._ready
        for _, run in configured(self._asked())[:1]:
            preflight.check_storage(self._folder, run)
        with NodeAllocator(self._board.waiting, check) as allocator:
            preparation.bring_nodes(allocator, self._asked())
            ready.place(self._asked())
            plan.refuse(config, self._planned)
            left = sum(cell.state == boards.WAITING for cell in self._cells)
            self._at_once = ready.at_once(self._asked(), min(left, config.max_concurrent or left))
            ready.divide_cpus(self._planned, self._at_once)
        ready.decide_arithmetic(self._planned)

    def _announce(self) -> None:
        board, config, asked, held = self._board, self._config, configured(self._asked()), ""
        if len({run.world_size for _, run in asked}) > 1:
            what = {"batch": "per worker is held, so the global batch grows with the workers"}
            held = f"; the batch {what.get(config.held, 'over all workers is held')}"
        left = counted(sum(cell.state == boards.WAITING for cell in self._cells), "run")
        board.line(f"sweep {config.name}: {left} of {len(self._cells)}, {self._at_once} at once{held}")
        for cell in self._cells:
            if cell.state == boards.SKIPPED:
                board.show(cell.index, cell.row.shown)
            elif cell.state != boards.WAITING:
                board.ended_before(cell.index, cell.row.shown, cell.row.times.get("time/wall_s", 0.0))
        for cell, run in asked:
            if connection.shares_a_machine(run, cell.decided):
                board.line_once(made_up_note(run.local_nodes))
            if 0 < (gpus := cell.decided.gpus(run)) < 1:
                board.line_once(shared_note(gpus))
            for note in recipe.notes(run, cell.cell.config or run):
                board.line_once(note)

    def _train(self, check: Callable[..., bool], turn: Sequence[PlannedCell], goal: Goal | None) -> None:
        """Train the cells of a turn in Ray Tune; ``goal`` is None where no scheduler is to stop them."""
        if not turn:
            return
        self._turn, self._tried, self._asking = turn, {}, {}
        self._locks += [cell.folder.lock() for cell in turn if cell.folder is not None]
        scheduler = None
        if goal is not None:  # by the epochs of all runs: after a resume, the same
            scheduler = tuning.scheduler_of(self._config, goal, [run for _, run in configured(self._planned)])
            if any(cell.is_open for cell in turn):
                self._proposals = Proposals(self._config, goal, self._cells)
        board, notes = SweepBoard(), self._folder.disk / "ray_tune"
        numbers = [cell.index for cell in turn]
        fitting = tuning.start(board.handle, numbers, self._ready.datasets, notes, self._at_once, scheduler)
        self._board.start(self._at_once)
        looked = noted = time.monotonic()
        try:
            while not fitting.done():
                self._stop = INTERRUPTED if check(True) else self._stop
                self._hear(board.exchange(*self._words()))
                self._answer()
                wait([fitting], _POLL_S)
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
            wait([fitting], _CANCEL_S)
            allocation.remove_abandoned()
            raise
        check()
        self._close(fitting.exception())

    def _look(self, seconds: float) -> None:
        """What has happened without a word in the seconds since the last look."""
        allocation.remove_abandoned()  # the process of a cell may have been killed
        self._budget.passed(seconds)
        self._board.usd = self._budget.usd
        if not self._stop and (reached := self._budget.reached):
            self._board.line(f"{self._budget.words(reached)} is reached; runs stop with a checkpoint")
            self._stop = reached

    def _words(self) -> tuple[dict[str, Word], Word, bool]:
        """What to say to each trial and to all others, and whether Ray Tune is to end.

        A cell whose training has ended hands its place to the next one while it is recorded. Where no other waits, it
        keeps it, since Ray Tune kills what lasts longer than its loop.
        """
        tried = set(self._tried.values())
        more = not self._stop and any(cell.state == boards.WAITING and cell not in tried for cell in self._turn)
        is_over = not more and all(cell.row.is_recorded for cell in tried)
        usual = Word(stop=self._stop, is_released=more or is_over)
        words = {}
        for key, cell in self._tried.items():
            if cell.state == boards.SKIPPED:
                words[key] = Word(skip=True, is_released=True)
            elif cell.is_waiting and not cell.row.is_recorded:
                words[key] = replace(usual, begin=self._spec(cell))
        return words, usual, is_over

    def _hear(self, news: News) -> None:
        """Keep which trials ask for their cells, and take what is new of the others."""
        for key, (asked, row) in news.items():
            cell = self._cells[asked[CELL]]
            if row.state == boards.WAITING and not row.is_recorded:
                if key not in self._tried:  # else it has not heard yet
                    self._asking[key] = cell
            elif not cell.row.is_recorded and (key in self._tried or row.state == boards.FAILED):
                self._take(cell, row)

    def _take(self, cell: PlannedCell, row: Row) -> None:
        """Show and keep what is new of a cell."""
        before, cell.row = cell.row, row
        self._board.show(cell.index, row.shown)
        if row.is_lost and not before.is_lost:
            self._board.line_once(f"the cluster has lost nodes ({row.shown.note}); runs that still fit go on")
        if before.state != row.state and row.state not in (boards.WAITING, boards.RUNNING):
            self._record.figures(self._figures())
            if self._proposals is not None:
                self._proposals.tell(cell)

    def _answer(self) -> None:
        """Give each trial that asks its cell, in the order of the cells, unless there is no time or money for it."""
        for key, cell in sorted(self._asking.items(), key=lambda each: each[1].index):
            if self._stop:
                return
            if cell.is_open:
                self._propose(cell)
            running = [other for other in self._tried.values() if other.state in (boards.WAITING, boards.RUNNING)]
            if cell.is_waiting and (reason := self._budget.refusal(cell, running)):
                self._skip(cell, reason)
            self._tried[key] = self._asking.pop(key)

    def _skip(self, cell: PlannedCell, reason: str) -> None:
        self._take(cell, replace(cell.row.ended(boards.SKIPPED, reason), is_recorded=True))

    def _propose(self, cell: PlannedCell) -> None:
        """Have Optuna propose an open cell's values; where it has none, all open cells are skipped."""
        assert self._proposals is not None
        if (new := self._proposals.new()) is None:
            for other in self._cells:
                if other.is_open:
                    self._skip(other, "Optuna proposes nothing that has not been tried")
        else:
            cell.proposal, values = new
            cell.assign(values, chooser_of(self._config))
            self._board.rows[cell.index].name = cell.cell.name
            self._ready.prepare(cell, self._client.tracking_uri)
            if cell.config is None:
                self._skip(cell, cell.row.shown.note)
        self._save_cells()  # before the folder is made, so that a later driver knows whose it is

    def _close(self, error: BaseException | None) -> None:
        """What is left of cells that Ray Tune has ended with.

        Raises:
            RunFailedError: when it has failed, or cells have no room any more.
        """
        trouble = first_line(error) if isinstance(error, Exception) else ""
        for cell in self._tried.values():
            if not cell.row.is_recorded:
                row = cell.row.ended(boards.FAILED, trouble or "Ray Tune has ended without it")
                self._take(cell, replace(row, is_recorded=True))
        if trouble:
            raise RunFailedError(f"Ray Tune has failed: {trouble}")
        if lost := [cell for cell in self._tried.values() if cell.row.is_lost]:
            left, reason = counted(len(lost), "run"), lost[0].row.shown.note
            raise RunFailedError(f"the cluster has lost nodes, and {left} could not begin: {reason}")

    def _add_repeats(self, goal: Goal) -> None:
        """Add the cells, if any, that train the best run again with other seeds."""
        for cell in repeats_of(goal, self._config, self._cells):
            self._cells.append(cell)
            self._board.add(cell.cell.name)
        if left := [cell for cell in self._cells if cell.repeats and cell.is_waiting]:
            again = counted(len(left), "other seed")
            self._board.line(f"the best run, {left[0].repeats}, is trained again with {again}")
            self._save_cells()

    @property
    def _described(self) -> list[dict[str, Any]]:
        return [cell.described(self._config) for cell in self._cells]

    def _save_cells(self) -> None:
        plan.write_cells(self._folder, self._described)
        self._record.cells(self._described)

    def _spec(self, cell: PlannedCell) -> CellSpec:
        """What a cell's process gets; its folder is made if it has none."""
        config = cell.config
        assert config is not None
        if cell.folder is None:
            digest = str(cell.decided.weights_digest)
            if (weights := self._ready.weights.pop(digest, None)) is not None:
                checkpoints.keep_initial(self._folder, digest, weights)
            if runs.is_half_made(home := self._folder.below(cell.slug)):  # by a driver that was killed
                home.remove()
            cell.folder, held = RunFolder.create(config, cell.decided, self._folder, cell.slug)
            self._locks.append(held)
        sweep = self._config
        tags = {PARENT_TAG: self._record.run_id, SWEEP_TAG: sweep.name, MEASURE_TAG: sweep.measure}
        scheduler = "none" if cell.repeats else sweep.scheduler
        variables = {name: value for name, value in os.environ.items() if _OF_STORES.match(name)}
        of_store = (self._record.uri, tags, self._record.experiment_id, scheduler, variables)
        return CellSpec(config, cell.decided, cell.folder, cell.row, cell.cell.name, *of_store)

    def _end(self, status: str) -> None:
        """Release the cells' folders, and record the end of the sweep."""
        for held in self._locks:
            held.release()
        checkpoints.remove_copies(self._folder)
        self._record.cells(self._described)  # with why some were not started
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

    @property
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
            (study,) = reading.sweeps_or_runs(address, [name])
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
        figures = {f"sweep/{phase}_s": sum(of.get(f"time/{phase}_s", 0.0) for of in times) for phase in PHASES}
        figures["sweep/share_outside_training"] = max(1 - figures["sweep/training_s"] / (wall * self._at_once), 0.0)
        figures |= {"sweep/wall_s": wall, "sweep/placed_s": self._budget.placed_s}
        figures["sweep/concurrency"] = float(self._at_once)
        return figures if self._budget.usd is None else {**figures, "cost/usd": self._budget.usd}
