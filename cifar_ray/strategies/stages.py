"""Where a model is cut into the stages of a pipeline, and one stage's layers."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cifar_ray.strategies.worker import autocast, seed, unchanged

_TIMES = 3  # that a unit's passes are measured, after one that is not


@dataclass(frozen=True)
class Cost:
    """What a unit costs.

    Attributes:
        seconds: of the forward and the backward pass of one micro-batch.
        shape: of what it hands on, as :func:`packed`.
        dtype: likewise.
    """

    seconds: float
    shape: tuple[int, ...]
    dtype: torch.dtype


def units(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """What a stage is made of: a layer with parameters, and those without that follow it.

    So every stage has something to train, and no stage begins with a layer that would work in place on what it
    received.
    """
    groups: list[list[nn.Module]] = [[]]
    for layer in layers:
        if [*layer.parameters()] and any([*earlier.parameters()] for earlier in groups[-1]):
            groups.append([])
        groups[-1].append(layer)
    return [nn.Sequential(*group) for group in groups]


def measure(units: Sequence[nn.Module], inputs: Tensor, precision: str) -> list[Cost]:
    """Time every unit on one micro-batch of ``inputs`` (B, ...); nothing in the units is changed.

    Only one unit's activations are held at a time.
    """
    device = inputs.device
    costs = []
    x = inputs
    with unchanged(*units):
        for unit in units:
            seconds = []
            for _ in range(1 + _TIMES):
                begin = _now(device)
                with autocast(precision, device):
                    y = unit(x)
                by = [*unit.parameters(), *([x] if x.requires_grad else [])]
                torch.autograd.grad(y, by, torch.ones_like(y), allow_unused=True)
                seconds.append(_now(device) - begin)
            costs.append(Cost(statistics.median(seconds[1:]), tuple(packed(y).shape), y.dtype))
            x = y.detach().requires_grad_()
    return costs


def cut(seconds: Sequence[float], stages: int) -> list[slice]:
    """Consecutive units for every stage, at least one each, such that the slowest stage is as fast as can be."""
    upto = [0.0, *itertools.accumulate(seconds)]
    count = len(seconds)
    # Number of units -> the slowest of the stages that share them, and the first unit of each.
    best: dict[int, tuple[float, tuple[int, ...]]] = {n: (upto[n], (0,)) for n in range(1, count + 1)}
    for stage in range(1, stages):
        best = {
            n: min((max(best[k][0], upto[n] - upto[k]), (*best[k][1], k)) for k in range(stage, n))
            for n in range(stage + 1, count + 1)
        }
    starts = best[count][1]
    return [slice(start, end) for start, end in zip(starts, (*starts[1:], count))]


class Layers(nn.Module):
    """One stage: some units, from what the stage before has sent to what the stage after is sent.

    The generators are seeded before every unit, so that dropout does not depend on where the model is cut.

    Attributes:
        seed: of the global batch.
        chunk: number of the micro-batch.
    """

    def __init__(self, units: Sequence[nn.Module], part: slice, precision: str, device: torch.device) -> None:
        super().__init__()
        self._units = nn.ModuleList(units[part])
        self._first, self._count, self._last = part.start, len(units), part.stop == len(units)
        self._precision, self._device = precision, device
        self.seed = self.chunk = 0

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2) if self._first > 0 and x.ndim == 4 else x  # as :func:`packed` has sent it
        with autocast(self._precision, self._device):
            for number, unit in enumerate(self._units, start=self._first):
                seed(self.seed + self.chunk * self._count + number, self._device)
                x = unit(x)
        return x if self._last else packed(x)


def packed(x: Tensor) -> Tensor:
    """As it is sent: contiguous, channels last.

    What is sent is the memory of a tensor, and what it is received into is contiguous. Models work with
    channels-last activations, so that nothing is copied.
    """
    return (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).contiguous()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
