"""How long all-reduces take in this process group, which tells what its network costs."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

SIZES = tuple(4**power for power in range(6, 14))
"""Bytes of each: 4 KiB to 64 MiB."""

_LEAST, _MOST = 5, 50  # repetitions: many of what is over soon
_BYTES = 2**24  # of a size, about, so that a slow network takes seconds


def seconds(device: torch.device) -> dict[int, float]:
    """Time all-reduces of each size on the ``device``, one after the other; every rank calls it.

    Returns:
        Bytes -> the median of several, after one that does not count.
    """
    found = {}
    for size in SIZES:
        tensor = torch.zeros(size // 4, device=device)
        took = []
        for _ in range(1 + min(max(_BYTES // size, _LEAST), _MOST)):
            began = time.perf_counter()
            dist.all_reduce(tensor)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            took.append(time.perf_counter() - began)
        found[size] = statistics.median(took[1:])
    return found
