"""How a sweep's driver gives its cells to the trials of Ray Tune's, keeps their ends, and holds to its limits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, InterruptedRunError, RunFailedError
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Line, Shown
from cifar_ray.orchestration.run.limits import Spent
from cifar_ray.orchestration.sweep import plan, session
from cifar_ray.orchestration.sweep.board import INTERRUPTED, Row, Word, _BoardActor
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.plan import PlannedCell
from tests.support.cells import RUNNING, Driven, end

Make = Callable[..., Driven]


@pytest.fixture
def driven(tmp_path: Path) -> Make:
    def make(**options: Any) -> Driven:
        values = {"name": "s", "train": {"dataset": "digits", "epochs": 3}, "grid": {"seed": [1, 2, 3]}, **options}
        return Driven(sweeps.from_mapping(values), tmp_path)

    return make


def recorded(state: str, note: str, row: Row = RUNNING, **changes: Any) -> Row:
    """The last row of a run, which MLflow has."""
    return replace(row.ended(state, note), is_recorded=True, **changes)


def test_a_cell_begins_once_and_is_released_while_another_waits(driven: Make) -> None:
    sweep = driven(grid={"seed": [1, 2]})
    first, second = sweep.cells
    first.row = earlier = replace(first.row, spent=Spent(7.0, 7.0))
    sweep.ask(first)
    begin = sweep.word(first).begin
    assert (begin.start.config, begin.row, begin.start.name) == (first.config, earlier, "1x1 seed1")
    assert first.folder is not None
    assert (sweep.home.below(first.slug).exists(), begin.start.folder) == (True, first.folder)
    sweep.ask(first)  # it has not heard yet
    assert (first.row, sweep.word(first).begin) == (earlier, begin)
    sweep.post(first, RUNNING)
    assert sweep.word(first) == Word(is_released=True), "the second is still to ask"
    sweep.ask(second)
    assert second.folder is None
    assert sweep.word(second).begin is not None
    assert (sweep.word(first).is_released, sweep.is_over) == (False, False)
    sweep.post(first, recorded(boards.FINISHED, "good"))
    sweep.post(second, RUNNING.ended(boards.FINISHED, "better"))
    assert (sweep.word(first).is_released, sweep.is_over) == (False, False), "Ray Tune would kill what records"
    sweep.post(second, recorded(boards.FINISHED, "better"))
    assert (sweep.word(first).is_released, sweep.is_over) == (True, True)
    assert sweep.ends == [(boards.FINISHED, "good"), (boards.FINISHED, "better")]
    sweep = driven(name="search", scheduler="asha", repeat=1, grid={"lr": [0.1, 0.2]})
    sweep.driver._turn = sweep.cells[:1]
    assert not sweep.is_over
    end(sweep.cells[0])
    assert sweep.is_over, "repeats of the best run do not keep a search going"


def test_what_runs_say_and_how_they_end_is_shown(driven: Make, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = driven(train={"dataset": "digits", "price": "3.6"}, grid={"seed": [1, 2]})
    first, second = sweep.cells
    shown = Shown(boards.RUNNING, lines=(Line("training on this machine", of_all=True), Line("a note")))
    for cell in sweep.cells:
        sweep.ask(cell)
    for cell in sweep.cells:
        sweep.post(cell, replace(RUNNING, shown=shown))
    good = Row(shown, Spent(10.0, 20.0), 3, {"test/accuracy": 0.5, "time/training_s": 2.0})
    sweep.post(second, Row(shown, Spent(5.0, 5.0), figures={"time/training_s": 1.5}).ended(boards.FAILED, "it died"))
    sweep.post(first, good.ended(boards.FINISHED, "test accuracy 50.00%"))
    assert capsys.readouterr().out.splitlines() == [
        "1x1 seed1: begins, run 1 of 2",
        "training on this machine",
        "1x1 seed1: a note",
        "1x1 seed2: begins, run 2 of 2",
        "1x1 seed2: a note",
        "1x1 seed2: failed, it died (1 of 2 runs)",
        "1x1 seed1: finished, test accuracy 50.00% (2 of 2 runs)",
    ]
    figures = sweep.figures[-1]
    assert (figures["sweep/training_s"], figures["cost/usd"]) == (3.5, pytest.approx(0.025))
    assert "cost/usd" not in driven(name="free").driver._figures()


def test_a_run_whose_process_has_died_has_failed_unless_it_had_ended(driven: Make) -> None:
    sweep = driven()
    for cell in sweep.cells[:2]:
        sweep.ask(cell)
    sweep.post(sweep.cells[1], RUNNING.ended(boards.FINISHED, "good"))
    for cell in (sweep.cells[0], sweep.cells[2]):  # the last before it could ask
        sweep.post(cell, recorded(boards.FAILED, "it died", Row()))
    assert sweep.ends == [(boards.FAILED, "it died"), (boards.FINISHED, "good"), (boards.FAILED, "it died")]


def test_a_limit_skips_the_runs_that_do_not_fit_the_last_first(
    driven: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = driven(max_time="50s")
    first, second, third = sweep.cells
    end(first, spent=Spent(30.0, 30.0))
    sweep.driver._budget.placed_s = 20.0
    tried: list[PlannedCell] = []
    monkeypatch.setattr(sweep.driver, "_try", tried.append)
    sweep.driver._hear({third.index: Row(), second.index: Row()})
    assert tried == [second, third]  # in the order of the cells
    sweep = driven(name="later", max_time="50s", grid={"seed": [1, 2]})
    end(sweep.cells[0], spent=Spent(30.0, 30.0))
    sweep.driver._budget.placed_s = 30.0
    sweep.ask(sweep.cells[1])
    state, reason = sweep.ends[1]
    assert (state, reason[:22]) == (boards.SKIPPED, "expected to take 30 s,")
    assert (sweep.word(sweep.cells[1]), sweep.driver._left) == (Word(stop=boards.SKIPPED, is_released=True), 1)
    assert f"1x1 seed2: skipped, {reason}" in capsys.readouterr().out
    described = sweep.cells[1].described(sweep.config)
    assert (described["state"], described["reason"], sweep.is_over) == ("SKIPPED", reason, True)


def test_runs_that_a_limit_has_stopped_or_the_sweep_are_left_for_later(driven: Make) -> None:
    sweep = driven()
    first, second, third = sweep.cells
    sweep.ask(first)
    sweep.driver._stop = "max_time"
    assert (sweep.word(first).begin is None, sweep.word(first).stop) == (False, "max_time")
    sweep.ask(second)
    assert (sweep.word(second).begin, sweep.word(second).stop) == (None, "max_time")
    sweep.post(second, recorded(boards.SKIPPED, "", Row()))  # as it has heard that
    assert (second.state, sweep.is_over) == (boards.WAITING, False)
    sweep.post(first, recorded(boards.STOPPED, "stopped by the sweep's --max-time", stopped_by="sweep_max_time"))
    assert (first.state, third.state, sweep.driver._left, sweep.is_over) == (boards.STOPPED, boards.WAITING, 3, True)


def test_runs_without_room_stay_waiting_and_a_ray_tune_that_fails_fails_them(
    driven: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = driven(grid={"seed": [1, 2]})
    for cell in sweep.cells:
        sweep.ask(cell)
        sweep.post(cell, recorded(boards.WAITING, "topology 2x1 needs 2 nodes", Row(is_lost=True)))
    told = "the cluster has lost nodes (topology 2x1 needs 2 nodes); runs that still fit go on\n"
    assert capsys.readouterr().out == told
    assert [cell.state for cell in sweep.cells] == [boards.WAITING] * 2
    assert (sweep.word(sweep.cells[0]).begin, sweep.is_over) == (None, True)
    with pytest.raises(RunFailedError, match=r"^the cluster has lost nodes, and 2 runs could not begin: topology 2x1"):
        sweep.driver._close(None)
    sweep = driven(name="other", grid={"seed": [1, 2]})
    for cell in sweep.cells:
        sweep.ask(cell)
    sweep.post(sweep.cells[0], recorded(boards.FINISHED, "good"))
    with pytest.raises(RunFailedError, match=r"^Ray Tune has failed: no disk$"):
        sweep.driver._close(OSError("no disk"))
    assert sweep.ends == [(boards.FINISHED, "good"), (boards.FAILED, "no disk")]


class Loop:
    """A board and a Ray Tune in this process, whose cells begin, end and are recorded at once, in one place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actor, self.cells, self.begun = _BoardActor(), list[int](), -1
        self.exchange = self.actor.exchange
        monkeypatch.setattr(session, "SweepBoard", lambda: self)
        monkeypatch.setattr(session.tuning, "start", self.start)
        monkeypatch.setattr(session, "wait", self.wait)
        monkeypatch.setattr("cifar_ray.orchestration.cluster.allocation.remove_abandoned", lambda: None)

    def start(self, actor: Any, cells: list[int], *_: Any) -> Loop:
        self.cells = list(cells)
        return self

    def exception(self) -> None:
        pass

    def done(self) -> bool:
        return not self.cells or self.actor.over()

    def wait(self, *_: Any) -> None:
        """One step of the first cell that has not ended."""
        number = self.cells[0]
        word = self.actor.post(number, self.row if self.begun == number else Row())
        if word.begin is not None:
            self.begun, state = number, boards.WAITING if word.stop else boards.FINISHED
            self.row = Row(Shown(state, "done"), is_recorded=True)
        elif word.stop or (self.begun == number and word.is_released):
            self.cells.pop(0)


def test_all_cells_are_trained_and_what_is_used_is_recorded_now_and_then(
    driven: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    Loop(monkeypatch)
    monkeypatch.setattr(session, "_FIGURES_EVERY_S", 0.0)
    sweep = driven()
    sweep.driver._train(lambda can_stop=False: False, sweep.driver._start(sweep.cells, None))
    assert sweep.ends == [(boards.FINISHED, "done")] * 3
    assert len(sweep.figures) > 6
    assert {"sweep/placed_s", "sweep/wall_s"} < sweep.figures[0].keys()


def test_an_interrupted_sweep_waits_for_its_runs_to_stop(driven: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    Loop(monkeypatch)
    sweep, looks = driven(), list[bool]()

    def check(can_stop: bool = False) -> bool:
        looks.append(can_stop)
        if can_stop:
            return bool(sweep.driver._tried)
        raise InterruptedRunError(2)

    with pytest.raises(InterruptedRunError):
        sweep.driver._train(check, sweep.driver._start(sweep.cells, None))
    assert looks.pop() is False
    assert all(looks)
    assert sweep.driver._stop == INTERRUPTED
    assert sweep.ends == [(boards.WAITING, "done")] + [(boards.WAITING, "")] * 2


def planned(**options: Any) -> tuple[Any, list[PlannedCell]]:
    train = {"dataset": "digits", "model": "simple_cnn", "epochs": 1, "global_batch_size": 64, "price": "3.6"}
    config = sweeps.from_mapping({"name": "s", "train": train, "grid": {"seed": [1, 2, 3]}, **options})
    cells = plan.planned(config)
    return Budget(config, cells), cells


def finish(cell: PlannedCell, seconds: float) -> None:
    end(cell, spent=Spent(seconds, seconds))


def like(cell: PlannedCell, **changes: Any) -> PlannedCell:
    """A cell like this one, with some options of another value."""
    config = replace(cell.config, **changes)
    return PlannedCell(0, cell.cell, config, Decided.asked(config))


def test_a_cell_is_expected_to_take_what_the_fastest_like_it_has_taken_by_images() -> None:
    budget, (first, second, other) = planned()
    assert budget._left_s(other) == 0.0
    finish(first, 10.0)
    finish(second, 14.0)
    assert budget._left_s(other) == pytest.approx(10.0)
    assert budget._left_s(like(other, epochs=3)) == pytest.approx(30.0)
    assert budget._left_s(like(other, steps_per_epoch=11)) == pytest.approx(5.0)  # of 22
    for different in ({"model": "resnet"}, {"topology": "1x2"}, {"device": "cuda"}, {"val_share": 0.5}):
        assert budget._left_s(like(other, **different)) == 0.0


def test_a_run_is_left_out_that_would_not_end_within_the_time_of_the_sweep() -> None:
    budget, (first, wide, second) = planned(max_time="50s")
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
    budget, (first, second, third) = planned(max_cost=0.05)  # 50 s
    finish(first, 20.0)
    assert budget.usd == pytest.approx(0.02)
    assert budget.refusal(second, ()) == ""
    end(second, boards.RUNNING, spent=Spent(4.0, 4.0, nodes=1))
    assert budget.refusal(third, [second]).startswith("expected to cost 0.0200 USD, and 0.0100 USD of the sweep's ")
    finish(second, 31.0)
    assert budget.reached == "max_cost"


def test_the_time_of_a_sweep_counts_while_a_run_is_on_its_nodes() -> None:
    budget, cells = planned()
    for seconds, nodes in ((1.0, 0), (2.0, 1)):  # they wait first
        for cell in cells:
            end(cell, boards.RUNNING, spent=Spent(nodes=nodes))
        budget.passed(seconds)
    assert (budget.placed_s, budget.reached) == (2.0, "")


def test_a_sweep_that_has_reached_its_limits_goes_on_with_larger_ones_only() -> None:
    for max_time in ("1m", "2m"):
        budget, _ = planned(max_time=max_time)
        budget.placed_s = 90.0
        with pytest.raises(ConfigError, match=r"^max_time must be more than") if max_time == "1m" else nullcontext():
            budget.refuse_reached("s")
