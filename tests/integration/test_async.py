"""Workers at their own pace: parameter_server and hogwild, over gloo and through Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cifar_ray.config.train import TrainConfig
from cifar_ray.training import checkpoint
from examples.regression import make_table
from tests.support.helpers import AUTHKEY, ServerHost, small_config, train_at_own_pace, wait_for_the_dead
from tests.support.person import Person

BOTH = ("parameter_server", "hogwild")
LEARNED = ["--dataset", "digits", "--model", "simple_cnn", "--global-batch-size", "32", "--lr", "0.02"]
"""At the recipe's 0.05, a run with stale gradients has been seen to end with every ReLU dead."""


@pytest.fixture(scope="module")
def host() -> Iterator[ServerHost]:
    with ServerHost(("127.0.0.1", 0), AUTHKEY) as started:
        yield started


config = partial(small_config, global_batch_size=48)


def metrics(results: list[Any]) -> dict[str, float]:
    outcome = results[0][0]
    assert outcome is not None
    return outcome.metrics


def saved(folder: Path) -> dict[str, Any]:
    return torch.load(checkpoint.every(folder)[-1] / checkpoint.STATE, weights_only=True)


def shape_of(tree: object) -> object:
    """A nested structure with the shapes of its tensors in their place."""
    if isinstance(tree, torch.Tensor):
        return tuple(tree.shape)
    if isinstance(tree, dict):
        return {key: shape_of(value) for key, value in tree.items()}
    return [shape_of(value) for value in tree] if isinstance(tree, list) else type(tree)


@pytest.mark.parametrize(
    ("strategy", "topology"), [pytest.param("parameter_server", "1x2", marks=pytest.mark.extended), ("hogwild", "1x3")]
)
def test_it_learns(strategy: str, topology: str, host: ServerHost, tmp_path: Path) -> None:
    results = train_at_own_pace(config(strategy, topology, epochs=10), tmp_path, host)
    assert metrics(results)["test/accuracy"] > 0.8
    assert metrics(results)["staleness/mean"] > 0
    assert metrics(results)["staleness/max"] >= 1
    for outcome, recorder in results:
        assert recorder.weights == results[0][1].weights
        assert recorder.steps == list(range(1, 10 * 29 + 1))
        figures = {name: value for name, value in outcome.metrics.items() if name.startswith("staleness/")}
        assert figures.items() <= metrics(results).items()
    times = results[0][0].times
    measured = {"data", "forward", "backward", "communication"} | ({"optimizer"} if strategy == "hogwild" else set())
    assert {name for name in times if name.startswith("time/step_")} == {f"time/step_{part}_s" for part in measured}


@pytest.mark.parametrize("strategy", [pytest.param("parameter_server", marks=pytest.mark.extended), "hogwild"])
def test_numbers_of_a_table_are_learned(strategy: str, host: ServerHost, tmp_path: Path) -> None:
    """Better than by the mean of the training rows, whose R2 is 0."""
    make_table.make(tmp_path / "made")
    of_table: dict[str, Any] = {"dataset": f"table:{tmp_path / 'made'}", "target": (make_table.TARGET,), "model": "mlp"}
    results = train_at_own_pace(config(strategy, "1x2", **of_table, epochs=20), tmp_path, host)
    assert metrics(results)["test/r2"] > 0.3
    assert metrics(results)["staleness/mean"] > 0


def test_the_fastest_worker_is_not_further_ahead_than_it_may_be(host: ServerHost, tmp_path: Path) -> None:
    ahead = {}
    for bound in (0, 3, None):
        wanted = config("parameter_server", "1x2", epochs=1, strategy_options={"max_staleness": bound})
        ahead[bound] = metrics(train_at_own_pace(wanted, tmp_path / str(bound), host, pauses=(0.03, 0.0)))
    assert ahead[0]["staleness/ahead_max"] == 0
    assert ahead[3]["staleness/ahead_max"] == 3
    assert ahead[None]["staleness/ahead_max"] > 3
    assert ahead[0]["staleness/max"] <= 1  # the other worker's one step
    assert ahead[3]["staleness/max"] > 1


@pytest.mark.parametrize("strategy", BOTH)
def test_the_losses_of_others_are_not_waited_for(strategy: str, host: ServerHost, tmp_path: Path) -> None:
    """Rank 1 is through its epoch before rank 0 is."""
    wanted = config(strategy, "1x2", epochs=1, log_every=1)
    slow, fast = train_at_own_pace(wanted, tmp_path, host, pauses=(0.05, 0.0))
    assert slow[1].steps == fast[1].steps
    moment = {row.step: row.timestamp_ms for row in slow[1].rows}
    assert fast[1].rows[-1].timestamp_ms < moment[len(moment)]
    late = [row.metrics["train/loss_rank1"] for row in slow[1].rows[-3:]]
    assert late == [fast[1].rows[-1].metrics["train/loss_rank1"]] * 3


def test_a_slow_worker_is_waited_for_and_bounds_the_throughput(host: ServerHost, tmp_path: Path) -> None:
    """Longer than the process group's timeout; rank 0 alone would do hundreds of steps a second."""
    wanted = config("hogwild", "1x2", epochs=1, steps_per_epoch=4)
    results = train_at_own_pace(wanted, tmp_path, host, pauses=(0.0, 2.0), timeout_s=6)
    assert [recorder.steps for _, recorder in results] == [[1, 2, 3, 4]] * 2
    assert results[0][0].times["images_per_s"] < 1.5 * 48 / 2


def test_a_dead_worker_is_not_waited_for() -> None:
    waited, died = wait_for_the_dead(config("hogwild", "1x2"))
    assert "Connection" in waited  # closed, or reset
    assert died == ""


@pytest.mark.parametrize("strategy", BOTH)
def test_a_run_goes_on_at_its_step_with_other_workers(strategy: str, host: ServerHost, tmp_path: Path) -> None:
    """And its checkpoints are made like those of one plain worker, so nothing in them belongs to a worker."""
    small = {
        "model": "resnet",
        "model_options": {"blocks": (1,), "width": 8},
        "optimizer": "adamw",
        "lr": 0.02,
        "epochs": 3,
    }

    def wanted(strategy: str, topology: str) -> TrainConfig:
        return config(strategy, topology, checkpoint_every=7, **small)

    first = train_at_own_pace(wanted(strategy, "1x2"), tmp_path / "parts", host, stop_after=41)
    assert [recorder.steps[-1] for _, recorder in first] == [41, 41]
    rest = train_at_own_pace(wanted(strategy, "1x3"), tmp_path / "parts", host)
    assert [recorder.steps[0] for _, recorder in rest] == [36] * 3
    losses = [record.row.metrics["train/epoch_loss"] for record in first[0][1].epochs + rest[0][1].epochs]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert all(recorder.weights == rest[0][1].weights for _, recorder in rest)
    weights = checkpoint.load(checkpoint.every(tmp_path / "parts")[-1]).weights
    assert {int(weights[name]) for name in weights if name.endswith("num_batches_tracked")} == {87}
    train_at_own_pace(wanted("ddp", "1x1"), tmp_path / "plain", host, stop_after=8)
    parts, plain = saved(tmp_path / "parts")["optimizer"], saved(tmp_path / "plain")["optimizer"]
    assert shape_of(parts) == shape_of(plain)


def test_the_shared_memory_has_no_name_that_could_stay_behind(host: ServerHost, tmp_path: Path) -> None:
    for _, recorder in train_at_own_pace(config("hogwild", "1x2", epochs=1), tmp_path, host, stop_after=3):
        assert recorder.mapped == {"/memfd:hogwild (deleted)"}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["parameter_server", pytest.param("hogwild", marks=pytest.mark.extended)])
def test_through_ray(strategy: str, resident: Person) -> None:
    served = "--strategy-options.max-staleness 4 --strategy-options.push-every 2 --strategy-options.servers 2"
    options = served.split() if strategy == "parameter_server" else []
    words = ["--strategy", strategy, "--topology", "1x2", "--epochs", "10", "--run-name", strategy, *options]
    before = memory_files()
    done = resident.runs("train", *LEARNED, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert resident.leftovers() == []
    assert memory_files() <= before
    run = resident.run_named(strategy)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["test/accuracy"] > 0.8
    assert run.data.metrics["staleness/mean"] > 0
    assert run.data.metrics["staleness/max"] >= 1
    if strategy == "parameter_server":
        assert run.data.metrics["staleness/ahead_max"] <= 4
        assert run.data.params["strategy_options.max_staleness"] == "4"


@pytest.mark.extended
@pytest.mark.fault
def test_a_run_goes_on_when_a_worker_is_killed(resident: Person) -> None:
    """The other worker waits in the server for the one that is killed."""
    words = ["--strategy", "parameter_server", "--strategy-options.max-staleness", "0"]
    words += ["--topology", "1x2", "--epochs", "25"]
    name = "without-one"
    with resident.starts("train", *LEARNED, *words, "--checkpoint-every", "5", "--run-name", name) as run:
        run.until("epoch 2/25")
        file = resident.mlflow.download_artifacts(resident.run_named(name).info.run_id, "placement.json")
        os.kill(json.loads(Path(file).read_text())[1]["pid"], signal.SIGKILL)
        run.until("restarting from the newest checkpoint, failure 1 of at most 3")
        assert run.end() == 0, run.output
    finished = resident.run_named(name)
    epochs = resident.mlflow.get_metric_history(finished.info.run_id, "test/accuracy")
    assert [point.step for point in epochs] == list(range(1, 26))
    assert epochs[-1].value > 0.8
    assert resident.leftovers() == []


def memory_files() -> set[str]:
    """Names in shared memory, but for the semaphores of whatever else runs on this machine."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")}


def test_a_parameter_server_is_not_to_be_had_under_torchrun(person: Person) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cifar_ray.training", *LEARNED, "--strategy", "parameter_server"],
        capture_output=True,
        text=True,
        timeout=120,
        env=person.environment,
        cwd=person.home,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: --strategy parameter_server needs a server, which only `cifar-ray train` starts\n",
    )
    assert not list(person.home.rglob("checkpoints"))
