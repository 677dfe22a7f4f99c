"""Prepare the trials of a sweep for this cluster: data set, device, CPUs and arithmetic, so that they compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cifar_ray import data, tasks
from cifar_ray.config import runfile, topology
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import is_own, value_of
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.topology import Node
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.cluster import allocation, connection, preflight
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.run import given_weights
from cifar_ray.orchestration.sweep import shared_arithmetic
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.reporting import cost
from cifar_ray.storage import Folder
from cifar_ray.training import arithmetic, hardware, recipe


class Preparation:
    """Prepares trials in place: those that a sweep begins with, and each that is proposed later, alike.

    Attributes:
        datasets: the data sets read so far, by ``dataset_key``.
        weights: what runs start from, by digest.
    """

    def __init__(self, base: TrainConfig, board: Board, nodes: Sequence[Node] | None = None) -> None:
        """Prepare for these ``nodes``, on which nothing is stored, or for those of the cluster when None."""
        self.datasets: dict[str, Dataset] = {}
        self.weights: dict[str, bytes] = {}
        self._base, self._board, self._nodes = base, board, nodes
        self._read: dict[tuple[object, ...], Dataset] = {}
        self._cpus = 1
        self._computing: dict[Any, arithmetic.Choice] = {}
        self._weights: dict[Any, ResolvedConfig | ConfigError] = {}

    def load_data(self, trials: Sequence[PlannedTrial]) -> None:
        """Read the data sets of trials, whose configs then have what was found in them."""
        for trial, config in configured(trials):
            name = config.dataset
            which = tuple(value_of(config, field) for field in runfile.OF_DATA)
            if which not in self._read:
                present = is_own(name) or data.present(name, self._base.data_dir)
                self._board.doing(f"{'reading' if present else 'downloading'} {name}")
                self._read[which] = data.read(config, partial(self._board.decoding, name))
                if is_own(name):
                    task = tasks.spec(config)
                    contents = self._read[which].contents(task.names, task.unit)
                    self._board.line(f"{config.dataset_name}: {contents}")
                    if caution := self._read[which].caution(task.unit):
                        self._board.line(f"{config.dataset_name}: {caution}")
                for line in self._read[which].imbalance():
                    self._board.line(f"{config.dataset_name}: {line}")
            trial.config = recipe.with_images(config, self._read[which])
            self.datasets[trial.config.dataset_key] = self._read[which]

    def read_weights(self, trials: Sequence[PlannedTrial], store: str) -> None:
        """Read the weights that trials start from, each once; their configs have the digests, or no config is left."""
        for trial, config in configured(trials):
            if config.weights is None or trial.folder is not None:  # it has begun, and its checkpoints have them
                continue
            which = (config.weights, config.weights_digest, config.dataset_key, *config.model_key)
            if which not in self._weights:
                self._weights[which] = self._find_weights(config, store)
            found = self._weights[which]
            if isinstance(found, ConfigError):
                trial.reason, trial.config = str(found), None
            else:
                trial.config = dataclasses.replace(config, weights=found.weights, weights_digest=found.weights_digest)

    def _find_weights(self, config: ResolvedConfig, store: str) -> ResolvedConfig | ConfigError:
        try:
            found, content, encoding = given_weights.find(config, store, self._board.line)
            if encoding and encoding != self.datasets[config.dataset_key].encoding:
                rule = "must be of a run with the same training texts in a sweep, whose runs share a tokenizer"
                raise ConfigError("weights", f"{rule}; {config.weights} has others")
        except ConfigError as error:
            return error
        self.weights[str(found.weights_digest)] = content
        return found

    def place(self, trials: Sequence[PlannedTrial]) -> None:
        """Decide the device of trials; those that the cluster has no room for lose their config and get a reason."""
        for trial, asked in configured(trials):
            try:
                chosen = allocation.at_topology(asked, self._nodes)
                cost.check_device(cost.checked(asked.price), chosen.config.device)
                trial.config, trial.unused_gpus = chosen.config, chosen.unused_gpus
            except ConfigError as error:
                trial.reason, trial.config = str(error), None

    def at_once(self, sweep: SweepConfig, folder: Folder, trials: Sequence[PlannedTrial], left: int) -> int:
        """How many of the ``left`` trials train at once: as many as would fit if all were as large as the largest."""
        configs = [config for _, config in configured(trials)]
        if not configs:  # what an earlier driver left cannot run here
            return 1
        if self._nodes is None:
            preflight.check_storage(folder, max(configs, key=preflight.checkpoint_bytes))
        gpus = max(config.gpus_reserved for config in configs)
        room = topology.copies(self._base.placement, self._all_nodes(), self._base.cpus_reserved, gpus)
        if self._base.local_nodes > 1:  # more at once than there are CPUs would only slow each other down
            needed = self._base.world_size * self._base.cpus_reserved
            room = min(room, hardware.allowed_cpus() // needed)
        most = max(min(max(room, 1), sweep.max_concurrent or room or 1), 1)
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
            if config.cpus_follow:
                trial.config = dataclasses.replace(config, cpus_per_worker=self._cpus, cpus_follow=False)

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


def session(base: TrainConfig, trials: Sequence[PlannedTrial]) -> TrainConfig:
    """The Ray that all runs share: where it is, and how large when it is started here."""
    configs = [config for _, config in configured(trials)]
    nodes = max(config.placement.nodes for config in configs)
    workers = max(config.placement.workers_per_node for config in configs)
    cpus = max(config.cpus_reserved for config in configs)
    return dataclasses.replace(base, topology=f"{nodes}x{workers}", cpus_per_worker=cpus)


def _fair_share(trials: Sequence[PlannedTrial], at_once: int, nodes: Sequence[Node]) -> int:
    """The most CPUs that every worker can have while ``at_once`` trials train."""
    sharing = [config for _, config in configured(trials) if config.cpus_follow]
    cpus = min((config.cpus_reserved for config in sharing), default=1)
    while cpus > 1 and any(
        topology.copies(config.placement, nodes, cpus, config.gpus_reserved) < at_once for config in sharing
    ):
        cpus -= 1
    return cpus


def bring_nodes(allocator: NodeAllocator, trials: Sequence[PlannedTrial]) -> None:
    """Wait for the nodes of the largest topology that the cluster can have, on which all smaller ones fit.

    Raises:
        RunFailedError: when they have not come in time.
    """
    sizes = {asked.topology: asked for _, asked in configured(trials)}.values()
    for asked in sorted(sizes, key=lambda asked: (asked.world_size, asked.placement.nodes), reverse=True):
        with suppress(ConfigError):  # that topology is skipped, as place() says
            allocator.allocate(asked)
            return


def check_gpus(trials: Sequence[PlannedTrial]) -> None:
    """Refuse GPUs that PyTorch cannot use, before each run would meet them.

    Raises:
        ConfigError: naming what is wrong with them.
    """
    used = any(config.device == "cuda" for _, config in configured(trials))
    if problems := preflight.gpu_problems(connection.nodes()) if used else []:
        raise ConfigError("device", f"must be cpu here: {'; '.join(problems)}")
