"""What MLflow has of a run in the end."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow import MlflowClient

from cifar_ray.config import runfile
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.tracking import artifacts, origin, run, store
from cifar_ray.tracking.run import RunRecord
from cifar_ray.training import recipe
from cifar_ray.training.observer import Outcome, Row, SavedCheckpoint, Started
from tests.support.mlflow_store import files, only_run, points, steps, text, value

CONFIG = recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", seed=7, topology="1x2", batch_size=16))
BEGUN = 1_000_000.25
CONFUSION = [[row + column for column in range(10)] for row in range(10)]
RECALL = [share / 16 for share in range(10)]


@pytest.fixture(autouse=True)
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process that would end the run if this one were killed."""
    monkeypatch.setattr(run, "Guard", lambda uri, run_id, session: SimpleNamespace(conclude=lambda written, _: written))


def created(client: MlflowClient, digits: Dataset, **tags: str) -> RunRecord:
    return RunRecord.create(client, CONFIG, "mine", "key", "/there/mine", digits, BEGUN, tags)


def saved(step: int, epoch: int, best: bool = False) -> SavedCheckpoint:
    return SavedCheckpoint(Path(f"/disk/checkpoints/step-{step:08d}"), step, epoch, f"hash{step}", None, best)


def rows(kind: str, *steps: int) -> list[Row]:
    return [Row(kind, step, 1000 * step, {f"{kind}/figure": step + 0.5}) for step in steps]


def outcome(*history: Row) -> Outcome:
    return Outcome(
        epochs=2,
        metrics={"epoch/figure": 2.5, "best/accuracy": 0.75},
        times={"time/wall_s": 40.5, "time/training_s": 30.0},
        begun=BEGUN,
        weights_sha256="abc",
        checkpoint="/disk/checkpoints/step-00000022",
        per_class={"recall": RECALL},
        confusion=CONFUSION,
        history=history,
    )


def test_a_run_says_from_its_beginning_what_it_is(
    client: MlflowClient, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "git_commit", lambda: "abc-dirty")
    record = created(client, digits, **{"mlflow.parentRunId": "p"})
    record.end("KILLED")
    found = only_run(client)
    assert found.info.run_name == "mine"
    assert client.get_experiment(found.info.experiment_id).name == CONFIG.experiment
    assert found.info.start_time == 1_000_000_250
    tags = found.data.tags
    expected = {
        "cifar_ray.key": "key", "topology": "1x2", "world_size": "2", "global_batch_size": "32", "strategy": "ddp",
        "dataset": "digits", "model": "simple_cnn", "seed": "7", "mlflow.source.type": "LOCAL",
        "mlflow.source.name": "cifar-ray train", "mlflow.source.git.commit": "abc-dirty", "mlflow.parentRunId": "p",
        "cifar_ray.command": recipe.command(CONFIG), store.FOLDER_TAG: "/there/mine",
    }  # fmt: skip
    assert expected.items() <= tags.items()
    packages = {"cifar-ray", "torch", "torchvision", "torchmetrics", "ray", "mlflow", "python"}
    assert {name.removeprefix("version.") for name in tags if name.startswith("version.")} == packages
    assert "not installed" not in [tags[f"version.{name}"] for name in packages - {"cifar-ray"}]
    params = runfile.params(CONFIG)
    assert found.data.params == {name: params[name] for name in params.keys() - {"precision", "device"}}
    (given,) = found.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("digits", digits.digest)
    assert [(tag.key, tag.value) for tag in given.tags] == [("mlflow.data.context", "training")]
    assert text(client, record.run_id, "config.yaml") == runfile.to_yaml(CONFIG)


def test_figures_are_written_once_a_checkpoint_has_them(client: MlflowClient, digits: Dataset) -> None:
    record = created(client, digits)
    started = Started(CONFIG, 4, 11, history=tuple(rows("iteration", 2, 4)), hardware="a CPU")
    record.started(started)
    for row in (*rows("iteration", 6, 8), *rows("epoch", 1)):
        record.row(row)
    record.checkpoint(saved(6, 0))
    record.row(*rows("iteration", 11))
    record.checkpoint(saved(11, 1, best=True))
    for row in (*rows("iteration", 13), *rows("epoch", 2)):
        record.row(row)
    before = int(1000 * time.time())
    record.end("FAILED")
    found = only_run(client)
    assert steps(client, record.run_id) == [
        ("epoch/figure", 1),
        *(("iteration/figure", step) for step in (2, 4, 6, 8, 11)),
    ]
    held = value(client, record.run_id, "rows_after_checkpoint.json")["rows"]
    assert [(row["kind"], row["step"]) for row in held] == [("iteration", 13), ("epoch", 2)]
    listed = value(client, record.run_id, "checkpoints.json")["checkpoints"]
    assert [(entry["step"], entry["epoch"], entry["path"], entry["weights_sha256"]) for entry in listed] == [
        (6, 0, "/there/mine/checkpoints/step-00000006", "hash6"),
        (11, 1, "/there/mine/checkpoints/step-00000011", "hash11"),
    ]
    assert found.data.tags["cifar_ray.best_checkpoint"] == "/there/mine/checkpoints/step-00000011"
    assert found.data.tags["cifar_ray.hardware"] == "a CPU"
    assert found.info.status == "FAILED"
    assert before <= found.info.end_time <= 1000 * time.time()


def test_the_end_of_an_epoch_is_written_although_it_is_the_first(client: MlflowClient, digits: Dataset) -> None:
    """Nothing was started yet: a driver may record rows of a process that began before."""
    record = created(client, digits)
    record.row(*rows("epoch", 0))
    record.row(*rows("iteration", 0))
    record.end("KILLED")
    assert steps(client, record.run_id) == [("epoch/figure", 0), ("iteration/figure", 0)]


def test_a_finished_run_ended_when_its_result_was_there(client: MlflowClient, digits: Dataset) -> None:
    record = created(client, digits)
    client.set_tag(record.run_id, store.FAILURE_TAG, "of an earlier attempt")
    record.row(*rows("iteration", 22))  # held, and in the history too
    record.result(outcome(*rows("iteration", 22), *rows("epoch", 1, 2)), digits)
    assert record.end("FINISHED")
    found = only_run(client)
    assert (found.info.status, found.info.end_time) == ("FINISHED", 1_000_040_750)
    assert store.FAILURE_TAG not in found.data.tags
    written = points(client, record.run_id)
    assert [(name, step) for name, step, _, _ in written] == [
        ("best/accuracy", 2), ("epoch/figure", 1), ("epoch/figure", 2), ("iteration/figure", 22),
        ("time/training_s", 2), ("time/wall_s", 2),
    ]  # fmt: skip
    assert ("epoch/figure", 2, 2000, 2.5) in written  # at the time of the epoch
    assert found.data.metrics == {
        "iteration/figure": 22.5, "epoch/figure": 2.5, "best/accuracy": 0.75, "time/wall_s": 40.5,
        "time/training_s": 30.0,
    }  # fmt: skip
    assert found.data.tags["cifar_ray.weights_sha256"] == "abc"
    assert found.data.tags["cifar_ray.checkpoint"] == "/there/mine/checkpoints/step-00000022"
    names = list(digits.class_names)
    confusion = value(client, record.run_id, "confusion_matrix.json")
    assert confusion == {"classes": names, "counts": CONFUSION}
    per_class = value(client, record.run_id, "per_class.json")
    assert per_class == {"columns": ["class", "recall"], "data": [[*row] for row in zip(names, RECALL)]}
    kept = files(client, record.run_id)
    assert kept == {"config.yaml", "confusion_matrix.json", "confusion_matrix.png", "per_class.json"}


def test_a_nodes_load_stands_at_the_seconds_since_the_run_began(client: MlflowClient, digits: Dataset) -> None:
    record = created(client, digits)
    for seconds in (-1.0, 61.5):
        record.system(round(1000 * (BEGUN + seconds)), {"node/cpu": seconds})
    record.end("KILLED")
    assert steps(client, record.run_id) == [("system/node/cpu", 0), ("system/node/cpu", 61)]


@pytest.mark.parametrize(("checkout", "commit"), [(True, "abc"), (False, "")])
def test_a_commit_is_that_of_our_own_checkout_alone(
    checkout: bool, commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Installed below somebody else's checkout, git would tell theirs."""
    if checkout:
        (tmp_path / ".git").mkdir()
    monkeypatch.setattr(origin, "__file__", str(tmp_path / "cifar_ray" / "tracking" / "origin.py"))
    words: list[list[str]] = []

    def described(command: list[str], **options: Any) -> Any:
        words.append(command)
        assert options["capture_output"]
        return SimpleNamespace(stdout="abc\n")

    monkeypatch.setattr("subprocess.run", described)
    assert origin.git_commit() == commit
    assert words[0][:3] == ["git", "-C", str(tmp_path)]


@pytest.mark.parametrize(
    ("names", "shown"), [(["cat", "dog", "emu"], ["cat", "dog", "emu"]), ([str(n) for n in range(25)], None)]
)
def test_the_confusion_matrix_is_coloured_by_the_share_of_each_true_class(
    names: list[str], shown: list[str] | None
) -> None:
    counts = [[0] * len(names) for _ in names]
    counts[0][:2], counts[1][:2] = [1, 3], [3, 5]  # of the third class there is no image
    axes = artifacts.confusion_figure(counts, names).axes[0]
    (image,) = axes.images
    assert image.get_array()[:3, :2].tolist() == [[0.25, 0.75], [0.375, 0.625], [0.0, 0.0]]
    assert image.get_clim() == (0.0, 1.0)  # a matrix of few hits is pale
    if shown:
        assert [label.get_text() for label in axes.get_yticklabels()] == shown
        assert [label.get_text() for label in axes.get_xticklabels()] == shown
