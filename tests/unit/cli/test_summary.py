"""The table at the end of a run."""

from __future__ import annotations

import pytest

from cifar_ray.config.phases import PHASES
from cifar_ray.display.run import Console

METRICS = dict.fromkeys(("accuracy", "precision", "recall", "f1", "specificity", "loss", "images"), 0.5)


@pytest.mark.parametrize(
    ("attempt_s", "wall"),
    [
        (None, {"wall": "34.00 s"}),
        (12.5, {"wall, all attempts": "34.00 s", "wall, this attempt": "12.50 s"}),
    ],
)
def test_a_resumed_run_tells_its_wall_time_by_attempt(
    attempt_s: float | None, wall: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {f"test/{name}": value for name, value in METRICS.items()}
    metrics |= {"best/accuracy": 0.5, "best/epoch": 1.0, "peak_memory_mib": 1.0}
    times = {f"time/{phase}_s": 1.0 for phase in (*PHASES, "other", "epoch_mean")} | {"time/wall_s": 34.0}
    Console().summary(metrics, times, [], attempt_s)
    rows = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if line.startswith("wall")]
    assert {label: value.strip() for label, value in rows} == wall
