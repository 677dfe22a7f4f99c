"""The common part of most strategies: one optimizer over one model, and losses gathered from all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.strategies.gradients import gather, numbered, restore
from cifar_ray.strategies.protocol import Differs, StrategyContext
from cifar_ray.strategies.scaling import LossScaler


class Base:
    """Defaults for :class:`~cifar_ray.strategies.protocol.Strategy`."""

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

    @staticmethod
    def check(config: ResolvedConfig, decided: Decided) -> None:
        """Accept any config."""

    @staticmethod
    def at_once(config: ResolvedConfig) -> int:
        return config.images_per_worker

    def step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        if (longest := self.context.config.clip_norm) is not None:
            nn.utils.clip_grad_norm_(numbered(self.optimizer), longest)
        self.scaler.advance(self.optimizer)
        self.optimizer.zero_grad()
        self.context.mark("optimizer")

    @property
    def skipped(self) -> int:
        return self.scaler.skipped

    @property
    def incomparable(self) -> str:
        return (
            "with --sync-batchnorm the passes of a rank wait for the others"
            if self.context.config.sync_batchnorm
            else ""
        )

    @property
    def may_pause(self) -> bool:
        return True

    def losses(self, loss: Tensor) -> list[float]:
        return [other.item() for other in gather(loss)]

    def state(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()
        return {**state, "scaler": self.scaler.state_dict()} if self.scaler.is_enabled() else state

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        self.model.load_state_dict(weights)
        self.optimizer.zero_grad()
        if state is not None:
            self.restore(state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of the optimizer and, in float16, of the scaler."""
        restore(self.optimizer, state)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])

    def figures(self) -> dict[str, float]:
        return {"skipped_steps": float(self.skipped)} if self.scaler.is_enabled() else {}


@contextmanager
def unchanged(*modules: nn.Module) -> Iterator[None]:
    """Context manager: buffers, and numbers and text that modules have as attributes, are afterwards as before.

    A pass in between can be one that only looks; a module that counts its steps does not see it.
    """
    every = {module for root in modules for module in root.modules()}
    plain = [(module, {k: v for k, v in vars(module).items() if isinstance(v, int | float | str)}) for module in every]
    buffers = [(module, name, of, of.clone()) for module in every for name, of in module.named_buffers(recurse=False)]
    try:
        yield
    finally:
        for module, values in plain:
            vars(module).update(values)
        for module, name, buffer, value in buffers:
            setattr(module, name, buffer.copy_(value))  # it may have another tensor under the name
