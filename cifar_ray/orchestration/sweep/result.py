"""What a sweep has come to; of a search, the best of its whole runs, which may be trained again with other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cifar_ray.config.sweep import Cell, SweepConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.sweep.plan import PlannedCell, configured
from cifar_ray.reporting.winner import Lead
from cifar_ray.tasks.choosing import Goal
from cifar_ray.training import recipe


@dataclass(frozen=True)
class Winner:
    """The best run of a search.

    Attributes:
        name: its name.
        value: its value of the figure that the search was after.
        sentence: how far it is ahead of the second, as people read it; by the mean of its other seeds if it has any.
        command: trains it again from the start, twice as long.
    """

    name: str
    value: float
    sentence: str
    command: str


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


def _ranked(goal: Goal, cells: Sequence[PlannedCell]) -> list[tuple[float, PlannedCell]]:
    """The runs that finished with the figure, the best first; those stopped early are not compared."""
    whole = [
        (value, cell)
        for cell in cells
        if cell.state == boards.FINISHED and not cell.repeats and (value := goal.value(cell.row.figures)) is not None
    ]
    return sorted(whole, key=lambda pair: goal.figure.rank(pair[0]), reverse=True)


def winner_of(goal: Goal, cells: Sequence[PlannedCell]) -> Winner | None:
    """The best of the runs that finished; None when none has the figure."""
    ranked = _ranked(goal, cells)
    if not ranked:
        return None
    value, best = ranked[0]
    again = [cell for cell in cells if cell.repeats == best.cell.name and cell.state == boards.FINISHED]
    repeated = [one for cell in again if (one := goal.value(cell.row.figures)) is not None]
    images = goal.images(cell.row.figures for _, cell in ranked)
    lead = Lead(goal.figure, [(cell.cell.name, value) for value, cell in ranked], repeated, images)
    assert best.config is not None
    command = recipe.command(best.config, epochs=2 * best.config.epochs)
    return Winner(best.cell.name, value, lead.sentence, command)


def repeats_of(goal: Goal, sweep: SweepConfig, cells: Sequence[PlannedCell]) -> list[PlannedCell]:
    """The cells that train the best run of a search that is over again with other seeds; none if there are any."""
    ranked = _ranked(goal, cells)
    if not ranked or any(cell.repeats for cell in cells):
        return []
    best = ranked[0][1]
    assert best.config is not None
    label = best.cell.name.rpartition("seed")[0]
    first = 1 + max(config.seed for _, config in configured(cells))
    made = []
    for number in range(sweep.repeat):
        cell = Cell(f"{label}seed{first + number}", {**best.cell.values, "seed": first + number})
        config = replace(best.config, seed=first + number)
        made.append(PlannedCell(len(cells) + number, cell, config, best.decided, repeats=best.cell.name))
    return made
