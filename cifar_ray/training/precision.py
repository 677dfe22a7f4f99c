"""Decide ``--precision auto``: time a few passes in float32 and in bfloat16."""

from __future__ import annotations

import math
import time

import torch
import torch.distributed as dist

from cifar_ray import data, models, strategies
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.strategies.worker import Worker, autocast
from cifar_ray.training import hardware

MARGIN = 1.15
"""How many times as fast as float32 bfloat16 must be to be chosen: for less, rounding is not worth it, and two runs
would decide differently by chance."""

_IMAGES = 16
"""At most so many on a CPU, where the ratio hardly depends on them and a large model's passes take long. On a GPU it
does, since few images are over before their kernels are launched: so many as are trained on together."""

_ROUNDS, _ENOUGH_S = (2, 10), 0.3


def choose(config: ResolvedConfig, worker: Worker) -> tuple[str, str]:
    """The faster precision for a model on this hardware, the same on every rank, and what was measured, in words.

    ``reproducible`` is for weights that are equal on any number of workers, so no measurement decides there: it is
    ``fp32``.
    """
    if config.strategy == "reproducible":
        return "fp32", ""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    images, seconds = _measure_what_fits(config, _images(config, worker.device), worker.device)
    torch.set_num_threads(threads)
    if worker.world_size > 1:
        mean = torch.tensor(seconds, dtype=torch.float64, device=worker.device) / worker.world_size
        dist.all_reduce(mean)
        seconds = mean.tolist()
    fp32, bf16 = seconds
    if math.isinf(bf16):
        return "fp32", "a GPU here has no bf16 arithmetic"
    measured = f"{images} images forward and backward: fp32 {1000 * fp32:.1f} ms, bf16 {1000 * bf16:.1f} ms"
    return "bf16" if fp32 > MARGIN * bf16 else "fp32", measured


def _images(config: ResolvedConfig, device: torch.device) -> int:
    """How many images to measure with."""
    at_once = max(strategies.of(config).at_once(config), 2)
    return at_once if device.type == "cuda" else min(at_once, _IMAGES)


def _measure_what_fits(config: ResolvedConfig, count: int, device: torch.device) -> tuple[int, list[float]]:
    """As :func:`_measure`, with half as many images where a GPU has no memory for them in float32; and how many."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return 0, [0.0, math.inf]
    try:
        return count, _measure(config, count, device)
    except torch.OutOfMemoryError:
        if count < 4:
            raise
    return _measure_what_fits(config, count // 2, device)


def _measure(config: ResolvedConfig, count: int, device: torch.device) -> list[float]:
    """Least seconds of a forward and backward pass in float32 and in bfloat16.

    On a CPU they are CPU seconds of one thread, which others who use it hardly prolong: threads that wait for one
    another would count as busy. In turn, and without the first round.
    """
    spec = data.spec(config)
    model = models.build(config, spec).to(device).to(memory_format=torch.channels_last).train()
    images = torch.rand(count, spec.channels, spec.image_size, spec.image_size, device=device)
    images = images.to(memory_format=torch.channels_last)
    rounds: list[list[float]] = []
    begin = time.perf_counter()
    while len(rounds) <= _ROUNDS[0] or (len(rounds) <= _ROUNDS[1] and time.perf_counter() - begin < _ENOUGH_S):
        rounds.append([])
        for precision in ("fp32", "bf16"):
            hardware.use_precision(precision)
            before = _now(device)
            with autocast(precision, device):
                loss = model(images).float().square().mean()  # of a cost that does not count, as every task's is
            loss.backward()  # type: ignore[no-untyped-call]
            rounds[-1].append(_now(device) - before)
    return [min(times) for times in zip(*rounds[1:])]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
