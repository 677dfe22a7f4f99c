"""Plan a sweep: its cells, those that cannot run, and what earlier drivers have done."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cifar_ray import data, models, storage, tasks
from cifar_ray.config import files, imports, limits, runfile, schema
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import is_function
from cifar_ray.config.sweep import Cell, Range, SweepConfig
from cifar_ray.config.train import FUNCTIONS, ResolvedConfig, TrainConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Shown
from cifar_ray.orchestration.run.limits import recorded
from cifar_ray.orchestration.sweep.board import Row
from cifar_ray.orchestration.sweep.goal import check_goal, chooser_of, goal_of
from cifar_ray.reporting import cost
from cifar_ray.runs import folder as runs
from cifar_ray.runs.folder import RunFolder
from cifar_ray.storage import Folder, Lock
from cifar_ray.tracking import parent, reading, uri
from cifar_ray.tracking.store import Client, connect
from cifar_ray.tracking.study import CHECKPOINT_TAG, STOPPED_TAG, Run, Sweep, placement
from cifar_ray.training import recipe
from cifar_ray.training.observer import step_of

_CONFIG, _CELLS = runs.SWEEP, "cells.json"
_LONGEST_SLUG = 100
_MOST_DRAWS = 100  # per sample, before giving up on finding a new one


@dataclass(eq=False)
class PlannedCell:
    """A cell of the sweep as its driver knows it.

    Attributes:
        cell: its name and values.
        config: the resolved config; None when it cannot run.
        decided: what it leaves open, as far as that is decided.
        reason: why it cannot run; empty when it can.
        row: how far it is.
        folder: of its run; None before it has one.
        unused_gpus: why it runs on CPUs although the cluster has GPUs; empty otherwise.
        is_open: whether its values are still to be proposed.
        proposal: the values that were proposed, by axis.
        repeats: name of the best run, if it is that one with another seed.
    """

    index: int
    cell: Cell
    config: ResolvedConfig | None = None
    decided: Decided = field(default_factory=lambda: Decided("1x1"))
    reason: str = ""
    row: Row = field(default_factory=Row)
    folder: RunFolder | None = None
    unused_gpus: str = ""
    is_open: bool = False
    proposal: Mapping[str, Any] | None = None
    repeats: str = ""

    @property
    def state(self) -> str:
        return self.row.state if self.config is not None or self.is_open else boards.SKIPPED

    @property
    def is_waiting(self) -> bool:
        """Whether it is to be trained, and its values are known."""
        return self.config is not None and self.row.state == boards.WAITING

    @property
    def slug(self) -> str:
        """The name of its folder, with a hash where letters of the cell's name are lost."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.cell.name)
        if len(plain) <= _LONGEST_SLUG and plain == self.cell.name.replace(" ", "-"):
            return plain
        return f"{plain[:_LONGEST_SLUG]}-{hashlib.sha256(self.cell.name.encode()).hexdigest()[:8]}"

    def assign(self, cell: Cell, chooser: str) -> None:
        """Give it a cell's values; those that do not fit together are a reason, and no config.

        ``chooser``: what is to choose between the cells (:func:`cifar_ray.orchestration.sweep.goal.chooser_of`).
        """
        self.cell, self.reason, self.is_open = cell, cell.reason, False
        if cell.config is not None:
            try:
                self.config = recipe.resolve(cell.config, chooser)
                self.decided = Decided.asked(self.config)
            except ConfigError as error:
                self.refuse(error)

    def refuse(self, reason: object) -> None:
        """It cannot run."""
        self.config, self.reason, self.is_open = None, str(reason), False

    def described(self, sweep: SweepConfig) -> dict[str, Any]:
        """The cell as it is to run, or why it is skipped, for JSON: the sweep's folder and its MLflow run have it."""
        is_skipped = self.state == boards.SKIPPED
        return {
            "name": self.cell.name,
            "values": self.cell.values,
            "config": runfile.to_mapping(self.config) if self.config else None,
            "decided": schema.to_plain(self.decided),
            "params": runfile.params(self.config, self.decided) if self.config else _wished(sweep, self.cell),
            "state": "SKIPPED" if is_skipped else parent.OPEN if self.is_open else "RUN",
            "reason": self.reason or (self.row.shown.note if is_skipped else ""),
            "proposal": self.proposal,
            "repeats": self.repeats,
        }

    def find_again(self, folder: Folder, earlier: Mapping[str, Run], read_only: bool = False) -> None:
        """Read from its folder and from MLflow, which knows runs by their keys, what an earlier driver has done.

        A folder that was left half-made stays only if ``read_only``.

        Raises:
            ConfigError: when its folder is damaged, cannot be read, or is gone although MLflow has the run; nothing
                of it is removed.
        """
        if self.config is None:
            return
        home = folder.below(self.slug)
        if runs.is_half_made(home):  # its driver was killed before the run was recorded anywhere else
            if any(known.name == self.cell.name for known in earlier.values()):
                problem = "which is gone: start another sweep"
                raise ConfigError("resume", f"needs the folder of the run {self.cell.name}, {home.address}, {problem}")
            if not read_only:
                home.remove()
            return
        self.folder, self.row = RunFolder.at(home.address), replace(self.row, spent=recorded(home))
        if (known := earlier.get(self.folder.key)) is None:
            return
        ended = {"FINISHED": boards.FINISHED, "FAILED": boards.FAILED}.get(known.status, boards.WAITING)
        halted = known.status == "STOPPED" and not limits.is_of_sweep(known.stopped_by)
        state, note, epoch = boards.STOPPED if STOPPED_TAG in known.tags or halted else ended, known.reason, 0
        if state == boards.FINISHED:
            kept = known.tags.get(CHECKPOINT_TAG, "").rpartition("/")[2]
            epoch = max(step_of(kept), 0) // data.steps_per_epoch(self.config)
            if known.score is not None:
                task = tasks.spec(self.config, data.facts(self.config))
                note = boards.result(task, known.score, known.times)
        shown, times = Shown(state, note), known.times
        self.row = replace(self.row, shown=shown, figures=known.metrics, times=times, epoch=epoch, has_run=True)


def _wished(sweep: SweepConfig, cell: Cell) -> dict[str, str]:
    """The parameters of a cell that cannot run, as far as its values say; the batch is rounded down."""
    usual = {"model": TrainConfig.model, "dataset": TrainConfig.dataset, "topology": TrainConfig.topology}
    merged = {**usual, **sweeps.merged(sweep, cell.values)}
    values = {name: value for name, value in merged.items() if value is not None and name not in sweeps.OWN}
    nodes, workers = placement(values["topology"]) or (1, 1)
    per_step = nodes * workers * values.get("accumulate", 1)
    if "batch_size" not in values:
        values.setdefault("global_batch_size", models.of(values["model"]).recipes[0].base_batch)
        values["batch_size"] = max(values["global_batch_size"] // per_step, 1)
    values.setdefault("global_batch_size", values["batch_size"] * per_step)
    return {name: str(value) for name, value in values.items()}


def planned(config: SweepConfig) -> list[PlannedCell]:
    """The cells of a grid or of random draws; of a search that proposes them, a few that tell what it may need."""
    draw = {"random": _drawn, "optuna": _probes}
    chosen = draw[config.search](config) if config.search in draw else config.combinations
    return _plan(config, sweeps.cells(config, chosen))


def _plan(config: SweepConfig, cells: Sequence[Cell]) -> list[PlannedCell]:
    plan = [PlannedCell(index, cell) for index, cell in enumerate(cells)]
    for one in plan:
        one.assign(one.cell, chooser_of(config))
    return plan


def open_cells(config: SweepConfig) -> list[PlannedCell]:
    """The cells of a search whose values are proposed one after another."""
    assert config.samples is not None
    named = (Cell(f"sample {number}", {}) for number in range(1, config.samples + 1))
    return [PlannedCell(index, cell, is_open=True) for index, cell in enumerate(named)]


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


def _probes(config: SweepConfig) -> list[dict[str, Any]]:
    """What a search may come to need: every data set, and every value of the other axes, where it can run."""
    (axes,) = config.grid
    values = {name: [of.low, of.high] if isinstance(of, Range) else of for name, of in axes.items()}
    of_data = {name: several for name, several in values.items() if name in runfile.OF_DATA}
    needed = [*_products(of_data), *({name: value} for name in values if name not in of_data for value in values[name])]
    probes: list[dict[str, Any]] = []
    for some in needed:
        first = {name: some.get(name, several[0]) for name, several in values.items()}
        changed = ({**first, name: value} for name in values if name not in some for value in values[name])
        all_others = _products({name: [some[name]] if name in some else values[name] for name in values})
        tried = itertools.chain([first], changed, itertools.islice(all_others, _MOST_DRAWS))
        probe = next(filter(partial(_can_run, config), tried), first)
        if probe not in probes:
            probes.append(probe)
    return probes


def _products(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values()))


def _can_run(config: SweepConfig, values: Mapping[str, Any]) -> bool:
    cell = sweeps.proposed(config, values, [])
    return cell is not None and _plan(config, [cell])[0].config is not None


def absolute(config: SweepConfig) -> SweepConfig:
    """The sweep, whose folders of images, price file and (in a search) weights do not depend on the working folder.

    Raises:
        ConfigError: when ``~`` stands for nobody's home folder, or the price is not known.
    """
    price = cost.word(config.base.price)
    paths: dict[str, Callable[[str], str]] = {"dataset": data.absolute}
    if config.search == "optuna":  # runs are planned later, perhaps from another folder; other sweeps keep short names
        paths["weights"] = lambda weights: str(files.existing("weights", weights) or weights)

    def of(values: Mapping[str, Any]) -> dict[str, Any]:
        changed = dict(values)
        for name in paths.keys() & values.keys():
            named = values[name]
            each = [one if one is None else paths[name](str(one)) for one in (named if is_list(named) else [named])]
            changed[name] = each if is_list(named) else each[0]
        return changed

    def is_list(named: Any) -> bool:
        return isinstance(named, list | tuple)

    train = of(config.train) if price is None else {**of(config.train), "price": price}
    return dataclasses.replace(config, train=train, grid=tuple(of(axes) for axes in config.grid))


def refuse(config: SweepConfig, cells: Sequence[PlannedCell]) -> None:
    """Refuse a sweep with cells that cannot run, unless they may be skipped, or that its scheduler cannot compare.

    Raises:
        ConfigError: naming every cell and why, or the tasks, or the epochs, or what the cells are to be chosen by.
    """
    _check_comparable(config, [cell.config for cell in cells if cell.config is not None])
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell.config is None and not cell.is_open:
            reasons.setdefault(cell.reason, []).append(cell.cell.name)
    named = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    if reasons and not any(cell.config for cell in cells):
        raise ConfigError("grid", f"must have a cell that can run here; {named}")
    if reasons and not config.skip_infeasible and config.search != "optuna":
        raise ConfigError("grid", f"must have cells that can run here, or go with --skip-infeasible; {named}")


def _check_comparable(config: SweepConfig, runs: Sequence[ResolvedConfig]) -> None:
    learned = {tasks.spec(run, data.facts(run)) for run in runs}
    comparing = {
        "objective": "must not be given" * (config.objective is not None),
        "scheduler": "must be none" * (config.scheduler != "none"),
        "search": "must be grid or random" * (config.search == "optuna"),
    }
    for key, problem in comparing.items():
        if problem and len(learned) > 1:
            names = ", ".join(sorted(task.name for task in learned))
            raise ConfigError(key, f"{problem} where runs learn different tasks, here {names}")
    if goal := goal_of(config, runs):
        has_optional = any(tasks.has_optional(goal.task, data.facts(run).num_classes) for run in runs)
        check_goal(goal, config, data.facts(runs[0]).measured, has_optional)
    longest = max((run.epochs for run in runs), default=math.inf)
    if config.scheduler != "none" and config.asha_grace > longest:
        raise ConfigError("asha_grace", f"must be at most the {longest} epochs of a run, got {config.asha_grace}")


def create(config: SweepConfig, client: Client) -> tuple[Folder, Lock]:
    """Make the folder of a new sweep, and lock it.

    Raises:
        ConfigError: when there is a sweep of that name, or the folder cannot be written.
    """
    above = storage.at(config.base.storage)
    folder = above.below(config.name)
    known = reading.find_sweep(client, config.name)
    with storage.refusing(above):
        if known is not None and not folder.exists():
            raise _taken(folder, config.name, client.tracking_uri, client.tracking_uri)
        contents = {_CONFIG: sweeps.to_yaml(config)}
        taken = partial(_taken, folder, config.name, client.tracking_uri, above.address)
        return folder, storage.claim(folder, contents, taken, _busy(config.name))


def refuse_taken(config: SweepConfig, address: str) -> None:
    """Refuse the name of a new sweep as :func:`create` does, and write nothing; ``address`` is the tracking store.

    Raises:
        ConfigError: when there is a sweep of that name, or the store or the folder cannot be read.
    """
    above = storage.at(config.base.storage)
    folder = above.below(config.name)
    with storage.refusing(above):
        if folder.exists():
            raise _taken(folder, config.name, address, above.address)
    if uri.exists(address) and reading.find_sweep(connect(address), config.name) is not None:
        raise _taken(folder, config.name, address, address)


def _taken(folder: Folder, name: str, store: str, where: str) -> ConfigError:
    is_run = folder.exists() and _CONFIG not in folder.names()
    command = f"cifar-ray {'resume' if is_run else 'sweep --resume'} {name}{uri.flag(store)}"
    return ConfigError("name", f"must be new, and {name!r} is in {where}; `{command}` continues it")


def write_cells(folder: Folder, cells: Sequence[Mapping[str, Any]]) -> None:
    """Write the cells as :meth:`PlannedCell.described` has them.

    Raises:
        ConfigError: when the folder cannot be written.
    """
    with storage.refusing(folder):
        folder.write(_CELLS, json.dumps(cells))


def read(known: Sweep) -> tuple[SweepConfig, list[PlannedCell]]:
    """Read a sweep as its first driver planned it.

    Raises:
        ConfigError: when its folder is gone or damaged, or the file of a function of the user's own has changed.
    """
    folder = storage.at(known.folder)
    try:
        with folder.on_disk(_CONFIG) as path:
            config = sweeps.from_mapping(runfile.read(path))
        cells = [_read(index, cell) for index, cell in enumerate(json.loads(folder.read(_CELLS)))]
    except (KeyError, TypeError):
        raise ConfigError(
            "resume", f"must be a sweep of this version, and {folder.name} was planned by an earlier one: start another"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError("resume", f"needs the sweep's folder, {known.folder}, which is gone or damaged") from error
    for cell in cells:
        for key in FUNCTIONS:
            if cell.config is not None and is_function(getattr(cell.config, key)):
                imports.check_source(cell.config, key)
    return config, cells


def _read(index: int, described: Mapping[str, Any]) -> PlannedCell:
    def typed(values: Mapping[str, Any]) -> dict[str, Any]:  # lists are tuples
        return {key: schema.field(TrainConfig, key, value) for key, value in values.items()}

    config = described["config"] and runfile.resolved_from_mapping(described["config"])
    found = PlannedCell(index, Cell(described["name"], typed(described["values"]), config, described["reason"]), config)
    found.reason = "" if config else described["reason"]
    found.is_open = described["state"] == parent.OPEN
    found.proposal = described["proposal"] and typed(described["proposal"])
    found.decided, found.repeats = schema.build(Decided, described["decided"]), described["repeats"]
    return found


def lock(folder: Folder) -> Lock:
    """Make this process the only one that works on the sweep.

    Raises:
        ConfigError: when another process does, or the folder cannot be written.
    """
    with storage.refusing(folder):
        return Lock(folder, _busy(folder.name))


def _busy(name: str) -> ConfigError:
    return ConfigError("resume", f"must be no sweep that another process works on, got {name!r}")
