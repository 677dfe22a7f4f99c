"""Train on emulated nodes with workers that are forked, so that none of them spends seconds on imports.

Nothing is measured here; bottlenecks.py and validated.py train by it. The process that forks has imported torch and has
started no thread. A node is the network of a host of emulated_cluster.py, and every worker has the same share of a CPU,
at any number of workers. It is held to its share from the first step on, of which no clock tells. Import this before
torch: it sets one thread.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read by torch when it is imported

import contextlib
import ctypes
import dataclasses
import functools
import itertools
import json
import multiprocessing
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import emulated_cluster
import torch
import torch._dynamo  # as the first optimizer of a process does
import torchmetrics  # noqa: F401  # and the first evaluation: both take seconds

from cifar_ray import data
from cifar_ray.config import flags, runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.topology import Topology
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.tracking.study import HARDWARE_TAG, Run
from cifar_ray.training import __main__ as torchrun
from cifar_ray.training import hardware, recipe
from cifar_ray.training.observer import Outcome
from cifar_ray.training.setup import TrainingState
from tests.support import hosts

NODES, WORKERS = 4, 4
"""At most."""
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLONE_NEWNET, _PR_SET_PDEATHSIG = 0x40000000, 1
_ports = itertools.count(29500)


@dataclasses.dataclass(frozen=True)
class Nodes:
    """What workers run on: nodes, and a control group for each worker, None where it may use all CPUs."""

    network: hosts.Network
    groups: list[Path | None]


@contextlib.contextmanager
def nodes(share: float | None = None) -> Iterator[Nodes]:
    """Context manager: the nodes, with this share of a CPU for each worker."""
    for number in ENDINGS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with emulated_cluster.network(NODES) as network, contextlib.ExitStack() as stack:
        held = stack.enter_context(emulated_cluster.Share(share)) if share else None
        yield Nodes(network, [held.group() if held else None for _ in range(WORKERS)])


def resolved(words: list[str], topology: Topology) -> ResolvedConfig:
    """What the workers train."""
    config = runfile.load(None, flags.parse(TrainConfig, words, "cifar-ray train"))
    return recipe.resolve(dataclasses.replace(config, topology=str(topology)))


def train(of: Nodes, topology: Topology, rate: str, words: list[str], limit_s: float) -> Run:
    """Train once as :func:`run` does, and return the run as a study has it."""

    def tell(outcome: Outcome) -> dict[str, float]:
        return {**outcome.times, "peak_memory_mib": outcome.metrics["peak_memory_mib"]}

    config, figures = resolved(words, topology), run(of, topology, rate, words, limit_s, tell)
    tags = {"cifar_ray.command": shlex.join(["cifar-ray", "train", *words])}
    tags[HARDWARE_TAG] = f"{hardware.describe(torch.device('cpu'))}, emulated"
    params = runfile.params(config, Decided.asked(config))
    return Run(" ".join(words), "-", "FINISHED", params=params, tags=tags, metrics=figures)


def run(
    of: Nodes,
    topology: Topology,
    rate: str,
    words: list[str],
    limit_s: float,
    tell: Callable[[Outcome], Any],
    begin: Callable[[int], None] = lambda rank: None,
) -> Any:
    """Train once, and return what rank 0 tells.

    Args:
        of: where.
        topology: the workers.
        rate: of every link, as ``tc`` writes it, or ``none``.
        words: of the command line, without the topology.
        limit_s: seconds that it may take.
        tell: what is to be returned of how it ended, as JSON has it.
        begin: called in every worker first.

    Raises:
        ChildProcessError: with the last lines of the worker that failed, or when it took longer than ``limit_s``.
    """
    # A bucket of two of the largest pieces that TCP hands over, and a queue as long as a small switch's.
    emulated_cluster.shape(of.network, rate, burst="128kb")
    dataset, fork = _read(resolved(words, topology).dataset), multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder, port, workers = Path(name), next(_ports), []
        for rank in range(topology.world_size):
            args = (rank, of, topology, port, words, folder, dataset, tell, begin)
            workers.append(fork.Process(target=_work, args=args, daemon=True))
        end = time.monotonic() + limit_s
        try:
            for worker in workers:
                worker.start()
            while any(worker.is_alive() for worker in workers) and not any(worker.exitcode for worker in workers):
                if time.monotonic() > end:
                    raise ChildProcessError(f"took longer than {limit_s:.0f} s")
                time.sleep(0.1)
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
        # One that was killed just now, because another failed, has nothing to say.
        status, rank = max((worker.exitcode or 0, rank) for rank, worker in enumerate(workers))
        if status or any(worker.exitcode for worker in workers):
            said = (folder / f"{rank}.txt").read_text(errors="replace").splitlines()
            raise ChildProcessError("\n".join([f"rank {rank} failed:", *said[-20:]]))
        return json.loads((folder / "told.json").read_text())


@functools.cache
def _read(name: str) -> data.Dataset:
    """A data set, which the workers find in the memory that they have from their parent."""
    return data.read(TrainConfig(dataset=name))


def _work(
    rank: int,
    of: Nodes,
    topology: Topology,
    port: int,
    words: list[str],
    folder: Path,
    dataset: data.Dataset,
    tell: Callable[[Outcome], Any],
    begin: Callable[[int], None],
) -> None:
    """Train as one worker; rank 0 leaves what it has to tell."""
    node, local_rank = divmod(rank, topology.workers_per_node)
    with (folder / f"{rank}.txt").open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    for number in ENDINGS:
        signal.signal(number, signal.SIG_DFL)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it never outlives the process that forked it
    with Path(f"/proc/{of.network.hosts[node].pid}/ns/net").open() as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the network namespace")
    place = {"RANK": rank, "LOCAL_RANK": local_rank, "GROUP_RANK": node, "WORLD_SIZE": topology.world_size}
    place |= {"LOCAL_WORLD_SIZE": topology.workers_per_node, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": of.network.hosts[0].address, "GLOO_SOCKET_IFNAME": "eth0"}
    prepare, group = torchrun.prepare, of.groups[rank]

    def held(*args: Any) -> TrainingState:
        state = prepare(*args)
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        return state

    torchrun.prepare = held
    data.read = lambda _: dataset
    begin(rank)
    outcome = torchrun.main([*words, "--storage", str(folder)], time.time())
    if rank == 0:
        (folder / "told.json").write_text(json.dumps(tell(outcome)))
