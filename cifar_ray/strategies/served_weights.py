"""The weights that parameter servers hold, with the optimizer's state; each pushed gradient is one step of them.

:mod:`.parameter_server` is the workers' side. Who hosts the servers, and how a call gets to them, is the launcher's
affair. Vectors cross as float32 numpy arrays of shape (N,), N being the number of weights, one parameter after the
other, each in the layout it has in memory.
"""

from __future__ import annotations

import copy
import math
import statistics
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from cifar_ray.strategies import stages
from cifar_ray.strategies.gradients import Layout, places, restore, views

Vector = npt.NDArray[np.float32]
States = dict[int, dict[str, Any]]
"""What an optimizer remembers of each parameter, by its place in the model; nothing of one that has no step yet."""


@dataclass(frozen=True)
class Start:
    """What a server begins with.

    Attributes:
        weights: shape (N,).
        layout: of every parameter.
        make_optimizer: makes the optimizer for a model with these parameters.
        states: what it goes on from.
        world_size: workers that will push.
        max_staleness: pushes that a worker may be ahead of the slowest when it goes on; None for any number.
        weighting: ``none`` or ``inverse``, as in ``parameter_server.staleness_weighting``.
    """

    weights: Vector
    layout: Layout
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    states: States
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
    """A worker's end of a :class:`ParameterServer`."""

    def reset(self, start: Start) -> None:
        """Forget everything and begin with ``start``; called by one worker, before the others ask."""

    def pull(self, rank: int) -> Answer:
        """The weights of this moment."""

    def push(self, rank: int, gradient: Vector, lr: float, loss: float) -> Answer:
        """Apply a gradient, wait while the worker is too far ahead, and answer with the weights of then.

        Args:
            rank: the worker's.
            gradient: shape (N,); the sum of those since the worker's latest push.
            lr: the learning rate of the worker's step.
            loss: that of the latest gradient.
        """

    def states(self) -> States:
        """The optimizer's state."""


class ParameterServer:
    """A :class:`ServerHandle` in the same process; calls may come from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def reset(self, start: Start) -> None:
        with self._changed:
            self._start = start
            self._weights = torch.from_numpy(start.weights.copy())
            self._gradient = torch.zeros_like(self._weights)
            model = nn.ParameterList(nn.Parameter(view) for view in views(self._weights, start.layout))
            for parameter, view in zip(model, views(self._gradient, start.layout)):
                parameter.grad = view
            self._optimizer = start.make_optimizer(model)
            self._places = places(self._optimizer, model)
            if start.states:
                numbered = {index: start.states[at] for index, at in enumerate(self._places) if at in start.states}
                restore(self._optimizer, {**self._optimizer.state_dict(), "state": numbered})
            self._updates = self._staleness = self._staleness_max = self._ahead_max = 0
            self._pulled_at = [0] * start.world_size
            self._pushes = [0] * start.world_size
            self._losses: list[float | None] = [None] * start.world_size

    def pull(self, rank: int) -> Answer:
        with self._changed:
            return self._answer(rank)

    def push(self, rank: int, gradient: Vector, lr: float, loss: float) -> Answer:
        with self._changed:
            staleness = self._updates - self._pulled_at[rank]
            self._staleness += staleness
            self._staleness_max = max(self._staleness_max, staleness)
            weight = 1 / (1 + staleness) if self._start.weighting == "inverse" else 1.0
            for group in self._optimizer.param_groups:
                group["lr"] = lr * weight / self._start.world_size
            np.copyto(self._gradient.numpy(), gradient)
            self._optimizer.step()
            self._updates += 1
            self._losses[rank] = loss
            self._pushes[rank] += 1
            self._changed.notify_all()
            bound = math.inf if self._start.max_staleness is None else self._start.max_staleness
            self._changed.wait_for(lambda: self._ahead(rank) <= bound)
            self._ahead_max = max(self._ahead_max, self._ahead(rank))
            return self._answer(rank)

    def states(self) -> States:
        with self._changed:
            numbered = copy.deepcopy(self._optimizer.state_dict()["state"])
            return {self._places[index]: values for index, values in numbered.items()}

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


class ShardedServer:
    """A :class:`ServerHandle` of several, each of which holds some of the parameters; a call goes to all at once.

    Each holds whole parameters that follow one another in the model, so that the largest part is as small as that
    allows.
    """

    def __init__(self, servers: Sequence[ServerHandle]) -> None:
        self._servers = servers
        self._pool = ThreadPoolExecutor(len(servers))
        self._ends: list[int] = []  # of each server's part, but for the last; as its first answer told

    def reset(self, start: Start) -> None:
        sizes = [math.prod(shape) for shape, _ in start.layout]
        self._parts = stages.cut(sizes, len(self._servers))
        ends = np.cumsum([sum(sizes[part]) for part in self._parts])[:-1]
        starts = []
        for part, weights in zip(self._parts, np.split(start.weights, ends), strict=True):
            states = {at - part.start: of for at, of in start.states.items() if part.start <= at < part.stop}
            starts.append(replace(start, weights=weights, layout=start.layout[part], states=states))
        list(self._pool.map(lambda server, one: server.reset(one), self._servers, starts))

    def pull(self, rank: int) -> Answer:
        return self._together(self._pool.map(lambda server: server.pull(rank), self._servers))

    def push(self, rank: int, gradient: Vector, lr: float, loss: float) -> Answer:
        parts = np.split(gradient, self._ends)
        pushed = self._pool.map(lambda server, part: server.push(rank, part, lr, loss), self._servers, parts)
        return self._together(pushed)

    def states(self) -> States:
        """As one server has them; for the worker that has called :meth:`reset`."""
        each = self._pool.map(lambda server: server.states(), self._servers)
        whole = zip(self._parts, each, strict=True)
        return {part.start + at: values for part, states in whole for at, values in states.items()}

    def _together(self, each: Iterable[Answer]) -> Answer:
        """One answer; the servers see the same pushes, so their means weigh the same."""
        answers = list(each)
        self._ends = np.cumsum([len(answer.weights) for answer in answers])[:-1].tolist()
        figures = {}
        if all(answer.figures for answer in answers):
            summaries = {name: statistics.fmean if name.endswith("mean") else max for name in answers[0].figures}
            figures = {name: of([answer.figures[name] for answer in answers]) for name, of in summaries.items()}
        return Answer(np.concatenate([answer.weights for answer in answers]), answers[0].losses, figures)
