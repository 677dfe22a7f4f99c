"""Decide ``--precision auto``: time a few passes in float32 and in bfloat16."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.nn import functional as F

from cifar_ray import data, models, strategies
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.strategies.worker import Worker, autocast
from cifar_ray.training import hardware

MARGIN = 1.15
"""How many times as fast as float32 bfloat16 must be to be chosen: for less, rounding is not worth it, and two runs
would decide differently by chance."""

_IMAGES = 16  # at most; the ratio hardly depends on them, and a large model's passes take long
_ROUNDS, _ENOUGH_S = (2, 10), 0.3


def choose(config: ResolvedConfig, worker: Worker) -> tuple[str, str]:
    """The faster precision for a model on this hardware, the same on every rank, and what was measured, in words.

    ``reproducible`` is for weights that are equal on any number of workers, so no measurement decides there: it is
    ``fp32``.
    """
    if config.strategy == "reproducible":
        return "fp32", ""
    images = min(max(strategies.of(config).at_once(config), 2), _IMAGES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = _measure(config, images, worker.device)
    torch.set_num_threads(threads)
    if worker.world_size > 1:
        dist.all_reduce(seconds)
    fp32, bf16 = (seconds / worker.world_size).tolist()
    found = f"{images} images forward and backward: fp32 {1000 * fp32:.1f} ms, bf16 {1000 * bf16:.1f} ms"
    return "bf16" if fp32 > MARGIN * bf16 else "fp32", found


def _measure(config: ResolvedConfig, count: int, device: torch.device) -> torch.Tensor:
    """Least seconds of a forward and backward pass in float32 and in bfloat16; float64, shape (2,), on ``device``.

    On a CPU they are CPU seconds of one thread, which others who use it hardly prolong: threads that wait for one
    another would count as busy. In turn, and without the first round.
    """
    spec = data.spec(config)
    model = models.build(config, spec).to(device).to(memory_format=torch.channels_last).train()
    images = torch.rand(count, spec.channels, spec.image_size, spec.image_size, device=device)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.zeros(count, dtype=torch.int64, device=device)
    rounds: list[list[float]] = []
    begin = time.perf_counter()
    while len(rounds) <= _ROUNDS[0] or (len(rounds) <= _ROUNDS[1] and time.perf_counter() - begin < _ENOUGH_S):
        rounds.append([])
        for precision in ("fp32", "bf16"):
            hardware.use_precision(precision)
            before = _now(device)
            with autocast(precision, device):
                loss = F.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            rounds[-1].append(_now(device) - before)
    return torch.tensor(rounds[1:], dtype=torch.float64, device=device).amin(0)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
