"""What a plan asks a cluster before anything is trained: what a worker computes on, and what all-reduces take."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.train

from cifar_ray import storage
from cifar_ray.config.background import background
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.config.variables import variables
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import allocation, preflight
from cifar_ray.orchestration.cluster.allocation import Allocation, NodeAllocator, TooSmallError
from cifar_ray.orchestration.run import attempt, events
from cifar_ray.orchestration.run.interrupts import connected

_POLL_S = 0.5
_TAKE_S = 30.0


@dataclass(frozen=True)
class Answers:
    """What a cluster has told.

    Attributes:
        hardware: what a worker computes on.
        device: ``cpu`` or ``cuda``.
        apart: bytes of an all-reduce -> its seconds between two workers on two nodes; empty when not asked for.
        together: the same on one node; empty, too, where none has room for both.
    """

    hardware: str
    device: str
    apart: dict[int, float]
    together: dict[int, float]


def ask(config: ResolvedConfig, with_link: bool) -> Answers:
    """Join the cluster of a training, and ask it; ``with_link`` has all-reduces timed.

    Raises:
        ConfigError: when it has too few nodes, naming ``--link`` where that needs them.
        CommandFailedError: when the workers that exchange fail.
        InterruptedRunError: on SIGINT or SIGTERM.
    """
    plain = replace(config, strategy="all_reduce", topology="2x1" if with_link else "1x1")
    with (
        Console() as console,
        connected(plain, console) as check,
        NodeAllocator(console.waiting, check, console.line) as allocator,
    ):
        try:
            apart = allocator.allocate(plain)
        except TooSmallError as error:
            if not with_link:
                raise
            problem = f"cannot be measured, since {error.problem}; give its rate instead, such as --link 10gbit"
            raise ConfigError("link", problem) from None
        device = apart.config.device
        hardware = preflight.hardware(apart.nodes[0], device)
        if not with_link:
            return Answers(hardware, device, {}, {})
        console.doing("timing all-reduces between two nodes")
        between = _timed(apart, check)
        try:
            together = allocation.at_topology(replace(plain, topology="1x2", device=device))
        except TooSmallError:
            return Answers(hardware, device, between, {})
        console.doing("timing all-reduces on one node")
        return Answers(hardware, device, between, _timed(together, check))


def _timed(chosen: Allocation, check: Callable[[], object]) -> dict[int, float]:
    """Bytes of an all-reduce -> its seconds between the workers of an allocation."""
    mailbox = events.open_mailbox()
    payload = {"config": chosen.config, "mailbox": mailbox}
    with storage.scratch() as folder, variables(attempt.settings(chosen.config, chosen.config.start_timeout_s)):
        fitting = background(attempt.trainer(chosen, _loop, payload, folder).fit, "trainer-fit")
        while not fitting.done():
            check()
            wait([fitting], _POLL_S)
    found = mailbox.take(_TAKE_S)
    if not found:
        raise CommandFailedError(f"the link could not be measured: {attempt.sentence(fitting.exception())}")
    seconds: dict[int, float] = found[0]
    return seconds


def _loop(payload: dict[str, Any]) -> None:
    # Imported in the worker only, as by a training.
    import torch

    from cifar_ray.orchestration.run import train_worker
    from cifar_ray.training import all_reduces

    config, rank = payload["config"], ray.train.get_context().get_world_rank()
    device = torch.device("cuda", train_worker.assigned_gpus()[0]) if config.device == "cuda" else torch.device("cpu")
    with train_worker.collectives(config.world_size, rank, config):
        seconds = all_reduces.seconds(device)
    if rank == 0:
        ray.get(payload["mailbox"].post(seconds))
