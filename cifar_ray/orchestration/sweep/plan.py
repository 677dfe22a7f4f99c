"""Plan a sweep: its cells, those that cannot run, and what earlier drivers have done."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cifar_ray import data, models, storage, tasks
from cifar_ray.config import files, imports, limits, runfile, schema
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.model import usual
from cifar_ray.config.option import is_function
from cifar_ray.config.sweep import Cell, Range, SweepConfig
from cifar_ray.config.train import FUNCTIONS, ResolvedConfig, TrainConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Shown
from cifar_ray.orchestration.run.limits import recorded
from cifar_ray.orchestration.sweep.board import Row
from cifar_ray.orchestration.sweep.goal import check_comparable, chooser_of
from cifar_ray.runs import folder as runs
from cifar_ray.runs.folder import RunFolder
from cifar_ray.storage import Folder, Lock
from cifar_ray.tracking import parent, reading, uri
from cifar_ray.tracking.store import Client
from cifar_ray.tracking.study import STOPPED_TAG, Run, Sweep, placement
from cifar_ray.training import recipe

_CONFIG, _CELLS = runs.SWEEP, "cells.json"
_LONGEST_SLUG = 100
_MOST_DRAWS = 100  # per sample, before giving up on finding a new one


@dataclass(eq=False)
class PlannedCell:
    """A cell of the sweep as its driver knows it.

    Attributes:
        cell: its name and values.
        config: the resolved config; None when it cannot run, and before its values are proposed.
        decided: what it leaves open, as far as that is decided.
        row: how far it is; of one that cannot run, why.
        folder: of its run; None before it has one.
        proposal: the values that were proposed, by axis.
        repeats: name of the best run, if it is that one with another seed.
    """

    index: int
    cell: Cell
    config: ResolvedConfig | None = None
    decided: Decided = field(default_factory=lambda: Decided("1x1"))
    row: Row = field(default_factory=Row)
    folder: RunFolder | None = None
    proposal: Mapping[str, Any] | None = None
    repeats: str = ""

    @property
    def state(self) -> str:
        return self.row.state

    @property
    def is_open(self) -> bool:
        """Whether its values are still to be proposed."""
        return self.config is None and self.state == boards.WAITING

    @property
    def is_waiting(self) -> bool:
        """Whether it is to be trained, and its values are known."""
        return self.config is not None and self.state == boards.WAITING

    @property
    def slug(self) -> str:
        """The name of its folder, with a hash where letters of the cell's name are lost."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.cell.name)
        if len(plain) <= _LONGEST_SLUG and plain == self.cell.name.replace(" ", "-"):
            return plain
        return f"{plain[:_LONGEST_SLUG]}-{hashlib.sha256(self.cell.name.encode()).hexdigest()[:8]}"

    def assign(self, cell: Cell, sweep: SweepConfig) -> None:
        """Give it a cell's values; it is skipped where they do not fit together."""
        self.cell = cell
        if cell.config is None:
            self.skip(cell.reason)
            return
        try:
            self.config = recipe.resolve(cell.config, chooser_of(sweep))
            self.decided = Decided.asked(self.config)
        except ConfigError as error:
            self.skip(error)

    def skip(self, reason: object) -> None:
        """It cannot run."""
        self.config, self.row = None, self.row.ended(boards.SKIPPED, str(reason))

    def described(self, sweep: SweepConfig) -> dict[str, Any]:
        """The cell as it is to run, or why it does not, for JSON: the sweep's folder and its MLflow run have it."""
        states = {boards.SKIPPED: "SKIPPED", boards.WAITING: parent.OPEN if self.is_open else "RUN"}
        has_reason = self.state == boards.SKIPPED or (self.state == boards.FAILED and not self.row.has_run)
        return {
            "name": self.cell.name,
            "values": self.cell.values,
            "config": runfile.to_mapping(self.config) if self.config else None,
            "decided": schema.to_plain(self.decided),
            "params": runfile.params(self.config, self.decided) if self.config else _wished(sweep, self.cell),
            "state": states.get(self.state, "RUN"),
            "reason": self.row.shown.note if has_reason else "",
            "proposal": self.proposal,
            "repeats": self.repeats,
        }

    def find_again(self, folder: Folder, earlier: Mapping[str, Run]) -> None:
        """Read from its folder and from MLflow, which knows runs by their keys, what an earlier driver has done."""
        if self.config is None:
            return
        home = folder.below(self.slug)
        if runs.is_half_made(home):
            if any(known.name == self.cell.name for known in earlier.values()):
                problem = "which is gone: start another sweep"
                raise ConfigError("resume", f"needs the folder of the run {self.cell.name}, {home.address}, {problem}")
            return
        self.folder, self.row = RunFolder.at(home.address), replace(self.row, spent=recorded(home))
        if (known := earlier.get(self.folder.key)) is None:
            return
        ended = {"FINISHED": boards.FINISHED, "FAILED": boards.FAILED}.get(known.status, boards.WAITING)
        halted = known.status == "STOPPED" and not limits.is_of_sweep(known.stopped_by)
        state, note = boards.STOPPED if STOPPED_TAG in known.tags or halted else ended, known.reason
        if state == boards.FINISHED and known.score is not None:
            task = tasks.spec(self.config, data.facts(self.config))
            note = boards.result(task, known.score, known.metrics)
        shown = Shown(state, note)
        self.row = replace(self.row, shown=shown, figures=known.metrics, has_run=True)


def _wished(sweep: SweepConfig, cell: Cell) -> dict[str, str]:
    """The parameters of a cell that cannot run, as far as its values say; the batch is rounded down."""
    merged = {"dataset": TrainConfig.dataset, "topology": TrainConfig.topology, **sweeps.merged(sweep, cell.values)}
    merged.setdefault("model", usual(merged["dataset"], merged.get("image_column")))
    values = {name: value for name, value in merged.items() if value is not None and name not in sweeps.OWN}
    nodes, workers = placement(values["topology"]) or (1, 1)
    per_step = nodes * workers * values.get("accumulate", 1)
    if "batch_size" not in values:
        values.setdefault("global_batch_size", models.of(values["model"]).recipes[0].base_batch)
        values["batch_size"] = max(values["global_batch_size"] // per_step, 1)
    values.setdefault("global_batch_size", values["batch_size"] * per_step)
    return {name: str(value) for name, value in values.items()}


def planned(config: SweepConfig, chosen: Sequence[Mapping[str, Any]] | None = None) -> list[PlannedCell]:
    """The cells of a sweep, or those of ``chosen`` values: open ones, where values are proposed one after another."""
    if chosen is None:
        if config.search == "optuna":
            assert config.samples is not None
            return [PlannedCell(number, Cell(f"sample {number + 1}", {})) for number in range(config.samples)]
        chosen = _drawn(config) if config.search == "random" else config.combinations
    cells = [PlannedCell(index, cell) for index, cell in enumerate(sweeps.cells(config, chosen))]
    for cell in cells:
        cell.assign(cell.cell, config)
    return cells


def probes(config: SweepConfig, cells: Sequence[PlannedCell]) -> list[PlannedCell]:
    """Cells that tell what the open ones among these may come to need: one, if it can run, with each value."""
    if not any(cell.is_open for cell in cells):
        return []
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("search", "must be grid or random without Optuna: `pip install 'cifar-ray[optuna]'` has it")
    (axes,) = config.grid
    values = {name: [of.low, of.high] if isinstance(of, Range) else of for name, of in axes.items()}
    state, made = random.Random(config.name), list[PlannedCell]()
    for name, several in values.items():
        for value in several:
            for _ in range(_MOST_DRAWS):
                others = {other: state.choice(of) for other, of in values.items()}
                (probe,) = planned(config, [{**others, name: value}])
                if probe.config is not None:
                    break
            made.append(probe)
    return made


def _drawn(config: SweepConfig) -> list[dict[str, Any]]:
    """Combinations drawn at random, seeded by the sweep's name; each once, so there may be fewer than asked for."""
    assert config.samples is not None
    state, drawn = random.Random(config.name), list[dict[str, Any]]()
    for axes in config.grid:
        wanted = len(drawn) + config.samples
        for _ in range(_MOST_DRAWS * config.samples):
            values = {name: _draw(state, of) for name, of in axes.items()}
            if len(drawn) < wanted and values not in drawn:
                drawn.append(values)
    return drawn


def _draw(state: random.Random, values: Any) -> Any:
    if not isinstance(values, Range):
        return state.choice(values)
    if values.kind == "int":
        return state.randint(int(values.low), int(values.high))
    if values.kind == "loguniform":
        return min(math.exp(state.uniform(math.log(values.low), math.log(values.high))), values.high)
    return state.uniform(values.low, values.high)


def absolute(config: SweepConfig) -> SweepConfig:
    """The sweep, whose data sets and weights do not depend on the working folder."""
    ways: dict[str, Callable[[str], Any]] = {
        "dataset": data.absolute,
        "weights": lambda weights: str(files.existing("weights", weights) or weights),  # a file; others are names
    }

    def of(axes: Mapping[str, Any]) -> dict[str, Any]:
        changed = dict(axes)
        for name, way in ways.items():
            if isinstance(values := axes.get(name), list | tuple):
                changed[name] = [value and way(str(value)) for value in values]
            elif values is not None:
                changed[name] = way(str(values))
        return changed

    return replace(config, train=of(config.train), grid=tuple(map(of, config.grid)))


def refuse(config: SweepConfig, cells: Sequence[PlannedCell]) -> None:
    """Refuse a sweep whose runs do not compare, or with cells that cannot run, unless they may be skipped."""
    check_comparable(config, [run for _, run in configured(cells)])
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell.config is None and not cell.is_open:
            reasons.setdefault(cell.row.shown.note, []).append(cell.cell.name)
    named = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    if reasons and not any(cell.config for cell in cells):
        raise ConfigError("grid", f"must have a cell that can run here; {named}")
    if reasons and not config.skip_infeasible and config.search != "optuna":
        raise ConfigError("grid", f"must have cells that can run here, or go with --skip-infeasible; {named}")


def create(config: SweepConfig, client: Client) -> tuple[Folder, Lock]:
    """Make the folder of a new sweep, and lock it; the name must be new in the storage and in the store."""
    above = storage.at(config.base.storage)
    folder = above.below(config.name)

    def taken(where: str = above.address) -> ConfigError:
        command = f"cifar-ray sweep --resume {config.name}{uri.flag(client.tracking_uri)}"
        there = f"{config.name!r} is in {where}; `{command}` continues it, if it is a sweep"
        return ConfigError("name", f"must be new, and {there}")

    known = reading.find_sweep(client, config.name)
    with storage.refusing(above):
        if known is not None and not folder.exists():
            raise taken(client.tracking_uri)
        return folder, storage.claim(folder, {_CONFIG: sweeps.to_yaml(config)}, taken, _busy(config.name))


def write_cells(folder: Folder, cells: Sequence[Mapping[str, Any]]) -> None:
    """Write the cells as :meth:`PlannedCell.described` has them."""
    with storage.refusing(folder):
        folder.write(_CELLS, json.dumps(cells))


def read(known: Sweep, given: Mapping[str, Any] | None = None) -> tuple[SweepConfig, list[PlannedCell]]:
    """Read a sweep as its first driver planned it, with the limits that are ``given`` now, from its folder."""
    folder = storage.at(known.folder)
    try:
        with folder.on_disk(_CONFIG) as path:
            config = sweeps.from_mapping(runfile.read(path))
        cells = [_read(index, cell) for index, cell in enumerate(json.loads(folder.read(_CELLS)))]
    except ConfigError:
        raise
    except (KeyError, TypeError, OSError, ValueError) as error:
        raise ConfigError("resume", f"needs the sweep's folder, {known.folder}, which is gone or damaged") from error
    for _, run in configured(cells):
        for key in FUNCTIONS:
            if is_function(getattr(run, key)):
                imports.check_source(run, key)
    return replace(config, **given or {}), cells


def _read(index: int, described: Mapping[str, Any]) -> PlannedCell:
    def typed(values: Mapping[str, Any]) -> dict[str, Any]:  # lists are tuples
        return {key: schema.field(TrainConfig, key, value) for key, value in values.items()}

    config = described["config"] and runfile.resolved_from_mapping(described["config"])
    cell = Cell(described["name"], typed(described["values"]), config)
    planned = PlannedCell(index, cell, config, schema.build(Decided, described["decided"]))
    if config is None and described["state"] == "SKIPPED":
        planned.skip(described["reason"])
    planned.proposal, planned.repeats = described["proposal"] and typed(described["proposal"]), described["repeats"]
    return planned


def find_again(client: Client, known: Sweep, cells: Sequence[PlannedCell], retry_failed: bool) -> None:
    """Read how far earlier drivers have come with the cells of a sweep; those that wait are to be trained."""
    earlier = {run.key: run for run in reading.trials(client, known)}
    for cell in cells:
        cell.find_again(storage.at(known.folder), earlier)
        if retry_failed and cell.state == boards.FAILED:
            cell.row = cell.row.ended(boards.WAITING, "")


def lock(folder: Folder) -> Lock:
    """Make this process the only one that works on the sweep, or refuse it where another does."""
    with storage.refusing(folder):
        return Lock(folder, _busy(folder.name))


def _busy(name: str) -> ConfigError:
    return ConfigError("resume", f"must be no sweep that another process works on, got {name!r}")


def configured(cells: Iterable[PlannedCell]) -> list[tuple[PlannedCell, ResolvedConfig]]:
    """Cells that can run as far as is known, with their configs."""
    return [(cell, cell.config) for cell in cells if cell.config is not None]
