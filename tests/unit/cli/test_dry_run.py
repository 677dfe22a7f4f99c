"""``cifar-ray sweep --dry-run``: runs, skipped ones, and nothing that is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cifar_ray.training import hardware
from tests.support import mlflow_store
from tests.support.typed import Said

WORDS = "--dataset digits --model simple_cnn --augment none --epochs 3 --cpus-per-worker 1 --dry-run"


def whole(words: str, said: Said) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(f"sweep {words} --json")[0])
    return found


def test_cells_that_cannot_run_are_skipped_with_their_reason_or_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setattr(hardware, "allowed_cpus", lambda: 2)
    grid = f"{WORDS} --grid batch_size=16 topology=1x1,1x4000,1x64"
    sentence = said(f"sweep {grid}", 2)[1]
    assert sentence.startswith("--grid must have cells that can run here, or go with --skip-infeasible; bs16 1x4")
    one, split, placed = whole(f"{grid} --skip-infeasible", said)["rows"]
    assert (one["state"], split["state"], placed["state"]) == ("waiting", "skipped", "skipped")
    assert split["reason"].startswith("batch_size must leave at least one step per epoch")
    assert placed["reason"].startswith("topology 1x64 needs 1 node with 64 CPUs each, but the cluster has 1 node")
    assert not (home / ".cifar_ray").exists()


def test_runs_that_are_proposed_later_are_not_known(home: Path, said: Said) -> None:
    pytest.importorskip("optuna")
    found = whole(f"{WORDS} --search optuna --samples 3 --grid lr=loguniform:0.001:0.1", said)
    assert [row["name"] for row in found["rows"]] == ["sample 1", "sample 2", "sample 3"]
    assert "Optuna proposes the values as the sweep goes on." in found["notes"]


def test_a_store_that_is_there_stays_as_it_was(home: Path, said: Said) -> None:
    client = mlflow_store.new_store(home)
    before = [experiment.name for experiment in client.search_experiments()]
    said(f"sweep {WORDS} --name s --tracking-uri {client.tracking_uri} --grid lr=0.1,0.2")
    assert [experiment.name for experiment in client.search_experiments()] == before
    assert client.search_runs(["0"]) == []
    assert not (home / ".cifar_ray").exists()
