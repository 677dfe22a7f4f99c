"""What a person asked for made explicit: what is refused, and the command that would do it again."""

from __future__ import annotations

import re

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import recipe
from tests.support.helpers import resolved

DIGITS: dict[str, object] = {"dataset": "digits"}
FEW = "must leave at least one step per epoch: "
NORM = "for this resnet50, whose batch norm needs several values"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"batch_size": 1438}, f"--batch-size {FEW}1438 x 1 workers x 1 micro-batches is 1438 images per step, and digits has 1437 training images"),
        ({"global_batch_size": 1440, "topology": "1x3", "accumulate": 2}, f"--global-batch-size {FEW}240 x 3 workers x 2 micro-batches is 1440 images per step, and digits has 1437 training images"),
        ({"steps_per_epoch": 12}, "--steps-per-epoch must be at most 11, the global batches of 128 images in digits, got 12"),
        ({"test_images": 361}, "--test-images must be at most 360, all of digits, got 361"),
        ({"test_images": 3, "topology": "1x4"}, "--topology must have at most one worker per test image (3)"),
        ({"topology": "1x361", "batch_size": 2}, "--topology must have at most one worker per test image (360)"),
        ({"model": "vit", "model_options": {"patch_size": 5}}, "--model-options.patch-size must divide the image's side of 32, got 5"),
        ({"elastic": "1x1:1x2", "strategy": "hogwild"}, "--elastic needs a strategy whose workers take every step together, so that all stop after the same one; those of hogwild do not"),
        ({"model": "simple_cnn", "optimizer": "adamw", "topology": "1x2", "strategy": "parameter_server", "strategy_options": {"push_every": 4}}, "--strategy-options.push-every must be 1 with --optimizer adamw: its steps hardly depend on a gradient's size, so the sum of 4 would move the weights as far as one"),
        ({"model": "resnet50", "batch_size": 1}, f"--global-batch-size must leave at least 2 images in each forward pass {NORM}, got 1"),
        ({"model": "resnet50", "batch_size": 1, "topology": "1x2", "accumulate": 2}, f"--global-batch-size must leave at least 2 images in each forward pass {NORM}, got 4"),
        ({"model": "resnet50", "batch_size": 4, "strategy": "reproducible"}, f"--strategy-options.shards must leave at least 2 images in each {NORM}; 4 cut 4 images into single ones"),
        ({"model": "resnet50", "topology": "1x2", "global_batch_size": 4, "strategy": "gpipe"}, f"--strategy-options.micro-batches must leave at least 2 images in each {NORM}; 4 cut 4 images into single ones"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(DIGITS, **values)
    assert caught.value.as_flag() == sentence


@pytest.mark.parametrize(
    "values",
    [
        {"batch_size": 1437},
        {"steps_per_epoch": 11},
        {"topology": "1x360", "batch_size": 2},
        {"test_images": 360},
        {"test_images": 4, "topology": "1x4"},
        {"model": "resnet50", "batch_size": 2},
        {"model": "resnet50", "batch_size": 8, "strategy": "reproducible"},
        {"model": "resnet", "batch_size": 1},
    ],
)
def test_what_just_goes_together_is_accepted(values: dict[str, object]) -> None:
    config = resolved(DIGITS, **values)
    assert recipe.resolve(config) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "--dataset digits --model resnet --epochs 10 --seed 0 --global-batch-size 128 --topology 1x1"),
        (
            {
                "model_options": {"blocks": (1, 3), "width": 8}, "topology": "1x2", "accumulate": 2, "global_batch_size": 64,
                "augment": "none", "run_name": "x", "storage": "y", "device": "cpu", "verbose": True,
            },
            "--dataset digits --augment none --model resnet --model-options.blocks 1,3 --model-options.width 8 --epochs 10"
            " --seed 0 --global-batch-size 64 --accumulate 2 --topology 1x2",
        ),
        (
            {
                "model": "vgg11", "optimizer": "adamw", "lr": 0.05, "weight_decay": 5e-4, "local_nodes": 2,
                "elastic": "1x1:1x2",
            },
            "--dataset digits --model vgg11 --epochs 10 --seed 0 --optimizer adamw --lr 0.05"
            " --weight-decay 0.0005 --global-batch-size 128 --topology 1x2 --elastic 1x1:1x2 --local-nodes 2",
        ),
        (
            {"model": "simple_cnn", "optimizer": "adamw", "epochs": 1, "lr": 0.003, "warmup_epochs": 0.5},
            "--dataset digits --model simple_cnn --epochs 1 --seed 0 --optimizer adamw"
            " --warmup-epochs 0.5 --global-batch-size 128 --topology 1x1",
        ),
    ],
)  # fmt: skip
def test_a_command_spells_out_what_differs_from_the_defaults_and_the_recipe(
    values: dict[str, object], words: str
) -> None:
    assert recipe.command(resolved(DIGITS, cpus_per_worker=None, **values)) == f"cifar-ray train {words}"


def test_batch_norm_is_synchronised_on_gpus_alone() -> None:
    config = recipe.resolve(TrainConfig(sync_batchnorm=True))
    assert recipe.placed(config, "cuda", 1).device == "cuda"
    sentence = "sync_batchnorm needs GPUs; torch has no CPU version of it"
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        recipe.placed(config, "cpu", 1)
    assert recipe.placed(recipe.resolve(TrainConfig()), "cpu", 1).device == "cpu"


def test_a_resolved_config_has_nothing_left_open() -> None:
    config = resolved(DIGITS)
    learned = ("optimizer", "lr", "momentum", "weight_decay", "schedule", "warmup_epochs", "label_smoothing")
    assert [name for name in (*learned, "base_batch", "global_batch_size") if getattr(config, name) is None] == []
