"""Prepare the trials of a sweep for this cluster: data set, device, CPUs and arithmetic, so that they compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cifar_ray import data, tasks
from cifar_ray.config import runfile, topology
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import is_own, value_of
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.topology import Node
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.display.dataset import lines as dataset_lines
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.cluster import allocation, connection, preflight
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.sweep import shared_arithmetic
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.orchestration.sweep.trial import dataset_key
from cifar_ray.reporting import cost
from cifar_ray.runs.weights import find_weights
from cifar_ray.storage import Folder
from cifar_ray.training import arithmetic, hardware, recipe


class Preparation:
    """Prepares trials in place: those that a sweep begins with, and each that is proposed later, alike.

    Attributes:
        datasets: the data sets read so far, by their keys.
        weights: what runs start from, by digest.
    """

    def __init__(self, base: TrainConfig, board: Board, nodes: Sequence[Node] | None = None) -> None:
        """Prepare for these ``nodes``, on which nothing is stored, or for those of the cluster when None.

        ``base`` is what is the same for all runs.
        """
        self.datasets: dict[str, Dataset] = {}
        self.weights: dict[str, bytes] = {}
        self._base, self._board, self._nodes = base, board, nodes
        self._read: dict[tuple[object, ...], Dataset] = {}
        self._cpus = 1
        self._computing: dict[Any, arithmetic.Choice] = {}
        self._weights: dict[Any, str | ConfigError] = {}

    def load_data(self, trials: Sequence[PlannedTrial]) -> None:
        """Read the data sets of trials; what was found in them is decided."""
        for trial, config in configured(trials):
            name = config.dataset
            which = tuple(value_of(config, field) for field in runfile.OF_DATA)
            if which not in self._read:
                present = is_own(name) or data.present(name, self._base.data_dir)
                self._board.doing(f"{'reading' if present else 'downloading'} {name}")
                self._read[which] = data.read(config, partial(self._board.decoding, name))
                for line in dataset_lines(self._read[which], tasks.spec(config, self._read[which].spec)):
                    self._board.line(f"{config.dataset_name}: {line}")
            trial.decided = recipe.settle(config, trial.decided, self._read[which])
            self.datasets[dataset_key(config, trial.decided)] = self._read[which]

    def read_weights(self, trials: Sequence[PlannedTrial], store: str) -> None:
        """Read the weights that trials start from, each once; those without weights keep no config."""
        for trial, config in configured(trials):
            if config.weights is None or trial.folder is not None:  # it has begun, and its checkpoints have them
                continue
            key = dataset_key(config, trial.decided)
            which = (config.weights, key, *config.model_key)
            if which not in self._weights:
                self._weights[which] = self._find_weights(config, key, store)
            found = self._weights[which]
            if isinstance(found, ConfigError):
                trial.reason, trial.config = str(found), None
            else:
                trial.decided = dataclasses.replace(trial.decided, weights_digest=found)

    def _find_weights(self, config: ResolvedConfig, key: str, store: str) -> str | ConfigError:
        """The digest of the weights, or why there are none; ``key`` is that of the data set."""
        try:
            content, digest, encoding = find_weights(config, store, self._board.line)
            if encoding and encoding != self.datasets[key].encoding:
                rule = "must be of a run with the same training texts in a sweep, whose runs share a tokenizer"
                raise ConfigError("weights", f"{rule}; {config.weights} has others")
        except ConfigError as error:
            return error
        self.weights[digest] = content
        return digest

    def place(self, trials: Sequence[PlannedTrial]) -> None:
        """Decide the device of trials; those that the cluster has no room for lose their config and get a reason."""
        for trial, asked in configured(trials):
            try:
                chosen = allocation.at_topology(asked, trial.decided, self._nodes)
                cost.check_device(cost.checked(asked.price), chosen.decided.device)
                trial.decided, trial.unused_gpus = chosen.decided, chosen.unused_gpus
            except ConfigError as error:
                trial.reason, trial.config = str(error), None

    def at_once(self, sweep: SweepConfig, folder: Folder, trials: Sequence[PlannedTrial], left: int) -> int:
        """How many of the ``left`` trials train at once: as many as would fit if all were as large as the largest."""
        configs = [config for _, config in configured(trials)]
        if not configs:  # what an earlier driver left cannot run here
            return 1
        if self._nodes is None:
            preflight.check_storage(folder, max(configs, key=preflight.checkpoint_bytes))
        gpus = max(trial.decided.gpus(config) for trial, config in configured(trials))
        largest = room(trials)
        copies = topology.copies(largest.placement, self._all_nodes(), largest.cpus, gpus)
        if self._base.local_nodes > 1:  # more at once than there are CPUs would only slow each other down
            needed = largest.world_size * largest.cpus
            copies = min(copies, hardware.allowed_cpus() // needed)
        most = max(min(max(copies, 1), sweep.max_concurrent or copies or 1), 1)
        return min(most, left)

    def divide_cpus(self, trials: Sequence[PlannedTrial], at_once: int, before: int | None = None) -> None:
        """Decide how many CPUs a worker gets where none are given: as many as ``at_once`` trials leave, in all alike.

        More runs at once come first, since many runs of one thread each are done earlier than one run after another.
        With the same number in every run, their times tell what the workers do, and not what the threads do. The
        sweep's folder keeps it: a sweep that is continued goes on with it, ``before``.
        """
        self._cpus = before or _fair_share(trials, at_once, self._all_nodes())
        self.share_cpus(trials)

    def share_cpus(self, trials: Sequence[PlannedTrial]) -> None:
        """Give each worker the CPUs that were decided."""
        for trial, config in configured(trials):
            if config.cpus_per_worker is None:
                trial.decided = dataclasses.replace(trial.decided, cpus_per_worker=self._cpus)

    def _all_nodes(self) -> Sequence[Node]:
        return connection.nodes() if self._nodes is None else self._nodes

    def decide_arithmetic(self, trials: Sequence[PlannedTrial], earlier: Sequence[PlannedTrial] = ()) -> None:
        """Decide precision and convolutions, as for trials of the same model before, or of an ``earlier`` driver."""
        self._computing |= shared_arithmetic.earlier(earlier)
        shared_arithmetic.decide(trials, self._board.line, self._computing)

    def prepare(self, trial: PlannedTrial, store: str) -> None:
        """Prepare one that is proposed while others train; where it cannot run, it gets a reason and no config."""
        try:
            self.load_data([trial])
            self.read_weights([trial], store)
            self.place([trial])
            self.share_cpus([trial])
            self.decide_arithmetic([trial])
        except ConfigError as error:
            trial.reason, trial.config = str(error), None


def configured(trials: Sequence[PlannedTrial]) -> list[tuple[PlannedTrial, ResolvedConfig]]:
    """Trials that can run as far as is known, with their configs."""
    return [(trial, trial.config) for trial in trials if trial.config is not None]


def room(trials: Sequence[PlannedTrial]) -> Decided:
    """What the Ray that all runs share has to hold at least, when it is started here."""
    configs = [config for _, config in configured(trials)]
    nodes = max(config.placement.nodes for config in configs)
    workers = max(config.placement.workers_per_node for config in configs)
    return Decided(f"{nodes}x{workers}", cpus_per_worker=max(config.cpus_per_worker or 1 for config in configs))


def _fair_share(trials: Sequence[PlannedTrial], at_once: int, nodes: Sequence[Node]) -> int:
    """The most CPUs that every worker can have while ``at_once`` trials train."""
    sharing = [(trial.decided, config) for trial, config in configured(trials) if config.cpus_per_worker is None]
    cpus = min((decided.cpus for decided, _ in sharing), default=1)
    while cpus > 1 and any(
        topology.copies(decided.placement, nodes, cpus, decided.gpus(config)) < at_once for decided, config in sharing
    ):
        cpus -= 1
    return cpus


def bring_nodes(allocator: NodeAllocator, trials: Sequence[PlannedTrial]) -> None:
    """Wait for the nodes of the largest topology that the cluster can have, on which all smaller ones fit.

    Raises:
        RunFailedError: when they have not come in time.
    """
    sizes = {config.topology: (config, trial.decided) for trial, config in configured(trials)}.values()
    for config, asked in sorted(sizes, key=lambda run: (run[0].world_size, run[0].placement.nodes), reverse=True):
        with suppress(ConfigError):  # that topology is skipped, as place() says
            allocator.allocate(config, asked)
            return


def check_gpus(trials: Sequence[PlannedTrial]) -> None:
    """Refuse GPUs that PyTorch cannot use, before each run would meet them.

    Raises:
        ConfigError: naming what is wrong with them.
    """
    used = any(trial.decided.device == "cuda" for trial, _ in configured(trials))
    if problems := preflight.gpu_problems(connection.nodes()) if used else []:
        raise ConfigError("device", f"must be cpu here: {'; '.join(problems)}")
