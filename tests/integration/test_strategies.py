"""What each strategy promises, against one worker on the same stream of global batches; real processes over gloo."""

from __future__ import annotations

import math
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

from cifar_ray import data, models, strategies
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.training import checkpoint
from tests.support.helpers import small_config, steps_on_ranks, traffic_on_ranks, train_here, train_on_ranks

EXTENDED = pytest.mark.extended
STEPS = 20
NORM = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}}
CLOSE = 1e-5
"""Largest difference of a weight after 20 steps, as a share of the largest weight of its tensor."""

OWN = {"optimizer": "tests.support.learning:SmoothLion", "lr": 1e-4, "weight_decay": 0.1}
"""An optimizer of the user's own, whose step changes little where the gradient does: two roundings stay close."""
USUAL: dict[str, object] = {"optimizer": "sgd", "lr": 0.05, "weight_decay": 0.0}


config = partial(small_config, epochs=1, steps_per_epoch=STEPS, global_batch_size=64, log_every=10)


def weights(wanted: TrainConfig, folder: Path) -> dict[str, torch.Tensor]:
    if wanted.world_size == 1:
        outcome = train_here(wanted, data.read(wanted), folder)
    else:
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
        ("send_recv", "2x2", {}),
        ("ddp", "2x2", {"accumulate": 2}),
        ("fsdp", "1x2", {}),
        ("gpipe", "1x2", {}),
        *(
            pytest.param(name, "1x2", {}, marks=EXTENDED)
            for name in ("gather_scatter", "all_reduce", "one_f_one_b", "reproducible")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_the_label_holds_on_a_model_without_batch_norm(
    strategy: str, topology: str, values: dict[str, object], tmp_path: Path
) -> None:
    made = weights(config(strategy, topology, **values), tmp_path)
    assert 0 < difference(made, alone()) < CLOSE


@pytest.mark.slow
def test_model_parallel_is_one_worker_to_the_last_bit(tmp_path: Path) -> None:
    """With batch norm too: its only micro-batch is the whole global batch."""
    (one, _), *_ = train_on_ranks(config("ddp", "1x1", **NORM), tmp_path / "one")
    many = train_on_ranks(config("model_parallel", "1x4", **NORM), tmp_path / "many")
    assert one is not None
    for outcome, heard in many:
        assert outcome is not None
        assert (outcome.weights_sha256, outcome.confusion) == (one.weights_sha256, one.confusion)
        assert heard.weights == many[0][1].weights
        # Of one micro-batch: one stage computes while all others wait.
        assert outcome.metrics["bubble/measured"] >= outcome.metrics["bubble/theory"] == 1 - 1 / 4


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", *(pytest.param(name, marks=EXTENDED) for name in ("ddp", "gpipe"))])
def test_what_a_run_asks_for_beside_its_strategy_goes_with_it(strategy: str, tmp_path: Path) -> None:
    """Mixed labels, an optimizer of one's own, averages of the weights and a limit to the gradient."""
    own: dict[str, object] = {"augment": "mixup", "ema": 0.9, **OWN}
    own |= {"clip_norm": 0.1} if strategy != "gpipe" else {}
    made = weights(config(strategy, "1x2", **own), tmp_path)
    assert difference(made, alone(**own)) < CLOSE
    for other in ({"augment": "crop"}, {"ema": None}, USUAL):
        assert difference(made, alone(**{**own, **other})) > 20 * CLOSE


@pytest.mark.extended
def test_batch_norm_of_each_workers_images_is_what_differs(tmp_path: Path) -> None:
    """Strategies that are close without it agree with each other, and not with one worker."""
    names = ("gather_scatter", "all_reduce", "ddp")
    made = {name: weights(config(name, "1x2", **NORM), tmp_path / name) for name in names}
    assert all(difference(made[name], made["ddp"]) < 1e-3 for name in names)
    assert difference(made["ddp"], weights(config("ddp", "1x1", **NORM), tmp_path / "one")) > 1e-2


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        pytest.param("ddp", {"comm_hook": "fp16"}, marks=EXTENDED),
        pytest.param("ddp", {"comm_hook": "powersgd"}, marks=EXTENDED),
        ("local_sgd", {"sync_every": 4}),
    ],
    ids=["fp16", "powersgd", "local_sgd"],
)
def test_another_algorithm_learns(strategy: str, options: dict[str, object], tmp_path: Path) -> None:
    wanted = config(strategy, "1x2", epochs=6, steps_per_epoch=None, strategy_options=options)
    outcome = train_on_ranks(wanted, tmp_path)[0][0]
    assert outcome is not None
    assert outcome.metrics["test/loss"] < 0.6


@pytest.mark.slow
def test_fsdp_goes_on_at_another_number_of_workers(tmp_path: Path) -> None:
    """With AdamW, which remembers two tensors and a number of each parameter: in a checkpoint they are whole."""
    values: dict[str, object] = {"optimizer": "adamw", "lr": 1e-3, "global_batch_size": 96, "steps_per_epoch": 12}
    train_on_ranks(config("fsdp", "1x2", checkpoint_every=6, **values), tmp_path, stop_after=7)
    (outcome, heard), *_ = train_on_ranks(config("fsdp", "1x3", **values), tmp_path)
    assert heard.steps[0] == 7
    assert outcome is not None
    assert difference(checkpoint.load(Path(outcome.checkpoint)).weights, alone(**values)) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "topology", "values"),
    [
        ("send_recv", "2x2", {}),
        ("ddp", "1x2", {"bucket_cap_mb": 0.01}),
        ("fsdp", "1x2", {}),
        pytest.param("reproducible", "2x2", {}, marks=EXTENDED),
        pytest.param("ddp", "1x2", {"strategy_options": {"comm_hook": "bf16"}}, marks=EXTENDED),
        *(pytest.param(name, "1x2", {}, marks=EXTENDED) for name in ("gather_scatter", "all_reduce", "local_sgd")),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["gpipe", *(pytest.param(name, marks=EXTENDED) for name in ("one_f_one_b", "model_parallel"))]
)
def test_a_pipeline_sends_what_it_says(strategy: str) -> None:
    """Each rank trains its own part, and holds nothing for the others'."""
    wanted = config(strategy, "1x3", global_batch_size=48)
    ranks = steps_on_ranks(wanted, 2)
    about = strategies.about(strategy)
    micro_batches = 1 if strategy == "model_parallel" else wanted.strategy_options["micro_batches"]
    values = {"W": 3, "M": micro_batches, "A": ranks[0].activations}
    assert ranks[0].activations > 0
    assert sum(rank.messages for rank in ranks) == eval(about.messages, values)
    assert sum(rank.bytes for rank in ranks) == eval(about.bytes, values)
    assert len(set().union(*(rank.trained for rank in ranks))) == sum(len(rank.trained) for rank in ranks) > 0
    assert all(rank.kept == rank.trained for rank in ranks)


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
    weights(config("ddp", "1x1", **steps), tmp_path / "plain")
    weights(config("ddp", "1x1", ema=0.4, **steps), tmp_path / "averaged")
    average: dict[str, torch.Tensor] = {}
    for step in range(1, 7):
        plain, kept = (checkpoint.load(tmp_path / name / f"step-{step:08d}") for name in ("plain", "averaged"))
        share = min(0.4, step / (9 + step))
        average = {name: weight.lerp(average.get(name, weight), share) for name, weight in plain.weights.items()}
        assert difference(kept.weights, average) < CLOSE
        states = kept.optimizer["state"].values()
        hidden = sorted((state["ema"] for state in states), key=torch.Tensor.numel)
        unaveraged = sorted(plain.weights.values(), key=torch.Tensor.numel)
        assert all(torch.equal(mine, other) for mine, other in zip(hidden, unaveraged, strict=True))


@pytest.mark.extended
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_model_with_weights_that_do_not_learn_trains_as_with_all_reduce(strategy: str, tmp_path: Path) -> None:
    """Over six steps, of which the fifth draws the weights to their average."""
    shape: dict[str, object] = {"model": "speednet", "steps_per_epoch": 6, "global_batch_size": 8}
    found, expected = (weights(config(name, "1x2", **shape), tmp_path / name) for name in (strategy, "all_reduce"))
    assert difference(found, expected) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["gather_scatter", "send_recv", "all_reduce", "ddp", "reproducible"])
def test_replicas_are_equal_after_every_step(strategy: str) -> None:
    """Also with batch norm, whose statistics differ from rank to rank while the weights do not."""
    for steps in (1, 3):
        first, second = steps_on_ranks(config(strategy, "1x2", **NORM), steps)
        assert first.replica == second.replica


@pytest.mark.slow
def test_pipelines_are_one_worker_that_accumulates_to_the_bit(tmp_path: Path) -> None:
    def sha(strategy: str, topology: str, **values: object) -> str:
        folder = tmp_path / f"{strategy}-{topology}-{len(values)}"
        outcome = train_on_ranks(config(strategy, topology, global_batch_size=48, **values), folder)[0][0]
        assert outcome is not None
        return outcome.weights_sha256

    one = sha("ddp", "1x1", accumulate=4)
    assert {sha("gpipe", "1x2"), sha("gpipe", "1x3"), sha("one_f_one_b", "1x2")} == {one}
    assert sha("model_parallel", "1x2", **NORM) == sha("ddp", "1x1", **NORM) != one


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["send_recv", "fsdp", "one_f_one_b", "local_sgd"])
def test_neither_checkpoints_nor_a_stop_change_what_is_learned(strategy: str, tmp_path: Path) -> None:
    """``local_sgd`` waits for the average after every eighth step."""
    whole = train_on_ranks(config(strategy, "1x2", **NORM), tmp_path / "whole")[0][0]
    wanted = config(strategy, "1x2", checkpoint_every=4, **NORM)
    train_on_ranks(wanted, tmp_path / "parts", stop_after=9)
    (parts, recorder), *_ = train_on_ranks(wanted, tmp_path / "parts")
    assert whole is not None
    assert parts is not None
    assert (recorder.steps[0], parts.weights_sha256) == (9, whole.weights_sha256)
