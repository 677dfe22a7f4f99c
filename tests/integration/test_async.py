"""Workers at their own pace: parameter_server and hogwild, over gloo and through Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cifar_ray.training import checkpoint
from tests.support.helpers import AUTHKEY, ServerHost, small_config, train_at_own_pace, wait_for_the_dead
from tests.support.person import Person

pytestmark = pytest.mark.slow
BOTH = pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
# At the recipe's 0.05, a run with stale gradients can end with every ReLU dead.
LEARNED = ["--dataset", "digits", "--model", "simple_cnn", "--global-batch-size", "32", "--lr", "0.02"]
LEARNED += ["--strategy", "parameter_server", "--topology", "1x2"]
config = partial(small_config, global_batch_size=48)


@pytest.fixture(scope="module")
def host() -> Iterator[ServerHost]:
    with ServerHost(("127.0.0.1", 0), AUTHKEY) as started:
        yield started


def metrics(results: list[Any]) -> dict[str, float]:
    return results[0][0].metrics


def shape_of(tree: object) -> object:
    """A nested structure with the shapes of its tensors in their place."""
    if isinstance(tree, torch.Tensor):
        return tuple(tree.shape)
    if isinstance(tree, dict):
        return {key: shape_of(value) for key, value in tree.items()}
    return [shape_of(value) for value in tree] if isinstance(tree, list) else type(tree)


def memory_files() -> set[str]:
    """Names in shared memory, without the semaphores of whatever else runs on this machine."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")}


@pytest.mark.extended
def test_hogwild_learns_in_memory_that_has_no_name(host: ServerHost, tmp_path: Path) -> None:
    results = train_at_own_pace(config("hogwild", "1x3", epochs=10), tmp_path, host)
    found = metrics(results)
    assert found["test/accuracy"] > 0.8
    assert found["staleness/mean"] > 0
    assert found["staleness/max"] >= 1
    for outcome, recorder in results:
        assert recorder.weights == results[0][1].weights
        assert recorder.steps == list(range(1, 10 * 29 + 1))
        assert recorder.mapped == {"/memfd:hogwild (deleted)"}  # nothing could stay behind in /dev/shm
        assert {name: value for name, value in outcome.metrics.items() if "staleness/" in name}.items() <= found.items()
    parts = {name for name in results[0][0].times if name.startswith("time/step_")}
    named = ("data", "forward", "backward", "communication", "optimizer")
    assert parts == {f"time/step_{part}_s" for part in named}


def test_the_fastest_worker_is_not_further_ahead_than_it_may_be(host: ServerHost, tmp_path: Path) -> None:
    ahead = {}
    for bound in (0, 3, None):
        wanted = config(
            "parameter_server", "1x2", epochs=1, steps_per_epoch=15, strategy_options={"max_staleness": bound}
        )
        ahead[bound] = metrics(train_at_own_pace(wanted, tmp_path / str(bound), host, pauses=(0.03, 0.0)))
    assert [ahead[bound]["staleness/ahead_max"] for bound in (0, 3)] == [0, 3]
    assert ahead[None]["staleness/ahead_max"] > 3
    assert ahead[0]["staleness/max"] <= 1 < ahead[3]["staleness/max"]  # one step of the other worker's


@BOTH
def test_the_losses_of_others_are_not_waited_for(strategy: str, host: ServerHost, tmp_path: Path) -> None:
    """Rank 1 is through its epoch before rank 0 is."""
    wanted = config(strategy, "1x2", epochs=1, log_every=1)
    slow, fast = (recorder for _, recorder in train_at_own_pace(wanted, tmp_path, host, pauses=(0.05, 0.0)))
    assert slow.steps == fast.steps
    moment = {row.step: row.timestamp_ms for row in slow.rows}
    assert fast.rows[-1].timestamp_ms < moment[len(moment)]
    late = [row.metrics["train/loss_rank1"] for row in slow.rows[-3:]]
    assert late == [fast.rows[-1].metrics["train/loss_rank1"]] * 3


def test_a_slow_worker_is_waited_for_and_a_dead_one_is_not(host: ServerHost, tmp_path: Path) -> None:
    """Longer than the process group's timeout; the slow one bounds the throughput."""
    wanted = config("hogwild", "1x2", epochs=1, steps_per_epoch=4)
    results = train_at_own_pace(wanted, tmp_path, host, pauses=(0.0, 2.0), timeout_s=6)
    assert [recorder.steps for _, recorder in results] == [[1, 2, 3, 4]] * 2
    assert results[0][0].times["images_per_s"] < 1.5 * 48 / 2
    waited, died = wait_for_the_dead(config("hogwild", "1x2"))
    assert ("Connection" in waited, died) == (True, "")  # closed, or reset


@BOTH
def test_a_run_goes_on_at_its_step_with_other_workers(strategy: str, host: ServerHost, tmp_path: Path) -> None:
    """Its checkpoints are like those of one plain worker, so nothing in them belongs to a worker."""
    made = partial(
        config, model="resnet", model_options={"blocks": (1,), "width": 8}, optimizer="adamw", lr=0.02, epochs=3,
        checkpoint_every=7,
    )  # fmt: skip
    first = train_at_own_pace(made(strategy, "1x2"), tmp_path / "parts", host, stop_after=41)
    assert [recorder.steps[-1] for _, recorder in first] == [41, 41]
    rest = train_at_own_pace(made(strategy, "1x3"), tmp_path / "parts", host)
    assert [recorder.steps[0] for _, recorder in rest] == [36] * 3
    begun, _, ended = [each.row.metrics["train/epoch_loss"] for each in first[0][1].epochs + rest[0][1].epochs]
    assert ended < begun
    assert all(recorder.weights == rest[0][1].weights for _, recorder in rest)
    train_at_own_pace(made("ddp", "1x1"), tmp_path / "plain", host, stop_after=8)
    parts, plain = (checkpoint.every(tmp_path / name)[-1] for name in ("parts", "plain"))
    weights = checkpoint.load(parts).weights
    assert {int(weights[name]) for name in weights if name.endswith("num_batches_tracked")} == {87}
    parts, plain = (torch.load(each / checkpoint.STATE, weights_only=True)["optimizer"] for each in (parts, plain))
    assert shape_of(parts) == shape_of(plain)


def test_through_ray(resident: Person) -> None:
    options = "--strategy-options.max-staleness 4 --strategy-options.push-every 2 --strategy-options.servers 2"
    before = memory_files()
    done = resident.succeeds("train", *LEARNED, "--epochs", "10", "--run-name", "served", *options.split())
    assert (done.stderr, resident.leftovers()) == ("", [])
    assert memory_files() <= before
    run = resident.run_named("served")
    assert run.info.status == "FINISHED"
    assert run.data.metrics["test/accuracy"] > 0.8
    assert run.data.metrics["staleness/max"] >= 1
    assert run.data.metrics["staleness/ahead_max"] <= 4


@pytest.mark.extended
@pytest.mark.fault
def test_a_run_goes_on_when_a_worker_is_killed(resident: Person) -> None:
    """The other worker waits in the server for the one that is killed."""
    words = "--strategy-options.max-staleness 0 --epochs 25 --checkpoint-every 5 --run-name without-one"
    with resident.starts("train", *LEARNED, *words.split()) as run:
        run.until("epoch 2/25")
        os.kill(resident.placement("without-one")[1]["pid"], signal.SIGKILL)
        run.until("restarting from the newest checkpoint, failure 1 of at most 3")
        assert run.end() == 0, run.output
    assert resident.steps("without-one", "test/accuracy") == list(range(1, 26))
    assert resident.run_named("without-one").data.metrics["test/accuracy"] > 0.8
    assert resident.leftovers() == []
