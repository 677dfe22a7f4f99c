"""Prepare the cells of a sweep for this cluster: data set, device, CPUs and arithmetic, so that they compare."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any

import ray
import torch

from cifar_ray import data
from cifar_ray.config import errors, runfile, topology
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.facts import Facts
from cifar_ray.config.topology import Node
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.display.run import cpu_note
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.cluster import allocation, connection
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.run.driver import read_data
from cifar_ray.orchestration.sweep.plan import PlannedCell, configured
from cifar_ray.runs import checkpoints
from cifar_ray.runs.weights import find_weights
from cifar_ray.storage import Folder
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import arithmetic, hardware, recipe


class Preparation:
    """Prepares cells in place: those that a sweep begins with, and each that is proposed later, alike."""

    def __init__(
        self,
        base: TrainConfig,
        board: Board,
        store: str = "",
        folder: Folder | None = None,
        nodes: Sequence[Node] | None = None,
    ) -> None:
        """Prepare for these ``nodes``, on which nothing is stored, or for those of the cluster when None.

        ``base`` is what is the same for all runs; ``store`` may have weights to start from, which ``folder`` keeps.
        """
        self._base, self._board, self._store, self._folder, self._nodes = base, board, store, folder, nodes
        self._read: dict[tuple[object, ...], Dataset] = {}
        self._shared: dict[tuple[object, ...], ray.ObjectRef] = {}
        self._cpus: int | None = None  # of each worker, where none are given
        self._computing: dict[Any, arithmetic.Choice] = {}
        self._weights: dict[Any, str] = {}

    def load_data(self, cells: Sequence[PlannedCell]) -> None:
        """Read the data sets of cells; what was found in them is decided."""
        for cell, config in configured(cells):
            which = _of_data(config)
            if which not in self._read:
                self._read[which] = read_data(config, self._board)
            cell.decided = recipe.settle(config, cell.decided, self._read[which])

    def shared(self, config: ResolvedConfig) -> ray.ObjectRef:
        """The data set, which has been read, in Ray's object store."""
        which = _of_data(config)
        if which not in self._shared:
            self._shared[which] = ray.put(self._read[which])
        return self._shared[which]

    def read_weights(self, cells: Sequence[PlannedCell]) -> None:
        """Read the weights that cells start from, each once; cells without theirs are skipped."""
        for cell, config in configured(cells):
            if config.weights is None or cell.folder is not None:  # it has begun, and its checkpoints have them
                continue
            which = (config.weights, _of_data(config), *config.model_key)
            try:
                if which not in self._weights:
                    self._weights[which] = self._keep_weights(config)
                cell.decided = replace(cell.decided, weights_digest=self._weights[which])
            except ConfigError as error:
                cell.skip(error)

    def _keep_weights(self, config: ResolvedConfig) -> str:
        content, digest, encoding = find_weights(config, self._store, self._board.line)
        if encoding and encoding != self._read[_of_data(config)].encoding:
            rule = "must be of a run with the same training texts in a sweep, whose runs share a tokenizer"
            raise ConfigError("weights", f"{rule}; {config.weights} has others")
        assert self._folder is not None
        checkpoints.keep_initial(self._folder, digest, content)
        return digest

    def place(self, cells: Sequence[PlannedCell]) -> None:
        """Decide the device of cells; those that the cluster has no room for are skipped."""
        for cell, asked in configured(cells):
            try:
                wanted = replace(cell.decided, cpus_per_worker=cell.decided.cpus_per_worker or self._cpus)
                chosen = allocation.at_topology(asked, wanted, self._nodes)
                cell.decided = chosen.decided
                if chosen.unused_gpus:
                    self._board.line_once(cpu_note(chosen.unused_gpus))
            except ConfigError as error:
                cell.skip(error)

    def at_once(self, cells: Sequence[PlannedCell], most: int) -> int:
        """How many cells train at once: as many as would fit if all were as large as the largest, ``most`` at most."""
        gpus = max((cell.decided.gpus(config) for cell, config in configured(cells)), default=0.0)
        largest = room(cells)
        copies = topology.copies(largest.placement, self._all_nodes(), largest.cpus, gpus)
        if self._base.local_nodes > 1:  # more at once than there are CPUs would only slow each other down
            copies = min(copies, hardware.allowed_cpus() // (largest.world_size * largest.cpus))
        return max(min(copies, most), 1)

    def divide_cpus(self, cells: Sequence[PlannedCell], at_once: int) -> None:
        """Decide how many CPUs a worker gets where none are given: as many as ``at_once`` cells leave, in all alike.

        More runs at once come first, since many runs of one thread each are done earlier than one run after another.
        With the same number in every run, their times tell what the workers do, and not what the threads do. So a
        sweep that is continued goes on with the number of its first driver.
        """
        sharing = [(cell, config) for cell, config in configured(cells) if config.cpus_per_worker is None]
        before = [cell.decided.cpus for cell, _ in sharing if cell.folder is not None]
        cpus, nodes = min(before or [cell.decided.cpus for cell, _ in sharing], default=1), self._all_nodes()
        needs = [] if before else [(cell.decided.placement, cell.decided.gpus(config)) for cell, config in sharing]
        while cpus > 1 and any(topology.copies(placement, nodes, cpus, gpus) < at_once for placement, gpus in needs):
            cpus -= 1
        self._cpus = cpus
        for cell, _ in sharing:
            cell.decided = replace(cell.decided, cpus_per_worker=cpus)

    def _all_nodes(self) -> Sequence[Node]:
        return connection.nodes() if self._nodes is None else self._nodes

    def decide_arithmetic(self, cells: Sequence[PlannedCell]) -> None:
        """Decide what the config of every cell leaves open of its arithmetic: runs that compute differently would not
        compare.

        Of each model the largest batch is measured: on a GPU the smaller ones may be faster in another precision. What
        was decided before for a model holds, under an earlier driver, too. With ``reproducible`` nothing is measured.
        """
        asking: dict[Any, list[PlannedCell]] = {}
        for cell, config in configured(cells):
            of, given = cell.decided, (config.precision, config.convolutions, config.compile)
            alike = (config.strategy == "reproducible", config.model_key, of.device, *given)
            if of.convolutions is not None and of.precision != "auto":
                self._computing.setdefault(alike, arithmetic.Choice(of.precision, of.convolutions))
            if cell.is_waiting and cell.folder is None:  # else it goes on as its checkpoint says
                asking.setdefault(alike, []).append(cell)
        for alike, these in asking.items():
            if alike not in self._computing:
                self._computing[alike] = self._measured(these)
            made = self._computing[alike]
            for cell in these:
                cell.decided = replace(cell.decided, precision=made.precision, convolutions=made.convolutions)

    def _measured(self, cells: Sequence[PlannedCell]) -> arithmetic.Choice:
        """What these cells compute with, as the one with the largest batch finds it where a worker would be."""
        configs, device = [config for _, config in configured(cells)], cells[0].decided.device
        largest, passes = max(configs, key=attrgetter("images_per_worker")), sum(map(arithmetic.passes_of, configs))
        given = largest, data.facts(largest), device, passes
        if not arithmetic.undecided(largest, device, passes):
            return _measure(*given)
        task = ray.remote(num_cpus=1, num_gpus=largest.gpus_per_worker if device == "cuda" else 0)(_measure)
        try:
            chosen: arithmetic.Choice = ray.get(task.remote(*given), timeout=allocation.start_timeout_s())
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ConfigError):  # such as of a model that does not compile
                raise cause from None
            raise RunFailedError(f"the speeds could not be measured: {errors.first_line(error)}") from None
        self._board.line(f"{largest.model} trains in {chosen.words} ({chosen.measured})")
        return chosen

    def prepare(self, cell: PlannedCell) -> None:
        """Prepare one that is proposed while others train; where it cannot run, it is skipped."""
        try:
            self.load_data([cell])
            self.read_weights([cell])
            self.place([cell])
            self.decide_arithmetic([cell])
        except ConfigError as error:
            cell.skip(error)


def room(cells: Sequence[PlannedCell]) -> Decided:
    """What the Ray that all runs share has to hold at least, when it is started here."""
    configs = [config for _, config in configured(cells)]
    nodes = max((config.placement.nodes for config in configs), default=1)
    workers = max((config.placement.workers_per_node for config in configs), default=1)
    cpus = max((config.cpus_per_worker or 1 for config in configs), default=1)
    return Decided(f"{nodes}x{workers}", cpus_per_worker=cpus)


def _of_data(config: ResolvedConfig) -> tuple[object, ...]:
    """What tells its data set from others."""
    return tuple(repr(getattr(config, field)) for field in runfile.OF_DATA)


def _measure(config: ResolvedConfig, facts: Facts, device: str, passes: int) -> arithmetic.Choice:
    data.keep(config, facts)  # on another node, which may not have the data
    hardware.choose_kernels(torch.device(device), is_repeated=config.strategy == "reproducible")
    return arithmetic.choose(config, Worker(device=torch.device(device)), passes)


def bring_nodes(allocator: NodeAllocator, cells: Sequence[PlannedCell]) -> None:
    """Wait for the nodes of the largest topology that the cluster can have, on which all smaller ones fit."""
    by_size = sorted(configured(cells), key=lambda run: (run[1].world_size, run[1].placement.nodes), reverse=True)
    for cell, config in by_size:
        with suppress(ConfigError):  # that topology is skipped, as place() says
            allocator.allocate(config, cell.decided)
            return
