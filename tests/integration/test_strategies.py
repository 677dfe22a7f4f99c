"""What each strategy promises, against one worker on the same stream of global batches; real processes over gloo."""

from __future__ import annotations

import math
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

from cifar_ray import models, strategies
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.training import checkpoint
from tests.support.helpers import (
    digest,
    small_config,
    stop_on_ranks,
    traffic_on_ranks,
    train_on_ranks,
    weights_on_ranks,
)

STEPS = 20
NORM = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}}
CLOSE = 1e-5
"""Largest difference of a weight after 20 steps, as a share of the largest weight of its tensor."""

OWN = {"optimizer": "tests.support.learning:SmoothLion", "lr": 1e-4, "weight_decay": 0.1}
"""An optimizer of the user's own, whose step changes little where the gradient does: two roundings stay close."""
USUAL: dict[str, object] = {"optimizer": "sgd", "lr": 0.05, "weight_decay": 0.0}

EXCHANGING = ("gather_scatter", "send_recv", "all_reduce", "ddp")


config = partial(small_config, epochs=1, steps_per_epoch=STEPS, global_batch_size=64, log_every=10)


def weights(wanted: TrainConfig, folder: Path) -> dict[str, torch.Tensor]:
    outcome = train_on_ranks(wanted, folder)[0][0]
    assert outcome is not None
    return checkpoint.load(Path(outcome.checkpoint)).weights


@cache
def alone(**values: object) -> dict[str, torch.Tensor]:
    """One worker, which has nothing to exchange."""
    return weights(config("ddp", "1x1", **values), Path(mkdtemp()))


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of any float tensor as a share of its largest number."""
    assert one.keys() == other.keys()
    return max(
        float((one[name] - other[name]).abs().max() / other[name].abs().max().clamp_min(1e-3))
        for name in one
        if one[name].is_floating_point()
    )


@pytest.mark.parametrize(
    ("strategy", "topology", "values"),
    [
        *((name, "2x2", {}) for name in ("send_recv", "ddp", "reproducible")),
        *((name, "1x2", {}) for name in ("gather_scatter", "all_reduce", "fsdp")),
        ("ddp", "1x2", {"accumulate": 4}),
        pytest.param("all_reduce", "1x2", {"accumulate": 2}, marks=pytest.mark.extended),
        pytest.param("fsdp", "1x2", {"accumulate": 2}, marks=pytest.mark.extended),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_the_label_holds_on_a_model_without_batch_norm(
    strategy: str, topology: str, values: dict[str, object], tmp_path: Path
) -> None:
    made = weights(config(strategy, topology, **values), tmp_path)
    assert 0 < difference(made, alone()) < CLOSE


@pytest.mark.parametrize(
    "strategy", ["ddp", pytest.param("gather_scatter", marks=pytest.mark.extended), "fsdp", "gpipe"]
)
def test_mixed_labels_an_optimizer_of_ones_own_and_averages_go_with_it(strategy: str, tmp_path: Path) -> None:
    own: dict[str, object] = {"augment": "mixup", "ema": 0.9, **OWN}
    made = weights(config(strategy, "1x2", **own), tmp_path)
    assert difference(made, alone(**own)) < CLOSE
    for other in (own | {"augment": "crop"}, own | {"ema": None}, own | USUAL):
        assert difference(made, alone(**other)) > 20 * CLOSE


@pytest.mark.parametrize(
    ("strategy", "topology"),
    [
        ("ddp", "2x2"),
        *(
            pytest.param(*each, marks=pytest.mark.extended)
            for each in (
                ("gather_scatter", "1x2"),
                ("send_recv", "2x2"),
                ("all_reduce", "1x2"),
                ("reproducible", "1x2"),
            )
        ),
    ],
)
def test_replicas_are_equal_after_every_step(strategy: str, topology: str, tmp_path: Path) -> None:
    """Also with batch norm, whose statistics differ from rank to rank while the weights do not."""
    ranks = weights_on_ranks(config(strategy, topology, **NORM), tmp_path)
    assert [len(set(step)) for step in zip(*ranks)] == [1] * STEPS
    assert len(set(ranks[0])) == STEPS


def test_batch_norm_of_each_workers_images_is_what_differs(tmp_path: Path) -> None:
    """The same four strategies that are close without it agree with each other, and not with one worker."""
    made = {name: weights(config(name, "1x2", **NORM), tmp_path / name) for name in EXCHANGING}
    one = weights(config("ddp", "1x1", **NORM), tmp_path / "one")
    for name in EXCHANGING:
        assert difference(made[name], made["ddp"]) < 1e-3
    assert difference(made["ddp"], one) > 1e-2


def test_replicas_drift_apart_between_the_averages_of_local_sgd(tmp_path: Path) -> None:
    ranks = weights_on_ranks(config("local_sgd", "1x2", strategy_options={"sync_every": 5}), tmp_path)
    equal = [len(set(step)) == 1 for step in zip(*ranks)]
    assert [number for number, same in enumerate(equal, start=1) if same] == [5, 10, 15, 20]


@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        pytest.param("ddp", {"strategy_options": {"comm_hook": "fp16"}}, marks=pytest.mark.extended),
        pytest.param("ddp", {"strategy_options": {"comm_hook": "bf16"}}, marks=pytest.mark.extended),
        ("ddp", {"strategy_options": {"comm_hook": "powersgd"}}),
        ("local_sgd", {"strategy_options": {"sync_every": 4}}),
    ],
    ids=["fp16", "bf16", "powersgd", "local_sgd"],
)
def test_another_algorithm_learns(strategy: str, values: dict[str, object], tmp_path: Path) -> None:
    wanted = config(strategy, "1x2", epochs=8, steps_per_epoch=None, **values)
    outcome = train_on_ranks(wanted, tmp_path)[0][0]
    assert outcome is not None
    assert outcome.metrics["test/loss"] < 0.6
    assert outcome.metrics["test/accuracy"] > 0.8


@pytest.mark.parametrize("strategy", ["send_recv", "fsdp"])
def test_an_interrupted_run_equals_an_uninterrupted_one(strategy: str, tmp_path: Path) -> None:
    wanted = config(strategy, "1x2", checkpoint_every=6, **NORM)
    whole = train_on_ranks(wanted, tmp_path / "whole")[0][0]
    train_on_ranks(wanted, tmp_path / "parts", stop_after=9)
    parts, *_ = train_on_ranks(wanted, tmp_path / "parts")
    assert parts[1].steps[0] == 7
    assert whole is not None
    assert parts[0] is not None
    assert parts[0].weights_sha256 == whole.weights_sha256


def test_neither_checkpoints_nor_a_stop_change_what_local_sgd_learns(tmp_path: Path) -> None:
    """They wait for the average after every fourth step of an epoch of ten, or that at its end."""
    values: dict[str, object] = {"strategy_options": {"sync_every": 4}, "epochs": 2, "steps_per_epoch": 10, **NORM}
    wanted, saving = config("local_sgd", "1x2", **values), config("local_sgd", "1x2", checkpoint_every=3, **values)
    runs = {"whole": train_on_ranks(wanted, tmp_path / "whole"), "saving": train_on_ranks(saving, tmp_path / "saving")}
    assert [saved.step for saved in runs["saving"][0][1].checkpoints] == [4, 8, 10, 14, 18, 20]
    assert {step for step, _ in stop_on_ranks(wanted, tmp_path / "stopped", asked_after=5)} == {8}
    runs["stopped"] = train_on_ranks(wanted, tmp_path / "stopped")
    assert runs["stopped"][0][1].steps[0] == 9
    assert len({outcome.weights_sha256 for run in runs.values() for outcome, _ in run if outcome}) == 1
    states = [checkpoint.latest(tmp_path / name) for name in runs]
    assert len({digest(newest[1]) for newest in states if newest}) == 1


@pytest.mark.parametrize("topology", ["1x1", pytest.param("1x3", marks=pytest.mark.extended)])
def test_fsdp_goes_on_at_another_number_of_workers(topology: str, tmp_path: Path) -> None:
    """With AdamW, which remembers two tensors and a number of each parameter: in a checkpoint they are whole.

    One worker's weights are channels last, those that are sharded are not.
    """
    values: dict[str, object] = {"optimizer": "adamw", "lr": 1e-3, "global_batch_size": 96, "steps_per_epoch": 12}
    one = weights(config("ddp", "1x1", **values), tmp_path / "one")
    train_on_ranks(config("fsdp", "1x2", checkpoint_every=6, **values), tmp_path / "parts", stop_after=7)
    parts, *_ = train_on_ranks(config("fsdp", topology, **values), tmp_path / "parts")
    assert parts[1].steps[0] == 7
    assert parts[0] is not None
    assert difference(checkpoint.load(Path(parts[0].checkpoint)).weights, one) < 1e-3


@pytest.mark.parametrize(
    ("strategy", "topology", "values"),
    [
        ("send_recv", "2x2", {}),
        *((name, "1x2", {}) for name in ("gather_scatter", "all_reduce", "ddp", "fsdp", "local_sgd", "reproducible")),
        ("ddp", "1x2", {"bucket_cap_mb": 0.01}),
        pytest.param("ddp", "1x2", {"strategy_options": {"comm_hook": "bf16"}}, marks=pytest.mark.extended),
        *(pytest.param(name, "2x2", {}, marks=pytest.mark.extended) for name in ("fsdp", "reproducible")),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_messages_and_bytes_are_those_of_the_docstring(strategy: str, topology: str, values: dict[str, object]) -> None:
    """Counted by PyTorch's profiler where gloo is called, on every rank, with batch norm."""
    wanted = config(strategy, topology, **NORM, **values)
    model = models.build(wanted, SPECS["digits"])
    sizes = [parameter.numel() * 4 for parameter in model.parameters()]
    symbols = {
        "W": wanted.world_size,
        "P": len(sizes),
        "G": sum(sizes),
        "B": sum(buffer.numel() * 4 for buffer in model.buffers() if buffer.is_floating_point()),
        "L": sum(any(True for _ in child.parameters()) for child in model.children()),
        "N": (every := wanted.strategy_options.get("sync_every", 1)),
        "O": sum(sizes),
        "log2": math.log2,
        "buckets": 1 if wanted.bucket_cap_mb > 1 else buckets(sizes, wanted.bucket_cap_mb * 2**20),
    }
    about = strategies.about(strategy)
    traffic = traffic_on_ranks(wanted, steps=every)
    assert {messages for messages, _ in traffic} == {eval(about.messages, symbols)}
    # Parts are of unequal size: a ring's chunks, a shard's padding.
    compressed = 0.5 if wanted.strategy_options.get("comm_hook") == "bf16" else 1.0
    assert traffic[0][1] == pytest.approx(eval(about.bytes, symbols) * compressed, rel=0.02)


def buckets(sizes: list[int], cap: float) -> int:
    """How many buckets of at least ``cap`` bytes hold gradients of these sizes, from the last layer to the first."""
    count, filled = 0, 0.0
    for size in reversed(sizes):
        filled += size
        if filled >= cap:
            count, filled = count + 1, 0.0
    return count + (filled > 0)


def test_a_step_is_split_and_one_worker_does_not_communicate(tmp_path: Path) -> None:
    parts = ("data", "forward", "backward", "communication", "optimizer")
    for topology in ("1x1", "1x2"):
        outcome = train_on_ranks(config("all_reduce", topology, **NORM), tmp_path / topology)[0][0]
        assert outcome is not None
        times = {part: outcome.times[f"time/step_{part}_s"] for part in parts}
        assert all(seconds > 0 for seconds in times.values())
        assert sum(times.values()) <= 1.05 * outcome.times["time/iteration_mean_s"]
        assert (times["communication"] < 0.01 * sum(times.values())) == (topology == "1x1")
        assert outcome.steps is not None
        for part in parts:
            means = [rank.parts[part].mean for rank in outcome.steps.ranks]
            assert sum(means) / len(means) == pytest.approx(times[part])
            for rank in outcome.steps.ranks:
                assert rank.parts[part].median <= rank.parts[part].p95
        for exchange, *waits in zip(
            outcome.steps.exchange, *(rank.stretches["communication"] for rank in outcome.steps.ranks)
        ):
            assert 0 < exchange <= min(waits)  # the rank that is last in one step need not be in the next


def test_a_long_gradient_is_shortened_to_the_length_asked_for(tmp_path: Path) -> None:
    """One step of plain SGD with a learning rate of 1 moves all weights together by the gradient's length."""
    plain: dict[str, object] = {"momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "warmup_epochs": 0.0}
    plain |= {"lr": 1.0, "steps_per_epoch": 1, "precision": "fp32"}
    moved = {}
    for longest in (0.05, 100.0, None):
        wanted = config("ddp", "1x1", clip_norm=longest, **plain)
        after = weights(wanted, tmp_path / str(longest))
        torch.manual_seed(wanted.seed)
        before = models.build(wanted, SPECS["digits"]).state_dict()
        moved[longest] = math.hypot(*(float((after[name] - before[name]).norm()) for name in before))
    assert moved[0.05] == pytest.approx(0.05, rel=1e-3)
    assert 0.05 < moved[100.0] == moved[None]


def test_the_moving_average_is_that_of_the_weights_and_does_not_change_them(tmp_path: Path) -> None:
    steps = {"steps_per_epoch": 6, "checkpoint_every": 1, "keep_checkpoints": 9, "precision": "fp32"}
    train_on_ranks(config("ddp", "1x1", **steps), tmp_path / "plain")
    train_on_ranks(config("ddp", "1x1", ema=0.4, **steps), tmp_path / "averaged")
    average: dict[str, torch.Tensor] = {}
    for step in range(1, 7):
        plain, kept = (checkpoint.load(tmp_path / name / f"step-{step:08d}") for name in ("plain", "averaged"))
        share = min(0.4, step / (9 + step))
        average = {name: weight.lerp(average.get(name, weight), share) for name, weight in plain.weights.items()}
        assert difference(kept.weights, average) < CLOSE
        states = kept.optimizer["state"].values()
        weights = sorted(plain.weights.values(), key=torch.Tensor.numel)
        hidden = sorted((state["ema"] for state in states), key=torch.Tensor.numel)
        assert all(torch.equal(mine, other) for mine, other in zip(hidden, weights, strict=True))


@pytest.mark.parametrize(
    "strategy", ["gpipe", *(pytest.param(name, marks=pytest.mark.extended) for name in ("ddp", "fsdp", "local_sgd"))]
)
def test_it_goes_on_after_a_stop(strategy: str, tmp_path: Path) -> None:
    options = {"strategy_options": {"sync_every": 2}} if strategy == "local_sgd" else {}
    wanted = config(strategy, "1x2", ema=0.9, steps_per_epoch=6, checkpoint_every=2, log_every=1, **options)
    train_on_ranks(wanted, tmp_path / "unbroken")
    train_on_ranks(wanted, tmp_path / "stopped", stop_after=3)
    train_on_ranks(wanted, tmp_path / "stopped")
    unbroken, stopped = (checkpoint.load(tmp_path / name / "step-00000006") for name in ("unbroken", "stopped"))
    assert digest(stopped) == digest(unbroken)


@pytest.mark.parametrize(("strategy", "topology"), [("ddp", "1x2"), ("fsdp", "1x2"), ("reproducible", "2x2")])
def test_it_is_as_long_on_any_number_of_workers(strategy: str, topology: str, tmp_path: Path) -> None:
    made = weights(config(strategy, topology, clip_norm=0.1), tmp_path)
    assert difference(made, alone(clip_norm=0.1)) < CLOSE
    assert difference(made, alone()) > 1000 * CLOSE


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_model_with_weights_that_do_not_learn_trains_as_with_all_reduce(strategy: str, tmp_path: Path) -> None:
    """Over six steps, of which the fifth draws the weights to their average."""
    shape: dict[str, object] = {"model": "speednet", "steps_per_epoch": 6, "global_batch_size": 8}
    found, expected = (weights(config(name, "1x2", **shape), tmp_path / name) for name in (strategy, "all_reduce"))
    assert difference(found, expected) < 1e-3
