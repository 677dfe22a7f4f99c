"""A cell of a sweep in its process, and the board between it and the driver."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cifar_ray import data
from cifar_ray.config.errors import InterruptedRunError, RunFailedError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Shown
from cifar_ray.orchestration.cluster.allocation import TooSmallError
from cifar_ray.orchestration.run.limits import Spent
from cifar_ray.orchestration.run.restarts import Halt
from cifar_ray.orchestration.sweep import cell as cells
from cifar_ray.orchestration.sweep.board import INTERRUPTED, BoardHandle, CellSpec, Link, Row, Word, _BoardActor
from cifar_ray.orchestration.sweep.cell import CellTrainable, _Cell
from cifar_ray.tracking.study import STOPPED_TAG
from cifar_ray.training.observer import EpochRecord, Outcome
from cifar_ray.training.observer import Row as Figures
from tests.support.cells import RUNNING
from tests.support.helpers import decided_of, resolved

OUTCOME = Outcome(3, {"test/accuracy": 0.5}, {"time/training_s": 2.0, "images_per_s": 1e3}, 0.0, "", "", {}, [], ())
EPOCH = EpochRecord(Figures("epoch", 2, 0, {"test/accuracy": 0.4, "epoch_s": 1.5}), [], {})


def test_the_board_gives_each_cell_its_word_and_the_driver_what_is_new() -> None:
    board, stop = _BoardActor(), Word(stop=INTERRUPTED)
    assert board.post("a", {"cell": 1}, Row()) == Word()
    assert board.exchange({"a": Word(skip=True)}, stop, False) == {"a": ({"cell": 1}, Row())}
    assert not board.over()
    assert [board.post(key, {}, RUNNING) for key in "ab"] == [Word(skip=True), stop]
    assert board.exchange({}, stop, True) == {"a": ({}, RUNNING), "b": ({}, RUNNING)}
    board.post("c", {}, RUNNING.ended(boards.FINISHED, "good"))
    for key in "bcd":
        board.died(key, {"cell": 2})
    assert not board.stopped("b")
    died = "the process that drove it has died"
    ended = {key: (row.state, row.shown.note) for key, (_, row) in board.exchange({}, stop, True).items()}
    assert ended == {"b": (boards.FAILED, died), "c": (boards.FINISHED, "good"), "d": (boards.FAILED, died)}
    board.post("a", {}, replace(RUNNING, is_recorded=True))
    assert (board.stopped("b"), board.over()) == (True, True)


class Here:
    """The board without Ray; refuses the first post, as one whose process has just died."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actor, self.left = _BoardActor(), False
        self.handle = BoardHandle(SimpleNamespace(post=SimpleNamespace(remote=lambda *given: given)))
        monkeypatch.setattr(ray, "get", self.get)

    def get(self, asked: Any, timeout: float) -> Word:
        if not self.left:
            self.left = True
            raise ray.exceptions.ActorUnavailableError("away", None)
        return self.actor.post(*asked)

    def say(self, **words: Word) -> None:
        self.actor.exchange(words, Word(), False)


def test_a_cell_posts_its_row_and_hears_its_word_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(monkeypatch)
    here.say(a=Word(skip=True))
    link = Link(here.handle, "a", {"cell": "one"})
    assert link.wait_for(lambda word: word.skip).skip
    link.change(epoch=3)
    link.end(boards.FINISHED, "good")  # and the board has it
    ((asked, row),) = here.actor.exchange({}, Word(), False).values()
    assert (asked, row) == ({"cell": "one"}, Row(Shown(boards.FINISHED, "good"), epoch=3, is_recorded=True))
    assert link.is_alive()
    here.say(a=Word(is_released=True))
    link.join(10)
    assert not link.is_alive()


def test_a_trial_without_a_cell_ends_with_what_is_known_and_its_process_takes_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Here(monkeypatch)
    here.say(a=Word(skip=True, figures={"val/loss": 0.5}, is_released=True))
    monkeypatch.setattr(CellTrainable, "trial_id", "a")
    trial = CellTrainable.__new__(CellTrainable)
    trial.setup({"cell": "one"}, {}, here.handle)
    assert trial.step() == {"epoch": 0, "val/loss": 0.5, "done": True}
    assert trial.reset_config({"cell": "two"})
    assert trial.step()["done"]
    trial.cleanup()
    assert all(future.done() for future in trial._ending)
    ((asked, row),) = here.actor.exchange({}, Word(), False).values()
    assert (asked, row.state, row.is_recorded) == ({"cell": "two"}, boards.SKIPPED, True)


class FakeLink:
    """A link whose rows stay here."""

    def __init__(self) -> None:
        self.row, self.word = Row(), Word()

    def change(self, **changes: Any) -> None:
        self.row = replace(self.row, **changes)

    def end(self, state: str, note: str) -> None:
        self.row = replace(self.row.ended(state, note), is_recorded=True)


class Played:
    """The training of a run, as ``play`` has it: it is called with what the training calls."""

    def __init__(self, play: Callable[..., None], is_recorded: bool = True, has_session: bool = True) -> None:
        self.play, self.tags = play, dict[str, str]()
        record = SimpleNamespace(run_id="id", tags=self.tags.update)
        self.session: Any = SimpleNamespace(spent=Spent(9.0, 9.0), record=record, is_recorded=is_recorded)
        self.session = self.session if has_session else None

    def run(self, check: Any, callbacks: Any, limit: Any, mailbox: Any, ended: Any, interrupted: Any) -> None:
        (cell,) = callbacks
        self.play(cell, check, limit, ended, lambda: interrupted(self.session))


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Row, list[dict[str, Any]]]]:
    """``train(training, scheduler, word, **options)`` trains a cell; its last row, and what Ray Tune hears."""

    def of(training: Played, scheduler: str = "none", word: Word | None = None, **options: Any) -> Any:
        config: Any = resolved({"dataset": "digits", "model": "simple_cnn", "epochs": 3}, **options)
        assert isinstance(config, ResolvedConfig)
        decided = decided_of(config)
        monkeypatch.setattr(cells, "Training", lambda start, view: training)
        monkeypatch.setattr(ray, "get", lambda _: data.SPECS["digits"])
        results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        link: Any = FakeLink()
        link.word = word or Word()
        earlier = Row(spent=Spent(5.0, 5.0), times={"time/training_s": 1.0})
        spec: Any = (config, decided, None, earlier, "one", "", {}, "1", scheduler, {})
        references: Any = {cells.dataset_key(config, decided.facts.digest): None}
        _Cell(link, results).train(CellSpec(*spec), references, None)  # type: ignore[arg-type]
        assert link.row.is_recorded
        return link.row, [results.get() for _ in range(results.qsize())]

    return of


Train = Callable[..., tuple[Row, list[dict[str, Any]]]]


def test_a_run_gives_its_figures_to_ray_tune_and_its_result_to_the_driver(train: Train) -> None:
    def play(cell: Any, check: Any, limit: Any, ended: Any, _: Any) -> None:
        assert (cell.link.row.state, cell.link.row.spent) == (boards.RUNNING, Spent(5.0, 5.0))
        cell.epoch(EPOCH)
        assert cell.link.row.times == {"time/training_s": 2.5}  # which counts if it does not finish
        cell.epoch(replace(EPOCH, row=replace(EPOCH.row, step=3)))
        ended(OUTCOME)

    row, results = train(Played(play), "asha")
    figures = {**OUTCOME.metrics, **OUTCOME.times}
    assert results[:2] == [{"epoch": 2, **EPOCH.row.metrics}, {"epoch": 3, **figures, "done": True}]
    assert (row.shown.note, row.state) == ("test accuracy 50.00%, training 2.0 s, 1,000 images/s", boards.FINISHED)
    assert (row.epoch, row.figures, row.times, row.spent) == (3, figures, OUTCOME.times, Spent(9.0, 9.0))
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


@pytest.mark.parametrize(
    ("training", "given", "state", "note", "changes"),
    [
        (Played(limited), {"max_time": "1m"}, boards.STOPPED, "stopped by --max-time", {"stopped_by": "max_time"}),
        (
            Played(limited),
            {"word": Word(stop="max_cost")},
            boards.STOPPED,
            "stopped by the sweep's --max-cost",
            {"stopped_by": "sweep_max_cost"},
        ),
        (Played(stopped), {"scheduler": "asha"}, boards.STOPPED, BEHIND, {"epoch": 2}),
        (Played(stopped), {"scheduler": "asha", "word": Word(stop=INTERRUPTED)}, boards.WAITING, "", {"epoch": 2}),
        (
            Played(raising(TooSmallError("", "no room")), has_session=False),
            {},
            boards.WAITING,
            "no room",
            {"is_lost": True},
        ),
        (Played(raising(RunFailedError("rank 0: it died"))), {}, boards.FAILED, "rank 0: it died", {"has_run": True}),
        (Played(raising(KeyError("x")), has_session=False), {}, boards.FAILED, "KeyError: 'x'", {"has_run": False}),
        (
            Played(lambda cell, check, limit, ended, _: ended(OUTCOME), is_recorded=False),
            {},
            boards.FAILED,
            "MLflow does not take its record",
            {"spent": Spent(9.0, 9.0)},
        ),
    ],
)
def test_how_a_run_ends(
    training: Played, given: dict[str, Any], state: str, note: str, changes: dict[str, Any], train: Train
) -> None:
    row, results = train(training, **given)
    assert (row.state, row.shown.note) == (state, note)
    assert {name: getattr(row, name) for name in changes} == changes
    assert results[-1]["done"]
    assert training.tags == ({STOPPED_TAG: "asha"} if note == BEHIND else {})


def test_a_run_that_its_patience_has_ended_has_its_result(train: Train) -> None:
    row, _ = train(Played(lambda cell, check, limit, ended, _: ended(replace(OUTCOME, stopped_by="patience"))))
    assert (row.state, row.stopped_by) == (boards.FINISHED, "")
    assert row.shown.note.endswith("1,000 images/s, stopped by --patience after epoch 3")
