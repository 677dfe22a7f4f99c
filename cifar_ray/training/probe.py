"""When a backward pass has each gradient ready, and what a pipeline's stages take, measured in this process."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cifar_ray import data, models, strategies
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.strategies import fsdp, stages
from cifar_ray.strategies.gradients import learning
from cifar_ray.strategies.pipeline import Pipeline
from cifar_ray.strategies.worker import autocast

_PASSES = 5


class Unit(NamedTuple):
    """A part of a model that is in one stage of a pipeline.

    Attributes:
        seconds: of both passes.
        sent: bytes that it hands on, of each sample.
        size: bytes of its parameters.
    """

    seconds: float
    sent: float
    size: int


@dataclass(frozen=True)
class Readiness:
    """The gradients of a model in the order in which a backward pass computes them, and what strategies cut it into.

    Attributes:
        sizes: bytes of each.
        ready: when each is there, as a share of the backward pass; median over passes.
        buffer_bytes: batch norm's running statistics and other floating-point buffers.
        units: of a pipeline, what its stages are made of.
        groups: of FSDP, bytes of the parts of the model that it gathers by themselves.
    """

    sizes: tuple[int, ...]
    ready: tuple[float, ...]
    buffer_bytes: int
    units: tuple[Unit, ...] = ()
    groups: tuple[int, ...] = ()


def readiness(config: ResolvedConfig, samples: int, threads: int) -> Readiness:
    """Measure backward passes of so many samples of noise on the CPU, after one that does not count.

    The loss is the mean square of what the model gives, whose own gradient takes no time beside the model's. The hooks
    are on a model of this function's own, and torch's generator and number of threads stay as they were.
    """
    spec = data.spec(config)
    device, before = torch.device("cpu"), torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.set_num_threads(threads)
        try:
            model = models.build(config, spec).to(memory_format=torch.channels_last)
            parameters = learning(model)
            batch = spec.example(samples)
            if batch.dim() == 4:
                batch = batch.contiguous(memory_format=torch.channels_last)
            passes = []
            for _ in range(_PASSES + 1):
                moments: dict[int, float] = {}
                hooks = [
                    parameter.register_post_accumulate_grad_hook(partial(_note, moments, place))  # type: ignore[no-untyped-call]
                    for place, parameter in enumerate(parameters)
                ]
                with autocast(config.precision, device):
                    loss = model(batch).float().square().mean()
                begin = time.perf_counter()
                loss.backward()
                took = time.perf_counter() - begin
                for hook in hooks:
                    hook.remove()
                passes.append({place: (moment - begin) / took for place, moment in moments.items()})
                model.zero_grad()
            strategy = strategies.of(config)
            units = _units(config, model, batch) if issubclass(strategy, Pipeline) else []
            groups = map(_size, fsdp.parts(model)) if strategy is fsdp.STRATEGY else ()
        finally:
            torch.set_num_threads(before)
    shares = {place: statistics.median(each[place] for each in passes[1:] if place in each) for place in passes[-1]}
    order = sorted(shares, key=lambda place: shares[place])
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    return Readiness(
        tuple(parameters[place].nbytes for place in order),
        tuple(min(shares[place], 1.0) for place in order),
        sum(buffer.nbytes for buffer in buffers),
        tuple(units),
        tuple(groups),
    )


def _units(config: ResolvedConfig, model: nn.Module, batch: Tensor) -> list[Unit]:
    """What the stages of a pipeline are made of, measured as the strategy does on its first rank."""
    units = stages.units(models.layers(config, model))
    costs = stages.measure(units, batch, config.precision)
    return [
        Unit(cost.seconds, math.prod(cost.shape[1:]) * cost.dtype.itemsize, _size(unit))
        for unit, cost in zip(units, costs, strict=True)
    ]


def _size(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def _note(moments: dict[int, float], place: int, _: Tensor) -> None:
    moments[place] = time.perf_counter()
