"""Decide what a run computes with: the precision, and on a CPU how convolutions are computed.

What is left open is measured, once in a run: passes forward and backward in float32 and in bfloat16; then, if the run
is long enough, in every way of computing convolutions.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
_PRECISIONS, _FIRST, _FINAL = (2, 10), (2, 10), (5, 50)  # rounds, at least and while there is time


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
    decides there: it is ``fp32`` and ``channels_last``.

    Args:
        config: a resolved config.
        worker: this worker; every rank must call it.
        passes: of all the runs that are to compute so; those of this run when it is None.
    """
    names = undecided(config, worker.device.type, passes_of(config) if passes is None else passes)
    precision, convolutions = config.precision.replace("auto", "fp32"), config.convolutions or USUAL
    measured, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with compiling.refusing(config):
            if "precision" in names:
                precision, why = _choose_precision(config, worker)
                measured.append(why)
            if "convolutions" in names:
                convolutions, why = _choose_convolutions(config, precision, worker)
                measured.append(why)
    finally:
        torch.set_num_threads(threads)
    return Choice(precision, convolutions, "; ".join(measured))


def undecided(config: ResolvedConfig, device: str, passes: int) -> set[str]:
    """Which of ``precision`` and ``convolutions`` are to be measured for so many ``passes`` of one or several runs."""
    if config.strategy == "reproducible":
        return set()
    names = {"precision"} if config.precision == "auto" else set()
    has_images = modality.of(data.facts(config)).varies
    if has_images and config.convolutions is None and device != "cuda" and not config.compile:
        names |= {"convolutions"} if passes >= LEAST_STEPS else set()
    return names


def passes_of(config: ResolvedConfig) -> int:
    """Passes through the model in a whole run, forward and backward."""
    return config.epochs * data.steps_per_epoch(config) * config.accumulate


def _choose_precision(config: ResolvedConfig, worker: Worker) -> tuple[str, str]:
    """The faster precision, and what was measured, in words."""
    device, count = worker.device, max(strategies.of(config).at_once(config), 2)
    count = count if device.type == "cuda" else min(count, _SAMPLES)
    fp32, bf16 = _mean(_measure(config, count, device), worker)
    passed = f"{count} {tasks.spec(config, data.facts(config)).unit} forward and backward"
    if math.isinf(bf16):
        return "fp32", "a GPU here has no bf16 arithmetic; --precision fp16 is for such a one"
    if math.isinf(fp32):
        return "bf16", f"{passed} do not fit into a GPU's memory in fp32"
    measured = f"{passed}: fp32 {1000 * fp32:.1f} ms, bf16 {1000 * bf16:.1f} ms"
    return "bf16" if fp32 > MARGIN * bf16 else "fp32", measured


def _measure(config: ResolvedConfig, count: int, device: torch.device) -> list[float]:
    """Least seconds of a forward and backward pass in float32 and in bfloat16; infinite for what a GPU cannot do."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return [0.0, math.inf]
    one_pass = timed_pass(config, count, USUAL, device)
    try:
        return _least([functools.partial(one_pass, precision) for precision in ("fp32", "bf16")], *_PRECISIONS)
    except torch.OutOfMemoryError:
        return [math.inf, 0.0]


def _mean(seconds: Sequence[float], worker: Worker) -> list[float]:
    """The mean of each figure over all ranks."""
    if worker.world_size == 1:
        return [*seconds]
    mean = torch.tensor(seconds, dtype=torch.float64, device=worker.device)
    gradients.average([mean])
    return mean.tolist()  # type: ignore[no-any-return]


def _least(timed: Sequence[Callable[[], float]], least: int, most: int) -> list[float]:
    """The least seconds of each call, :func:`in_turn`."""
    return [min(times) for times in in_turn(timed, least, most)]


def in_turn(timed: Sequence[Callable[[], float]], least: int, most: int) -> list[tuple[float, ...]]:
    """Seconds of each call in every round but the first: ``least`` rounds, or up to ``most`` in :data:`_ENOUGH_S`."""
    rounds: list[list[float]] = []
    begin = time.perf_counter()
    while len(rounds) <= least or (len(rounds) <= most and time.perf_counter() - begin < _ENOUGH_S):
        rounds.append([call() for call in timed])
    return [*zip(*rounds[1:])]


def timed_pass(config: ResolvedConfig, count: int, convolutions: str, device: torch.device) -> Callable[[str], float]:
    """A function that takes a forward and backward pass of a new model in a precision, and returns its seconds."""
    facts = data.facts(config)
    model = models.build(config, facts).to(device).train()
    convolution.install(model, convolutions)
    inputs = convolution.laid_out(modality.of(facts).example(count, device), convolutions)
    forward = compiling.Compiled(model, device) if config.compile else model

    def seconds(precision: str) -> float:
        hardware.use_precision(precision)
        model.zero_grad()
        before = _now(device)
        with autocast(precision, device):
            loss = forward(inputs).float().square().mean()  # of a cost that does not count, as every task's is
        loss.backward()  # type: ignore[no-untyped-call]
        return _now(device) - before

    return seconds


def _choose_convolutions(config: ResolvedConfig, precision: str, worker: Worker) -> tuple[str, str]:
    """The fastest way to compute convolutions on CPUs, and what was measured, in words."""
    count = min(max(strategies.of(config).at_once(config), 2), _IMAGES)
    passes = {
        name: functools.partial(timed_pass(config, count, name, worker.device), precision) for name in ways(config)
    }
    measured = dict(zip(passes, _mean(_least([*passes.values()], *_FIRST), worker)))
    best = min(measured, key=measured.__getitem__)
    if best != USUAL:  # the least of many may be so by chance
        two = [USUAL, best]
        measured |= zip(two, _mean(_least([passes[name] for name in two], *_FINAL), worker))
    told = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in measured.items())
    chosen = best if measured[USUAL] > GAIN * measured[best] else USUAL
    return chosen, f"{count} images in {precision}: {told}"


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
