"""What follows an attempt: the decisions of the loop that restarts workers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.orchestration.run import workers
from cifar_ray.orchestration.run.attempt import Failed, NotPlaced
from cifar_ray.orchestration.run.events import Heartbeat, Joined, Stopped, WorkerRaised
from cifar_ray.orchestration.run.failures import DIED, Failure, Kind
from cifar_ray.orchestration.run.restarts import Done, GiveUp, Halt, Move, Past, Retry, decide
from cifar_ray.orchestration.run.workers import Workers, innermost
from cifar_ray.training import recipe
from cifar_ray.training.observer import Outcome

CONFIG = replace(recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn")), max_failures=2)
OUTCOME = Outcome(1, {}, {}, 0.0, "", "", {}, [], ())
WRONG = Failure(Kind.FINAL, "ValueError: wrong")
LOST = Failure(Kind.OTHER, "FileNotFoundError: a.pt", saved=0)


def course(*ended: Any, config: ResolvedConfig = CONFIG) -> list[Any]:
    past = Past()
    return [decide(each, past, config, time.monotonic()) for each in ended]


def failed(failure: Failure) -> Failed:
    return Failed({0: failure}, {})


def kinds(*ended: Any) -> list[type]:
    return [type(decision) for decision in course(*ended)]


@pytest.mark.parametrize(
    ("ended", "decisions"),
    [
        ([OUTCOME], [Done]),
        ([failed(WRONG)], [GiveUp]),
        ([failed(DIED)] * 3, [Retry, Retry, GiveUp]),
        ([failed(LOST)] * 2, [Retry, GiveUp]),
        ([failed(LOST), failed(DIED), failed(LOST)], [Retry, Retry, GiveUp]),
        ([Stopped(3)] * 4, [Move] * 4),
        ([failed(DIED), Stopped(3), failed(DIED), Stopped(4)], [Retry, Move, Retry, Move]),
        ([NotPlaced(), NotPlaced(), OUTCOME], [Move, Move, Done]),
    ],
)
def test_what_follows(ended: list[Any], decisions: list[type]) -> None:
    assert kinds(*ended) == decisions


@pytest.mark.parametrize(
    ("ended", "decision"),
    [
        (OUTCOME, Done(OUTCOME)),
        (Stopped(3), Halt("max_time")),
        (NotPlaced(), Halt("max_time")),
        (failed(DIED), Halt("max_time")),
    ],
)
def test_a_limit_stops_what_would_go_on(ended: Any, decision: Any) -> None:
    assert decide(ended, Past(limit="max_time"), CONFIG, time.monotonic()) == decision


def test_a_failure_that_would_recur_is_none_of_the_limits() -> None:
    assert isinstance(decide(failed(WRONG), Past(limit="max_time"), CONFIG, time.monotonic()), GiveUp)


def test_failures_are_counted_in_one_place_and_moves_are_none() -> None:
    first, _, _, second = course(failed(DIED), Stopped(3), NotPlaced(), failed(DIED))
    assert (first.failed.number, second.failed.number) == (1, 2)


def test_a_start_is_given_up_after_the_whole_time_and_a_start_that_worked_begins_it_anew() -> None:
    past, now = Past(), time.monotonic()
    assert isinstance(decide(NotPlaced(), past, CONFIG, now - 20), Move)
    given_up = decide(NotPlaced(), Past(waiting_since=now - 1000), CONFIG, now)
    assert isinstance(given_up, GiveUp)
    assert given_up.reason.startswith("the workers could not be placed within 900 s")
    decide(failed(DIED), past, CONFIG, now)
    again = decide(NotPlaced(), past, CONFIG, now)
    assert isinstance(again, Move)
    assert again.waited_s < 10


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(workers.time, "monotonic", lambda: now[0])
    return now


def test_a_worker_that_is_silent_for_too_long_is_ended_unless_it_has_said_what_happened(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(Workers, "_end", lambda self, rank: ended.append(rank))
    seen = Workers(hang_timeout_s=300.0)
    for rank in range(3):
        seen.hear(Joined(rank, None, "node", rank, ""))
    seen.hear(WorkerRaised(0, WRONG))
    clock[0] = 399.0
    seen.hear(Heartbeat(2, 0, {}))
    seen.end_silent()
    assert ended == []
    clock[0] = 400.0
    seen.end_silent()
    assert ended == [1]


STACKS = """Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007e (most recent call first):
  File "/home/me/mine.py", line 7 in loss
  File "/opt/cifar_ray/orchestration/run/train_worker.py", line 70 in train_loop

Current thread 0x00007d (most recent call first):
  File "/opt/ray/worker.py", line 1 in main_loop
"""


@pytest.mark.parametrize(("stacks", "function"), [(STACKS, "loss in mine.py, line 7"), ("", "")])
def test_the_function_that_hangs_is_that_of_the_thread_that_trains(stacks: str, function: str) -> None:
    assert innermost(stacks) == function
