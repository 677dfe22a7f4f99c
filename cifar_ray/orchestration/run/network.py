"""What a plan asks a cluster before anything is trained: what a worker computes on, and what all-reduces take."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.train

from cifar_ray import storage
from cifar_ray.config import option
from cifar_ray.config.background import background
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.config.variables import variables
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import allocation, preflight, reservations
from cifar_ray.orchestration.cluster.allocation import Allocation, NodeAllocator, TooSmallError
from cifar_ray.orchestration.run import attempt, events
from cifar_ray.orchestration.run.events import Joined
from cifar_ray.orchestration.run.interrupts import connected
from cifar_ray.orchestration.run.workers import Workers

_POLL_S = 0.5
_TAKE_S = 30.0
_START_S = 60.0  # at most; what is in use for longer is a training, which may take hours


class NoRoomError(CommandFailedError):
    """Others use the nodes on which the link was to be timed."""


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
        CommandFailedError: when the workers that exchange fail, or two nodes have no room for them.
        InterruptedRunError: on SIGINT or SIGTERM.
    """
    plain = exchanging(config, "2x1" if with_link else "1x1")
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
        console.doing("timing all-reduces on one node")
        try:
            together = _timed(allocation.at_topology(replace(plain, topology="1x2", device=device)), check)
        except (TooSmallError, NoRoomError):
            together = {}
        return Answers(hardware, device, between, together)


def exchanging(config: ResolvedConfig, topology: str) -> ResolvedConfig:
    """A training's config for all-reduces alone, without the options of another strategy."""
    choice = {kind: getattr(config, kind) for kind in option.choices(TrainConfig)} | {"strategy": "all_reduce"}
    others = {field.name: option.default_of(field) for field in option.unused(TrainConfig, choice)}
    return replace(config, **others, strategy="all_reduce", topology=topology)


def _timed(chosen: Allocation, check: Callable[[], object]) -> dict[int, float]:
    """Bytes of an all-reduce -> its seconds between the workers of an allocation.

    Raises:
        NoRoomError: when others have used the nodes for too long.
        CommandFailedError: when the workers fail.
    """
    config = chosen.config
    start_s = min(config.start_timeout_s, _START_S)
    mailbox, workers = events.open_mailbox(), Workers(config.hang_timeout_s)
    payload = {"config": config, "mailbox": mailbox}
    seconds: dict[int, float] = {}
    has_started = is_last = False
    with storage.scratch() as folder, variables(attempt.settings(config, start_s)):
        fitting = background(attempt.trainer(chosen, _loop, payload, folder).fit, "trainer-fit")
        with attempt.ending(fitting, workers, mailbox):
            while not is_last:
                is_last = fitting.done()
                check()
                wait([fitting], _POLL_S)
                for event in mailbox.take(_TAKE_S):
                    has_started = True
                    workers.hear(event)
                    if isinstance(event, dict):
                        seconds = event
    if seconds:
        return seconds
    error = fitting.exception()
    reservations.remove_abandoned()  # of a controller that was killed
    if isinstance(error, ray.train.ControllerError) and not has_started:
        used = reservations.holders("GPU" if config.gpus_reserved else "CPU")
        raise NoRoomError(
            f"the link could not be measured: {config.topology} has had no room for {start_s:g} s ({used}); "
            "wait until the cluster is free, or give the link's rate, such as --link 10gbit"
        )
    raise CommandFailedError(f"the link could not be measured: {attempt.sentence(error)}")


def _loop(payload: dict[str, Any]) -> None:
    # Imported in the worker only, as by a training.
    import torch

    from cifar_ray.orchestration.run import train_worker
    from cifar_ray.training import all_reduces

    config, rank = payload["config"], ray.train.get_context().get_world_rank()
    device = torch.device("cuda", train_worker.assigned_gpus()[0]) if config.device == "cuda" else torch.device("cpu")
    context, mailbox = ray.get_runtime_context(), payload["mailbox"]
    if ray.get(mailbox.post(Joined(rank, context.current_actor, context.get_node_id(), os.getpid(), stacks=""))):
        return  # the command was ended before its workers had started
    with train_worker.collectives(config.world_size, rank, config):
        seconds = all_reduces.seconds(device)
    if rank == 0:
        ray.get(mailbox.post(seconds))
