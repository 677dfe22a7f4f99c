"""Which GPUs this machine has, and whether PyTorch can compute on them.

NVML, by which Ray counts, needs only a driver; PyTorch also needs one that is new enough for its CUDA, and kernels
compiled for the card.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from cifar_ray.config.errors import ConfigError, first_line

_ABSENT = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded")
_CONTEXT = 600 * 2**20
"""Bytes of a GPU's memory that CUDA itself takes for a process, at most: PyTorch's allocator does not count them."""
_BUSY = 0.05
"""Share of a GPU's memory from which what others have of it is told."""


@dataclass(frozen=True)
class Nvml:
    """What NVML says of this machine.

    Attributes:
        names: of the cards, in the order of their numbers.
        driver: version of NVIDIA's driver; empty without one.
        error: why NVML does not answer although there is a driver; empty when it does, and without a driver.
    """

    names: tuple[str, ...] = ()
    driver: str = ""
    error: str = ""

    def __str__(self) -> str:
        counts = Counter(self.names)
        names = [name if counts[name] == 1 else f"{counts[name]} x {name}" for name in counts]
        return f"{', '.join(names)} with driver {self.driver}" if names else "none"


@dataclass(frozen=True)
class Facts:
    """What one GPU computes with, beside its name.

    Attributes:
        driver: version of NVIDIA's driver.
        cuda: version of the CUDA that PyTorch is built with.
        nccl: version of NCCL.
        tflops: its most float32 operations per second, in 10^12, by its multiprocessors and their clock.
    """

    driver: str
    cuda: str
    nccl: str
    tflops: float


def facts(number: int) -> Facts:
    """Look at the GPU that PyTorch gives this number."""
    card = torch.cuda.get_device_properties(number)
    lanes = 64 if (card.major, card.minor) in ((7, 0), (7, 5), (8, 0)) else 128  # per multiprocessor
    clock_khz = getattr(card, "clock_rate", 1_500_000)  # which older versions of PyTorch do not tell
    tflops = 2 * lanes * card.multi_processor_count * clock_khz / 1e9
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return Facts(nvml().driver, torch.version.cuda or "", nccl, tflops)


def nvml() -> Nvml:
    """Ask NVML, which knows nothing of CUDA_VISIBLE_DEVICES."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return Nvml(tuple(map(pynvml.nvmlDeviceGetName, handles)), pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return Nvml(error="" if type(error).__name__ in _ABSENT else str(error))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def expected() -> bool:
    """Whether this process should have a GPU: one that is not hidden, or a driver that does not answer."""
    found = nvml()
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return torch.cuda.is_available() or (not is_hidden and bool(found.names or found.error))


def check(numbers: Sequence[int]) -> None:
    """Refuse GPUs on which PyTorch cannot compute.

    Raises:
        ConfigError: naming this machine, its cards and their driver.
    """
    if why := problem(numbers):
        raise ConfigError("", f"the GPUs of node {socket.gethostname()} ({nvml()}) cannot be used: {why}")


def problem(numbers: Sequence[int]) -> str:
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


def cap_memory(number: int, share: float) -> None:
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


def in_use(number: int) -> str:
    """How much of a GPU's memory other processes have, where it is enough to be in the way; empty where it is not."""
    free, total = torch.cuda.mem_get_info(number)
    held = total - free - torch.cuda.memory_reserved(number) - _CONTEXT
    if held < _BUSY * total:
        return ""
    return (
        f"{held / 1e9:.1f} of {total / 1e9:.1f} GB of {torch.cuda.get_device_name(number)} (number {number}) are in "
        "use by other processes: a run has what is left, and its times are not those of a GPU of its own"
    )
