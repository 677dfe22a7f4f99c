"""What a worker has raised, as text, and whether the run tries again."""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl
import sys
import time
import traceback
import urllib.error
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError
from cifar_ray.storage import StorageError
from cifar_ray.training.errors import CheckpointError, DivergedError, RankFailedError


class Kind(Enum):
    """Whether an error can pass, and so is worth another attempt."""

    FINAL = auto()
    PASSING = auto()
    CONSEQUENCE = auto()
    """Another process has failed, or the network: it can pass, and is not what happened first."""
    UNKNOWN = auto()
    """It cannot be told: worth one more attempt after each checkpoint."""


@dataclass(frozen=True)
class Failure:
    """An error of one worker, as text: not every error can be sent to another process.

    Attributes:
        kind: whether it can pass.
        error: its type, message and cause, in one line.
        step: where the loop was, such as ``step 3``; empty when it did not run.
        function: the innermost function in the user's own files, and where; empty when there is none.
        trace: the traceback through the user's own files; empty when ``error`` says enough.
        at: ``time.time()`` when it was raised.
        saved: optimizer steps in the newest checkpoint.
    """

    kind: Kind
    error: str
    step: str = ""
    function: str = ""
    trace: str = ""
    at: float = float("inf")
    saved: int = 0

    def __str__(self) -> str:
        where = ", ".join(filter(None, [self.step, self.function]))
        return f"{self.error} ({where})" if where else self.error


_SENTENCES = (ConfigError, CheckpointError, DivergedError, StorageError)
"""Errors whose messages are for users."""
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator|CUDA( driver)? error: out of memory|_STATUS_ALLOC_FAILED|_(HOST|DEVICE)_ALLOCATION_FAILED"
    r"|Cuda failure( \d+)? '(CUDA_ERROR_OUT_OF_MEMORY|out of memory)'"
)
"""Of PyTorch, cuBLAS, cuDNN and NCCL."""
_NO_KERNEL = re.compile(r"no kernel image|invalid device function|_STATUS_(NOT_SUPPORTED|ARCH_MISMATCH)")
_CUDA = re.compile(r"CUDA( driver)? error|(CUDNN|CUBLAS|CUSOLVER|CUSPARSE)_STATUS_|CUFFT_")
_COLLECTIVE = re.compile(r"\bgloo\b|\bNCCL\b|ProcessGroup|pair closure|[Cc]onnection (closed|reset) by peer")
_LOST = re.compile(r"DataLoader worker \(pid")
_NETWORK = (
    ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError, urllib.error.URLError, http.client.HTTPException
)  # fmt: skip
_NETWORK_LIBRARIES = {"aiohttp", "botocore", "httpcore", "httpx", "requests", "urllib3"}
_PASSING = {
    *(errno.EIO, errno.ESTALE, errno.EBUSY, errno.ENODEV, errno.ENXIO, errno.ENOTCONN),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
}
"""Error numbers of storage and network."""


def of(error: BaseException) -> Failure:
    """What a worker has raised, in the process that raised it."""
    step, saved = _position(error)
    if isinstance(error, ray.exceptions.RayTaskError):  # raised in a parameter server
        cause, trace = error.cause, str(error)
        return Failure(_kind(cause, False), _sentence(cause), step, "", trace, time.time(), saved)
    places = imports.frames(traceback.extract_tb(error.__traceback__))
    function = f"{places[-1].name} in {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
    kind = _kind(error, bool(places))
    if isinstance(error, _SENTENCES):
        return Failure(kind, _sentence(error), at=time.time(), saved=saved)
    is_known = kind in (Kind.PASSING, Kind.CONSEQUENCE) or _out_of_memory(error)
    trace = imports.trace(error) if places or not is_known else ""
    return Failure(kind, _sentence(error), step, function, trace, time.time(), saved)


DIED = Failure(Kind.PASSING, "its process has died or does not answer")
"""Of a worker that has said nothing of itself."""


@dataclass(frozen=True)
class Verdict:
    """What has happened first among the workers.

    Attributes:
        reason: in one sentence.
        final: whether another attempt would fail the same way.
        trace: the traceback of the first worker.
        key: what two equal failures have in common.
        saved: optimizer steps in the newest checkpoint.
    """

    reason: str
    final: bool
    trace: str
    key: tuple[str, str]
    saved: int


def judge(failures: Mapping[int, Failure], before: Verdict | None) -> Verdict:
    """Tell what has happened first among the workers, by rank, and whether the run ends.

    ``before`` is what was told of the run's last failure.
    """
    causes = {rank: failure for rank, failure in failures.items() if failure.kind is not Kind.CONSEQUENCE} or failures
    first = min(causes.values(), key=lambda failure: failure.at)
    key, final, twice = (first.error, first.function), first.kind is Kind.FINAL, ""
    if first.kind is Kind.UNKNOWN and before is not None and before.key == key and before.saved >= first.saved:
        final, twice = True, ", twice without a newer checkpoint"
    reasons = [f"rank {rank}: {failure}{twice}" for rank, failure in sorted(causes.items()) if failure.at == first.at]
    return Verdict("; ".join(reasons), final, first.trace, key, first.saved)


def _sentence(error: BaseException) -> str:
    if _out_of_memory(error):
        capped = torch.cuda.is_initialized() and torch.cuda.get_per_process_memory_fraction() < 1  # type: ignore[no-untyped-call]
        more = ", and a larger --gpus-per-worker gives more" * capped
        return f"there is not enough memory; a smaller --batch-size, or a smaller model, needs less{more}"
    return str(error) if isinstance(error, _SENTENCES) else imports.described(error)


def _position(error: BaseException) -> tuple[str, int]:
    """Where the loop was, in words, and the optimizer steps in the newest checkpoint."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    in_evaluation = any(frame.f_globals.get("__name__") == "cifar_ray.training.evaluate" for frame in frames)
    for frame in frames:
        # By name: Ray's controller, which imports this module, does not need what the loop loads.
        function = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        if function == "cifar_ray.training.setup.prepare":
            return "before the first step", 0
        if function == "cifar_ray.training.loop.fit":
            state = frame.f_locals["state"]
            return f"evaluation after step {state.step}" if in_evaluation else f"step {state.step + 1}", state.saved
    return "", 0


def _kind(error: BaseException, is_theirs: bool) -> Kind:
    """Whether an error can pass; ``is_theirs``: it came out of the user's own code."""
    chain = imports.chain(error)
    if isinstance(error, (CheckpointError, DivergedError)) or any(map(_out_of_memory, chain)):
        return Kind.FINAL
    if any(map(_is_consequence, chain)):
        return Kind.CONSEQUENCE
    if any(map(_passes, chain)):
        return Kind.PASSING
    if isinstance(error, (OSError, EOFError)) or _library(error):
        return Kind.UNKNOWN
    return Kind.UNKNOWN if isinstance(error, RuntimeError) and not is_theirs else Kind.FINAL


def _out_of_memory(error: BaseException) -> bool:
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or (isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error))))


def _is_consequence(error: BaseException) -> bool:
    if isinstance(error, (dist.DistError, RankFailedError)) or _library(error) == "ray":
        return True
    return type(error) is RuntimeError and bool(_COLLECTIVE.search(str(error)))


def _passes(error: BaseException) -> bool:
    if isinstance(error, (StorageError, BrokenExecutor, *_NETWORK)) or _library(error) in _NETWORK_LIBRARIES:
        return True
    if isinstance(error, OSError):
        return error.errno in _PASSING
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    is_cuda = isinstance(error, torch.AcceleratorError) or _CUDA.search(text)
    return bool(_LOST.search(text) or (is_cuda and not _NO_KERNEL.search(text)))


def _library(error: BaseException) -> str:
    """The library of the error's class; empty for the user's own code, this program, PyTorch, NumPy and Python."""
    name = type(error).__module__
    top = name.partition(".")[0]
    file: Any = getattr(sys.modules.get(name), "__file__", None)
    ours = top in ("cifar_ray", "torch", "torchvision", "numpy") or top in sys.stdlib_module_names
    return "" if ours or file is None or not imports.is_installed(file) else top
