"""Decide what a run computes with: the precision, and on a CPU how convolutions are computed.

What is left open is measured, once in a run: passes forward and backward in float32 and in bfloat16; then, if the run
is long enough, in every way of computing convolutions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch

from cifar_ray import data, models, strategies, tasks
from cifar_ray.config.model import USUAL, ConvolutionsName
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import modality
from cifar_ray.models import convolution
from cifar_ray.strategies import compiling, gradients
from cifar_ray.strategies.worker import Worker, autocast
from cifar_ray.training import hardware

MARGIN = 1.15
"""How many times as fast as float32 bfloat16 must be to be chosen: for less, rounding is not worth it, and two runs
would decide differently by chance."""

GAIN = 1.05
"""How many times as fast as usual a pass must be with convolutions computed in another way."""

LEAST_STEPS = 1000
"""Passes of a run for which convolutions are measured: that takes as long as 20 to 40 of 64 images."""

_SAMPLES, _IMAGES = 16, 64
"""Samples to measure precisions with on a CPU, and images to measure convolutions with, at most: with more, the ratios
hardly differ, and a large model's passes take long. On a GPU, passes of few samples are over before their kernels are
launched: precisions are measured with as many as are trained on together."""

_ENOUGH_S = 0.3
_FIRST, _FINAL = (2, 10), (5, 50)  # rounds, at least and while there is time


@dataclass(frozen=True)
class Choice:
    """What a run computes with.

    Attributes:
        precision: ``fp32``, ``bf16`` or ``fp16``.
        convolutions: a :data:`~cifar_ray.config.model.ConvolutionsName`.
        measured: what it was decided by, in words; empty when nothing was measured.
    """

    precision: str
    convolutions: str
    measured: str = ""

    @property
    def words(self) -> str:
        """The choice, in short."""
        return self.precision if self.convolutions == USUAL else f"{self.precision}, {self.convolutions}"


def choose(config: ResolvedConfig, worker: Worker, passes: int | None = None) -> Choice:
    """What ``config`` names and the faster of what it does not, the same on every rank.

    ``reproducible`` is for weights that are equal on any number of workers and on any machine, so no measurement
    decides there: it is ``fp32`` and ``channels_last``. After a measurement, torch has one thread.

    Args:
        config: a resolved config.
        worker: this worker; every rank must call it.
        passes: of all the runs that are to compute so; those of this run when it is None.
    """
    device = worker.device
    precision, convolutions = config.precision.replace("auto", "fp32"), config.convolutions or USUAL
    names = undecided(config, device.type, passes_of(config) if passes is None else passes)
    if not names:
        return Choice(precision, convolutions)
    samples, measured = max(strategies.of(config).at_once(config), 2), []
    with compiling.refusing(config):
        if "precision" in names:
            count = samples if device.type == "cuda" else min(samples, _SAMPLES)
            one_pass = timed_pass(config, count, USUAL, device)
            precision, times = _fastest({name: partial(one_pass, name) for name in ("fp32", "bf16")}, MARGIN, worker)
            measured.append(f"{count} {tasks.spec(config, data.facts(config)).unit} forward and backward: {times}")
        if "convolutions" in names:
            count = min(samples, _IMAGES)
            each = {name: partial(timed_pass(config, count, name, device), precision) for name in ways(config)}
            convolutions, times = _fastest(each, GAIN, worker)
            measured.append(f"{count} images in {precision}: {times}")
    return Choice(precision, convolutions, "; ".join(measured))


def undecided(config: ResolvedConfig, device: str, passes: int) -> set[str]:
    """Which of ``precision`` and ``convolutions`` are to be measured for so many ``passes`` of one or several runs."""
    if config.strategy == "reproducible":
        return set()
    names = {"precision"} if config.precision == "auto" else set()
    if config.convolutions is None and device != "cuda" and not config.compile and passes >= LEAST_STEPS:
        names |= {"convolutions"} if modality.of(data.facts(config)).varies else set()
    return names


def passes_of(config: ResolvedConfig) -> int:
    """Passes through the model in a whole run, forward and backward."""
    return config.epochs * data.steps_per_epoch(config) * config.accumulate


def _fastest(passes: Mapping[str, Callable[[], float]], gain: float, worker: Worker) -> tuple[str, str]:
    """The fastest pass if it is ``gain`` times as fast as the first one, else that; and what it and the next best took.

    A pass counts by its least seconds, of which the mean over all ranks is taken.
    """
    torch.set_num_threads(1)
    usual, *_ = names = [*passes]
    seconds: dict[str, float] = {}
    for rounds in (_FIRST, _FINAL):
        least = [min(times) for times in in_turn([passes[name] for name in names], *rounds)]
        mean = torch.tensor(least, dtype=torch.float64, device=worker.device)
        gradients.average([mean])
        seconds |= zip(names, mean.tolist())
        best = min(names, key=seconds.__getitem__)
        if best == usual:
            break
        names = [usual, best]  # the least of many may be so by chance
    chosen = best if seconds[usual] > gain * seconds[best] else usual
    told = [usual, *sorted(seconds, key=seconds.__getitem__)][:3]
    words = {name: f"{1000 * seconds[name]:.1f} ms" if math.isfinite(seconds[name]) else "not here" for name in told}
    return chosen, ", ".join(f"{name} {took}" for name, took in words.items())


def in_turn(timed: Sequence[Callable[[], float]], least: int, most: int) -> list[tuple[float, ...]]:
    """Seconds of each call in every round but the first: ``least`` rounds, or up to ``most`` in :data:`_ENOUGH_S`."""
    rounds: list[list[float]] = []
    begin = time.perf_counter()
    while len(rounds) <= least or (len(rounds) <= most and time.perf_counter() - begin < _ENOUGH_S):
        rounds.append([call() for call in timed])
    return [*zip(*rounds[1:])]


def timed_pass(config: ResolvedConfig, count: int, convolutions: str, device: torch.device) -> Callable[[str], float]:
    """A function that takes a forward and backward pass of a new model in a precision, and returns its seconds.

    They are infinite for what a GPU cannot compute or has no room for.
    """
    facts = data.facts(config)
    model = models.build(config, facts).to(device).train()
    convolution.install(model, convolutions)
    inputs = convolution.laid_out(modality.of(facts).example(count, device), convolutions)
    forward = compiling.Compiled(model, device) if config.compile else model
    has_bf16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)

    def seconds(precision: str) -> float:
        if precision == "bf16" and not has_bf16:
            return math.inf
        hardware.use_precision(precision)
        model.zero_grad()
        before = _now(device)
        try:
            with autocast(precision, device):
                loss = forward(inputs).float().square().mean()  # of a cost that does not count, as every task's is
            loss.backward()  # type: ignore[no-untyped-call]
        except torch.OutOfMemoryError:
            return math.inf
        return _now(device) - before

    return seconds


def ways(config: ResolvedConfig) -> list[str]:
    """The ways to compute convolutions that a run may choose."""
    every = list(get_args(ConvolutionsName))
    if strategies.of(config).cut:  # what a pipeline's stages send one another is channels last
        every.remove("contiguous")
    return every


def _now(device: torch.device) -> float:
    """On a CPU, CPU seconds of one thread: others who use it hardly prolong them, and threads that wait for one another
    would count as busy."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
