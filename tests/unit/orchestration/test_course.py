"""The course of a run: what follows an attempt, what it has used, where limits and signals stop it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cifar_ray import storage
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, InterruptedRunError, RunFailedError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.orchestration.cluster import allocation, connection
from cifar_ray.orchestration.cluster.allocation import Allocation
from cifar_ray.orchestration.run import attempt, interrupts, limits, workers
from cifar_ray.orchestration.run.attempt import Failed, NotPlaced
from cifar_ray.orchestration.run.events import (
    Heartbeat,
    Joined,
    Mailbox,
    Moved,
    NoRoom,
    Placed,
    Stopped,
    WorkerRaised,
    WorkersFailed,
)
from cifar_ray.orchestration.run.failures import DIED, Failure, Kind
from cifar_ray.orchestration.run.interrupts import RayLostError
from cifar_ray.orchestration.run.limits import LimitReached, Meter, Spent
from cifar_ray.orchestration.run.restarts import Done, GiveUp, Halt, Move, Past, Retry, Run, decide
from cifar_ray.orchestration.run.workers import Workers, innermost
from cifar_ray.training import recipe
from cifar_ray.training.observer import Launch, Outcome, Started

OUTCOME = Outcome(1, {}, {}, 0.0, "", "", {}, [], ())
WRONG = Failure(Kind.FINAL, "ValueError: wrong")
LOST = Failure(Kind.OTHER, "FileNotFoundError: a.pt", saved=0)


def config(**values: Any) -> ResolvedConfig:
    usual = {"dataset": "digits", "model": "simple_cnn", "global_batch_size": 64, "max_failures": 2}
    return recipe.resolve(TrainConfig(**{**usual, **values}))


def failed(failure: Failure) -> Failed:
    return Failed({0: failure}, {})


def course(*ended: Any, limit: str = "") -> list[Any]:
    """What is decided after each of these attempts."""
    past, now, of = Past(limit=limit), time.monotonic(), config()
    return [decide(each, past, of, now) for each in ended]


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
    assert [type(decision) for decision in course(*ended)] == decisions


def test_a_limit_stops_what_would_go_on_and_is_no_cause_of_a_failure_that_would_recur() -> None:
    for ended in (Stopped(3), NotPlaced(), failed(DIED)):
        assert course(ended, limit="max_time") == [Halt("max_time")]
    done, given_up = course(OUTCOME, failed(WRONG), limit="max_time")
    assert (done, type(given_up)) == (Done(OUTCOME), GiveUp)
    first, _, _, second = course(failed(DIED), Stopped(3), NotPlaced(), failed(DIED))
    assert (first.failed.number, second.failed.number) == (1, 2)  # moves are no failures


def test_a_start_is_given_up_after_the_whole_time_and_a_start_that_worked_begins_it_anew() -> None:
    past, now, of = Past(), time.monotonic(), config()
    assert isinstance(decide(NotPlaced(), past, of, now - 20), Move)
    given_up = decide(NotPlaced(), Past(waiting_since=now - 1000), of, now)
    assert isinstance(given_up, GiveUp)
    assert given_up.reason.startswith("the workers could not be placed within 900 s")
    decide(failed(DIED), past, of, now)
    again = decide(NotPlaced(), past, of, now)
    assert isinstance(again, Move)
    assert again.waited_s < 10


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    for module in (limits, workers, interrupts):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_worker_that_is_silent_for_too_long_is_ended(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(Workers, "_end", lambda self, rank: ended.append(rank))
    seen = Workers(hang_timeout_s=300.0)
    for rank in range(3):
        seen.hear(Joined(rank, None, "node", rank, ""))
    seen.hear(WorkerRaised(0, WRONG))
    clock[0] += 299
    seen.hear(Heartbeat(2, 0, {}))
    seen.end_silent()
    assert ended == []
    clock[0] += 1
    seen.end_silent()
    assert ended == [1]


STACKS = """Thread 0x00007e (most recent call first):
  File "/home/me/mine.py", line 7 in loss
  File "/opt/cifar_ray/orchestration/run/train_worker.py", line 70 in train_loop

Current thread 0x00007d (most recent call first):
  File "/opt/ray/worker.py", line 1 in main_loop
"""


def test_the_function_that_hangs_is_that_of_the_thread_that_trains() -> None:
    assert (innermost(STACKS), innermost("")) == ("loss in mine.py, line 7", "")


@pytest.mark.parametrize(
    ("raised", "done"),
    [
        (InterruptedRunError(2), ["asked to stop: True", "killed first", "killed second", "removed after fit: True"]),
        (RayLostError("Ray has ended"), []),
    ],
)
def test_an_exception_ends_the_workers_and_waits_for_the_trainer_unless_ray_itself_is_lost(
    raised: BaseException, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    fitting: Future[Any] = Future()
    begun = Workers(60.0)
    for rank, actor in enumerate(("first", "second")):
        begun.hear(Joined(rank, actor, "node", 1, ""))

    def kill(actor: str) -> None:
        did.append(f"killed {actor}")
        if actor == "second":
            fitting.set_exception(RuntimeError("a worker has died"))

    monkeypatch.setattr(ray, "kill", kill)
    monkeypatch.setattr(allocation, "remove_abandoned", lambda: did.append(f"removed after fit: {fitting.done()}"))
    ask = SimpleNamespace(remote=lambda stop: did.append(f"asked to stop: {stop}"))
    mailbox = Mailbox(SimpleNamespace(ask_to_stop=ask))
    with pytest.raises(type(raised)) as caught, attempt.ending(fitting, begun, mailbox):
        raise raised
    assert caught.value is raised
    assert did == done


def test_signals_that_come_together_are_one_and_the_third_after_a_while_ends_the_process(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pending: list[int] = []
    monkeypatch.setattr(interrupts.os, "_exit", sys.exit)
    with interrupts.signals(pending):
        for clock[0] in (0.0, 0.1, 0.9, 1.1):
            signal.raise_signal(signal.SIGTERM)
        assert pending == [signal.SIGTERM] * 2
        clock[0] = 2.2
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert capfd.readouterr().err == "Stopped at once by SIGTERM.\n"


class OneNode:
    """An allocator of a cluster with room on one node; what was said to be held is noted."""

    def __init__(self) -> None:
        self.held: list[dict[str, Any]] = []

    def allocate(self, config: TrainConfig, asked: Decided, held: Any = None) -> Allocation:
        self.held.append(dict(held))
        return Allocation(asked, ["first"])

    def request_missing(self, *_: Any) -> None:
        pass


Attempted = Callable[[Callable[[Any], None], Callable[..., bool]], Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Any, list[Any]]]:
    """``run(config, attempts, allocator)`` is what a run ends with whose attempts go like this, and its events."""
    monkeypatch.setattr("cifar_ray.orchestration.cluster.optional.draining_nodes", dict)

    def make(config: TrainConfig, attempts: list[Attempted], allocator: Any = None) -> tuple[Any, list[Any]]:
        seen, home, limit = list[Any](), storage.at(str(tmp_path)), limits.of_run(config)
        monkeypatch.setattr(attempt, "run", lambda _, handle, check: attempts.pop(0)(handle, check))
        means: Any = (lambda *_: False, allocator or OneNode(), Mailbox(None), Meter(home), limit)
        one = Run(config, None, home, None, seen.append, *means)
        decided = replace(Decided.asked(config), device="cpu", cpus_per_worker=1)
        try:
            return one.train(Allocation(decided, ["first"]), Launch(time.time(), 0.0)), seen
        except RunFailedError as error:
            return str(error), seen

    return make


def ends(*events: Any) -> Attempted:
    """An attempt with these events and this end, which may be an error."""

    def attempted(handle: Callable[[Any], None], _: Any) -> Any:
        for event in events[:-1]:
            handle(event)
        if isinstance(events[-1], Exception):
            raise events[-1]
        return events[-1]

    return attempted


PLACED = Placed(0, "first", "127.0.0.1", "host", 1, 1, "cpu", "lo")
END = ends(RunFailedError("the end"))
Ran = Callable[..., tuple[Any, list[Any]]]


def test_a_start_again_goes_on_with_what_was_measured(run: Ran) -> None:
    asked = config()
    measured = replace(Decided.asked(asked), device="cpu", precision="bf16", convolutions="contiguous")
    end, seen = run(asked, [ends(Started(measured, 0, 10), failed(DIED)), END])
    (moved,) = (event for event in seen if isinstance(event, Moved))
    assert (asked.precision, moved.decided.precision, moved.decided.convolutions) == ("auto", "bf16", "contiguous")
    assert end == "the end"


def test_what_an_earlier_attempt_had_counts_as_free(run: Ran) -> None:
    attempts, one = [ends(PLACED, failed(DIED)), ends(NotPlaced()), ends(Stopped(4)), END], OneNode()
    _, seen = run(config(elastic="1x1:2x1"), attempts, one)
    assert one.held == [{"first": (1, 0)}, {}, {}]
    kinds = [type(event) for event in seen if not isinstance(event, Spent)]
    assert kinds == [Placed, WorkersFailed, Moved, NoRoom, Stopped, Moved]


def test_a_cluster_that_has_lost_its_nodes_ends_the_run(run: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nodes", "free_nodes"):
        monkeypatch.setattr(connection, name, lambda *_: [Node("first", "127.0.0.1", 1.0, 0.0)])
    allocator = allocation.NodeAllocator(lambda *_: None, lambda: None)
    monkeypatch.setattr(allocator, "_request", lambda *_: False)
    end, _ = run(config(topology="2x1"), [ends(failed(DIED))], allocator)
    assert end.startswith("the cluster has lost nodes: --topology ")


@pytest.mark.parametrize(("strategy", "has_step"), [("ddp", True), ("hogwild", False)])
def test_workers_stop_at_a_limit(strategy: str, has_step: bool, run: Ran, tmp_path: Path, clock: list[float]) -> None:
    def attempted(handle: Callable[[Any], None], check: Callable[..., bool]) -> Stopped:
        handle(Joined(0, None, "node", 1, ""))
        for at in range(100):
            clock[0] += 2
            if check(at > 0):
                return Stopped(at)
        raise AssertionError("it was not asked to stop")

    halted, seen = run(config(strategy=strategy, max_time="1m"), [attempted])
    assert halted == Halt("max_time")
    assert [event for event in seen if isinstance(event, LimitReached)] == [LimitReached("max_time")]
    assert any(isinstance(event, Stopped) for event in seen) == has_step
    last = [event for event in seen if isinstance(event, Spent)][-1]
    assert (last.placed_s, last.nodes) == (60.0, 0)
    assert limits.recorded(storage.at(str(tmp_path))) == last


def test_time_counts_from_placement_to_the_end_over_attempts_and_drivers(clock: list[float], tmp_path: Path) -> None:
    folder = storage.at(str(tmp_path))
    meter = Meter(folder)
    clock[0] += 5
    meter.place(2)
    meter.place(2)  # its other workers
    clock[0] += 10
    assert meter.spent == Spent(10, 20, 5, nodes=2)
    assert meter.release() == Spent(10, 20, 5)
    clock[0] += 3
    meter.place(1, ago_s=2)
    clock[0] += 4
    meter.release()
    clock[0] += 1000  # nobody drives it
    later = Meter(folder)
    clock[0] += 1
    assert later.spent == Spent(16, 26, 7)
    later.place(1, ago_s=50)  # another machine's clock
    assert later.spent == Spent(17, 27, 6, nodes=1)
    later.release()
    later.place(1, ago_s=-50)
    assert later.spent == Spent(17, 27, 6, nodes=1)


def test_a_driver_that_is_killed_loses_half_a_minute_at_most(clock: list[float], tmp_path: Path) -> None:
    folder = storage.at(str(tmp_path))
    meter = Meter(folder)
    meter.place(1)
    for _ in range(100):
        clock[0] += 1
        meter.tick()
    assert limits.recorded(folder).placed_s >= 70
    assert limits.recorded(folder).nodes == 0
    for damaged in ("", "[]", '{"other": 1}'):
        folder.write("spent.json", damaged)
        assert limits.recorded(folder) == Spent()


def test_the_limits_of_a_run_are_refused_once_they_are_reached(tmp_path: Path) -> None:
    of_run = limits.of_run(TrainConfig(max_time="1m", max_cost=2.0, price=2.0))
    spent = (Spent(59, 118), Spent(60, 60), Spent(10, 3600), Spent(10, 3599))
    assert [of_run(each) for each in spent] == ["", "max_time", "max_cost", ""]
    assert limits.of_run(TrainConfig(price=2.0))(Spent(60, 3600)) == ""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "spent.json").write_text('{"placed_s": 90.0, "node_s": 3600.0}')
    folder = storage.at(str(tmp_path / "mine"))
    with pytest.raises(ConfigError, match=r"^max_time must be more than the 1 min 30 s"):
        limits.refuse_reached(TrainConfig(max_time="1m"), folder)
    with pytest.raises(ConfigError, match=r"^max_cost must be more than the 2.00 USD"):
        limits.refuse_reached(TrainConfig(max_cost=2.0, price=2.0), folder)
    limits.refuse_reached(TrainConfig(max_time="2m", max_cost=2.5, price=2.0), folder)
