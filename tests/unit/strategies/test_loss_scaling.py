"""Float16: scaled losses, steps that all replicas skip alike, and runs that go on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.strategy import NAMES, SCALING
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import checkpoint, optimizer
from cifar_ray.training.observer import Outcome
from cifar_ray.training.stopping import StoppedError
from tests.support.helpers import Recorder, built, digest, resolved, train_here
from tests.support.threads import on_threads, train_on_threads
from tests.unit.strategies.test_exchange import BATCH, EXCHANGING, micro_batches, model, step

USUAL = {"dataset": "digits", "model": "simple_cnn", "precision": "fp16", "global_batch_size": BATCH}
config = partial(resolved, USUAL)


def overflow(layer: nn.Module) -> Any:
    """Have an infinity in the gradient of what ``layer`` gives, as a large scale can; until the hook is removed."""

    def infinite(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[0, 0] = torch.inf
        return gradient

    def watch(_: nn.Module, __: tuple[Tensor, ...], outputs: Tensor) -> None:
        outputs.register_hook(infinite)  # type: ignore[no-untyped-call]

    return layer.register_forward_hook(watch)


def weights(strategy: Any) -> list[Tensor]:
    """Of the whole model; a strategy whose replicas differ between averages keeps this rank's."""
    if strategy.context.config.strategy == "fsdp":
        strategy.consolidate()
    return [parameter.detach().clone() for parameter in strategy.context.model.parameters()]


def momenta(strategy: Any) -> list[Tensor]:
    return [state["momentum_buffer"].clone() for state in strategy.optimizer.state.values()]


def overflowing_on_rank_1(wanted: TrainConfig, worker: Worker) -> tuple[bool, list[tuple[int, float]], list[Tensor]]:
    """Three steps, in the second of which the backward pass of rank 1 alone overflows.

    Returns:
        Whether the second left the weights and the optimizer's state as they were; the steps skipped and the scale
        after each step; the weights.
    """
    strategy, kept, told = built(wanted, model(), worker), [], []
    for number in range(3):
        before = [*weights(strategy), *momenta(strategy)]
        hook = overflow(strategy.model[0]) if (worker.rank, number) == (1, 1) else None
        step(strategy, wanted, worker, number)
        kept.append(all(map(torch.equal, before, [*weights(strategy), *momenta(strategy)])))
        if hook:
            hook.remove()
        told.append((strategy.skipped, strategy.scaler.get_scale()))
    return kept[1], told, weights(strategy)


@pytest.mark.parametrize("values", [{}, {"accumulate": 2, "clip_norm": 0.1}], ids=["plain", "accumulate-clip"])
@pytest.mark.parametrize("strategy", [*EXCHANGING, "fsdp"])
def test_all_ranks_skip_the_step_that_overflows_on_one(strategy: str, values: dict[str, object]) -> None:
    """With fsdp, the infinity is in the part of rank 0, and rank 1 has none."""
    results = on_threads(2, partial(overflowing_on_rank_1, config(strategy=strategy, topology="1x2", **values)))
    for is_kept, told, last in results:
        assert (is_kept, told) == (True, [(0, 2.0**16), (1, 2.0**15), (1, 2.0**15)])
        assert all(map(torch.equal, last, results[0][2]))
        assert all(tensor.isfinite().all() for tensor in last)


@pytest.mark.parametrize("values", [{"clip_norm": 0.1}, {"accumulate": 2}], ids=["clip", "accumulate"])
def test_a_scaled_step_is_that_of_float32_but_for_rounding(values: dict[str, object]) -> None:
    """Clipping takes the norm of what is unscaled; with the scaled gradients, 65,536 times as large, it would not."""
    moved = {}
    for precision in ("fp32", "fp16"):
        wanted = config(strategy="all_reduce", precision=precision, **values)
        strategy = built(wanted, model())
        step(strategy, wanted, Worker(), 0)
        moved[precision] = [after - before for after, before in zip(weights(strategy), model().parameters())]
        assert strategy.figures() == ({"skipped_steps": 0.0} if precision == "fp16" else {})
        assert ("scaler" in strategy.state()) is (precision == "fp16")
    torch.testing.assert_close(moved["fp16"], moved["fp32"], rtol=0.02, atol=1e-3)
    assert not all(map(torch.equal, moved["fp16"], moved["fp32"]))


def test_the_scale_grows_after_2000_good_steps_and_is_part_of_the_state() -> None:
    wanted = config(strategy="ddp")
    strategy = built(wanted, model())
    strategy.gradients(micro_batches(wanted, Worker(), 0))  # as before a run goes on
    scaler = {**strategy.scaler.state_dict(), "skipped": 7, "_growth_tracker": 1999}
    strategy.load(model().state_dict(), {**strategy.state(), "scaler": scaler})
    step(strategy, wanted, Worker(), 0)
    assert (strategy.scaler.get_scale(), strategy.skipped) == (2.0**17, 7)
    assert {"scale": 2.0**17, "_growth_tracker": 0, "skipped": 7}.items() <= strategy.state()["scaler"].items()


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(SCALING)))
def test_strategies_that_do_not_scale_refuse_float16(name: str) -> None:
    topology = {} if name in ("reproducible", "parameter_server") else {"topology": "1x2"}
    with pytest.raises(ConfigError, match=f"precision.*must be other than fp16 for --strategy {name}"):
        config(strategy=name, **topology)


class Double(nn.Module):
    """A network of float64."""

    def __init__(self, sides: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(sides, classes, dtype=torch.float64)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images.flatten(1).double())  # type: ignore[no-any-return]


def double(image_size: int, channels: int, classes: int) -> nn.Module:
    return Double(channels * image_size**2, classes)


def test_a_network_with_other_numbers_than_float32_and_what_would_keep_an_infinity_are_refused() -> None:
    own = {"model": f"{__name__}:double", "optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}
    assert config(precision="fp32", **own).precision == "fp32"
    with pytest.raises(ConfigError, match=r"precision must be other than fp16 for .*double, whose parameter linear"):
        config(**own)
    with pytest.raises(ConfigError, match=r"comm.hook.*must be other than powersgd with --precision fp16"):
        config(strategy_options={"comm_hook": "powersgd"})


def test_the_learning_rate_waits_for_skipped_steps() -> None:
    """And EMA's warm-up; what an average keeps at the end of a run follows the steps of the run."""
    wanted = config(model="simple_cnn", ema=0.99, optimizer="sgd", epochs=2)
    made = optimizer.build(model(), wanted)
    assert optimizer.schedule(made, wanted, 9, 20, skipped=4) == optimizer.learning_rate(wanted, 5, 20)
    assert made.param_groups[0]["ema"] == 6 / 15


LOOP = {
    "dataset": "digits", "model": "simple_cnn", "precision": "fp16", "global_batch_size": 32, "steps_per_epoch": 8,
    "epochs": 2, "log_every": 1, "warmup_epochs": 1,
}  # fmt: skip


@pytest.fixture
def overflowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale with which the first gradients overflow, so that it falls."""
    begin = partialmethod(torch.amp.GradScaler.__init__, init_scale=2.0**26)
    monkeypatch.setattr(torch.amp.GradScaler, "__init__", begin)


@pytest.fixture
def few(digits: Dataset) -> Dataset:
    return replace(digits, test=digits.test.at(slice(40)))


@pytest.mark.usefixtures("overflowing")
def test_skipped_steps_take_the_next_samples_and_the_same_learning_rate(few: Dataset, tmp_path: Path) -> None:
    wanted = resolved(LOOP)
    outcome = train_here(wanted, few, tmp_path, recorder := Recorder())
    skipped = int(outcome.metrics["skipped_steps"])
    assert 2 <= skipped <= 12
    rates = [row.metrics["train/lr"] for row in recorder.rows]
    assert rates == [optimizer.learning_rate(wanted, max(step - skipped, 0), 8) for step in range(16)]
    losses = [row.metrics["train/loss"] for row in recorder.rows]
    assert len(set(losses)) == 16  # the first ones are of the same weights
    other = replace(wanted, precision="fp32", lr=1e-9)
    train_here(other, few, tmp_path / "still", still := Recorder())
    expected = [row.metrics["train/loss"] for row in still.rows]
    assert losses[: skipped + 1] == pytest.approx(expected[: skipped + 1], rel=2e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("overflowing")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_go_on_to_the_same_bits(strategy: str, few: Dataset, tmp_path: Path) -> None:
    """Stopped while the scale falls; the scale, its count of good steps and that of skipped ones go on."""
    wanted = resolved(LOOP, strategy=strategy, topology="1x2", **({"ema": 0.9} if strategy == "ddp" else {}))
    whole = train_on_threads(wanted, few, tmp_path / "whole")
    stopped = train_on_threads(wanted, few, tmp_path / "parts", asked=lambda heard: len(heard.steps) >= 3)
    assert all(isinstance(error, StoppedError) for error, _ in stopped)
    rest = train_on_threads(wanted, few, tmp_path / "parts")
    assert rest[0][1].steps[0] == 5
    ends = [outcome for outcome, _ in (*whole, *rest) if isinstance(outcome, Outcome)]
    assert len(ends) == 4
    ((_, skipped),) = {(end.weights_sha256, end.metrics["skipped_steps"]) for end in ends}
    assert skipped > 2
    states = [checkpoint.load(Path(outcome.checkpoint)) for outcome in (ends[0], ends[-1])]
    assert states[0].optimizer["scaler"] == states[1].optimizer["scaler"]
    assert digest(states[0]) == digest(states[1])
