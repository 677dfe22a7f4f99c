"""What runs and sweeps use, and where their limits stop them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cifar_ray import storage
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.cluster.allocation import Allocation
from cifar_ray.orchestration.run import attempt, limits
from cifar_ray.orchestration.run.events import Joined, Mailbox, Stopped
from cifar_ray.orchestration.run.limits import LimitReached, Meter, Spent
from cifar_ray.orchestration.run.restarts import Halt, Run
from cifar_ray.orchestration.run.workers import Attempt
from cifar_ray.orchestration.sweep import plan
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.plan import PlannedCell
from cifar_ray.training import recipe
from cifar_ray.training.observer import Launch
from tests.support.cells import end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    return now


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


@pytest.mark.parametrize("text", ["", "[]", '{"other": 1}'])
def test_a_damaged_count_begins_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / "spent.json").write_text(text)
    assert limits.recorded(storage.at(str(tmp_path))) == Spent()


@pytest.mark.parametrize(
    ("spent", "limit"),
    [(Spent(59, 118), ""), (Spent(60, 60), "max_time"), (Spent(10, 3600), "max_cost"), (Spent(10, 3599), "")],
)
def test_the_limits_of_a_run(spent: Spent, limit: str) -> None:
    assert limits.of_run(TrainConfig(max_time="1m", max_cost=2.0, price=2.0))(spent) == limit
    assert limits.of_run(TrainConfig(price=2.0))(spent) == ""


def test_a_run_that_has_reached_its_limits_goes_on_with_larger_ones_only(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "spent.json").write_text('{"placed_s": 90.0, "node_s": 3600.0}')
    folder = storage.at(str(tmp_path / "mine"))
    with pytest.raises(ConfigError, match=r"^max_time must be more than the 1 min 30 s"):
        limits.refuse_reached(TrainConfig(max_time="1m"), folder)
    with pytest.raises(ConfigError, match=r"^max_cost must be more than the 2.00 USD"):
        limits.refuse_reached(TrainConfig(max_cost=2.0, price=2.0), folder)
    limits.refuse_reached(TrainConfig(max_time="2m", max_cost=2.5, price=2.0), folder)


def run(
    config: TrainConfig, folder: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> tuple[Any, list[Any]]:
    """How a run of one minute's limit ends whose attempt takes two seconds between two looks, and its events."""
    seen: list[Any] = []

    def attempted(_: Attempt, handle: Callable[[Any], None], check: Callable[..., bool]) -> Stopped:
        handle(Joined(0, None, "node", 1, ""))
        for at in range(100):
            clock[0] += 2
            if check(at > 0):
                return Stopped(at)
        raise AssertionError("it was not asked to stop")

    class Allocator:
        def request_missing(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(attempt, "run", attempted)
    home = storage.at(str(folder))
    limit, mailbox = limits.of_run(config), Mailbox(None)
    one = Run(config, None, home, None, seen.append, lambda *_: False, Allocator(), mailbox, Meter(home), limit)  # type: ignore[arg-type]
    monkeypatch.setattr("cifar_ray.orchestration.cluster.optional.draining_nodes", dict)
    return one.train(Allocation(Decided.asked(config), ["node"]), Launch(0.0, 0.0)), seen  # type: ignore[arg-type]


@pytest.mark.parametrize(("strategy", "has_step"), [("ddp", True), ("hogwild", False)])
def test_workers_stop_at_a_limit_between_two_steps_or_are_ended_where_they_have_none_in_common(
    strategy: str, has_step: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    config = recipe.resolve(TrainConfig(dataset="digits", strategy=strategy, max_time="1m"))  # type: ignore[arg-type]
    halted, seen = run(config, tmp_path, monkeypatch, clock)
    assert halted == Halt("max_time")
    assert [event for event in seen if isinstance(event, LimitReached)] == [LimitReached("max_time")]
    assert any(isinstance(event, Stopped) for event in seen) == has_step
    last = [event for event in seen if isinstance(event, Spent)][-1]
    assert (last.placed_s, last.nodes) == (60.0, 0)
    assert limits.recorded(storage.at(str(tmp_path))) == last


def planned(grid: dict[str, Any], **options: Any) -> tuple[Budget, list[PlannedCell]]:
    train = {"dataset": "digits", "model": "simple_cnn", "epochs": 1, "global_batch_size": 64, "price": "3.6"}
    config = sweeps.from_mapping({"name": "s", "train": train, "grid": grid, **options})
    cells = plan.planned(config)
    return Budget(config, cells), cells


def finish(cell: PlannedCell, seconds: float) -> None:
    end(cell, spent=Spent(seconds, seconds))


def like(cell: PlannedCell, **changes: Any) -> PlannedCell:
    """A cell like this one, with some options of another value."""
    assert cell.config is not None
    config = replace(cell.config, **changes)
    return PlannedCell(0, cell.cell, config, Decided.asked(config))


def test_a_cell_is_expected_to_take_what_the_fastest_like_it_has_taken_by_images() -> None:
    budget, (first, second, other) = planned({"seed": [1, 2, 3]})
    assert budget._left_s(other) == 0.0
    finish(first, 10.0)
    finish(second, 14.0)
    assert budget._left_s(other) == pytest.approx(10.0)
    assert budget._left_s(like(other, epochs=3)) == pytest.approx(30.0)
    assert budget._left_s(like(other, steps_per_epoch=11)) == pytest.approx(5.0)  # of 22
    for different in ({"model": "resnet"}, {"topology": "1x2"}, {"device": "cuda"}, {"val_share": 0.5}):
        assert budget._left_s(like(other, **different)) == 0.0


def test_a_run_is_left_out_that_would_not_end_within_the_time_of_the_sweep() -> None:
    budget, (first, wide, second) = planned({"seed": [1, 2, 3]}, max_time="50s")
    assert budget.refusal(first, ()) == ""  # nothing is known of such runs
    finish(first, 20.0)
    finish(wide, 40.0)  # the low end of an estimate counts
    budget.placed_s = 29.0
    assert budget.refusal(second, ()) == ""
    budget.placed_s = 31.0
    assert budget.refusal(second, ()) == "expected to take 20 s, and 19 s of the sweep's --max-time 50s are left"
    second.row = replace(second.row, spent=Spent(5.0, 5.0))  # it goes on
    assert budget.refusal(second, ()) == ""
    budget.placed_s = 50.0
    assert (budget.reached, budget.refusal(second, ())) == ("max_time", "the sweep's --max-time 50s is reached")


def test_a_run_is_left_out_that_would_cost_more_than_is_left_with_those_that_run() -> None:
    budget, (first, second, third) = planned({"seed": [1, 2, 3]}, max_cost=0.05)  # 50 s
    finish(first, 20.0)
    assert budget.usd == pytest.approx(0.02)
    assert budget.refusal(second, ()) == ""
    end(second, boards.RUNNING, spent=Spent(4.0, 4.0, nodes=1))
    assert budget.refusal(third, [second]).startswith("expected to cost 0.0200 USD, and 0.0100 USD of the sweep's ")
    finish(second, 31.0)
    assert budget.reached == "max_cost"


def test_the_time_of_a_sweep_counts_while_a_run_is_on_its_nodes() -> None:
    budget, cells = planned({"seed": [1, 2]})
    for seconds, nodes in ((1.0, 0), (2.0, 1)):  # they wait first
        for cell in cells:
            end(cell, boards.RUNNING, spent=Spent(nodes=nodes))
        budget.passed(seconds)
    assert (budget.placed_s, budget.reached) == (2.0, "")


def test_a_sweep_that_has_reached_its_limits_goes_on_with_larger_ones_only() -> None:
    for max_time in ("1m", "2m"):
        budget, _ = planned({"seed": [1, 2]}, max_time=max_time)
        budget.placed_s = 90.0
        with pytest.raises(ConfigError, match=r"^max_time must be more than") if max_time == "1m" else nullcontext():
            budget.refuse_reached("s")
