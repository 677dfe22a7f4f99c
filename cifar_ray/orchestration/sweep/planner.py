"""Plan a sweep: its runs, those that cannot run, and what an earlier driver has done."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ray.tune

from cifar_ray import data, storage, tasks
from cifar_ray.config import files, imports, runfile, schema
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import is_function
from cifar_ray.config.sweep import Cell, Range, SweepConfig, proposed
from cifar_ray.config.sweep import cells as cells_of
from cifar_ray.config.train import FUNCTIONS, ResolvedConfig, TrainConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.run import run_names
from cifar_ray.orchestration.sweep.goal import check_goal, chooser_of, goal_of
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.reporting import cost
from cifar_ray.storage import Folder, Lock
from cifar_ray.tracking import parent, reading, uri
from cifar_ray.tracking.store import Client, connect
from cifar_ray.tracking.study import Sweep
from cifar_ray.training import recipe

_CONFIG, _CELLS = run_names.SWEEP, "cells.json"
_MOST_DRAWS = 100  # per sample, before giving up on finding a new one


def draw(config: SweepConfig) -> Sequence[dict[str, Any]]:
    """The combinations of values: all; or drawn from Ray Tune's distributions, seeded by the sweep's name.

    Of a search whose values are proposed later, a few that tell what it may come to need (:func:`_probes`).
    """
    if config.search == "grid":
        return config.combinations
    if config.search == "optuna":
        return _probes(config)
    assert config.samples is not None
    state = random.Random(config.name)
    drawn: list[dict[str, Any]] = []
    for axes in config.grid:
        wanted = len(drawn) + config.samples
        for _ in range(_MOST_DRAWS * config.samples):  # a combination is drawn once; there may be fewer than samples
            values = {
                name: _domain(domain).sample(random_state=state.randrange(2**31)) for name, domain in axes.items()
            }
            if len(drawn) == wanted:
                break
            if values not in drawn:
                drawn.append(values)
    return drawn


def _probes(config: SweepConfig) -> list[dict[str, Any]]:
    """Combinations that have every value of every axis, and the ends of ranges: what a search may come to need.

    A few of them, and not all: every data set, and every value of the other axes, with the first values that can run.
    """
    (axes,) = config.grid
    values = {name: [of.low, of.high] if isinstance(of, Range) else of for name, of in axes.items()}
    of_data = {name: several for name, several in values.items() if name in runfile.OF_DATA}
    data_sets = [dict(zip(of_data, chosen, strict=True)) for chosen in itertools.product(*of_data.values())]
    others = [{name: value} for name in values if name not in of_data for value in values[name]]
    probes: list[dict[str, Any]] = []
    for needed in (*data_sets, *others):
        near = {name: [value] for name, value in needed.items()}
        first = {name: several[0] for name, several in {**values, **near}.items()}
        changed = ({**first, name: value} for name in values if name not in near for value in values[name][1:])
        product = (dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*{**values, **near}.values()))
        candidates = itertools.chain([first], changed, itertools.islice(product, _MOST_DRAWS))
        probe = next((probe for probe in candidates if _can_run(config, probe)), first)
        if probe not in probes:
            probes.append(probe)
    return probes


def _can_run(config: SweepConfig, values: Mapping[str, Any]) -> bool:
    cell = proposed(config, values, [])
    return cell is not None and plan([cell], chooser_of(config))[0].config is not None


def _domain(values: Any) -> Any:
    if isinstance(values, Range) and values.kind == "int":
        return ray.tune.randint(values.low, values.high + 1)  # Ray Tune leaves the upper end out
    if isinstance(values, Range):
        return getattr(ray.tune, values.kind)(values.low, values.high)
    return ray.tune.choice(values)


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
        for name, path_of in paths.items():
            named = values.get(name)
            if isinstance(named, list | tuple):
                changed[name] = [each if each is None else path_of(str(each)) for each in named]
            elif named is not None:
                changed[name] = path_of(str(named))
        return changed

    train = of(config.train) if price is None else {**of(config.train), "price": price}
    return dataclasses.replace(config, train=train, grid=tuple(of(axes) for axes in config.grid))


def plan(cells: Sequence[Cell], chooser: str = "") -> list[PlannedTrial]:
    """The trials of a sweep, each with so much of a GPU; those whose values do not fit together have a reason.

    ``chooser``: what is to choose between them (:func:`cifar_ray.orchestration.sweep.goal.chooser_of`).
    """
    trials = [PlannedTrial(index, cell, None) for index, cell in enumerate(cells)]
    for trial in trials:
        assign(trial, trial.cell, chooser)
    return trials


def planned(config: SweepConfig) -> list[PlannedTrial]:
    """The trials of a sweep with the combinations that :func:`draw` has."""
    return plan(cells_of(config, draw(config)), chooser_of(config))


def assign(trial: PlannedTrial, cell: Cell, chooser: str) -> None:
    """Give a trial its cell, and so much of a GPU; when its values do not fit together, a reason and no config."""
    trial.cell, trial.reason = cell, cell.reason
    if cell.config is not None:
        try:
            trial.config = recipe.resolve(cell.config, chooser)
            trial.decided = Decided.asked(trial.config)
        except ConfigError as error:
            trial.reason = str(error)


def open_trials(config: SweepConfig) -> list[PlannedTrial]:
    """The trials of a search whose values are proposed one after another."""
    assert config.samples is not None
    cells = [Cell(f"sample {number}", {}) for number in range(1, config.samples + 1)]
    return [PlannedTrial(index, cell, None, is_open=True) for index, cell in enumerate(cells)]


def refuse(config: SweepConfig, trials: Sequence[PlannedTrial]) -> None:
    """Skip the cells that cannot run, or refuse the sweep for them, or for cells that its scheduler cannot compare.

    Raises:
        ConfigError: naming every cell and why, or the tasks, or the epochs, or what the cells are to be chosen by.
    """
    _check_comparable(config, [trial.config for trial in trials if trial.config is not None])
    hopeless = [trial for trial in trials if trial.config is None and not trial.is_open]
    for trial in hopeless:
        trial.state = boards.SKIPPED
    if not hopeless:
        return
    reasons: dict[str, list[str]] = {}
    for trial in hopeless:
        reasons.setdefault(trial.reason, []).append(trial.cell.name)
    named = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    if not any(trial.config for trial in trials):
        raise ConfigError("grid", f"must have a cell that can run here; {named}")
    if not config.skip_infeasible and config.search != "optuna":
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
    if config.scheduler == "none":
        return
    longest = max((run.epochs for run in runs), default=math.inf)
    if config.asha.grace > longest:
        raise ConfigError("asha.grace", f"must be at most the {longest} epochs of a run, got {config.asha.grace}")


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
    """Write the cells as :meth:`PlannedTrial.described` has them.

    Raises:
        ConfigError: when the folder cannot be written.
    """
    with storage.refusing(folder):
        folder.write(_CELLS, json.dumps(cells))


def read(known: Sweep) -> tuple[SweepConfig, list[PlannedTrial]]:
    """Read a sweep as its first driver planned it.

    Raises:
        ConfigError: when its folder is gone or damaged, or the file of a function of the user's own has changed.
    """
    folder = storage.at(known.folder)
    try:
        with folder.on_disk(_CONFIG) as path:
            config = sweeps.from_mapping(runfile.read(path))
        trials = [_read(index, cell) for index, cell in enumerate(json.loads(folder.read(_CELLS)))]
    except (KeyError, TypeError):
        raise ConfigError(
            "resume", f"must be a sweep of this version, and {folder.name} was planned by an earlier one: start another"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError("resume", f"needs the sweep's folder, {known.folder}, which is gone or damaged") from error
    for trial in trials:
        for key in FUNCTIONS:
            if trial.config is not None and is_function(getattr(trial.config, key)):
                imports.check_source(trial.config, key)
    return config, trials


def _read(index: int, cell: Mapping[str, Any]) -> PlannedTrial:
    name, config, reason = cell["name"], cell["config"], cell.get("reason", cell.get("skipped", ""))
    values, proposal = _typed(cell["values"]), cell.get("proposal")
    of = Cell(name, values, reason=reason)
    if cell.get("state") == parent.OPEN:
        return PlannedTrial(index, of, None, is_open=True)
    proposal = None if proposal is None else _typed(proposal)
    if config is None:
        return PlannedTrial(index, of, None, boards.SKIPPED, reason, proposal=proposal)
    resolved = runfile.resolved_from_mapping(config)
    found = PlannedTrial(index, Cell(name, values, resolved), resolved, proposal=proposal)
    found.decided = Decided.from_mapping(cell["decided"])
    found.repeats = cell.get("repeats", "")
    return found


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's values with their fields' own types: lists are tuples."""
    return {key: schema.field(TrainConfig, key, value) for key, value in values.items()}


def lock(folder: Folder) -> Lock:
    """Make this process the only one that works on the sweep.

    Raises:
        ConfigError: when another process does, or the folder cannot be written.
    """
    with storage.refusing(folder):
        return Lock(folder, _busy(folder.name))


def _busy(name: str) -> ConfigError:
    return ConfigError("resume", f"must be no sweep that another process works on, got {name!r}")
