"""Float16: scaled losses, and steps that all replicas skip alike."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.strategy import NAMES, SCALING
from cifar_ray.config.train import TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import optimizer
from tests.support.helpers import built, resolved
from tests.support.threads import on_threads
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
