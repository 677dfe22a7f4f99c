"""Convolutions as matrix products, in every way that a model is trained, over gloo and without a launcher."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cifar_ray.config.train import TrainConfig
from cifar_ray.training import arithmetic
from tests.support.helpers import choices_on_ranks, small_config, train_on_ranks

PRODUCTS = "products8"


def config(topology: str = "1x2", strategy: str = "ddp", **values: object) -> TrainConfig:
    network = {
        "model": "resnet",
        "model_options": {"blocks": (1, 1, 1), "width": 8},
        "global_batch_size": 64,
        "epochs": 1,
    }
    return small_config(strategy, topology, steps_per_epoch=6, **network, **values)


def losses(results: list[Any]) -> list[float]:
    return [row.metrics["train/loss"] for row in results[0][1].rows]


@pytest.mark.parametrize(
    ("convolutions", "strategy", "values"),
    [
        ("contiguous", "ddp", {"ema": 0.9}),
        (PRODUCTS, "ddp", {"accumulate": 2, "precision": "bf16"}),
        (PRODUCTS, "fsdp", {}),
        (PRODUCTS, "gpipe", {"strategy_options": {"micro_batches": 2}}),
        (PRODUCTS, "hogwild", {"topology": "1x1"}),
    ],
    ids=["contiguous-ddp-ema", "ddp-accumulate-bf16", "fsdp", "gpipe", "hogwild"],
)
def test_they_train_as_convolutions_do(
    convolutions: str, strategy: str, values: dict[str, Any], tmp_path: Path
) -> None:
    made = partial(config, strategy=strategy, **values)
    plain = train_on_ranks(made(convolutions="channels_last"), tmp_path / "plain")
    other = train_on_ranks(made(convolutions=convolutions), tmp_path / "other")
    assert losses(other) == pytest.approx(losses(plain), rel=0.02 if "precision" in values else 1e-3)
    if convolutions == PRODUCTS:
        assert other[0][0].weights_sha256 != plain[0][0].weights_sha256  # the last bits are another sum's


def test_the_same_products_are_the_same_weights_at_any_number_of_workers_and_interrupted(tmp_path: Path) -> None:
    """Named, they are computed on whatever machine; a micro-batch of ``reproducible`` is a shard, at any topology."""
    made = partial(config, strategy="reproducible", convolutions=PRODUCTS, precision="bf16", checkpoint_every=2)
    digests = []
    for topology in ("1x1", "1x2", "2x2"):
        (outcome, _), *_ = train_on_ranks(made(topology), tmp_path / topology)
        digests.append(outcome.weights_sha256)
    train_on_ranks(made("1x2"), tmp_path / "parts", stop_after=3)
    (outcome, after), *_ = train_on_ranks(made("1x1"), tmp_path / "parts")
    assert after.steps[0] == 3
    assert len({*digests, outcome.weights_sha256}) == 1


def test_all_ranks_decide_alike_and_only_once(tmp_path: Path) -> None:
    undecided = small_config("ddp", "1x3", model="simple_cnn", global_batch_size=96, epochs=80, checkpoint_every=2)
    assert arithmetic.passes_of(undecided) >= arithmetic.LEAST_STEPS
    chosen = choices_on_ranks(undecided)
    assert chosen[0].measured.startswith("32 images in fp32: channels_last ")
    assert chosen[1:] == chosen[:1] * 2
    ((_, first), *_) = train_on_ranks(undecided, tmp_path, stop_after=3)
    ((_, after), *_) = train_on_ranks(undecided, tmp_path, stop_after=4)
    assert after.begun[0].decided.convolutions == first.begun[0].decided.convolutions
    assert (first.begun[0].measured != "", after.begun[0].step, after.begun[0].measured) == (True, 2, "")
