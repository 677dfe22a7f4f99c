"""What the loop asks of a strategy, with what most answer, and what a strategy is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data.loader import DataShard, MicroBatch
from cifar_ray.strategies.gradients import gather, numbered, restore
from cifar_ray.strategies.served_weights import ServerHandle
from cifar_ray.strategies.worker import LossScaler, Worker
from cifar_ray.tasks.protocol import Task

Differs = Literal["nothing", "statistics", "weights"]
Parts = Sequence[Mapping[str, float]]
"""Mean seconds of a step of this process by part, such as ``forward``, on every rank."""


@dataclass(frozen=True)
class StrategyContext:
    """What a strategy works with on one rank.

    Attributes:
        config: a resolved config.
        decided: what it leaves open.
        worker: this worker; the process group is up when there are several workers.
        model: initialised alike on every rank, on the device, in training mode.
        make_optimizer: makes the configured optimizer for a model that has the same parameters in the same order.
        task: has the loss of what the model gives for a micro-batch.
        mark: ``mark(part)`` says that the time since the last mark was spent on this part of a step:
            ``data``, ``forward``, ``backward``, ``communication`` or ``optimizer``.
        server: the parameter server, for the strategy that has one.
    """

    config: ResolvedConfig
    decided: Decided
    worker: Worker
    model: nn.Module
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    task: Task
    mark: Callable[[str], None]
    server: ServerHandle | None = None


class Strategy(ABC):
    """Keeps the replicas in step. Every method is called on every rank.

    Most strategies have one optimizer over one model, of which the methods here make use.

    Attributes:
        model: what it trains; with parts of the weights on each rank, a copy.
        optimizer: its parameter groups' learning rate is set before every step.
        differs: what of the model is every rank's own until :meth:`consolidate`: ``nothing``, batch norm's
            ``statistics``, or the ``weights`` and those.
        synchronous: whether all ranks take each step together; others have a pace each.
        needs_server: whether the launcher has to start a parameter server.
        warm_ups: calls of :meth:`gradients` after which every later one adds up in the same order.
        cut: the option that says into how many parts it cuts a global batch; None when it has none.
        cannot: which of :data:`~cifar_ray.models.own.TRAITS` a user's own model must not have.
        cpus: the CPUs of each worker where none are given; None when they follow from the nodes.
    """

    differs: Differs = "nothing"
    synchronous = True
    needs_server = False
    warm_ups = 1
    cpus: int | None = None
    cut: str | None = None
    cannot: frozenset[str] = frozenset()

    def __init__(self, context: StrategyContext) -> None:
        self.context = context
        self.model = self.trained(context)
        self.optimizer = context.make_optimizer(self.model)
        self.scaler = LossScaler(context.decided.precision, context.worker.device)
        self.world_size = context.worker.world_size

    @staticmethod
    def trained(context: StrategyContext) -> nn.Module:
        """What is trained: the model, or a copy of it."""
        return context.model

    @staticmethod  # noqa: B027  # most accept any config
    def check(config: ResolvedConfig, decided: Decided) -> None:
        """Refuse what cannot be.

        Args:
            config: a resolved config.
            decided: its topology and device, which may still be ``auto``.

        Raises:
            ConfigError: naming the field and what it may be.
        """

    @staticmethod
    def at_once(config: ResolvedConfig) -> int:
        """Images that pass through the model together, in a resolved config."""
        return config.images_per_worker

    @staticmethod
    @abstractmethod
    def data_shard(config: ResolvedConfig, worker: Worker) -> DataShard:
        """The part of every global batch that this rank is given."""

    @abstractmethod
    def gradients(self, micro_batches: Iterable[MicroBatch]) -> Tensor:
        """Forward and backward pass of one global batch, and the exchange of the gradients.

        Returns:
            This rank's loss, a scalar on the device: the mean over the images that it was given, where each sample
            counts 1; the mean over the ranks is that of the global batch.
        """

    def step(self) -> None:
        """Move the weights, and forget the gradients."""
        self.scaler.unscale_(self.optimizer)
        if (longest := self.context.config.clip_norm) is not None:
            nn.utils.clip_grad_norm_(numbered(self.optimizer), longest)
        self.scaler.advance(self.optimizer)
        self.optimizer.zero_grad()
        self.context.mark("optimizer")

    @property
    def skipped(self) -> int:
        """Steps since the run began that left the weights alone, as gradients overflowed; the schedule waits."""
        return self.scaler.skipped

    @property
    def incomparable(self) -> str:
        """Why times of computing cannot be compared between ranks, as a clause; empty where they can.

        The marks of a strategy whose times can be compared tell computing from waiting for other ranks.
        """
        is_waiting = self.context.config.sync_batchnorm
        return "with --sync-batchnorm the passes of a rank wait for the others" if is_waiting else ""

    @property
    def may_pause(self) -> bool:
        """Whether a checkpoint or a stop after this step leaves what follows as it is; the same on every rank."""
        return True

    def losses(self, loss: Tensor) -> list[float]:
        """The latest loss of every rank, where this rank's is ``loss``."""
        return [other.item() for other in gather(loss)]

    @abstractmethod
    def consolidate(self) -> None:
        """Before an evaluation or a checkpoint: make the model whole, and the same on every rank."""

    def state(self) -> dict[str, Any]:
        """The optimizer's state for the whole model, on rank 0; call it after :meth:`consolidate`."""
        state = self.optimizer.state_dict()
        return {**state, "scaler": self.scaler.state_dict()} if self.scaler.is_enabled() else state

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        """Go on from a whole model's parameters and buffers, and from :meth:`state` where there is one."""
        self.model.load_state_dict(weights)
        self.optimizer.zero_grad()
        if state is not None:
            self.restore(state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of the optimizer and, in float16, of the scaler."""
        restore(self.optimizer, state)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])

    def figures(self, parts: Parts = ()) -> dict[str, float]:
        """What is peculiar to the strategy, measured since this process began, and the steps that float16 has skipped
        since the run began; the same on every rank. ``parts`` are the times of a step."""
        return {"skipped_steps": float(self.skipped)} if self.scaler.is_enabled() else {}
