"""``cifar-ray sweep --dry-run``: runs, skipped ones, time and cost, and nothing that is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cifar_ray.cli import main
from cifar_ray.cli.sweep import _summary
from cifar_ray.orchestration.sweep.dry_run import DryRow, DryRun
from cifar_ray.reporting import exported
from cifar_ray.tracking.study import HARDWARE_TAG, Trial
from cifar_ray.training import hardware
from tests.support import mlflow_store
from tests.support.studies import study, trial

WORDS = "--dataset digits --model simple_cnn --augment none --epochs 3 --cpus-per-worker 1 --dry-run"


def run(batch: int) -> Trial:
    """One worker that takes 1 ms for an image and 2 ms for a step."""
    params = {"model": "simple_cnn", "dataset": "digits", "augment": "none", "cpus_per_worker": "1"}
    made = trial(batch=batch, params={**params, "precision": "fp32", "optimizer": "sgd"})
    parts = {"data": 0.0, "forward": batch / 3000, "backward": batch / 1500, "communication": 0.0, "optimizer": 0.002}
    times = {f"time/step_{part}_s": seconds for part, seconds in parts.items()}
    times |= {f"time/iteration_{name}_s": batch / 1000 + 0.002 for name in ("mean", "median", "p95")}
    return replace(made, metrics={**made.metrics, **times})


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """The file of runs with 64 and with 16 images."""
    path = tmp_path / "runs.json"
    other = run(16)  # of another model, on another machine: it tells nothing here
    other = replace(other, params={**other.params, "model": "vit"}, tags={**other.tags, HARDWARE_TAG: "another"})
    path.write_text(exported.text(study(run(64), run(16), other)))
    return str(path)


def shown(words: str, capsys: pytest.CaptureFixture[str], status: int = 0) -> tuple[str, str]:
    assert main.main(["sweep", *words.split()]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def whole(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(f"{words} --json", capsys)[0])
    return found


def test_time_and_cost_are_ranges_where_runs_tell_them(
    runs: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = f"{WORDS} --name s --plan-from {runs} --price 3.6 --grid batch_size=32,1024"
    found = whole(grid, capsys)
    near, far = found["rows"]
    # 3 epochs of 44 steps, and 10 s for each of evaluation, checkpoints, start-up and data.
    assert near["seconds"]["mid"] == pytest.approx(3 * 44 * 0.034 + 40)
    assert near["usd"]["mid"] == pytest.approx(near["seconds"]["mid"] / 1000)
    assert near["seconds"]["low"] <= near["seconds"]["mid"] <= near["seconds"]["high"]
    assert (far["seconds"], far["reason"]) == (
        None,
        "time unknown: needs a run with about 1024 images per worker and micro-batch; those given have 16 or 64",
    )
    assert found["seconds"] == near["seconds"]
    assert not (home / ".cifar_ray").exists()
    *_, note, last = shown(grid, capsys)[0].splitlines()
    assert note.startswith("Times are those of runs on AMD EPYC 9754, from when a run gets its CPUs; the start of Ray")
    assert last.startswith("sweep s: 2 runs, ")
    told = " at once; about 44 s on their nodes, one after the other, 0.0445 USD for the 1 run whose time is known"
    assert last.endswith(f"{told}; starting Ray and waiting come on top (unknown)")


def test_cells_that_cannot_run_are_skipped_with_their_reason_or_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hardware, "allowed_cpus", lambda: 2)
    grid = f"{WORDS} --grid batch_size=16 topology=1x1,1x4000,1x64"
    sentence = shown(grid, capsys, status=2)[1]
    assert sentence.startswith(
        "error: --grid must have cells that can run here, or go with --skip-infeasible; bs16 1x4"
    )
    one, split, placed = whole(f"{grid} --skip-infeasible", capsys)["rows"]
    assert (one["state"], split["state"], placed["state"]) == ("waiting", "skipped", "skipped")
    assert split["reason"].startswith("batch_size must leave at least one step per epoch")
    assert placed["reason"].startswith("topology 1x64 needs 1 node with 64 CPUs each, but the cluster has 1 node")
    assert not (home / ".cifar_ray").exists()


def test_a_sweep_with_nothing_left_says_no_time() -> None:
    done = DryRow("bs16", "1x1", "finished")
    assert _summary(DryRun("s", (done, done), None, None, None, ())) == "0 runs, 2 finished"


def test_runs_that_are_proposed_later_are_not_known(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    found = whole(f"{WORDS} --search optuna --samples 3 --grid lr=loguniform:0.001:0.1", capsys)
    assert [row["name"] for row in found["rows"]] == ["sample 1", "sample 2", "sample 3"]
    assert {row["reason"] for row in found["rows"]} == {"time unknown: Optuna proposes its values as the sweep goes on"}


def test_a_store_that_is_there_stays_as_it_was(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = mlflow_store.new_store(home)
    before = [experiment.name for experiment in client.search_experiments()]
    out, _ = shown(f"{WORDS} --name s --tracking-uri {client.tracking_uri} --grid lr=0.1,0.2", capsys)
    assert "time unknown: no finished run tells it" in out
    assert [experiment.name for experiment in client.search_experiments()] == before
    assert client.search_runs(["0"]) == []
    assert not (home / ".cifar_ray").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--grid lr=0.1 --json", "--json is for --dry-run, which shows the sweep and trains nothing"),
        ("--grid lr=0.1 --plan-from a", "--plan-from is for --dry-run, which shows the sweep and trains nothing"),
        ("--grid lr=0.1 --dry-run --plan-from nosuch.json", "cannot read "),
        ("--grid lr=0.1 --dry-run --plan-from nosuch", "there is no sweep or run 'nosuch' in "),
        ("--grid lr=0.1 --dry-run --price nosuch", "--price must be USD per hour, "),
        ("--resume nosuch --dry-run", "there is no sweep 'nosuch' in "),
        (
            f"{WORDS} --grid lr=0.1 --model tests.support.networks:build --model-options.kind nosuch",
            "--grid must have a cell that can run here; 1x1 seed0: model must build a model, and "
            "tests.support.networks:build fails: KeyError: 'nosuch' (networks.py, line ",
        ),
        ("--dry-run", "--grid must name at least one field with its values, such as batch_size=16,64"),
    ],
)
def test_mistakes_are_told(words: str, sentence: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(words, capsys, status=2)
    assert out == ""
    assert err.startswith(f"error: {sentence}")


def test_a_name_that_is_taken_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / ".cifar_ray" / "runs" / "s"
    folder.mkdir(parents=True)
    (folder / "sweep.yaml").write_text("name: s\n")
    _, err = shown(f"{WORDS} --name s --grid lr=0.1,0.2", capsys, status=2)
    assert err == (
        f"error: --name must be new, and 's' is in {folder.parent}; `cifar-ray sweep --resume s` continues it\n"
    )
    assert [path.name for path in folder.iterdir()] == ["sweep.yaml"]
