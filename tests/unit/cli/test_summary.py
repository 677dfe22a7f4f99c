"""The table at the end of a run."""

from __future__ import annotations

import pytest

from cifar_ray.display.run import Console
from cifar_ray.training.rank_times import PHASES

METRICS = dict.fromkeys(("accuracy", "precision", "recall", "f1", "specificity", "loss", "images"), 0.5)


@pytest.mark.parametrize(
    ("attempt_s", "wall"),
    [
        (None, {"wall": "34.00 s"}),
        (12.5, {"wall": "34.00 s", "wall, this attempt": "12.50 s"}),
    ],
)
def test_a_resumed_run_tells_its_wall_time_by_attempt(
    attempt_s: float | None, wall: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {f"test/{name}": value for name, value in METRICS.items()}
    metrics |= {"peak_memory_mib": 1.0}
    times = {f"time/{phase}_s": 1.0 for phase in (*PHASES, "other", "epoch_mean")} | {"time/wall_s": 34.0}
    Console().summary(metrics, times, [], attempt_s)
    rows = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if line.startswith("wall")]
    assert {label: value.strip() for label, value in rows} == wall


@pytest.mark.parametrize(
    ("chosen", "rows"),
    [
        ({}, {"test accuracy": "50.00%"}),
        (
            {"chosen/test/accuracy": 0.75, "chosen/epoch": 3.0, "best/accuracy": 0.875, "val/loss": 0.5},
            {
                "test accuracy": "75.00%",
                "chosen": "epoch 3, by the best validation accuracy: 87.50%",
                "test accuracy, last epoch": "50.00%",
            },
        ),
        (
            {"chosen/test/accuracy": 0.75, "chosen/epoch": 3.0},
            {
                "test accuracy": "75.00%",
                "chosen": "epoch 3, by the best test accuracy",
                "test accuracy, last epoch": "50.00%",
            },
        ),
    ],
)
def test_the_chosen_checkpoint_is_the_result(
    chosen: dict[str, float], rows: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {f"test/{name}": value for name, value in METRICS.items()} | {"peak_memory_mib": 1.0} | chosen
    metrics |= {name.replace("test/", "chosen/test/"): 0.75 for name in metrics if chosen and name.startswith("test/")}
    times = {f"time/{phase}_s": 1.0 for phase in (*PHASES, "other", "epoch_mean", "wall")}
    Console().summary(metrics, times, [])
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    about = {name: value.strip() for name, value in shown.items() if "accuracy" in name or name == "chosen"}
    assert about == rows
