"""Several workers over gloo, without a launcher: what must not depend on their number, and what may."""

from __future__ import annotations

from pathlib import Path

import pytest

from cifar_ray import data, models, tasks
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import checkpoint
from cifar_ray.training.evaluate import Evaluator
from tests.support.helpers import (
    checkpoints_on_ranks,
    small_config,
    stop_on_ranks,
    train_on_ranks,
)
from tests.support.threads import on_threads


def config(topology: str, strategy: str = "ddp", **values: object) -> TrainConfig:
    return small_config(strategy, topology, global_batch_size=96, **values)


def losses(results: list) -> list[float]:
    return [row.metrics["train/loss"] for row in results[0][1].rows]


def epoch_losses(results: list) -> list[float]:
    return [record.row.metrics["train/epoch_loss"] for record in results[0][1].epochs]


def test_losses_are_those_of_one_worker(tmp_path: Path) -> None:
    """On a model without batch norm, with the same seed and global batch."""
    one, *others = (losses(train_on_ranks(config(name), tmp_path / name)) for name in ("1x1", "1x3", "2x2"))
    assert len(one) == 14
    assert others == [pytest.approx(one, rel=1e-4)] * 2


@pytest.mark.data
def test_an_evaluation_counts_exactly_10000_images_at_any_world_size() -> None:
    wanted = config("1x1", dataset="cifar10")
    dataset = data.read(wanted)
    model = models.build(wanted, dataset.spec)
    reference = None
    for world_size in (1, 2, 3):
        for evaluation in on_threads(
            world_size, lambda worker: Evaluator(dataset, worker, tasks.build(wanted, dataset.spec))(model)
        ):
            assert evaluation.images == 10_000
            assert [sum(row) for row in evaluation.confusion] == [1000] * 10
            reference = reference or evaluation
            assert evaluation.confusion == reference.confusion
            assert evaluation.metrics == pytest.approx(reference.metrics, rel=1e-6)


def test_every_rank_ends_with_the_same_weights_and_figures(tmp_path: Path) -> None:
    results = train_on_ranks(config("1x3", model="resnet", model_options={"blocks": (1, 1), "width": 8}), tmp_path)
    recorders = [recorder for _, recorder in results]
    mistakes = {outcome.mistakes for outcome, _ in results if outcome is not None}
    assert len(mistakes) == 1
    assert {mistake.position for mistake in mistakes.pop()} & set(range(240, 360))  # the last rank's
    assert len(recorders[0].weights) > 10
    assert all(recorder.weights == recorders[0].weights for recorder in recorders[1:])
    assert len({str([record.row.metrics["test/loss"] for record in recorder.epochs]) for recorder in recorders}) == 1
    rows = results[0][1].rows
    assert rows[0].metrics.keys() == {"train/loss", "train/lr", *(f"train/loss_rank{rank}" for rank in range(3))}
    mean = sum(rows[0].metrics[f"train/loss_rank{rank}"] for rank in range(3)) / 3
    assert rows[0].metrics["train/loss"] == pytest.approx(mean)


MODELS = {
    "resnet": {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}},
    "vit": {
        "model": "vit",
        "model_options": {"dim": 24, "depth": 2, "heads": 2, "dropout": 0.1, "stochastic_depth": 0.2},
    },
}


@pytest.mark.parametrize(("name", "topology", "precision"), [("resnet", "2x2", "fp32"), ("vit", "1x2", "bf16")])
def test_an_interrupted_run_of_several_workers_equals_an_uninterrupted_one(
    name: str, topology: str, precision: str, tmp_path: Path
) -> None:
    """To the last bit, with buckets small enough that DDP uses several and lays them out anew."""
    wanted = config(topology, checkpoint_every=4, bucket_cap_mb=0.005, precision=precision, **MODELS[name])
    whole, *_ = train_on_ranks(wanted, tmp_path / "whole")
    for stop in (5, 17):
        train_on_ranks(wanted, tmp_path / "parts", stop_after=stop)
    parts, *_ = train_on_ranks(wanted, tmp_path / "parts")
    assert whole[0] is not None
    assert parts[0] is not None
    assert parts[1].steps[0] == 17
    assert parts[0].weights_sha256 == whole[0].weights_sha256
    assert parts[0].confusion == whole[0].confusion


def test_a_run_goes_on_at_another_world_size(tmp_path: Path) -> None:
    """Nothing in a checkpoint belongs to a worker: the losses go on as those of the first topology would."""
    whole = train_on_ranks(config("1x2"), tmp_path / "whole")
    train_on_ranks(config("1x2", checkpoint_every=6), tmp_path / "parts", stop_after=7)
    rest = train_on_ranks(config("1x3"), tmp_path / "parts")
    assert rest[0][1].begun[0].step == 6
    assert losses(rest) == pytest.approx(losses(whole)[3:], rel=1e-4)
    assert epoch_losses(rest) == pytest.approx(epoch_losses(whole), rel=1e-4)


def test_a_damaged_checkpoint_is_passed_over_by_all_ranks_alike(tmp_path: Path) -> None:
    wanted = config("1x2", checkpoint_every=4)
    whole, *_ = train_on_ranks(wanted, tmp_path / "whole")
    train_on_ranks(wanted, tmp_path / "parts", stop_after=9)
    (tmp_path / "parts" / "step-00000008" / checkpoint.WEIGHTS).write_bytes(b"")
    rest, other = train_on_ranks(wanted, tmp_path / "parts")
    assert rest[1].begun[0].step == 4
    assert "step-00000008" in rest[1].begun[0].skipped[0]
    assert rest[1].steps == other[1].steps == list(range(5, 29))
    assert whole[0] is not None
    assert rest[0] is not None
    assert rest[0].weights_sha256 == whole[0].weights_sha256


@pytest.mark.parametrize("strategy", ["ddp", "hogwild"])
def test_no_rank_takes_a_step_while_rank_0_writes_and_none_is_left_waiting(strategy: str, tmp_path: Path) -> None:
    """The wait for a checkpoint is in no step; when it cannot be written, every rank ends."""
    wanted = config("1x2", strategy=strategy, epochs=1, checkpoint_every=4)
    (first, reason), (second, consequence) = checkpoints_on_ranks(wanted, tmp_path, fails_at=12)
    warm_ups = 2 if strategy == "ddp" else 1
    assert first == second == [0] * (warm_ups + 4) + [1] * 4 + [2] * 4
    assert (reason, consequence) == ("no room", "rank 0 has failed, and its own error says why")


@pytest.mark.parametrize(
    ("asked_after", "left"),
    [
        pytest.param(5, 6, marks=pytest.mark.extended),  # what rank 0 has heard after a step, all know after the next
        (13, 14),  # the end of the first of two epochs: evaluated, and saved once
        pytest.param(27, 0, marks=pytest.mark.extended),  # nothing is left to train
    ],
)
def test_all_ranks_stop_after_the_same_step_and_go_on_from_there(asked_after: int, left: int, tmp_path: Path) -> None:
    """In ``reproducible``, on two ranks, and on with one: the weights of one worker that never stopped."""
    shared = {
        "strategy": "reproducible",
        "epochs": 2,
        "model": "resnet",
        "model_options": {"blocks": (1, 1), "width": 8},
    }
    stopped = stop_on_ranks(config("1x2", **shared), tmp_path / "parts", asked_after)
    assert {step for step, _ in stopped} == {left}
    assert {recorder.steps[-1] for _, recorder in stopped} == {left or 28}
    if not left:
        return
    saved = [event.step for event in stopped[0][1].checkpoints]
    assert saved == [left]
    rest, *_ = train_on_ranks(config("1x1", **shared), tmp_path / "parts")
    whole, *_ = train_on_ranks(config("1x1", **shared), tmp_path / "whole")
    assert rest[0] is not None
    assert whole[0] is not None
    assert rest[1].steps[0] == left + 1
    assert len(rest[1].epochs) == 28 // 14 - left // 14
    assert rest[0].weights_sha256 == whole[0].weights_sha256
