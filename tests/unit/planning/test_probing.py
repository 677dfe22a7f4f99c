"""Which short runs a plan trains for itself."""

from __future__ import annotations

from typing import Any

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.topology import parse
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.planning import probing
from cifar_ray.training import recipe

IMAGES = 1437


def planned(batch: int, **changes: Any) -> ResolvedConfig:
    return recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", global_batch_size=batch, **changes))


def shapes(batch: int, *topologies: str, device: str = "cpu", **changes: Any) -> list[tuple[Any, ...]]:
    """Topology, batch, steps, epochs and strategy of each run."""
    cells = probing.cells(planned(batch, **changes), device, [parse(each) for each in topologies], IMAGES)
    return [tuple(value for (value,) in cell.values()) for cell in cells]


@pytest.mark.parametrize(
    ("images", "chosen"),
    [
        ([512, 256, 128, 64], [64, 128, 256, 512]),
        ([512, 256, 128, 64, 32, 32], [32, 64, 256, 512]),
        ([1, 2, 3, 5, 100, 1000], [1, 5, 100, 1000]),
    ],
)
def test_four_sizes_at_most_are_measured_in_equal_ratios(images: list[int], chosen: list[int]) -> None:
    assert probing.sizes(images) == chosen


def test_a_run_has_forty_steps_in_as_many_epochs_as_they_take() -> None:
    assert shapes(64, "1x1") == [("1x1", 64, 22, 2, "all_reduce")]
    assert shapes(32, "1x1") == [("1x1", 32, 40, 1, "all_reduce")]


def test_workers_of_a_node_are_measured_together_at_the_sizes_that_they_will_have() -> None:
    found = shapes(64, "1x1", "2x1", "1x2", "2x2")
    assert [each[:2] for each in found] == [("1x1", 32), ("1x1", 64), ("1x2", 16), ("1x2", 32)]
    assert [each[-1] for each in found] == ["all_reduce"] * 4
    assert shapes(64, "1x2", "2x2", accumulate=2)[0][:2] == ("1x2", 8)


def test_one_worker_is_measured_alone_and_so_is_one_with_a_gpu_of_its_own() -> None:
    # Twice 1,000 images are more than the data set has.
    assert [found[:2] for found in shapes(1000, "1x1", "1x1")] == [("1x1", 1000)]
    assert [found[:2] for found in shapes(64, "1x1", "1x8", device="cuda")] == [("1x1", 8), ("1x1", 64)]


def test_a_batch_that_no_topology_shares_is_refused_and_others_are_left_to_the_plan() -> None:
    with pytest.raises(ConfigError, match="must be a multiple of the workers of one topology at least, got 64"):
        shapes(64, "3x1", "6x1")
    assert [found[:2] for found in shapes(64, "1x1", "3x1")] == [("1x1", 64)]


def test_the_sweep_hides_no_exchange_and_keeps_the_options_of_the_runs() -> None:
    train = {"dataset": "digits", "bucket_cap_mb": "5", "warmup_epochs": "5", "lr": "0.05", "strategy": "ddp"}
    train |= {"strategy_options": {"comm_hook": "fp16"}, "global_batch_size": "64", "epochs": "9"}  # what is planned
    made = probing.sweep("sizes", train, [{"topology": ["1x2"], "batch_size": [16], "epochs": [1]}])
    assert (made.measure, made.held, made.max_concurrent) == ("times", "batch", 1)
    assert "warmup_epochs" not in made.train, "five of them are more than a short run has"
    assert made.train["lr"] == 0.05
    assert made.train.keys() == {"dataset", "lr"}, "each run has a strategy, a batch and epochs of its own"
