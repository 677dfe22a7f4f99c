"""How failures are told of, and which are final."""

from __future__ import annotations

from typing import Any

import pytest
import ray
import torch

from cifar_ray.orchestration import attempt
from cifar_ray.orchestration.events import WorkersFailed
from cifar_ray.orchestration.placement import Failures


class Method:
    """Stands in for an actor's method; keeps what it is called with."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def remote(self, value: Any) -> None:
        self.heard.append(value)


class Mailbox:
    """Stands in for the mailbox."""

    def __init__(self) -> None:
        self.post, self.relaunch = Method(), Method()


def raised(call: Any) -> Exception:
    with pytest.raises((RuntimeError, MemoryError)) as found:
        call()
    assert isinstance(found.value, Exception)
    return found.value


@pytest.mark.parametrize("allocate", [lambda: torch.empty(1 << 60), lambda: bytearray(1 << 60)])
def test_memory_that_is_too_small_is_final_and_names_the_batch_size(allocate: Any) -> None:
    mailbox, error = Mailbox(), raised(allocate)
    with pytest.raises(type(error)):
        Failures(mailbox).after_exception(None, {1: error})
    (told,) = mailbox.post.heard
    assert told == WorkersFailed(
        {1: "there is not enough memory; a smaller --batch-size, or a smaller model, needs less"}, final=True
    )


def test_another_error_is_not_final() -> None:
    mailbox = Mailbox()
    Failures(mailbox).after_exception(None, {0: RuntimeError("mat1 and mat2 cannot be multiplied")})
    assert mailbox.post.heard == [WorkersFailed({0: "RuntimeError: mat1 and mat2 cannot be multiplied"}, final=False)]


def test_a_controller_that_has_died_is_told_of_in_one_sentence() -> None:
    assert attempt._reason(ray.exceptions.ActorDiedError(), None) == (
        "Ray Train's controller has died: its process was killed, or its node has left"
    )
