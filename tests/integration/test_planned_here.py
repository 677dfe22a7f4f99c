"""``cifar-ray plan`` trains what it plans from."""

from __future__ import annotations

import json

import pytest

from tests.support.person import Person

PLAN = ["--nodes", "1,2,4", "--link", "10gbit", "--price", "3.6", "--json"]
TRAINING = ["--global-batch-size", "64", "--epochs", "2", "--strategy", "ddp"]


@pytest.mark.slow
def test_a_plan_trains_short_runs(resident: Person) -> None:
    words = ["--model", "simple_cnn", "--dataset", "digits", "--device", "cpu", "--augment", "none"]
    done = resident.succeeds("plan", *words, *TRAINING, *PLAN, "--name", "sizes")
    planned = json.loads(done.stdout)
    rows = planned["rows"]
    assert [row["topology"] for row in rows] == ["1x1", "2x1", "4x1"]
    assert all(0 < row["step_s"]["low"] <= row["step_s"]["mid"] <= row["step_s"]["high"] for row in rows)
    taken = resident.runs("plan", *words, *TRAINING, *PLAN, "--name", "sizes")
    assert taken.returncode == 2
    assert "error: --name must be new, and 'sizes' is in " in taken.stderr
