"""What Optuna proposes for the open cells of a search, one after another, knowing how the others came out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from cifar_ray.config import sweep as sweeps
from cifar_ray.config.sweep import Cell, Range, SweepConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.sweep.plan import PlannedCell
from cifar_ray.tasks.choosing import Goal

_MOST_ASKS = 100  # for one cell, before giving up on a combination that is new


class Proposals:
    """TPE (Bergstra et al., 2011), by Optuna."""

    def __init__(self, sweep: SweepConfig, goal: Goal, cells: Sequence[PlannedCell]) -> None:
        """Propose for the open ones of these cells, towards this goal."""
        import optuna

        self._sweep, self._goal, self._cells = sweep, goal, cells
        self._space: dict[str, optuna.distributions.BaseDistribution] = {}
        for name, of in sweep.grid[0].items():
            if not isinstance(of, Range):  # the numbers of its values, which may be of any type
                self._space[name] = optuna.distributions.CategoricalDistribution(range(len(of)))
            elif of.kind == "int":
                self._space[name] = optuna.distributions.IntDistribution(int(of.low), int(of.high))
            else:
                self._space[name] = optuna.distributions.FloatDistribution(of.low, of.high, log=of.kind == "loguniform")
        # Another seed after a resume: the same one would propose the first cells again.
        seed = random.Random(f"{sweep.name} {sum(not cell.is_open for cell in cells)}").randrange(2**31)
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it says that it has made a study
        self._study = optuna.create_study(
            direction="maximize" if goal.better == "max" else "minimize",
            sampler=optuna.samplers.TPESampler(seed=seed),
        )
        for cell in cells:
            self.tell(cell)

    def tell(self, cell: PlannedCell) -> None:
        """A cell has ended; of one that failed or was skipped, nothing is learned."""
        import optuna

        value = self._goal.value(cell.row.figures) if cell.state in (boards.FINISHED, boards.STOPPED) else None
        if cell.proposal is None or value is None:
            return
        numbers = {
            name: of if isinstance(self._sweep.grid[0][name], Range) else self._sweep.grid[0][name].index(of)
            for name, of in cell.proposal.items()
        }
        trial = optuna.trial.create_trial(params=numbers, distributions=self._space, value=value)
        self._study.add_trial(trial)

    def new(self) -> tuple[dict[str, Any], Cell] | None:
        """Values by axis that no cell has yet, and the cell of them; None where Optuna proposes none."""
        others = [cell.cell for cell in self._cells if cell.proposal is not None]
        for _ in range(_MOST_ASKS):
            asked = self._study.ask(self._space).params  # `tell` adds a trial of its own, as after a resume
            axes = self._sweep.grid[0].items()
            proposal = {name: asked[name] if isinstance(of, Range) else of[asked[name]] for name, of in axes}
            if (cell := sweeps.proposed(self._sweep, proposal, others)) is not None:
                return proposal, cell
        return None
