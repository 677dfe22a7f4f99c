"""Cells of sweeps as their driver has them, and a driver without Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cifar_ray import storage
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Shown
from cifar_ray.orchestration.sweep import plan
from cifar_ray.orchestration.sweep.board import Row, Word
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.plan import PlannedCell
from cifar_ray.orchestration.sweep.proposals import Proposals
from cifar_ray.orchestration.sweep.session import SweepSession
from cifar_ray.tasks.choosing import Goal
from cifar_ray.tracking.study import FOLDER_TAG, Sweep

RUNNING = Row(Shown(boards.RUNNING))


def end(cell: PlannedCell, state: str = boards.FINISHED, note: str = "", **of_row: Any) -> None:
    """Have a cell end in this state, with other fields of its row."""
    cell.row = replace(cell.row.ended(state, note), **of_row)


def configs_of(config: SweepConfig) -> list[ResolvedConfig]:
    """The configs of a sweep's cells and probes, as far as they can run."""
    cells = plan.planned(config)
    return [run for _, run in plan.configured([*cells, *plan.probes(config, cells)])]


class Driven:
    """The driver of a sweep, whose trials are here: they ask for cells, post rows, and get words."""

    def __init__(
        self, config: SweepConfig, folder: Path, goal: Goal | None = None, cells: list[PlannedCell] | None = None
    ) -> None:
        self.config, self.goal, self.home = config, goal, storage.at(str(folder))
        self.cells = cells or plan.planned(config)
        self.figures: list[dict[str, float]] = []
        client: Any = SimpleNamespace(tracking_uri=f"sqlite:///{folder}/mlflow.db")
        probes, budget = plan.probes(config, self.cells), Budget(config, self.cells)
        self.driver = SweepSession(config, self.home, client, self.cells, probes, budget, time.time())
        record: Any = {
            "run_id": "sweep",
            "uri": client.tracking_uri,
            "experiment_id": "1",
            "figures": self.figures.append,
        }
        self.driver._record = SimpleNamespace(**record, cells=lambda _: None)  # type: ignore[assignment]
        self.driver._ready.prepare = lambda cell: None  # type: ignore[method-assign]
        self.driver._ready.shared = lambda config: None  # type: ignore[method-assign, assignment, return-value]
        self.driver._turn = self.cells
        if goal is not None and config.search == "optuna":
            self.driver._proposals = Proposals(config, goal, self.cells)

    def ask(self, cell: PlannedCell) -> None:
        """A trial of Ray Tune's asks for its cell."""
        self.post(cell, Row())

    def post(self, cell: PlannedCell, row: Row) -> None:
        self.driver._hear({cell.index: row})

    def word(self, cell: PlannedCell) -> Word:
        words, usual, _ = self.driver._words()
        return words.get(cell.index, usual)

    @property
    def is_over(self) -> bool:
        return self.driver._words()[2]

    @property
    def ends(self) -> list[tuple[str, str]]:
        """How far each cell is: its state and its note."""
        return [(cell.state, cell.row.shown.note) for cell in self.cells]


class Search(Driven):
    """A search by Optuna whose cells need no training."""

    def goes_on(self, value: Callable[[PlannedCell], Mapping[str, float] | float | None], most: int = 1000) -> None:
        """Train up to so many cells, one after another, with these figures or this value; without, one fails."""
        assert self.goal is not None
        waiting = [cell for cell in self.cells if cell.is_open or cell.is_waiting]
        for cell in waiting:
            self.ask(cell)
            if self.word(cell).begin is None:
                continue
            most, score = most - 1, value(cell)
            figures = score if isinstance(score, Mapping) else {} if score is None else {self.goal.metric: score}
            state = boards.FAILED if score is None else boards.FINISHED
            self.post(cell, replace(RUNNING.ended(state, ""), figures=figures, is_recorded=True))
            if not most:
                return

    def again(self) -> Search:
        """The search as a later driver finds it: the cells from its folder, how they came out from MLflow."""
        self.home.write("sweep.yaml", sweeps.to_yaml(self.config))
        self.driver._save_cells()
        config, cells = plan.read(Sweep("s", [], "", "", tags={FOLDER_TAG: self.home.address}))
        for cell, before in zip(cells, self.cells, strict=True):
            cell.row, cell.folder = replace(before.row, is_recorded=False), before.folder
        return Search(config, Path(self.home.address), self.goal, cells)

    @property
    def told(self) -> list[float | None]:
        """What Optuna knows: the value of every cell that has ended with one."""
        assert self.driver._proposals is not None
        trials = self.driver._proposals._study.trials
        return [trial.value for trial in trials if trial.state.is_finished()]

    @property
    def proposed(self) -> list[dict[str, object]]:
        return [dict(cell.proposal) for cell in self.cells if cell.proposal is not None]
