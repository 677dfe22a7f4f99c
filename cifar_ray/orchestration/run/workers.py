"""The workers of one attempt: what they are given, who has started and on what, and what each raised."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from cifar_ray import strategies
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.run.events import Heartbeat, Joined, Mailbox, Placed, WorkerRaised
from cifar_ray.orchestration.run.failures import DIED, Failure
from cifar_ray.storage import Folder
from cifar_ray.training.observer import Launch, Started

_STACKS_S, _ANSWER_S = 2.0, 60.0
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
BEATS = 4
"""Heartbeats of a worker within ``--hang-timeout-s``, at least."""


@dataclass(frozen=True)
class Attempt:
    """One start of a run's workers, as each of them gets it.

    Attributes:
        nodes: Ray's node id of every worker, by rank.
        dataset: in Ray's object store.
        launch: what the driver has done so far.
        start_s: seconds to wait for room.
    """

    config: ResolvedConfig
    decided: Decided
    nodes: Sequence[str]
    dataset: ray.ObjectRef
    folder: Folder
    mailbox: Mailbox
    launch: Launch
    start_s: float

    @property
    def can_stop(self) -> bool:
        """Whether the workers can stop together between two steps."""
        return strategies.of(self.config).synchronous

    @property
    def bundle(self) -> dict[str, float]:
        """What each worker takes of its node."""
        gpus = self.decided.gpus(self.config)
        return {"CPU": self.decided.cpus, **({"GPU": gpus} if gpus else {})}

    @property
    def selectors(self) -> list[dict[str, str]] | None:
        """The label of each worker's node; None where any node will do that holds all workers."""
        if self.decided.placement.nodes == 1 and self.config.elastic is None:
            return None
        # Ray packs or spreads, but cannot place exactly W workers on each of N nodes.
        return [{"ray.io/node-id": node} for node in self.nodes]


@dataclass
class Workers:
    """The workers of one attempt as the driver knows them, by rank.

    Attributes:
        hang_timeout_s: seconds of silence after which a worker's process is ended.
        joined: those whose process has begun.
        training: whether their first step has come.
        failures: what they have raised, or why they were ended.
        stacks: the Python stacks of those that did not answer.
    """

    hang_timeout_s: float
    joined: dict[int, Joined] = field(default_factory=dict)
    training: bool = False
    failures: dict[int, Failure] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    _heard: dict[int, float] = field(default_factory=dict)

    def hear(self, event: Any) -> None:
        if isinstance(event, Joined):
            self.joined[event.rank] = event
        elif isinstance(event, Started):
            self.training = True
        elif isinstance(event, WorkerRaised):
            self.failures[event.rank] = event.failure
        if isinstance(event, Joined | Heartbeat):
            self._heard[event.rank] = time.monotonic()

    def end_silent(self) -> None:
        """End the workers that have been silent for too long."""
        for rank in sorted(self._heard.keys() - self.failures):
            if time.monotonic() - self._heard[rank] >= self.hang_timeout_s:
                self._end(rank)

    def kill(self) -> None:
        """End all workers at once; Ray Train's controller then frees what they held."""
        for joined in self.joined.values():
            with suppress(ray.exceptions.RayError):
                ray.kill(joined.actor)

    def _end(self, rank: int) -> None:
        """Keep the Python stacks of a worker that does not answer, and kill its process."""
        joined = self.joined[rank]
        task = connection.on_node(_end, joined.node_id, max_retries=0)
        with suppress(ray.exceptions.RayError, TimeoutError):  # the whole node is gone
            self.stacks[rank] = ray.get(task.remote(joined.pid, joined.stacks), timeout=_ANSWER_S)
        reason = f"its process has not answered for {self.hang_timeout_s:g} s (--hang-timeout-s)"
        self.failures[rank] = replace(DIED, error=reason, function=innermost(self.stacks.get(rank, "")))

    def left(self, ranks: Iterable[int]) -> dict[int, Failure]:
        """The failures, with those of ``ranks`` that have died without a word."""
        return {**dict.fromkeys(ranks, DIED), **self.failures}


def _end(pid: int, stacks: str) -> str:
    """Have a process of this node write its Python stacks, and kill it; a stopped one writes none."""
    text = ""
    with suppress(OSError):
        os.kill(pid, signal.SIGUSR2)
        end = time.monotonic() + _STACKS_S
        with Path(stacks).open(encoding="utf-8", errors="replace") as file:
            while time.monotonic() < end:
                text += file.read()
                time.sleep(_STACKS_S / 10)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return text


def innermost(stacks: str) -> str:
    """The innermost function of the thread that trains, and where; empty when no stack has it."""
    threads = [_FRAME.findall(thread) for thread in stacks.split("\n\n")]
    training = next((frames for frames in threads if any(name == "train_loop" for _, _, name in frames)), [])
    return next((f"{name} in {Path(file).name}, line {line}" for file, line, name in training), "")


def gpu_tags(workers: Sequence[Placed]) -> dict[str, str]:
    """Cards, driver, CUDA and NCCL of all workers as MLflow's tags; none on CPUs."""
    known = [{"gpus": worker.device, **worker.gpu} for worker in workers if worker.gpu]
    names = known[0] if known else {}
    return {f"cifar_ray.{name}": ", ".join(sorted({each[name] for each in known})) for name in names}
