"""What one worker computes with: CPUs, GPUs, memory, arithmetic.

Ray counts GPUs by NVML, which needs only a driver; PyTorch also needs one that is new enough for its CUDA, and kernels
compiled for the card.
"""

from __future__ import annotations

import ctypes
import platform
import resource
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import joblib
import torch

from cifar_ray.config.errors import ConfigError, first_line

_ABSENT = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded")
_CONTEXT = 600 * 2**20
"""Bytes of a GPU's memory that CUDA itself takes for a process, at most: PyTorch's allocator does not count them."""
_BUSY = 0.05
"""Share of a GPU's memory from which what others have of it is told."""

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h
_BACKENDS: Any = torch.backends  # whose stubs lack most of these
_CUDNN = (_BACKENDS.cudnn.conv, _BACKENDS.cudnn.rnn)
_CAN_ROUND = (*_CUDNN, _BACKENDS.cuda.matmul, _BACKENDS.mkldnn.conv, _BACKENDS.mkldnn.rnn, _BACKENDS.mkldnn.matmul)
"""Operations whose float32 inputs PyTorch may round. Its older switches, such as ``cudnn.allow_tf32``, stand for
several of them and raise when these differ, so none is trusted."""


def allowed_cpus() -> int:
    """CPUs that this process may use, by its affinity and the quota of its control group, rounded up."""
    return int(joblib.cpu_count())


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


def cuda_versions() -> dict[str, str]:
    """Versions of the driver, of PyTorch's CUDA and of NCCL where there is a GPU, by the names of a run's tags."""
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return {"gpu_driver": nvml()[1], "cuda": torch.version.cuda or "", "nccl": nccl}


def nvml() -> tuple[str, str]:
    """This machine's cards, such as ``2 x NVIDIA L4 with driver 580.95``, and the driver's version, empty without.

    NVML knows nothing of CUDA_VISIBLE_DEVICES.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        counts, driver = Counter(map(pynvml.nvmlDeviceGetName, handles)), pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        return "" if type(error).__name__ in _ABSENT else f"none by NVML ({error})", ""
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    names = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return f"{', '.join(names)} with driver {driver}" if names else "", driver


def check_gpus(numbers: Sequence[int]) -> None:
    """Refuse GPUs on which PyTorch cannot compute.

    Raises:
        ConfigError: naming this machine, its cards and their driver.
    """
    if why := gpu_problem(numbers):
        raise ConfigError("", f"the GPUs of node {socket.gethostname()} ({nvml()[0] or 'none'}) cannot be used: {why}")


def gpu_problem(numbers: Sequence[int]) -> str:
    """Why PyTorch cannot compute on some GPUs, by its numbers for them, in its words; empty when it can.

    A small kernel is run on each.
    """
    try:
        for number in numbers:
            torch.ones(2, device=f"cuda:{number}").sum().item()
    except (RuntimeError, AssertionError) as error:  # an AssertionError of a build without CUDA
        codes = " ".join(torch.cuda.get_arch_list()) or "no GPU"
        return f"{first_line(error)} (PyTorch {torch.__version__}, CUDA {torch.version.cuda}, has code for {codes})"
    return ""


def cap_gpu_memory(number: int, share: float) -> None:
    """Let this process have at most a share of a GPU's memory; beyond that it is out of memory, and others are not.

    Raises:
        ConfigError: when that is no more than CUDA itself takes.
    """
    total = torch.cuda.mem_get_info(number)[1]
    if (room := share * total - _CONTEXT) <= 0:
        raise ConfigError(
            "gpus_per_worker",
            f"must be more than {_CONTEXT / total:.2f} on {torch.cuda.get_device_name(number)}, whose memory is "
            f"{total / 1e9:.1f} GB: CUDA itself takes {_CONTEXT / 1e9:.1f} GB for each process, got {share:g}",
        )
    torch.cuda.set_per_process_memory_fraction(room / total, number)


def gpu_in_use(number: int) -> str:
    """How much of a GPU's memory other processes have, where it is enough to be in the way; empty where it is not."""
    free, total = torch.cuda.mem_get_info(number)
    held = total - free - torch.cuda.memory_reserved(number) - _CONTEXT
    if held < _BUSY * total:
        return ""
    return (
        f"{held / 1e9:.1f} of {total / 1e9:.1f} GB of {torch.cuda.get_device_name(number)} (number {number}) are in "
        "use by other processes: a run has what is left, and its times are not those of a GPU of its own"
    )
