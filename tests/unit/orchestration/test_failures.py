"""How failures are told of, and which are final."""

from __future__ import annotations

import errno
import pickle
import re
import urllib.error
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import Any
from unittest import mock

import pytest
import ray
import torch
import torch.distributed as dist
import yaml

from cifar_ray.config.errors import ConfigError
from cifar_ray.orchestration.run import failures
from cifar_ray.orchestration.run.events import WorkerRaised
from cifar_ray.orchestration.run.failures import Failure, Kind, Verdict
from cifar_ray.orchestration.run.workers import Workers
from cifar_ray.storage import StorageError
from cifar_ray.training.errors import CheckpointError, DivergedError, RankFailedError

FINAL, CONSEQUENCE, OTHER = Kind.FINAL, Kind.CONSEQUENCE, Kind.OTHER
NCCL = "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
GLOO = "[gloo/transport/tcp/pair.cc:545] Read error [10.0.0.2]:59053: Connection reset by peer"


def caught(call: Callable[[], object]) -> Failure:
    """What ``call`` raises, as a worker sends it."""
    try:
        call()
    except BaseException as error:
        failure = failures.of(error)
        assert pickle.loads(pickle.dumps(failure)) == failure
        return failure
    raise AssertionError("nothing was raised")


def raised(error: BaseException, cause: BaseException | None = None) -> Failure:
    """An error that the user's own code, this file, raises."""

    def in_my_own_code() -> None:
        raise error from cause

    return caught(in_my_own_code)


class MyError(Exception):
    """Has other arguments than its text, no pickle, and perhaps no text."""

    def __init__(self, code: int, text: str | None) -> None:
        super().__init__(f"{text}, code {code}")
        self.keep = lambda: text

    def __str__(self) -> str:
        if self.keep() is None:
            raise RuntimeError("no text")
        return super().__str__()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        # Storage, network, a library, a GPU
        (OSError(errno.EIO, "Input/output error"), OTHER),
        (urllib.error.URLError("unreachable"), OTHER),
        (BrokenProcessPool("a child has died"), OTHER),
        (EOFError("Ran out of input"), OTHER),
        (yaml.YAMLError("an error of a library"), OTHER),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), OTHER),
        # Collectives, and other processes of Ray's
        (RuntimeError(GLOO), CONSEQUENCE),
        (RuntimeError("Application timeout caused pair closure"), CONSEQUENCE),
        (dist.DistBackendError("NCCL error in ProcessGroupNCCL.cpp"), CONSEQUENCE),
        (ray.exceptions.ActorDiedError(), CONSEQUENCE),
        (RankFailedError("rank 0 could not write the checkpoint of step 5"), CONSEQUENCE),
        # Memory
        (torch.AcceleratorError("CUDA error: out of memory"), FINAL),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), FINAL),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), FINAL),
        (dist.DistBackendError(f"{NCCL}Last error:\nCuda failure 2 'out of memory'"), FINAL),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), FINAL),
        # The same again, whenever it is tried
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (32x64 and 7x10)"), FINAL),
        (MyError(7, "wrong"), FINAL),
        (KeyboardInterrupt(), FINAL),
        (ConfigError("model", "must build a model"), FINAL),
        (CheckpointError("there is no room"), FINAL),
        (DivergedError(3), FINAL),
    ],
    ids=lambda value: f"{type(value).__name__}: {value}"[:60],
)
def test_what_may_pass_is_tried_again_and_what_cannot_is_not(error: BaseException, kind: Kind) -> None:
    failure = raised(error)
    assert failure.kind is kind
    assert failures.judge({1: failure}, None).final == (kind is FINAL)
    assert failure.error.startswith("there is not enough memory") == bool(re.search("memory|ALLOC", str(error)))


def test_an_error_is_of_the_kind_of_its_cause_and_may_pass_outside_the_users_code() -> None:
    assert raised(ValueError("no weights"), ConnectionError("refused")).kind is OTHER
    assert raised(ValueError("no weights"), KeyError("url")).kind is FINAL
    for error in (RuntimeError("Expected to have finished reduction"), StorageError("503 Slow Down")):
        assert failures.of(error).kind is OTHER
    assert str(failures.of(ValueError("wrong"), step=4)) == "ValueError: wrong (after step 4)"


@pytest.mark.parametrize("allocate", [lambda: torch.empty(1 << 60), lambda: bytearray(1 << 60)])
def test_memory_that_is_too_small_is_final_and_names_the_batch_size(allocate: Any) -> None:
    failure = caught(allocate)
    assert failure.kind is FINAL
    assert re.match(r"there is not enough memory; a smaller --batch-size, .*<lambda> in test_failures.py", str(failure))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MyError(7, "wrong"), f"{__name__}.MyError: wrong, code 7"),
        (MyError(7, None), f"{__name__}.MyError: <exception str() failed>"),
        (StopIteration(), "StopIteration"),
        (ValueError("no text \udcff,\n\tlines"), "ValueError: no text \\udcff, lines"),
    ],
    ids=["pickle", "str", "stop", "surrogate and lines"],
)
def test_any_error_is_told_with_its_text_and_the_function(error: BaseException, sentence: str) -> None:
    failure = raised(error)
    line = failure.function.rpartition(" ")[2]
    assert failure.kind is FINAL
    assert str(failure) == f"{sentence} (before the first step, in_my_own_code in test_failures.py, line {line})"
    assert f'File "{__file__}", line {line}, in in_my_own_code\n    raise error from cause\n' in failure.trace


def test_a_cause_is_told_with_the_error_and_nothing_of_it_is_too_long() -> None:
    failure = raised(ValueError("no weights"), KeyError("word " * 9999))
    assert failure.error.startswith("ValueError: no weights; its cause is KeyError: 'word word word")
    assert failure.error.endswith("word ...")
    assert len(failure.error) < 300
    assert len(failure.trace) < 11_000


@torch.jit.script
def scripted(images: torch.Tensor) -> torch.Tensor:
    assert images.size(0) == 0, "the third step is wrong"
    return images


def broken(*_: Any) -> Any:
    raise ValueError("the third step is wrong")


def loading() -> None:
    wrong = type("Wrong", (), {"__len__": lambda _: 1, "__getitem__": broken})()
    with mock.patch.object(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1):
        list(torch.utils.data.DataLoader(wrong, num_workers=1))


@pytest.mark.parametrize(
    ("call", "start"),
    [
        (lambda: scripted(torch.ones(1)), "torch.jit.Error: The following operation failed "),
        (lambda: torch.compile(torch.neg, backend=broken)(torch.ones(1)), "torch._dynamo.exc.BackendCompilerFailed: "),
        (loading, "ValueError: Caught ValueError in DataLo"),
    ],
    ids=["scripted", "compiler", "loader"],
)
def test_a_cause_below_the_first_line_is_told(call: Callable[[], object], start: str) -> None:
    failure = caught(call)
    assert failure.error.startswith(start)
    assert failure.error.endswith("Error: the third step is wrong")
    assert failure.kind is FINAL
    assert "the third step is wrong" in failure.trace


def test_a_traceback_leads_through_the_users_own_files_alone() -> None:
    class Net(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(images, torch.ones(10, 7))

    failure = caught(lambda: Net()(torch.ones(2, 3)))
    assert failure.function.startswith("forward in test_failures.py, line ")
    assert failure.trace.count("File ") == failure.trace.count(f'File "{__file__}"') == 3
    assert failure.trace.endswith("mat1 and mat2 shapes cannot be multiplied (2x3 and 7x10)")


def failed(kind: Kind, error: str, at: float = 0.0, saved: int = 0) -> Failure:
    return Failure(kind, error, "after step 3", "forward in mine.py, line 4", "a traceback", at, saved)


def test_the_first_error_counts_and_not_its_consequences() -> None:
    errors = {
        0: failed(CONSEQUENCE, "RuntimeError: gloo", at=1.0),
        1: failed(OTHER, "OSError: Input/output error", at=3.0),
        2: failed(FINAL, "ValueError: wrong", at=2.0),
    }
    told = failures.judge(errors, None)
    assert told.reason == "rank 2: ValueError: wrong (after step 3, forward in mine.py, line 4)"
    assert (told.final, told.first.trace) == (True, "a traceback")
    for gone, start in ((2, "rank 1: OSError"), (1, "rank 0: RuntimeError: gloo")):
        del errors[gone]
        assert not failures.judge(errors, None).final
        assert failures.judge(errors, None).reason.startswith(start)


def test_processes_that_have_died_are_told_all_and_replaced() -> None:
    workers = Workers(600.0)
    workers.hear(WorkerRaised(0, failed(CONSEQUENCE, "RuntimeError: gloo")))
    told = failures.judge(workers.left([0, 1, 2]), None)
    died = "its process has died or does not answer"
    assert told == Verdict(f"rank 1: {died}; rank 2: {died}", False, failures.DIED)
    assert not failures.judge({1: failures.DIED}, told).final


def test_an_error_is_final_when_it_comes_twice_without_a_newer_checkpoint() -> None:
    def again(before: Verdict | None, error: str = "FileNotFoundError: a.pt", saved: int = 7) -> Verdict:
        return failures.judge({1: failed(OTHER, error, saved=saved)}, before)

    once = again(None)
    seen = (once, again(once, saved=14), again(once, error="FileNotFoundError: b.pt"), again(once))
    assert [verdict.final for verdict in seen] == [False, False, False, True]
    assert again(once).reason.endswith(", twice without a newer checkpoint")
