"""How failures are told of, and which are final."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from cifar_ray.orchestration.run import attempt, callbacks
from cifar_ray.orchestration.run.callbacks import Failures, Silence
from cifar_ray.orchestration.run.events import Mailbox, Silent, WorkersFailed


class Kept(Mailbox):
    """A mailbox without an actor; keeps what is posted."""

    def __init__(self) -> None:
        super().__init__(None)
        self.posted: list[Any] = []

    def post(self, event: Any) -> Any:
        self.posted.append(event)

    def relaunch(self, begun: float) -> None:
        pass


@pytest.mark.parametrize("allocate", [lambda: torch.empty(1 << 60), lambda: bytearray(1 << 60)])
def test_memory_that_is_too_small_is_final_and_names_the_batch_size(allocate: Any) -> None:
    mailbox = Kept()
    with pytest.raises((RuntimeError, MemoryError)) as error:
        allocate()
    with pytest.raises(error.type):
        Failures(mailbox).after_exception(None, {1: error.value})
    sentence = "there is not enough memory; a smaller --batch-size, or a smaller model, needs less"
    assert mailbox.posted == [WorkersFailed({1: sentence}, final=True)]


def test_another_error_is_not_final() -> None:
    mailbox = Kept()
    Failures(mailbox).after_exception(None, {0: RuntimeError("mat1 and mat2 cannot be multiplied")})
    assert mailbox.posted == [WorkersFailed({0: "RuntimeError: mat1 and mat2 cannot be multiplied"}, final=False)]


def test_a_worker_that_does_not_answer_is_named_once_per_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox, now = Kept(), [100.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now[0])
    group = SimpleNamespace(_world_rank_to_ongoing_poll={})
    callback = Silence(mailbox, timeout_s=300.0)
    callback.after_worker_group_start(group)

    def polled(at: float, **since: float) -> list[Any]:
        now[0] = at
        waiting = {int(rank.removeprefix("rank")): SimpleNamespace(start_time=start) for rank, start in since.items()}
        group._world_rank_to_ongoing_poll = waiting
        mailbox.posted.clear()
        callback.after_worker_group_poll_status(None)
        return list(mailbox.posted)

    assert polled(100.0) == []
    assert polled(159.0, rank1=100.0) == []
    assert polled(160.0, rank1=100.0, rank0=159.0) == [Silent(1, 60.0)]
    assert polled(200.0, rank1=100.0) == []
    assert polled(210.0) == []
    assert polled(300.0, rank1=220.0) == [Silent(1, 80.0)]


def test_a_controller_that_has_died_is_told_of_in_one_sentence() -> None:
    assert str(attempt._failed(ray.exceptions.ActorDiedError(), None)) == (
        "Ray Train's controller has died: its process was killed, or its node has left"
    )
