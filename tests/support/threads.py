"""Ranks as threads of this process, each with a gloo group of its own: what is exchanged is really sent."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg, _uninstall_threaded_pg

from cifar_ray.strategies.worker import Worker

T = TypeVar("T")

TIMEOUT = timedelta(seconds=30)
"""After which the others give up on a rank that has failed."""

_isolate: Callable[[bool], None] = torch._C._distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]


def on_threads(count: int, work: Callable[[Worker], T]) -> list[T]:
    """What ``work`` returns on each of ``count`` ranks, of which every one is a thread.

    Random generators are the process's: ``work`` draws nothing.
    """
    store = dist.HashStore()

    def one(rank: int) -> T:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=TIMEOUT)
        try:
            found = work(Worker(rank, count, rank))
            dist.barrier()  # nobody leaves while another still connects
            return found
        finally:
            dist.destroy_process_group()

    _install_threaded_pg()  # type: ignore[no-untyped-call]
    _isolate(True)
    try:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))
    finally:
        _isolate(False)
        _uninstall_threaded_pg()  # type: ignore[no-untyped-call]
