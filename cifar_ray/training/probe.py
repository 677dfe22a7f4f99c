"""When a backward pass has each gradient ready, measured in this process."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cifar_ray import data, models
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import modality
from cifar_ray.models import convolution
from cifar_ray.strategies.gradients import learning
from cifar_ray.strategies.worker import autocast

_PASSES = 5


@dataclass(frozen=True)
class Gradients:
    """The gradients of a model in the order in which a backward pass computes them.

    Attributes:
        sizes: bytes of each.
        ready: when each is there, as a share of the backward pass; median over passes.
        buffer_bytes: batch norm's running statistics and other floating-point buffers.
    """

    sizes: tuple[int, ...]
    ready: tuple[float, ...]
    buffer_bytes: int = 0

    @property
    def size(self) -> int:
        """Bytes of all gradients."""
        return sum(self.sizes)


def readiness(config: TrainConfig, precision: str, samples: int, threads: int) -> Gradients:
    """Measure backward passes of so many samples of noise on the CPU, after one that does not count.

    The loss is the mean square of what the model gives, whose own gradient takes no time beside the model's. The hooks
    are on a model of this function's own, and torch's generator and number of threads stay as they were.
    """
    facts = data.facts(config)
    device, before = torch.device("cpu"), torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.set_num_threads(threads)
        try:
            model = models.build(config, facts)
            convolution.install(model, None)
            parameters, batch = learning(model), convolution.laid_out(modality.of(facts).example(samples), None)
            moments: dict[int, float] = {}

            def note(place: int, _: Tensor) -> None:
                moments[place] = time.perf_counter()

            for place, parameter in enumerate(parameters):
                parameter.register_post_accumulate_grad_hook(partial(note, place))  # type: ignore[no-untyped-call]
            passes = []
            for _ in range(_PASSES + 1):
                moments.clear()
                with autocast(precision, device):
                    loss = model(batch).float().square().mean()
                begin = time.perf_counter()
                loss.backward()
                took = time.perf_counter() - begin
                passes.append({place: (moment - begin) / took for place, moment in moments.items()})
                model.zero_grad()
        finally:
            torch.set_num_threads(before)
    shares = {place: statistics.median(each[place] for each in passes[1:] if place in each) for place in passes[-1]}
    order = sorted(shares, key=lambda place: shares[place])
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    return Gradients(
        tuple(parameters[place].nbytes for place in order),
        tuple(min(shares[place], 1.0) for place in order),
        sum(buffer.nbytes for buffer in buffers),
    )
