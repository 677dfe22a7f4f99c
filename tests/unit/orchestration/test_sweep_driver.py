"""A sweep's driver, the board, and the trials of Ray Tune's: who begins, what is kept of their ends, and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cifar_ray import data
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, InterruptedRunError, RunFailedError
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Line, Shown
from cifar_ray.orchestration.cluster.allocation import TooSmallError
from cifar_ray.orchestration.run.driver import Start
from cifar_ray.orchestration.run.limits import Spent
from cifar_ray.orchestration.run.restarts import Halt
from cifar_ray.orchestration.sweep import board, plan, session
from cifar_ray.orchestration.sweep import cell as cells
from cifar_ray.orchestration.sweep.board import INTERRUPTED, Begin, Link, Row, Word, _BoardActor
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.cell import CELL, CellTrainable, _Cell
from cifar_ray.orchestration.sweep.plan import PlannedCell
from cifar_ray.tracking.study import STOPPED_TAG
from cifar_ray.training.observer import EpochRecord, Outcome
from cifar_ray.training.observer import Row as Figures
from tests.support.cells import RUNNING, Driven, end
from tests.support.helpers import decided_of, resolved

Make = Callable[..., Driven]


@pytest.fixture
def driven(tmp_path: Path) -> Make:
    def make(**options: Any) -> Driven:
        values = {"name": "s", "train": {"dataset": "digits", "epochs": 3}, "grid": {"seed": [1, 2, 3]}, **options}
        return Driven(sweeps.from_mapping(values), tmp_path)

    return make


def recorded(state: str, note: str, row: Row = RUNNING, **changes: Any) -> Row:
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


def test_a_limit_skips_runs(driven: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_runs_without_room_stay_waiting(driven: Make, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_all_cells_are_trained_unless_the_sweep_is_interrupted(driven: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    Loop(monkeypatch)
    monkeypatch.setattr(session, "_FIGURES_EVERY_S", 0.0)
    sweep = driven()
    sweep.driver._train(lambda can_stop=False: False, sweep.driver._start(sweep.cells, None))
    assert sweep.ends == [(boards.FINISHED, "done")] * 3
    assert len(sweep.figures) > 6  # what is used is recorded now and then
    assert {"sweep/placed_s", "sweep/wall_s"} < sweep.figures[0].keys()
    Loop(monkeypatch)
    sweep, looks = driven(name="interrupted", grid={"seed": [4, 5, 6]}), list[bool]()

    def check(can_stop: bool = False) -> bool:
        looks.append(can_stop)
        if can_stop:
            return bool(sweep.driver._tried)
        raise InterruptedRunError(2)

    with pytest.raises(InterruptedRunError):
        sweep.driver._train(check, sweep.driver._start(sweep.cells, None))
    assert (looks.pop(), all(looks), sweep.driver._stop) == (False, True, INTERRUPTED)
    assert sweep.ends == [(boards.WAITING, "done")] + [(boards.WAITING, "")] * 2


def planned(**options: Any) -> tuple[Any, list[PlannedCell]]:
    train = {"dataset": "digits", "model": "simple_cnn", "epochs": 1, "global_batch_size": 64, "price": "3.6"}
    config = sweeps.from_mapping({"name": "s", "train": train, "grid": {"seed": [1, 2, 3]}, **options})
    cells = plan.planned(config)
    return Budget(config, cells), cells


def like(cell: PlannedCell, **changes: Any) -> PlannedCell:
    """A cell like this one, with some options of another value."""
    config = replace(cell.config, **changes)
    return PlannedCell(0, cell.cell, config, Decided.asked(config))


def test_a_cell_is_expected_to_take_what_the_fastest_like_it_has_taken_by_images() -> None:
    budget, (first, second, other) = planned()
    assert budget._left_s(other) == 0.0
    end(first, spent=Spent(10.0, 10.0))
    end(second, spent=Spent(14.0, 14.0))
    assert budget._left_s(other) == pytest.approx(10.0)
    assert budget._left_s(like(other, epochs=3)) == pytest.approx(30.0)
    assert budget._left_s(like(other, steps_per_epoch=11)) == pytest.approx(5.0)  # of 22
    for different in ({"model": "resnet"}, {"topology": "1x2"}, {"device": "cuda"}, {"val_share": 0.5}):
        assert budget._left_s(like(other, **different)) == 0.0


def test_a_run_is_left_out_that_would_not_end_within_the_time_of_the_sweep() -> None:
    budget, (first, wide, second) = planned(max_time="50s")
    assert budget.refusal(first, ()) == ""  # nothing is known of such runs
    end(first, spent=Spent(20.0, 20.0))
    end(wide, spent=Spent(40.0, 40.0))  # the low end of an estimate counts
    budget.placed_s = 29.0
    assert budget.refusal(second, ()) == ""
    budget.placed_s = 31.0
    assert budget.refusal(second, ()) == "expected to take 20 s, and 19 s of the sweep's --max-time 50s are left"
    second.row = replace(second.row, spent=Spent(5.0, 5.0))  # it goes on
    assert budget.refusal(second, ()) == ""
    budget.refuse_reached("s")
    budget.placed_s = 50.0
    assert (budget.reached, budget.refusal(second, ())) == ("max_time", "the sweep's --max-time 50s is reached")
    with pytest.raises(ConfigError, match=r"^max_time must be more than the 50 s of sweep s so far"):
        budget.refuse_reached("s")


def test_a_run_is_left_out_that_would_cost_more_than_is_left_with_those_that_run() -> None:
    budget, (first, second, third) = planned(max_cost=0.05)  # 50 s
    end(first, spent=Spent(20.0, 20.0))
    assert budget.usd == pytest.approx(0.02)
    assert budget.refusal(second, ()) == ""
    end(second, boards.RUNNING, spent=Spent(4.0, 4.0, nodes=1))
    assert budget.refusal(third, [second]).startswith("expected to cost 0.0200 USD, and 0.0100 USD of the sweep's ")
    end(second, spent=Spent(31.0, 31.0))
    assert budget.reached == "max_cost"


def test_the_time_of_a_sweep_counts_while_a_run_is_on_its_nodes() -> None:
    budget, cells = planned()
    for seconds, nodes in ((1.0, 0), (2.0, 1)):  # they wait first
        for cell in cells:
            end(cell, boards.RUNNING, spent=Spent(nodes=nodes))
        budget.passed(seconds)
    assert (budget.placed_s, budget.reached) == (2.0, "")


OUTCOME = Outcome(3, {"test/accuracy": 0.5}, {"time/training_s": 2.0, "images_per_s": 1e3}, 0.0, "", "", {}, [], ())
GOOD = "test accuracy 50.00%, training 2.0 s, 1,000 images/s"
EPOCH = EpochRecord(Figures("epoch", 2, 0, {"test/accuracy": 0.4, "epoch_s": 1.5}), [], {})


def test_the_board_gives_each_cell_its_word_and_the_driver_what_is_new() -> None:
    board, stop = _BoardActor(), Word(stop=INTERRUPTED)
    assert board.post(1, Row()) == Word()
    assert board.exchange({1: Word(stop="max_time")}, stop, False) == {1: Row()}
    assert not board.over()
    assert [board.post(number, RUNNING) for number in (1, 2)] == [Word(stop="max_time"), stop]
    assert board.exchange({}, stop, True) == {1: RUNNING, 2: RUNNING}
    board.post(3, RUNNING.ended(boards.FINISHED, "good"))
    for number in (2, 3, 4):
        board.died(number)
    assert not board.stopped(2)
    died = (boards.FAILED, "the process that drove it has died")
    ended = {number: (row.state, row.shown.note) for number, row in board.exchange({}, stop, True).items()}
    assert ended == {2: died, 3: (boards.FINISHED, "good"), 4: died}
    board.post(1, replace(RUNNING, is_recorded=True))
    assert (board.stopped(2), board.over()) == (True, True)


class Here:
    """The board without Ray; refuses the first post, as one whose process has just died."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actor, self.left = _BoardActor(), False
        self.handle = SimpleNamespace(post=SimpleNamespace(remote=lambda *given: given))
        monkeypatch.setattr(ray, "get", self.get)
        monkeypatch.setattr(board, "_LEAST_S", 0.01)
        monkeypatch.setattr(board, "_POST_S", 0.05)

    def get(self, asked: Any, timeout: float) -> Word:
        if not self.left:
            self.left = True
            raise ray.exceptions.ActorUnavailableError("away", None)
        return self.actor.post(*asked)

    def hears(self, *words: Word) -> dict[int, Row]:
        return self.actor.exchange(dict(enumerate(words, 1)), Word(), False)


def test_a_cell_posts_its_row_and_hears_its_word_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(monkeypatch)
    here.hears(Word(stop=boards.SKIPPED))
    link = Link(here.handle, 1)
    assert link.wait_for(lambda word: word.stop).stop == boards.SKIPPED
    link.change(epoch=3)
    link.end(boards.FINISHED, "good")  # and the board has it
    assert here.hears() == {1: Row(Shown(boards.FINISHED, "good"), epoch=3, is_recorded=True)}
    assert link.is_alive()
    here.hears(Word(is_released=True))
    link.join(10)
    assert not link.is_alive()


def test_a_trial_without_a_cell_ends_and_its_process_takes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(monkeypatch)
    here.hears(*[Word(stop=boards.SKIPPED, is_released=True)] * 2)
    trial = CellTrainable.__new__(CellTrainable)
    trial.setup({CELL: 1}, here.handle)
    assert trial.step() == {"epoch": 0, "done": True}
    assert trial.reset_config({CELL: 2})
    assert trial.step()["done"]
    trial.cleanup()
    assert all(future.done() for future in trial._ending)
    ends = {number: (row.state, row.is_recorded) for number, row in here.hears().items()}
    assert ends == dict.fromkeys((1, 2), (boards.SKIPPED, True))


class FakeLink:
    """A link whose rows stay here."""

    def __init__(self) -> None:
        self.row, self.word = Row(), Word()

    def change(self, **changes: Any) -> None:
        self.row = replace(self.row, **changes)

    def posted(self, is_so: Callable[[Row], object]) -> None:
        assert is_so(self.row)  # else it would wait for ever

    def end(self, state: str, note: str) -> None:
        self.row = replace(self.row.ended(state, note), is_recorded=True)


class Played:
    """The training of a run, as ``play`` has it: it is called with what the training calls."""

    def __init__(self, play: Callable[..., None], is_recorded: bool = True, has_session: bool = True) -> None:
        self.play, self.tags = play, dict[str, str]()
        record = SimpleNamespace(run_id="id", tags=self.tags.update)
        session = SimpleNamespace(spent=Spent(9.0, 9.0), record=record, is_recorded=is_recorded)
        self.session = session if has_session else None

    def run(self, check: Any, callbacks: Any, limit: Any, mailbox: Any, ended: Any, interrupted: Any) -> None:
        (cell,) = callbacks
        self.play(cell, check, limit, ended, lambda: interrupted(self.session))


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Row, list[dict[str, Any]]]]:
    """``train(training, scheduler, word, **options)`` trains a cell; its last row, and what Ray Tune hears."""

    def of(training: Played, scheduler: str = "none", word: Word | None = None, **options: Any) -> Any:
        config: Any = resolved({"dataset": "digits", "model": "simple_cnn", "epochs": 3}, **options)
        monkeypatch.setattr(cells, "Training", lambda *_: training)
        monkeypatch.setattr(ray, "get", lambda _: data.SPECS["digits"])
        link: Any = FakeLink()
        link.word = word or Word()
        earlier = Row(spent=Spent(5.0, 5.0), figures={"time/training_s": 1.0})
        start: Any = Start(config, decided_of(config), None, "")
        begin: Any = Begin(start, earlier, None, scheduler, {})
        cell, mailbox = _Cell(link), object()
        cell.train(begin, mailboxes := [mailbox])
        if link.row.state == "finished":  # one that has failed may have events left
            assert mailboxes == [mailbox]
        assert link.row.is_recorded
        return link.row, [cell.results.get() for _ in range(cell.results.qsize())]

    return of


Train = Callable[..., tuple[Row, list[dict[str, Any]]]]


def test_a_run_gives_its_figures_to_ray_tune_and_its_result_to_the_driver(train: Train) -> None:
    def play(cell: Any, check: Any, limit: Any, ended: Any, _: Any) -> None:
        assert (cell.link.row.state, cell.link.row.spent) == (boards.RUNNING, Spent(5.0, 5.0))
        cell.epoch(EPOCH)
        assert cell.link.row.figures["time/training_s"] == 2.5  # which counts if it does not finish
        cell.epoch(replace(EPOCH, row=replace(EPOCH.row, step=3)))
        ended(OUTCOME)

    row, results = train(Played(play), "asha")
    figures = {**OUTCOME.metrics, **OUTCOME.times}
    assert results[:2] == [{"epoch": 2, **EPOCH.row.metrics}, {"epoch": 3, **figures, "done": True}]
    assert (row.shown.note, row.state) == (GOOD, boards.FINISHED)
    assert (row.epoch, row.figures, row.spent) == (3, figures, Spent(9.0, 9.0))
    assert row.has_run
    assert next(result["epoch"] for result in train(Played(play))[1]) == 3, "no scheduler is to hear of epochs"


def raising(error: Exception) -> Callable[..., None]:
    def play(*_: Any) -> None:
        raise error

    return play


def limited(cell: Any, check: Any, limit: Any, ended: Any, _: Any) -> None:
    if by := limit(Spent(90.0, 90.0)):
        ended(Halt(by))


def stopped(cell: Any, check: Any, limit: Any, ended: Any, interrupted: Callable[[], str]) -> None:
    cell.epoch(EPOCH)
    cell.is_stopped = not cell.link.word.stop
    assert check(True)  # between two steps
    try:
        check()
    except InterruptedRunError:
        interrupted()
        raise


BEHIND = "stopped early by ASHA: it was behind the best runs at epoch 2"


UNRECORDED = Played(lambda cell, check, limit, ended, _: ended(OUTCOME), is_recorded=False)
PATIENT = Played(lambda cell, check, limit, ended, _: ended(replace(OUTCOME, stopped_by="patience")))
FULL = Played(raising(TooSmallError("", "full")), has_session=False)
SWEEPS = "stopped by the sweep's --max-cost"


@pytest.mark.parametrize(
    ("training", "given", "end", "changes"),
    [
        (Played(limited), {"max_time": "1m"}, (boards.STOPPED, "stopped by --max-time"), {"stopped_by": "max_time"}),
        (Played(limited), {"word": Word(stop="max_cost")}, (boards.STOPPED, SWEEPS), {"stopped_by": "sweep_max_cost"}),
        (Played(stopped), {"scheduler": "asha"}, (boards.STOPPED, BEHIND), {"epoch": 2}),
        (Played(stopped), {"scheduler": "asha", "word": Word(stop=INTERRUPTED)}, (boards.WAITING, ""), {"epoch": 2}),
        (FULL, {}, (boards.WAITING, "full"), {"is_lost": True}),
        (Played(raising(RunFailedError("it died"))), {}, (boards.FAILED, "it died"), {"has_run": True}),
        (UNRECORDED, {}, (boards.FAILED, "MLflow does not take its record"), {"spent": Spent(9.0, 9.0)}),
        (PATIENT, {}, (boards.FINISHED, f"{GOOD}, stopped by --patience after epoch 3"), {"stopped_by": ""}),
    ],
)
def test_how_a_run_ends(
    training: Played, given: dict[str, Any], end: tuple[str, str], changes: dict[str, Any], train: Train
) -> None:
    row, results = train(training, **given)
    assert (row.state, row.shown.note) == end
    assert {name: getattr(row, name) for name in changes} == changes
    assert results[-1]["done"]
    assert training.tags == ({STOPPED_TAG: "asha"} if end[1] == BEHIND else {})
