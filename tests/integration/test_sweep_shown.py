"""``cifar-ray sweep --dry-run``, as a person types it: before a sweep, and in its middle."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.person import Person

PAPER_GRID = Path(__file__).parents[2] / "examples" / "paper_grid.yaml"


@pytest.mark.slow
def test_the_paper_grid_is_shown_and_nothing_is_written(person: Person) -> None:
    *rows, last = person.succeeds("sweep", str(PAPER_GRID), "--dry-run").stdout.splitlines()[1:]
    assert len(rows) == 18
    assert rows[0].split() == ["simple_cnn", "bs16", "1x1", "seed0", "waiting"]
    assert re.fullmatch(r"sweep paper_grid: 18 runs, \d+ at once", last)
    assert list(person.home.iterdir()) == [], "neither a store nor a folder of runs"
    assert person.leftovers() == []


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.cluster
def test_what_is_left_of_a_sweep_is_shown_and_nothing_is_written(person: Person) -> None:
    words = ["--dataset", "digits", "--model", "simple_cnn", "--precision", "fp32", "--log-models", "none"]
    limits = ["--max-concurrent", "1", "--price", "3600", "--lr", "1e-9", "--patience", "1", "--max-time", "30m"]
    person.succeeds("sweep", "--name", "grid", *words, *limits, "--grid", "epochs=2,100000", "batch_size=32")
    own = person.run_named("grid")
    cells = (person.home / ".cifar_ray/runs/grid/cells.json").read_bytes()
    found = json.loads(
        person.succeeds("sweep", "--resume", "grid", "--max-time", "99999h", "--dry-run", "--json").stdout
    )
    ended, left = found["rows"]
    assert (ended["state"], left["state"]) == ("finished", "waiting")
    assert person.run_named("grid").data.metrics == own.data.metrics
    assert (person.home / ".cifar_ray/runs/grid/cells.json").read_bytes() == cells
