"""A cell of a sweep in its process, and the board between it and the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cifar_ray import data
from cifar_ray.config.errors import InterruptedRunError, RunFailedError
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Shown
from cifar_ray.orchestration.cluster.allocation import TooSmallError
from cifar_ray.orchestration.run.driver import Start
from cifar_ray.orchestration.run.limits import Spent
from cifar_ray.orchestration.run.restarts import Halt
from cifar_ray.orchestration.sweep import board
from cifar_ray.orchestration.sweep import cell as cells
from cifar_ray.orchestration.sweep.board import INTERRUPTED, Begin, Link, Row, Word, _BoardActor
from cifar_ray.orchestration.sweep.cell import CELL, CellTrainable, _Cell
from cifar_ray.tracking.study import STOPPED_TAG
from cifar_ray.training.observer import EpochRecord, Outcome
from cifar_ray.training.observer import Row as Figures
from tests.support.cells import RUNNING
from tests.support.helpers import decided_of, resolved

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
