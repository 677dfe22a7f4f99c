"""Plan a sweep: its runs, those that cannot run, and what an earlier driver has done."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray.tune

from cifar_ray import data, models, storage, tasks
from cifar_ray.config import files, imports, runfile, schema, sweepfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import is_function
from cifar_ray.config.search import Range
from cifar_ray.config.sweep import Axes, Cell, SweepConfig
from cifar_ray.config.train import FUNCTIONS, ResolvedConfig, TrainConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.run import run_folder, run_names
from cifar_ray.orchestration.run.limits import Spent, recorded
from cifar_ray.orchestration.run.run_folder import RunFolder
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.orchestration.sweep.goal import chooser_of, goal_of
from cifar_ray.reporting import cost
from cifar_ray.storage import Folder, Lock
from cifar_ray.tasks import TaskSpec, choosing, classification
from cifar_ray.tracking import parent, uri
from cifar_ray.tracking.parent import KnownSweep, KnownTrial
from cifar_ray.tracking.run import RunRecord
from cifar_ray.tracking.store import Client
from cifar_ray.tracking.study import placement
from cifar_ray.training import recipe
from cifar_ray.training.observer import Outcome

_CONFIG, _CELLS = run_names.SWEEP, "cells.json"
_LONGEST_SLUG = 100
_MOST_DRAWS = 100  # per sample, before giving up on finding a new one


def draw(config: SweepConfig) -> list[dict[str, Any]]:
    """The combinations of values: all; or drawn from Ray Tune's distributions, seeded by the sweep's name.

    Of a search whose values are proposed later, a few that tell what it may come to need (:func:`_probes`).
    """
    if config.search == "grid":
        return sweeps.combinations(config)
    if config.search == "optuna":
        return _probes(config.grid[0])
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


def _probes(axes: Axes) -> list[dict[str, Any]]:
    """Combinations that have every value of every axis, and the ends of ranges: what a search may come to need.

    A few of them, and not all: beside the axes of the data set, one axis at a time leaves its first value.
    """
    values = {name: [of.low, of.high] if isinstance(of, Range) else of for name, of in axes.items()}
    first = {name: several[0] for name, several in values.items()}
    data_sets = {name: values[name] for name in values if name in runfile.OF_DATA}
    found = [{**first, **dict(zip(data_sets, each, strict=True))} for each in itertools.product(*data_sets.values())]
    others = (name for name in values if name not in runfile.OF_DATA)
    return found + [{**first, name: value} for name in others for value in values[name][1:]]


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
    price = cost.checked(config.base.price)

    paths: dict[str, Callable[[str], str]] = {"dataset": data.own.absolute}
    if config.search == "optuna":  # runs are planned later, perhaps from another folder; other sweeps keep short names
        paths["weights"] = _absolute_file

    def of(values: Mapping[str, Any]) -> dict[str, Any]:
        changed = dict(values)
        for name, path_of in paths.items():
            named = values.get(name)
            if isinstance(named, list | tuple):
                changed[name] = [each if each is None else path_of(str(each)) for each in named]
            elif named is not None:
                changed[name] = path_of(str(named))
        return changed

    train = of(config.train) if price is None else {**of(config.train), "price": price.word}
    return dataclasses.replace(config, train=train, grid=tuple(of(axes) for axes in config.grid))


def _absolute_file(weights: str) -> str:
    return str(files.existing("weights", weights) or weights)


@dataclass
class PlannedTrial:
    """One run of the sweep.

    Attributes:
        index: its number in the sweep.
        cell: its values.
        config: the resolved config; None when it cannot run.
        state: as the display names it.
        reason: why it is skipped, was stopped, or has failed.
        run_id: its MLflow run, if an earlier driver has made it.
        unused_gpus: why it runs on CPUs although the cluster has GPUs; empty otherwise.
        opening: makes or opens its MLflow run, until that is there.
        held: its events meanwhile.
        times: seconds by phase, and the throughput, once it has ended.
        score: its task's primary figure after the last epoch, if it had finished under an earlier driver.
        epoch: the last one of this driver.
        figures: its latest figures; once it has finished, also those of its end.
        is_open: whether its values are still to be proposed.
        proposal: the values that were proposed, by axis.
        repeats: name of the best run, if it is that one with another seed.
        spent: what it has used so far, over all drivers.
        admitted: whether the limits of the sweep let it start.
        reported: whether it has ended; its state and its record may follow.
        completed: whether it has trained to its end, so that its time tells what others take.
    """

    index: int
    cell: Cell
    config: ResolvedConfig | None
    state: str = boards.WAITING
    reason: str = ""
    run_id: str = ""
    unused_gpus: str = ""
    folder: RunFolder | None = None
    session: RunSession | None = None
    outcome: Outcome | None = None
    opening: Future[RunRecord | None] | None = None
    held: list[Any] = field(default_factory=list)
    recording: threading.Thread | None = None
    times: Mapping[str, float] = field(default_factory=dict)
    score: float | None = None
    epoch: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
    is_open: bool = False
    proposal: Mapping[str, Any] | None = None
    repeats: str = ""
    spent: Spent = field(default_factory=Spent)
    admitted: bool = False
    reported: bool = False
    completed: bool = False

    @property
    def slug(self) -> str:
        """The name of its folder, with a hash where letters of the cell's name are lost."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.cell.name)
        if len(plain) <= _LONGEST_SLUG and plain == self.cell.name.replace(" ", "-"):
            return plain
        return f"{plain[:_LONGEST_SLUG]}-{hashlib.sha256(self.cell.name.encode()).hexdigest()[:8]}"

    @property
    def task(self) -> TaskSpec:
        """What it learns; it can run."""
        assert self.config is not None
        return tasks.spec(self.config)

    def result(self, score: float) -> str:
        """Its result in words, once it has finished with that primary figure."""
        return boards.result(self.task, score, self.times)

    def described(self, sweep: SweepConfig) -> dict[str, Any]:
        """The cell as it is to run, or why it is skipped, for JSON: the sweep's folder and its MLflow run have it."""
        is_skipped = self.state == boards.SKIPPED
        return {
            "name": self.cell.name,
            "values": self.cell.values,
            "config": runfile.to_mapping(self.config) if self.config else None,
            "params": runfile.params(self.config) if self.config else self._wished(sweep),
            "state": "SKIPPED" if is_skipped else parent.OPEN if self.is_open else "RUN",
            "reason": self.reason if is_skipped else "",
            **({} if self.proposal is None else {"proposal": self.proposal}),
            **({"repeats": self.repeats} if self.repeats else {}),
        }

    def _wished(self, sweep: SweepConfig) -> dict[str, str]:
        """The parameters of a cell that cannot run, as far as its values say; the batch is rounded down."""
        usual = {"model": TrainConfig.model, "dataset": TrainConfig.dataset, "topology": TrainConfig.topology}
        merged = {**usual, **sweeps.merged(sweep, self.cell.values)}
        values = {name: value for name, value in merged.items() if value is not None and name not in sweeps.OWN}
        nodes, workers = placement(values["topology"]) or (1, 1)
        per_step = nodes * workers * values.get("accumulate", 1)
        if "batch_size" not in values:
            values.setdefault("global_batch_size", models.of(values["model"]).recipes[0].base_batch)
            values["batch_size"] = max(values["global_batch_size"] // per_step, 1)
        values.setdefault("global_batch_size", values["batch_size"] * per_step)
        return {runfile.parameter(name): str(value) for name, value in values.items()}

    def find_again(self, folder: Folder, earlier: Mapping[str, KnownTrial]) -> None:
        """Read from its folder and from MLflow what an earlier driver has done.

        Raises:
            ConfigError: when its folder is damaged, or cannot be read; nothing of it is removed.
        """
        own = folder.below(self.slug)
        if self.state == boards.SKIPPED or self.is_open:
            return
        if run_folder.is_half_made(own):  # its driver was killed before the run was recorded anywhere else
            own.remove()
            return
        self.folder, self.spent = run_folder.reopen(own), recorded(own)
        known = earlier.get(self.folder.key)
        if known is None:
            return
        self.run_id, self.times, self.reason = known.run_id, known.times, known.reason
        self.figures = known.figures
        ended = {"FINISHED": boards.FINISHED, "FAILED": boards.FAILED}.get(known.status, boards.WAITING)
        self.state = boards.STOPPED if known.stopped else boards.WAITING if known.left else ended
        self.completed = self.state == boards.FINISHED
        self.score = known.score if self.state == boards.FINISHED else None


def plan(cells: Sequence[Cell], gpu_share: float = 1.0, chooser: str = "") -> list[PlannedTrial]:
    """The trials of a sweep, each with so much of a GPU; those whose values do not fit together have a reason.

    ``chooser``: what is to choose between them (:func:`cifar_ray.orchestration.sweep.goal.chooser_of`).
    """
    return [_planned(index, cell, gpu_share, chooser) for index, cell in enumerate(cells)]


def _planned(index: int, cell: Cell, gpu_share: float, chooser: str) -> PlannedTrial:
    trial = PlannedTrial(index, cell, None)
    assign(trial, cell, gpu_share, chooser)
    return trial


def assign(trial: PlannedTrial, cell: Cell, gpu_share: float, chooser: str) -> None:
    """Give a trial its cell, and so much of a GPU; when its values do not fit together, a reason and no config."""
    trial.cell, trial.reason = cell, cell.reason
    if cell.config is not None:
        try:
            trial.config = dataclasses.replace(recipe.resolve(cell.config, chooser), gpu_share=gpu_share)
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
    learned = {tasks.spec(run) for run in runs}
    comparing = {
        "objective": "must not be given" * (config.objective is not None),
        "scheduler": "must be none" * (config.scheduler != "none"),
        "search": "must be grid or random" * (config.search == "optuna"),
    }
    for key, problem in comparing.items():
        if problem and len(learned) > 1:
            names = ", ".join(sorted(task.name for task in learned))
            raise ConfigError(key, f"{problem} where runs learn different tasks, here {names}")
    if config.is_search and len({run.choose_by for run in runs}) > 1:
        raise ConfigError("choose_by", "must be the same in all runs of a search, here val and test")
    if goal := goal_of(config, runs):
        has_optional = goal.task != tasks.USUAL or any(data.spec(run).num_classes > classification.MANY for run in runs)
        goal.check(config, choosing.measured(runs[0]), has_optional)
    if config.scheduler == "none":
        return
    grace, longest = getattr(config, config.scheduler).grace, max((run.epochs for run in runs), default=math.inf)
    if grace > longest:
        raise ConfigError(f"{config.scheduler}.grace", f"must be at most the {longest} epochs of a run, got {grace}")


def create(config: SweepConfig, client: Client) -> tuple[Folder, Lock]:
    """Make the folder of a new sweep, and lock it.

    Raises:
        ConfigError: when there is a sweep of that name, or the folder cannot be written.
    """
    above = storage.at(config.base.storage)
    folder = above.below(config.name)
    known = parent.find(client, config.name)
    with storage.refusing(above):
        if known is not None and not folder.exists():
            raise _taken(folder, config.name, client.tracking_uri, client.tracking_uri)
        contents = {_CONFIG: sweepfile.to_yaml(config)}
        taken = partial(_taken, folder, config.name, client.tracking_uri, above.address)
        return folder, storage.claim(folder, contents, taken, _busy(config.name))


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


def read(known: KnownSweep) -> tuple[SweepConfig, list[PlannedTrial]]:
    """Read a sweep as its first driver planned it.

    Raises:
        ConfigError: when its folder is gone or damaged, or the file of a function of the user's own has changed.
    """
    folder = storage.at(known.folder)
    try:
        with folder.on_disk(_CONFIG) as path:
            config = sweepfile.from_mapping(sweepfile.load(path))
        chooses = bool(chooser_of(config))
        trials = [_read(index, cell, chooses) for index, cell in enumerate(json.loads(folder.read(_CELLS)))]
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


def _read(index: int, cell: Mapping[str, Any], chooses: bool) -> PlannedTrial:
    name, config, reason = cell["name"], cell["config"], cell.get("reason", cell.get("skipped", ""))
    values, proposal = _typed(cell["values"]), cell.get("proposal")
    of = Cell(name, values, reason=reason)
    if cell.get("state") == parent.OPEN:
        return PlannedTrial(index, of, None, is_open=True)
    proposal = None if proposal is None else _typed(proposal)
    if config is None:
        return PlannedTrial(index, of, None, boards.SKIPPED, reason, proposal=proposal)
    resolved = runfile.begun(runfile.resolved_from_mapping(config), chooses)
    found = PlannedTrial(index, Cell(name, values, resolved), resolved, proposal=proposal)
    found.repeats = cell.get("repeats", "")
    return found


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's values by their present names, with their fields' own types: lists are tuples."""
    named = {runfile.present_name(key): value for key, value in values.items()}
    return {key: schema.field(TrainConfig, key, value) for key, value in named.items()}


def lock(folder: Folder) -> Lock:
    """Make this process the only one that works on the sweep.

    Raises:
        ConfigError: when another process does, or the folder cannot be written.
    """
    with storage.refusing(folder):
        return Lock(folder, _busy(folder.name))


def _busy(name: str) -> ConfigError:
    return ConfigError("resume", f"must be no sweep that another process works on, got {name!r}")
