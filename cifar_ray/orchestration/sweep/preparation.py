"""Prepare the cells of a sweep for this cluster: data set, device, CPUs and arithmetic, so that they compare."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import ray
import torch

from cifar_ray import data, tasks
from cifar_ray.config import errors, runfile, topology
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.facts import Facts
from cifar_ray.config.option import is_own, value_of
from cifar_ray.config.topology import Node
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.display.dataset import lines as dataset_lines
from cifar_ray.display.run import cpu_note
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.cluster import allocation, connection
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.sweep.cell import dataset_key
from cifar_ray.orchestration.sweep.plan import PlannedCell, configured
from cifar_ray.reporting import cost
from cifar_ray.runs.weights import find_weights
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import arithmetic, hardware, recipe


class Preparation:
    """Prepares cells in place: those that a sweep begins with, and each that is proposed later, alike.

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

    def load_data(self, cells: Sequence[PlannedCell]) -> None:
        """Read the data sets of cells; what was found in them is decided."""
        for cell, config in configured(cells):
            name = config.dataset
            which = tuple(value_of(config, field) for field in runfile.OF_DATA)
            if which not in self._read:
                present = is_own(name) or data.present(name, self._base.data_dir)
                self._board.doing(f"{'reading' if present else 'downloading'} {name}")
                self._read[which] = data.read(config, partial(self._board.decoding, name))
                for line in dataset_lines(self._read[which], tasks.spec(config, self._read[which].spec)):
                    self._board.line(f"{config.dataset_name}: {line}")
            cell.decided = recipe.settle(config, cell.decided, self._read[which])
            self.datasets[dataset_key(config, cell.decided.facts.digest)] = self._read[which]

    def read_weights(self, cells: Sequence[PlannedCell], store: str) -> None:
        """Read the weights that cells start from, each once; cells without theirs are skipped."""
        for cell, config in configured(cells):
            if config.weights is None or cell.folder is not None:  # it has begun, and its checkpoints have them
                continue
            key = dataset_key(config, cell.decided.facts.digest)
            which = (config.weights, key, *config.model_key)
            if which not in self._weights:
                try:
                    self._weights[which] = self._find_weights(config, key, store)
                except ConfigError as error:
                    self._weights[which] = error
            digest = self._weights[which]
            if isinstance(digest, ConfigError):
                cell.skip(digest)
            else:
                cell.decided = replace(cell.decided, weights_digest=digest)

    def _find_weights(self, config: ResolvedConfig, key: str, store: str) -> str:
        """The digest of the weights; ``key`` is that of the data set."""
        content, digest, encoding = find_weights(config, store, self._board.line)
        if encoding and encoding != self.datasets[key].encoding:
            rule = "must be of a run with the same training texts in a sweep, whose runs share a tokenizer"
            raise ConfigError("weights", f"{rule}; {config.weights} has others")
        self.weights[digest] = content
        return digest

    def place(self, cells: Sequence[PlannedCell]) -> None:
        """Decide the device of cells; those that the cluster has no room for are skipped."""
        for cell, asked in configured(cells):
            try:
                chosen = allocation.at_topology(asked, cell.decided, self._nodes)
                cost.check_device(cost.checked(asked.price), chosen.decided.device)
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
        With the same number in every run, their times tell what the workers do, and not what the threads do. Cells
        of an earlier driver are among them, so a sweep that is continued goes on with their number.
        """
        sharing = [(cell.decided, config) for cell, config in configured(cells) if config.cpus_per_worker is None]
        cpus, nodes = min((decided.cpus for decided, _ in sharing), default=1), self._all_nodes()
        while cpus > 1 and any(
            topology.copies(of.placement, nodes, cpus, of.gpus(config)) < at_once for of, config in sharing
        ):
            cpus -= 1
        self._cpus = cpus
        self.share_cpus(cells)

    def share_cpus(self, cells: Sequence[PlannedCell]) -> None:
        """Give each worker the CPUs that were decided."""
        for cell, config in configured(cells):
            if config.cpus_per_worker is None:
                cell.decided = replace(cell.decided, cpus_per_worker=self._cpus)

    def _all_nodes(self) -> Sequence[Node]:
        return connection.nodes() if self._nodes is None else self._nodes

    def decide_arithmetic(self, cells: Sequence[PlannedCell]) -> None:
        """Decide what the config of every cell leaves open of its arithmetic: runs that compute differently would not
        compare.

        Of each model the largest batch is measured, where a worker would compute: on a GPU the smaller ones may be
        faster in another precision. What was decided before for a model holds, under an earlier driver, too.

        Raises:
            ConfigError: when a model cannot be compiled.
            RunFailedError: when the process that measures dies, or gives no answer in time.
        """
        asking: dict[Any, list[tuple[PlannedCell, ResolvedConfig]]] = {}
        for cell, config in configured(cells):
            kind, of = _kind(config, cell.decided.device), cell.decided
            if of.convolutions is not None and of.precision != "auto":
                self._computing.setdefault(kind, arithmetic.Choice(of.precision, of.convolutions))
            if cell.is_waiting and cell.folder is None:  # else it goes on as its checkpoint says
                asking.setdefault(kind, []).append((cell, config))
        for kind, alike in asking.items():
            if kind not in self._computing:
                chosen = _measured([config for _, config in alike], alike[0][0].decided.device)
                if chosen.measured:
                    self._board.line(f"{alike[0][1].model} trains in {chosen.words} ({chosen.measured})")
                self._computing[kind] = chosen
            made = self._computing[kind]
            for cell, _ in alike:
                cell.decided = replace(cell.decided, precision=made.precision, convolutions=made.convolutions)

    def prepare(self, cell: PlannedCell, store: str) -> None:
        """Prepare one that is proposed while others train; where it cannot run, it is skipped."""
        try:
            self.load_data([cell])
            self.read_weights([cell], store)
            self.place([cell])
            self.share_cpus([cell])
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


def _kind(config: ResolvedConfig, device: str) -> Any:
    """What the runs have in common that are to compute alike; with ``reproducible`` nothing is measured."""
    given = (config.precision, config.convolutions, config.compile)
    return (config.strategy == "reproducible", config.model_key, device, *given)


def _measured(configs: Sequence[ResolvedConfig], device: str) -> arithmetic.Choice:
    passes = sum(map(arithmetic.passes_of, configs))
    largest = max(configs, key=lambda config: config.images_per_worker)
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
    return chosen


def _measure(config: ResolvedConfig, facts: Facts, device: str, passes: int) -> arithmetic.Choice:
    data.keep(config, facts)  # on another node, which may not have the data
    hardware.choose_kernels(torch.device(device), is_repeated=config.strategy == "reproducible")
    return arithmetic.choose(config, Worker(device=torch.device(device)), passes)


def bring_nodes(allocator: NodeAllocator, cells: Sequence[PlannedCell]) -> None:
    """Wait for the nodes of the largest topology that the cluster can have, on which all smaller ones fit.

    Raises:
        RunFailedError: when they have not come in time.
    """
    sizes = {config.topology: (config, cell.decided) for cell, config in configured(cells)}.values()
    for config, asked in sorted(sizes, key=lambda run: (run[0].world_size, run[0].placement.nodes), reverse=True):
        with suppress(ConfigError):  # that topology is skipped, as place() says
            allocator.allocate(config, asked)
            return
