"""The weights that a parameter server holds, with the optimizer's state; each pushed gradient is one step of them.

:mod:`.parameter_server` is the workers' side. Who hosts the server, and how a call gets to it, is the launcher's
affair. Vectors cross as float32 numpy arrays of shape (N,), N being the number of weights, in the order of
:mod:`.layout`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from cifar_ray.strategies import layout
from cifar_ray.strategies.gradients import restore
from cifar_ray.strategies.layout import Layout

Vector = npt.NDArray[np.float32]


class SupersededError(RuntimeError):
    """The server has begun anew for other workers than the one that asks."""


@dataclass(frozen=True)
class Start:
    """What a server begins with.

    Attributes:
        weights: shape (N,).
        layout: of every parameter.
        make_optimizer: makes the optimizer for a model with these parameters.
        state: what it goes on from; None for a new one.
        world_size: workers that will push.
        max_staleness: pushes that a worker may be ahead of the slowest when it goes on; None for any number.
        weighting: ``none`` or ``inverse``, as in ``parameter_server.staleness_weighting``.
    """

    weights: Vector
    layout: Layout
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    state: Mapping[str, Any] | None
    world_size: int
    max_staleness: int | None
    weighting: str


@dataclass(frozen=True)
class Answer:
    """What a worker gets.

    Attributes:
        weights: shape (N,); it may be read-only.
        losses: the latest of every rank; None for one that has not pushed yet.
        figures: ``staleness/mean`` and ``staleness/max`` over all pushes, and ``staleness/ahead_max``, the most
            pushes that a worker was ahead of the slowest when it was let into its next step; empty before the first.
    """

    weights: Vector
    losses: tuple[float | None, ...]
    figures: dict[str, float]


class ServerHandle(Protocol):
    """A worker's end of a :class:`ParameterServer`.

    A generation is the name of one group of workers; a call with another than that of the latest
    :meth:`reset` raises :class:`SupersededError`, also when it is waiting.
    """

    def reset(self, generation: str, start: Start) -> None:
        """Forget everything and begin with ``start``; called by one worker, before the others ask."""

    def pull(self, generation: str, rank: int) -> Answer:
        """The weights of this moment."""

    def push(self, generation: str, rank: int, gradient: Vector, lr: float, loss: float) -> Answer:
        """Apply a gradient, wait while the worker is too far ahead, and answer with the weights of then.

        Args:
            generation: see the class.
            rank: the worker's.
            gradient: shape (N,); the sum of those since the worker's latest push.
            lr: the learning rate of the worker's step.
            loss: that of the latest gradient.
        """

    def state(self, generation: str) -> dict[str, Any]:
        """The optimizer's state."""


class ParameterServer:
    """A :class:`ServerHandle` in the same process; calls may come from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._generation = ""

    def reset(self, generation: str, start: Start) -> None:
        with self._changed:
            self._start = start
            self._weights = torch.from_numpy(start.weights.copy())
            self._gradient = torch.zeros_like(self._weights)
            model = nn.ParameterList(nn.Parameter(view) for view in layout.views(self._weights, start.layout))
            for parameter, view in zip(model, layout.views(self._gradient, start.layout)):
                parameter.grad = view
            self._optimizer = start.make_optimizer(model)
            if start.state is not None:
                restore(self._optimizer, start.state)
            self._updates = self._staleness = self._staleness_max = self._ahead_max = 0
            self._pulled_at = [0] * start.world_size
            self._pushes = [0] * start.world_size
            self._losses: list[float | None] = [None] * start.world_size
            self._generation = generation
            self._changed.notify_all()

    def pull(self, generation: str, rank: int) -> Answer:
        with self._changed:
            self._check(generation)
            return self._answer(rank)

    def push(self, generation: str, rank: int, gradient: Vector, lr: float, loss: float) -> Answer:
        with self._changed:
            self._check(generation)
            self._apply(rank, gradient, lr)
            self._losses[rank] = loss
            self._pushes[rank] += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._generation != generation or not self._too_far(rank))
            self._check(generation)
            self._ahead_max = max(self._ahead_max, self._ahead(rank))
            return self._answer(rank)

    def state(self, generation: str) -> dict[str, Any]:
        with self._changed:
            self._check(generation)
            return copy.deepcopy(self._optimizer.state_dict())

    def _apply(self, rank: int, gradient: Vector, lr: float) -> None:
        staleness = self._updates - self._pulled_at[rank]
        self._staleness += staleness
        self._staleness_max = max(self._staleness_max, staleness)
        weight = 1 / (1 + staleness) if self._start.weighting == "inverse" else 1.0
        for group in self._optimizer.param_groups:
            group["lr"] = lr * weight / self._start.world_size
        np.copyto(self._gradient.numpy(), gradient)
        self._optimizer.step()
        self._updates += 1

    def _answer(self, rank: int) -> Answer:
        self._pulled_at[rank] = self._updates
        figures = {}
        if self._updates:
            figures = {
                "staleness/mean": self._staleness / self._updates,
                "staleness/max": float(self._staleness_max),
                "staleness/ahead_max": float(self._ahead_max),
            }
        # A copy: it is sent when the lock is free again, and others push.
        return Answer(self._weights.numpy().copy(), tuple(self._losses), figures)

    def _ahead(self, rank: int) -> int:
        return self._pushes[rank] - min(self._pushes)

    def _too_far(self, rank: int) -> bool:
        return self._start.max_staleness is not None and self._ahead(rank) > self._start.max_staleness

    def _check(self, generation: str) -> None:
        if generation != self._generation:
            raise SupersededError("the parameter server has begun anew for other workers, or was never begun")
