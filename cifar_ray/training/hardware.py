"""What one worker computes with: device, threads, arithmetic."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from cifar_ray.data import cgroups

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h
_BACKENDS: Any = torch.backends  # whose stubs lack most of these
_CUDNN = (_BACKENDS.cudnn.conv, _BACKENDS.cudnn.rnn)
_CAN_ROUND = (*_CUDNN, _BACKENDS.cuda.matmul, _BACKENDS.mkldnn.conv, _BACKENDS.mkldnn.rnn, _BACKENDS.mkldnn.matmul)
"""Operations whose float32 inputs PyTorch may round. Its older switches, such as ``cudnn.allow_tf32``, stand for
several of them and raise when these differ, so none is trusted."""


def allowed_cpus(listed: Path = cgroups.LISTED, mount: Path = cgroups.MOUNT) -> int:
    """CPUs that this process may use: its affinity, and at most the quota of its control groups; at least 1.

    A quota that is no whole number is rounded down, since the last worker would get a part of a CPU. Ray's and
    joblib's counts pass over the affinity or round up, and see the quota of the outermost group alone.

    Args:
        listed: as for :func:`cifar_ray.data.cgroups.groups`.
        mount: as there.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min((_quota(group) for group in cgroups.groups("cpu", listed, mount)), default=math.inf)
    return max(int(min(count, quota)), 1)


def _quota(group: Path) -> float:
    """CPU time per second that a control group allows, in CPUs."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # version 2, version 1
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, " ".join((group / name).read_text() for name in names).split())
            if quota > 0:  # -1 is no limit
                return quota / period
    return math.inf


def set_threads(threads: int) -> None:
    """Compute with this many CPU threads, whatever the environment says."""
    torch.set_num_threads(threads)


def keep_freed_memory() -> None:
    """Have glibc keep what this process frees for what it allocates next; elsewhere nothing happens.

    By itself it gives large blocks back to the system, and every step faults the pages of its activations in again:
    240,000 faults and a sixth of the CPU time of a step of ``speednet`` with 1,024 images, 13,000 to 21,000 and up to
    a fifth for ``resnet18`` with 64. The peak is the same.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def choose_kernels(device: torch.device, is_repeated: bool) -> None:
    """Have cuDNN measure its algorithms for each shape that it meets, of which training has few, and keep the fastest.

    Not where the same bits are to be computed again.
    """
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not is_repeated


def use_precision(precision: str) -> None:
    """Have ``fp32`` mean float32 in all operations, whatever the user's own modules have set.

    In ``bf16`` what remains in float32 is so too, but for cuDNN's operations, which round to TF32 as they do by
    PyTorch's default.
    """
    _round(["tf32" if operation in _CUDNN and precision != "fp32" else "ieee" for operation in _CAN_ROUND])


@contextmanager
def plain_float32() -> Iterator[None]:
    """Context manager: float32 means float32, whatever :func:`use_precision` has said."""
    before = [operation.fp32_precision for operation in _CAN_ROUND]
    use_precision("fp32")
    try:
        yield
    finally:
        _round(before)


def _round(precisions: Sequence[str]) -> None:
    """Set what each operation rounds to, and the older switch of cuDNN, which ``torch.export`` reads, to agree."""
    torch.backends.cudnn.allow_tf32 = precisions[0] == "tf32"
    for operation, precision in zip(_CAN_ROUND, precisions):
        operation.fp32_precision = precision


def describe(device: torch.device) -> str:
    """The device's own name, such as ``AMD EPYC (family 25, model 17)`` or ``NVIDIA H200``.

    Family and model, where Linux tells them, are a processor's generation. Virtual machines often shorten its name to
    one that several generations share, of which one can be twice as fast as another.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    told: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            told.setdefault(key.strip(), value.strip())
    name = told.get("model name") or platform.processor() or platform.machine()
    if {"cpu family", "model"} <= told.keys():
        name += f" (family {told['cpu family']}, model {told['model']})"
    return name


def cpu_wait_s() -> float:
    """Seconds for which this thread could run and waited for a CPU, so far; 0 where Linux does not tell."""
    with suppress(OSError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="utf-8").split()[1]) / 1e9
    return 0.0


def peak_memory_mib(device: torch.device) -> float:
    """The most memory that this process has held, in MiB: on the GPU it trains on, or as resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
