"""The table at the end of a run."""

from __future__ import annotations

import re

import pytest

from cifar_ray.display.run import Console
from cifar_ray.training.rank_times import PHASES

PHASE_TIMES = {f"time/{phase}_s": 1.0 for phase in (*PHASES, "other", "epoch_mean", "wall")}
NAMES = ("accuracy", "precision", "recall", "f1", "specificity", "loss", "images")
CHOSEN = {"chosen/test/accuracy": 0.75, "chosen/epoch": 3.0}


def rows(capsys: pytest.CaptureFixture[str], attempt_s: float | None = None, **changes: float) -> dict[str, str]:
    """The rows of the table about the result and about the time."""
    figures = {f"test/{name}": 0.5 for name in NAMES} | {"peak_memory_mib": 1.0}
    if changes:
        figures |= {f"chosen/test/{name}": 0.75 for name in NAMES} | changes
    Console().summary(figures, PHASE_TIMES, [], attempt_s)
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    return {name: value.strip() for name, value in shown.items() if re.match("wall|chosen|test accuracy", name)}


def test_the_chosen_checkpoint_is_the_result_and_an_attempt_has_a_time_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    last, wall = {"test accuracy": "50.00%"}, {"wall": "1.00 s"}
    assert rows(capsys) == last | wall
    assert rows(capsys, 12.5) == last | wall | {"wall, this attempt": "12.50 s"}
    chosen = wall | {"test accuracy": "75.00%", "test accuracy, last epoch": "50.00%"}
    by_test = chosen | {"chosen": "epoch 3, by the best test accuracy"}
    by_val = chosen | {"chosen": "epoch 3, by the best validation accuracy: 87.50%"}
    assert rows(capsys, **CHOSEN) == by_test
    assert rows(capsys, **CHOSEN, **{"best/accuracy": 0.875, "val/loss": 0.5}) == by_val
