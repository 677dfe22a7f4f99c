"""What a worker has raised, as text, and whether the run tries again: not after the same error without progress."""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import ray
import torch
import torch.distributed as dist

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError
from cifar_ray.storage import StorageError
from cifar_ray.training.errors import CheckpointError, DivergedError, RankFailedError


class Kind(Enum):
    """What an error tells of the next attempt."""

    FINAL = auto()  # it would fail the same way
    CONSEQUENCE = auto()  # of another process, or of the network: it is not what happened first
    OTHER = auto()  # it may pass, unless it comes twice without a newer checkpoint


@dataclass(frozen=True)
class Failure:
    """An error of one worker, as text: not every error can be sent to another process.

    Attributes:
        error: its type, message and cause, in one line.
        step: how far the loop was, such as ``after step 3``; empty when ``error`` says enough.
        function: the innermost function in the user's own files, and where; empty when there is none.
        trace: the traceback through the user's own files; empty when ``error`` says enough.
        at: ``time.time()`` when it was raised.
        saved: optimizer steps in the newest checkpoint; -1 of a process that has died without a word.
    """

    kind: Kind
    error: str
    step: str = ""
    function: str = ""
    trace: str = ""
    at: float = float("inf")
    saved: int = -1

    def __str__(self) -> str:
        where = ", ".join(filter(None, [self.step, self.function]))
        return f"{self.error} ({where})" if where else self.error

    def repeats(self, before: Failure) -> bool:
        """Whether it is the same error again, without a newer checkpoint."""
        is_same = (self.error, self.function) == (before.error, before.function)
        return is_same and 0 <= self.saved <= before.saved


DIED = Failure(Kind.OTHER, "its process has died or does not answer")
"""Of a worker that has said nothing of itself."""

_SENTENCES = (ConfigError, CheckpointError, DivergedError, StorageError)
"""Errors whose messages are for users."""
_NO_MEMORY = "there is not enough memory; a smaller --batch-size, or a smaller model, needs less"
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator|CUDA( driver)? error: out of memory|_STATUS_ALLOC_FAILED|_(HOST|DEVICE)_ALLOCATION_FAILED"
    r"|Cuda failure( \d+)? '(CUDA_ERROR_OUT_OF_MEMORY|out of memory)'"
)
"""Of PyTorch, cuBLAS, cuDNN and NCCL."""
_COLLECTIVE = re.compile(r"\bgloo\b|\bNCCL\b|ProcessGroup|pair closure|[Cc]onnection (closed|reset) by peer")


def of(error: BaseException, step: int = 0, saved: int = 0) -> Failure:
    """What a worker has raised after ``step`` optimizer steps, in the process that raised it."""
    if isinstance(error, ray.exceptions.RayTaskError):  # raised in a parameter server
        error = error.cause
    places = imports.frames(traceback.extract_tb(error.__traceback__))
    kind, no_memory, now = _kind(error, bool(places)), _out_of_memory(error), time.time()
    if isinstance(error, _SENTENCES):
        return Failure(kind, str(error), at=now, saved=saved)
    where = f"after step {step}" if step else "before the first step"
    function = f"{places[-1].name} in {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
    trace = "" if no_memory or kind is Kind.CONSEQUENCE else imports.trace(error)
    return Failure(kind, _NO_MEMORY if no_memory else imports.described(error), where, function, trace, now, saved)


@dataclass(frozen=True)
class Verdict:
    """The ``first`` failure among the workers, as a sentence, and whether another attempt would fail the same way."""

    reason: str
    final: bool
    first: Failure


def judge(failures: Mapping[int, Failure], before: Verdict | None) -> Verdict:
    """Tell what has happened first among the workers, by rank; ``before`` is on the run's last failure."""
    causes = {rank: failure for rank, failure in failures.items() if failure.kind is not Kind.CONSEQUENCE} or failures
    first = min(causes.values(), key=lambda failure: failure.at)
    reason = "; ".join(f"rank {rank}: {each}" for rank, each in sorted(causes.items()) if each.at == first.at)
    if first.kind is Kind.OTHER and before is not None and first.repeats(before.first):
        return Verdict(f"{reason}, twice without a newer checkpoint", True, first)
    return Verdict(reason, first.kind is Kind.FINAL, first)


def _kind(error: BaseException, is_theirs: bool) -> Kind:
    """What an error tells of the next attempt; ``is_theirs``: it came out of the user's own code."""
    chain = imports.chain(error)
    if isinstance(error, (ConfigError, CheckpointError, DivergedError)) or any(map(_out_of_memory, chain)):
        return Kind.FINAL
    if any(map(_is_consequence, chain)):
        return Kind.CONSEQUENCE
    return Kind.FINAL if is_theirs and not any(map(_may_pass, chain)) else Kind.OTHER


def _out_of_memory(error: BaseException) -> bool:
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or (isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error))))


def _is_consequence(error: BaseException) -> bool:
    if isinstance(error, (dist.DistError, RankFailedError, ray.exceptions.RayError)):
        return True
    return type(error) is RuntimeError and bool(_COLLECTIVE.search(str(error)))


def _may_pass(error: BaseException) -> bool:
    """Whether an error of the user's own code is one of files, the network or a GPU, or of a library but PyTorch."""
    if isinstance(error, (OSError, EOFError, torch.AcceleratorError)):
        return True
    module = type(error).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and imports.is_installed(file) and module.partition(".")[0] not in ("cifar_ray", "torch")
