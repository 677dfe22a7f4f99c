"""Plan a sweep: its runs, those that cannot run, and what an earlier driver has done."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray.tune

from cifar_ray import data, models, storage, tasks
from cifar_ray.config import imports, runfile, schema, sweepfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import is_function
from cifar_ray.config.sweep import Cell, Range, SweepConfig
from cifar_ray.config.train import FUNCTIONS, ResolvedConfig, TrainConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.run import run_folder, run_names
from cifar_ray.orchestration.run.run_folder import RunFolder
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.storage import Folder, Lock
from cifar_ray.tasks import TaskSpec
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
    """The combinations of values: all, or drawn from Ray Tune's distributions, seeded by the sweep's name."""
    if config.search == "grid":
        return sweeps.combinations(config)
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


def _domain(values: Any) -> Any:
    if isinstance(values, Range):
        return getattr(ray.tune, values.kind)(values.low, values.high)
    return ray.tune.choice(values)


def absolute(config: SweepConfig) -> SweepConfig:
    """The sweep with its folders of images independent of the working folder, so that it can be resumed from another.

    Raises:
        ConfigError: when ``~`` stands for nobody's home folder.
    """

    def of(values: Mapping[str, Any]) -> dict[str, Any]:
        named = values.get("dataset")
        if isinstance(named, str):
            return {**values, "dataset": data.own.absolute(named)}
        if isinstance(named, list | tuple):
            return {**values, "dataset": [data.own.absolute(str(name)) for name in named]}
        return dict(values)

    return dataclasses.replace(config, train=of(config.train), grid=tuple(of(axes) for axes in config.grid))


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

    @property
    def slug(self) -> str:
        """The name of its folder."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.cell.name)
        if len(plain) <= _LONGEST_SLUG:
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
            "state": "SKIPPED" if is_skipped else "RUN",
            "reason": self.reason if is_skipped else "",
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
        if self.state == boards.SKIPPED:
            return
        if run_folder.is_half_made(own):  # its driver was killed before the run was recorded anywhere else
            own.remove()
            return
        self.folder = run_folder.reopen(own)
        known = earlier.get(self.folder.key)
        if known is None:
            return
        self.run_id, self.times, self.reason = known.run_id, known.times, known.reason
        ended = {"FINISHED": boards.FINISHED, "FAILED": boards.FAILED}.get(known.status, boards.WAITING)
        self.state = boards.STOPPED if known.stopped else ended
        self.score = known.score if self.state == boards.FINISHED else None


def plan(cells: Sequence[Cell], gpu_share: float = 1.0) -> list[PlannedTrial]:
    """The trials of a sweep, each with so much of a GPU; those whose values do not fit together have a reason."""
    return [_planned(index, cell, gpu_share) for index, cell in enumerate(cells)]


def _planned(index: int, cell: Cell, gpu_share: float) -> PlannedTrial:
    if cell.config is None:
        return PlannedTrial(index, cell, None, reason=cell.reason)
    try:
        return PlannedTrial(index, cell, dataclasses.replace(recipe.resolve(cell.config), gpu_share=gpu_share))
    except ConfigError as error:
        return PlannedTrial(index, cell, None, reason=str(error))


def refuse(config: SweepConfig, trials: Sequence[PlannedTrial]) -> None:
    """Skip the cells that cannot run, or refuse the sweep for them, or for cells that no scheduler can compare.

    Raises:
        ConfigError: naming every cell and why, or the tasks.
    """
    learned = {trial.task for trial in trials if trial.config is not None}
    if config.scheduler != "none" and len(learned) > 1:
        names = ", ".join(sorted(task.name for task in learned))
        raise ConfigError("scheduler", f"must be none where runs learn different tasks, here {names}")
    hopeless = [trial for trial in trials if trial.config is None]
    for trial in hopeless:
        trial.state = boards.SKIPPED
    if not hopeless:
        return
    reasons: dict[str, list[str]] = {}
    for trial in hopeless:
        reasons.setdefault(trial.reason, []).append(trial.cell.name)
    named = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    if len(hopeless) == len(trials):
        raise ConfigError("grid", f"must have a cell that can run here; {named}")
    if not config.skip_infeasible:
        raise ConfigError("grid", f"must have cells that can run here, or go with --skip-infeasible; {named}")


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
    named = {runfile.present_name(key): value for key, value in cell["values"].items()}
    values = {key: schema.field(TrainConfig, key, value) for key, value in named.items()}  # lists are tuples
    if config is None:
        return PlannedTrial(index, Cell(name, values, reason=reason), None, boards.SKIPPED, reason)
    resolved = runfile.resolved_from_mapping(config)
    return PlannedTrial(index, Cell(name, values, resolved), resolved)


def lock(folder: Folder) -> Lock:
    """Make this process the only one that works on the sweep.

    Raises:
        ConfigError: when another process does, or the folder cannot be written.
    """
    with storage.refusing(folder):
        return Lock(folder, _busy(folder.name))


def _busy(name: str) -> ConfigError:
    return ConfigError("resume", f"must be no sweep that another process works on, got {name!r}")
