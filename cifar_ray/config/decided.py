"""What is decided of a run beside its config, once its nodes, its data and its processor are known."""

from __future__ import annotations

from dataclasses import dataclass

from cifar_ray.config import topology
from cifar_ray.config.facts import Facts
from cifar_ray.config.topology import Topology
from cifar_ray.config.train import TrainConfig


@dataclass(frozen=True)
class Decided:
    """What the config leaves open, for one attempt of a run."""

    topology: str  # NODESxWORKERS; of an elastic run, what there is room for
    device: str = "auto"  # ``cpu`` or ``cuda``; ``auto`` until nodes are chosen
    cpus_per_worker: int | None = None  # CPUs that each worker reserves, and its threads; None until nodes are chosen
    precision: str = "auto"  # ``fp32``, ``bf16`` or ``fp16``; ``auto`` until a worker has measured, once in a run
    convolutions: str | None = None  # how they are computed; None until then
    data: Facts | None = None  # the facts of the data set, once it has been read
    # SHA-256 of the weights to start from, as a safetensors file: of a run's, that of its checkpoint
    weights_digest: str | None = None

    @classmethod
    def asked(cls, config: TrainConfig, before: Decided | None = None) -> Decided:
        """What a config alone decides; of a run that goes on, with the facts of its data and weights ``before``."""
        more = () if before is None else (before.data, before.weights_digest)
        return cls(config.topology, config.device, config.cpus_per_worker, config.precision, config.convolutions, *more)

    @property
    def placement(self) -> Topology:
        return topology.parse(self.topology)

    @property
    def world_size(self) -> int:
        """Workers in all."""
        return self.placement.world_size

    @property
    def cpus(self) -> int:
        """CPUs of each worker; until nodes are chosen, the least that it needs."""
        return self.cpus_per_worker or 1

    @property
    def facts(self) -> Facts:
        """Those of the data set, which has been read."""
        assert self.data is not None
        return self.data

    def gpus(self, config: TrainConfig) -> float:
        """GPUs of each worker; a part of one means that other runs share it."""
        return config.gpus_per_worker if self.device == "cuda" else 0
