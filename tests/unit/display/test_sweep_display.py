"""How the board of a sweep shows its runs, and what a run shows of itself there."""

from __future__ import annotations

import time

import pytest
from rich.console import Console

from cifar_ray.display.sweep import FINISHED, RUNNING, SKIPPED, STOPPED, Board, CellView, Line, Shown
from cifar_ray.tasks import USUAL


def table(board: Board, width: int = 200) -> str:
    screen = Console(width=width)
    with screen.capture() as captured:
        screen.print(board._table())
    return captured.get()


def test_a_run_shows_what_it_does_and_keeps_what_it_has_said() -> None:
    shown: list[Shown] = []
    view = CellView(shown.append, Shown(RUNNING))
    view.heading("of all runs")
    assert shown == []
    view.started("on this machine")
    view.line("a note")
    for seconds in (30.0, 45.0):
        view.no_room(seconds)
    assert (shown[-1].note, shown[-1].has_room) == ("waiting for room in the cluster, 45 s so far", False)
    view.training(USUAL, epochs=2, steps_per_epoch=10, step=5)
    assert (shown[-1].share, shown[-1].resumed, shown[-1].note, shown[-1].has_room) == (0.25, True, "training", True)
    view.progress(1, 12, 1500.0)
    assert (shown[-1].share, shown[-1].note) == (0.6, "epoch 2/2, 1,500 images/s")
    room = Line("waiting for room in the cluster", is_plain=True)
    assert shown[-1].lines == (Line("on this machine", of_all=True), Line("a note"), room)
    view.change(state=FINISHED, note="good")
    view.doing("recording the result")
    assert (shown[-1].state, shown[-1].note) == (FINISHED, "good")


def test_lines_are_shown_once_and_ends_with_their_count(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(["a", "b", "c"], time.time())
    of_all, own, plain = Line("on this machine", of_all=True), Line("mine"), Line("epoch 1", is_plain=True)
    for index in (0, 1):
        board.show(index, Shown(RUNNING, lines=(of_all,)))
        board.show(index, Shown(RUNNING, lines=(of_all, own)))
    board.is_live = True
    board.show(0, Shown(RUNNING, lines=(of_all, own, plain)))
    board.is_live = False
    board.show(1, Shown(STOPPED, "stopped by --max-time", lines=(of_all, own, plain)))
    board.show(2, Shown(SKIPPED, "no room"))
    assert capsys.readouterr().out.splitlines() == [
        "a: begins, run 1 of 3",
        "on this machine",
        "a: mine",
        "b: begins, run 2 of 3",
        "b: mine",
        "b: epoch 1",
        "b: stopped by --max-time (1 of 3 runs)",
        "c: skipped, no room",
    ]
    assert "1 of 2 runs" in table(board)


def test_while_a_run_waits_for_room_no_time_left_is_shown() -> None:
    board = Board(["one", "two", "three"], time.time() - 7200)
    board.start(1)
    board.show(0, Shown(RUNNING))
    board.rows[0].begun -= 25
    board.show(0, Shown(FINISHED, "done"))
    board.show(1, Shown(RUNNING))
    assert board.left_s() > 25
    assert " left, 2 h 00 min so far" in table(board)  # of all drivers
    board.show(1, Shown(RUNNING, "waiting for room in the cluster, 45 s so far", has_room=False))
    assert "waiting for room in the cluster, 45 s so far" in table(board)
    assert "left" not in table(board)


@pytest.mark.parametrize(("width", "ending"), [(120, "7,642 images/s"), (70, "…"), (56, "…")])
def test_the_board_cuts_a_note_that_has_no_room(width: int, ending: str) -> None:
    board = Board(["bs16 1x1 seed0"], time.time())
    board.rows[0].shown = Shown(FINISHED, "accuracy 88.33%, training 4.2 s, 7,642 images/s")
    assert table(board, width).splitlines()[0].rstrip().endswith(ending)
