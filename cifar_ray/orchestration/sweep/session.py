"""One driver's work on a sweep: it prepares the cells, gives them to Ray Tune's trials, and records their ends."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
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
from cifar_ray.orchestration.run.driver import Start
from cifar_ray.orchestration.run.interrupts import RAY_LOST, connected
from cifar_ray.orchestration.sweep import plan, preparation, tuning
from cifar_ray.orchestration.sweep.board import INTERRUPTED, Begin, Row, SweepBoard, Word
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.goal import goal_of
from cifar_ray.orchestration.sweep.plan import PlannedCell, configured
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.orchestration.sweep.proposals import Proposals
from cifar_ray.orchestration.sweep.result import SweepResult, Winner, repeats_of, winner_of
from cifar_ray.reporting import report as reports
from cifar_ray.runs import checkpoints
from cifar_ray.runs import folder as runs
from cifar_ray.runs.folder import RunFolder
from cifar_ray.storage import Folder
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
    """The sweep between its plan and its recorded end.

    Attributes:
        has_begun: whether it has a record.
    """

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
        self._ready = Preparation(config.base, self._board, client.tracking_uri, folder)
        self._proposals: Proposals | None = None
        self._locks = ExitStack()
        self._at_once, self._stop, self.has_begun = 1, "", False
        self._turn: Sequence[PlannedCell] = ()
        self._tried: set[PlannedCell] = set()  # of this turn, those whose trials have asked for them
        self._record: SweepRecord

    def run(self, open_record: Callable[[], SweepRecord]) -> SweepResult:
        """Train all waiting cells; ``open_record`` makes or opens the sweep's own MLflow run once they can start."""
        config, board = self._config, self._board
        with board:
            self._ready.load_data(self._asked())
            self._ready.read_weights(self._asked())
            plan.refuse(config, self._planned)  # before a cluster is waited for
            functions = sorted({path for _, run in configured(self._asked()) for path in imports.functions(run)})
            with connected(config.base, board, functions, preparation.room(self._planned)) as check:
                self._fit_to_cluster(check)
                goal = goal_of(config, [run for _, run in configured(self._planned)])
                first = [cell for cell in self._cells if cell.state == boards.WAITING and not cell.repeats]
                trials = self._start(first, goal)
                self._ready.decide_arithmetic(self._planned)  # while Ray Tune starts
                self._record, self.has_begun = open_record(), True
                status = "FAILED"
                try:
                    self._save_cells()
                    self._announce()
                    self._train(check, trials)
                    if goal is not None and not self._left:  # what limits have left may be better
                        self._add_repeats(goal)
                    repeats = [cell for cell in self._cells if cell.is_waiting and cell.repeats]
                    self._train(check, self._start(repeats, None))
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
        """How many cells the limits have stopped, or have not started."""
        stopped = sum(is_of_sweep(cell.row.stopped_by) for cell in self._cells)
        refused = sum(cell.state == boards.SKIPPED and cell.config is not None for cell in self._cells)
        return stopped + refused + sum(cell.state == boards.WAITING and not cell.repeats for cell in self._cells)

    def _fit_to_cluster(self, check: Callable[..., bool]) -> None:
        """Decide what all runs share: devices, how many train at once, and CPUs."""
        config, ready = self._config, self._ready
        with NodeAllocator(self._board.waiting, check) as allocator:
            preparation.bring_nodes(allocator, self._asked())
            for _, run in configured(self._asked())[:1]:
                preflight.check_storage(self._folder, run)
            ready.place(self._asked())
            plan.refuse(config, self._planned)
            if any(cell.decided.device == "cuda" for cell, _ in configured(self._asked())):
                preflight.check_gpus()
            left = sum(cell.state == boards.WAITING for cell in self._cells)
            self._at_once = ready.at_once(self._asked(), min(left, config.max_concurrent or left))
            ready.divide_cpus(self._planned, self._at_once)

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
                board.ended_before(cell.index, cell.row.shown, cell.row.figures.get("time/wall_s", 0.0))
        for cell, run in asked:
            if connection.shares_a_machine(run, cell.decided):
                board.line_once(made_up_note(run.local_nodes))
            if 0 < (gpus := cell.decided.gpus(run)) < 1:
                board.line_once(shared_note(gpus))
            for note in recipe.notes(run, cell.cell.config or run):
                board.line_once(note)

    def _start(self, turn: Sequence[PlannedCell], goal: Goal | None) -> tuple[SweepBoard, Future[Any]] | None:
        """Start Ray Tune on the cells of a turn, if any; ``goal`` is None where no scheduler is to stop them."""
        if not turn:
            return None
        self._turn, self._tried = turn, set()
        for cell in turn:
            if cell.folder is not None:
                self._locks.enter_context(cell.folder.lock())
        scheduler = None
        if goal is not None:  # by the epochs of all runs: after a resume, the same
            scheduler = tuning.scheduler_of(self._config, goal, [run for _, run in configured(self._planned)])
            if any(cell.is_open for cell in turn):
                self._proposals = Proposals(self._config, goal, self._cells)
        board, notes = SweepBoard(), self._folder.disk / "ray_tune"
        cells = [cell.index for cell in turn]
        return board, tuning.start(board.actor, cells, notes, self._at_once, scheduler)

    def _train(self, check: Callable[..., bool], trials: tuple[SweepBoard, Future[Any]] | None) -> None:
        """Train the cells of the turn that has been started."""
        if trials is None:
            return
        board, fitting = trials
        self._board.start(self._at_once)
        looked = noted = time.monotonic()
        try:
            while not fitting.done():
                self._stop = INTERRUPTED if check(True) else self._stop
                self._hear(board.exchange(*self._words()))
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

    def _words(self) -> tuple[dict[int, Word], Word, bool]:
        """What to say to each cell and to all others, and whether Ray Tune is to end.

        A cell whose training has ended hands its place to the next one while it is recorded. Where no other waits, it
        keeps it, since Ray Tune kills what lasts longer than its loop.
        """
        more = not self._stop and any(cell.state == boards.WAITING and cell not in self._tried for cell in self._turn)
        is_over = not more and all(cell.row.is_recorded for cell in self._tried)
        usual = Word(stop=self._stop, is_released=more or is_over)
        words = {}
        for cell in self._tried:
            if cell.state == boards.SKIPPED:
                words[cell.index] = Word(stop=boards.SKIPPED, is_released=True)
            elif cell.is_waiting and not cell.row.is_recorded:
                words[cell.index] = replace(usual, begin=self._begin(cell))
        return words, usual, is_over

    def _hear(self, news: Mapping[int, Row]) -> None:
        """Decide on cells whose trials ask for them, in their order, and take what is new of the others."""
        for index, row in sorted(news.items()):
            cell = self._cells[index]
            if row.state == boards.WAITING and not row.is_recorded:
                if cell not in self._tried and not self._stop:  # else it has not heard yet
                    self._try(cell)
            elif not cell.row.is_recorded and (cell in self._tried or row.state == boards.FAILED):
                self._take(cell, row)

    def _try(self, cell: PlannedCell) -> None:
        """Let a cell begin, unless there are no values, no time or no money for it."""
        if cell.is_open:
            self._propose(cell)
        if cell.is_waiting and (reason := self._budget.refusal(cell, self._tried)):
            self._skip(cell, reason)
        self._tried.add(cell)

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
            cell.assign(values, self._config)
            self._board.rows[cell.index].name = cell.cell.name
            self._ready.prepare(cell)
            if cell.config is None:
                self._skip(cell, cell.row.shown.note)
        self._save_cells()  # before the folder is made, so that a later driver knows whose it is

    def _close(self, error: BaseException | None) -> None:
        """Fail cells that have not ended though Ray Tune has, and the sweep if it has failed or cells have no room."""
        trouble = first_line(error) if isinstance(error, Exception) else ""
        for cell in self._tried:
            if not cell.row.is_recorded:
                row = cell.row.ended(boards.FAILED, trouble or "Ray Tune has ended without it")
                self._take(cell, replace(row, is_recorded=True))
        if trouble:
            raise RunFailedError(f"Ray Tune has failed: {trouble}")
        if lost := [cell for cell in self._tried if cell.row.is_lost]:
            left, reason = counted(len(lost), "run"), lost[0].row.shown.note
            raise RunFailedError(f"the cluster has lost nodes, and {left} could not begin: {reason}")

    def _add_repeats(self, goal: Goal) -> None:
        """Add the cells, if any, that train the best run again with other seeds."""
        for cell in repeats_of(goal, self._config, self._cells):
            self._cells.append(cell)
            self._board.add(cell.cell.name)
        for cell in self._cells:
            if cell.repeats and cell.is_waiting:
                self._ready.prepare(cell)
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

    def _begin(self, cell: PlannedCell) -> Begin:
        """What a cell's process gets; its folder is made if it has none."""
        config, sweep, record = cell.config, self._config, self._record
        assert config is not None
        if cell.folder is None:
            if runs.is_half_made(home := self._folder.below(cell.slug)):  # by a driver that was killed
                home.remove()
            cell.folder, held = RunFolder.create(config, cell.decided, self._folder, cell.slug)
            self._locks.enter_context(held)
        start = Start(
            config,
            cell.decided,
            cell.folder,
            record.uri,
            cell.cell.name,
            tags={PARENT_TAG: record.run_id, SWEEP_TAG: sweep.name, MEASURE_TAG: sweep.measure},
            experiment=record.experiment_id,
        )
        scheduler = "none" if cell.repeats else sweep.scheduler
        variables = {name: value for name, value in os.environ.items() if _OF_STORES.match(name)}
        return Begin(start, cell.row, self._ready.shared(config), scheduler, variables)

    def _end(self, status: str) -> None:
        """Release the cells' folders, and record the end of the sweep."""
        self._locks.close()
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
        """Display the means of a grid, and have the sweep's page in MLflow say what a report would say first."""
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
        """Seconds by phase over all runs so far, wall time, concurrency, and the share of time outside runs' epochs."""
        runs, wall = [cell.row.figures for cell in self._cells], time.time() - self._begun
        figures = {f"sweep/{phase}_s": sum(of.get(f"time/{phase}_s", 0.0) for of in runs) for phase in PHASES}
        epochs = sum(figures[f"sweep/{phase}_s"] for phase in ("training", "evaluation", "checkpoint"))
        figures |= {"sweep/wall_s": wall, "sweep/share_outside_training": max(1 - epochs / (wall * self._at_once), 0.0)}
        figures |= {"sweep/placed_s": self._budget.placed_s, "sweep/concurrency": float(self._at_once)}
        return figures if self._budget.usd is None else {**figures, "cost/usd": self._budget.usd}
