"""Several parameter servers that a worker uses as one: each holds some of the parameters."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from cifar_ray.strategies.gradients import numbered
from cifar_ray.strategies.layout import Layout
from cifar_ray.strategies.served_weights import Answer, ServerHandle, Start, Vector

T = TypeVar("T")


class ShardedServer:
    """A :class:`~.served_weights.ServerHandle` of several; a call goes to all of them at once.

    Each holds whole parameters that follow one another in the model, so that the largest part is as small as that
    allows. The state is one optimizer's, so a checkpoint does not tell how many servers there were.
    """

    def __init__(self, servers: Sequence[ServerHandle]) -> None:
        self._servers = servers
        self._pool = ThreadPoolExecutor(len(servers))
        self._ends: list[int] = []  # of each server's part, but for the last; as its first answer told
        self._start: Start | None = None

    def reset(self, generation: str, start: Start) -> None:
        self._start = start
        parts = self._parts(start.layout)
        ends = np.cumsum([_size(start.layout[part]) for part in parts])[:-1]
        own = [
            dataclasses.replace(start, weights=weights, layout=start.layout[part], state=self._share(start, part))
            for part, weights in zip(parts, np.split(start.weights, ends), strict=True)
        ]
        self._all(lambda server, one: server.reset(generation, one), own)

    def pull(self, generation: str, rank: int) -> Answer:
        return self._together(self._all(lambda server: server.pull(generation, rank)))

    def push(self, generation: str, rank: int, gradient: Vector, lr: float, loss: float) -> Answer:
        parts = np.split(gradient, self._ends)
        return self._together(self._all(lambda server, part: server.push(generation, rank, part, lr, loss), parts))

    def state(self, generation: str) -> dict[str, Any]:
        """The optimizer's state; for the worker that has called :meth:`reset`."""
        assert self._start is not None
        order, whole = _numbering(self._start, self._start.layout)
        states = self._all(lambda server: server.state(generation))
        for part, shared in zip(self._parts(self._start.layout), states, strict=True):
            inner, _ = _numbering(self._start, self._start.layout[part])
            whole["state"] |= {order.index(part.start + inner[index]): of for index, of in shared["state"].items()}
        return whole

    def _parts(self, layout: Layout) -> list[slice]:
        """Which parameters each server has."""
        sizes = [_size((one,)) for one in layout]
        low, high = max(sizes), sum(sizes)
        while low < high:  # the least size that a part may have for this many parts to be enough
            middle = (low + high) // 2
            low, high = (low, middle) if len(_cuts(sizes, middle)) < len(self._servers) else (middle + 1, high)
        cuts = _cuts(sizes, low)
        spare = (place for place in range(1, len(sizes)) if place not in cuts)  # of more servers than parts
        cuts = sorted([*cuts, *itertools.islice(spare, len(self._servers) - 1 - len(cuts))])
        return [slice(begin, end) for begin, end in itertools.pairwise([0, *cuts, len(sizes)])]

    def _share(self, start: Start, part: slice) -> dict[str, Any] | None:
        """One server's part of the state that a run goes on from."""
        if start.state is None:
            return None
        order, _ = _numbering(start, start.layout)
        inner, own = _numbering(start, start.layout[part])
        places = {index: order.index(part.start + position) for index, position in enumerate(inner)}
        kept = start.state["state"]
        return own | {"state": {index: kept[place] for index, place in places.items() if place in kept}}

    def _together(self, answers: Sequence[Answer]) -> Answer:
        """One answer; the servers see the same pushes, so their means weigh the same."""
        self._ends = np.cumsum([len(answer.weights) for answer in answers])[:-1].tolist()
        figures = {}
        if all(answer.figures for answer in answers):
            summaries = {name: statistics.fmean if name.endswith("mean") else max for name in answers[0].figures}
            figures = {name: of([answer.figures[name] for answer in answers]) for name, of in summaries.items()}
        return Answer(np.concatenate([answer.weights for answer in answers]), answers[0].losses, figures)

    def _all(self, call: Callable[..., T], *arguments: Sequence[Any]) -> list[T]:
        return list(self._pool.map(call, self._servers, *arguments))


def _cuts(sizes: Sequence[int], most: int) -> list[int]:
    """Where a part begins, but for the first, when each takes as many sizes as ``most`` allows."""
    cuts, held = [], 0
    for place, size in enumerate(sizes):
        if held + size > most:
            cuts.append(place)
            held = 0
        held += size
    return cuts


def _size(layout: Layout) -> int:
    return sum(math.prod(shape) for shape, _ in layout)


def _numbering(start: Start, layout: Layout) -> tuple[list[int], dict[str, Any]]:
    """The optimizer of some parameters: the place in ``layout`` of each that its state dict numbers, and a new one."""
    parameters = [nn.Parameter(torch.empty_strided(shape, stride)) for shape, stride in layout]
    optimizer = start.make_optimizer(nn.ParameterList(parameters))
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    return [places[id(parameter)] for parameter in numbered(optimizer)], optimizer.state_dict()
