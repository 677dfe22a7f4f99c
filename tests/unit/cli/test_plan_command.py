"""``cifar-ray plan``, and ``sweep --dry-run``: what a training would take, and nothing that is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cifar_ray.config.errors import CommandFailedError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.orchestration.cluster import servers
from cifar_ray.orchestration.run import machine
from cifar_ray.orchestration.sweep import driver
from cifar_ray.tracking import reading
from cifar_ray.tracking.study import Run
from cifar_ray.training import hardware
from tests.support import mlflow_store
from tests.support.studies import study, trial
from tests.support.typed import Said

TRAINING = "--dataset digits --model simple_cnn --global-batch-size 64 --device cpu --cpus-per-worker 1 --epochs 5"


def run(batch: int) -> Run:
    """One worker that takes 1 ms for an image and 2 ms for a step."""
    tags = {"cifar_ray.command": "cifar-ray train --cpus-per-worker 1", "cifar_ray.hardware": "a processor"}
    made = trial(batch=batch, params={"model": "simple_cnn", "dataset": "digits", "precision": "fp32"}, tags=tags)
    parts = {"data": 0.0, "forward": batch / 3000, "backward": batch / 1500, "communication": 0.0, "optimizer": 0.002}
    times = {f"time/step_{part}_s": seconds for part, seconds in parts.items()}
    iteration = dict.fromkeys(("mean", "median", "p95"), batch / 1000 + 0.002)
    times |= {f"time/iteration_{name}_s": seconds for name, seconds in iteration.items()}
    return replace(made, metrics={**made.metrics, **times})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with 64 and with 16 images take the place of those that are trained."""
    result = SimpleNamespace(states={"a": "finished"}, tracking_uri="sqlite:///none.db")
    monkeypatch.setattr(driver, "sweep", lambda *_, **__: result)
    monkeypatch.setattr(reading, "sweeps_or_runs", lambda *_: [study(run(64), run(16))])


def whole(words: str, said: Said) -> Any:
    return json.loads(said(f"{words} --json")[0])


@pytest.mark.usefixtures("runs")
def test_the_plan_says_the_best_first_and_what_it_rests_on(said: Said) -> None:
    out, _ = said(f"plan {TRAINING} --nodes 1,2,4,3 --link 10gbit --price 3.6")
    lines = out.splitlines()[1:]
    assert [line.split()[:2] for line in lines[:2]] == [["Fastest:", "4x1,"], ["Cheapest:", "1x1,"]]
    assert [line.split()[0] for line in lines if "x1 " in line[:4]] == ["1x1", "2x1", "4x1"]
    parts = ("3x1: not planned, the global batch", "a processor", "accuracy is not predicted", "give --host")
    assert [part for part in parts if part not in out] == []


@pytest.mark.usefixtures("runs")
def test_the_plan_as_json_is_of_the_training_that_is_asked_for(said: Said) -> None:
    alone, two = whole(f"plan {TRAINING} --nodes 1 2 --link 10gbit", said)["rows"]
    assert alone["step_s"]["mid"] == pytest.approx(0.066)
    assert two["step_s"]["mid"] == pytest.approx(0.034, rel=0.05)
    # 1,437 of the digits are for training: 22 steps of 64 in each of 5 epochs; 10 s of start-up and 10 s of data.
    assert alone["parts"]["computing"] + alone["parts"]["start-up"] == pytest.approx(22 * 5 * 0.066 + 20)
    quick = whole(f"plan {TRAINING} --nodes 1 --speed-factor 2 --price 0.8", said)
    assert quick["rows"][0]["step_s"]["mid"] == pytest.approx(0.033)
    assert "taken as 2 times as fast (--speed-factor)" in quick["notes"][0]


@pytest.mark.usefixtures("runs")
def test_the_options_of_the_strategy_count(said: Said) -> None:
    # A message takes far longer than the backward pass, whose course is measured here and may hide shorter ones.
    for often, rarely in [
        ("ddp --bucket-cap-mb 0.01", "ddp"),
        ("local_sgd --strategy-options.sync-every 1", "local_sgd --strategy-options.sync-every 100"),
    ]:
        asked = [f"--nodes 2 --link 1gbit:100ms --strategy {words}" for words in (often, rarely)]
        steps = [whole(f"plan {TRAINING} {words}", said)["rows"][0]["step_s"]["mid"] for words in asked]
        assert steps[0] > steps[1]


def test_a_cluster_tells_the_device_of_all_runs(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    devices: list[str] = []

    def train(config: SweepConfig, *_: object, **__: object) -> None:
        devices.append(config.train["device"])
        raise CommandFailedError("not here")

    monkeypatch.setattr(servers, "reach_chosen", lambda address: None)
    monkeypatch.setattr(machine, "ask", lambda config: ("NVIDIA L4", "cuda"))
    monkeypatch.setattr(driver, "sweep", train)
    words = "--dataset digits --model simple_cnn --address 127.0.0.1:9 --global-batch-size 64 --nodes 1 --name mine"
    assert said(f"plan {words}", 1)[1] == "error: not here\n"
    assert devices == ["cuda"]


WORDS = "--dataset digits --model simple_cnn --augment none --epochs 3 --cpus-per-worker 1 --dry-run"


def test_cells_that_cannot_run_are_skipped_or_refused(home: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.setattr(hardware, "allowed_cpus", lambda: 2)
    grid = f"{WORDS} --grid batch_size=16 topology=1x1,1x4000,1x64"
    sentence = said(f"sweep {grid}", 2)[1]
    assert sentence.startswith("--grid must have cells that can run here, or go with --skip-infeasible; bs16 1x4")
    one, split, placed = whole(f"sweep {grid} --skip-infeasible", said)["rows"]
    assert (one["state"], split["state"], placed["state"]) == ("waiting", "skipped", "skipped")
    assert split["reason"].startswith("batch_size must leave at least one step per epoch")
    assert placed["reason"].startswith("topology 1x64 needs 1 node with 64 CPUs each, but the cluster has 1 node")
    assert not (home / ".cifar_ray").exists()


def test_runs_that_are_proposed_later_are_not_known(home: Path, said: Said) -> None:
    pytest.importorskip("optuna")
    found = whole(f"sweep {WORDS} --search optuna --samples 3 --grid lr=loguniform:0.001:0.1", said)
    assert [row["name"] for row in found["rows"]] == ["sample 1", "sample 2", "sample 3"]
    assert "Optuna proposes the values as the sweep goes on." in found["notes"]


def test_a_store_that_is_there_stays_as_it_was(home: Path, said: Said) -> None:
    client = mlflow_store.new_store(home)
    before = [experiment.name for experiment in client.search_experiments()]
    said(f"sweep {WORDS} --name s --tracking-uri {client.tracking_uri} --grid lr=0.1,0.2")
    assert [experiment.name for experiment in client.search_experiments()] == before
    assert client.search_runs(["0"]) == []
    assert not (home / ".cifar_ray").exists()
