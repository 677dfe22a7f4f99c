"""What a person asked for made explicit: what is refused, and the command that would do it again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.training import recipe
from tests.support import typed
from tests.support.helpers import Recorder, Stopped, resolved, train_here

DIGITS: dict[str, object] = {"dataset": "digits"}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"batch_size": 1438}, "batch_size"),
        ({"global_batch_size": 1440, "topology": "1x3", "accumulate": 2}, "global_batch_size"),
        ({"steps_per_epoch": 12}, "steps_per_epoch"),
        ({"test_images": 361}, "test_images"),
        ({"test_images": 3, "topology": "1x4"}, "topology"),
        ({"topology": "1x361", "batch_size": 2}, "topology"),
        ({"model": "vit", "model_options": {"patch_size": 5}}, "model_options.patch_size"),
        ({"elastic": "1x1:1x2", "strategy": "hogwild"}, "elastic"),
        (
            {"model": "simple_cnn", "optimizer": "adamw", "topology": "1x2", "strategy": "parameter_server"}
            | {"strategy_options": {"push_every": 4}},
            "strategy_options.push_every",
        ),
        ({"model": "resnet50", "batch_size": 1}, "global_batch_size"),
        ({"model": "resnet50", "batch_size": 1, "topology": "1x2", "accumulate": 2}, "global_batch_size"),
        ({"model": "resnet50", "batch_size": 4, "strategy": "reproducible"}, "strategy_options.shards"),
        (
            {"model": "resnet50", "topology": "1x2", "global_batch_size": 4, "strategy": "gpipe"},
            "strategy_options.micro_batches",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(DIGITS, **values)
    assert caught.value.key == key
    assert "None" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"batch_size": 1437},
        {"steps_per_epoch": 11},
        {"topology": "1x360", "batch_size": 2},
        {"test_images": 4, "topology": "1x4"},
        {"model": "resnet50", "batch_size": 2},
        {"model": "resnet50", "batch_size": 8, "strategy": "reproducible"},
        {"model": "resnet", "batch_size": 1},
    ],
)
def test_what_just_goes_together_is_accepted_and_has_nothing_left_open(values: dict[str, object]) -> None:
    config = resolved(DIGITS, **values)
    assert recipe.resolve(config) == config
    learned = ("optimizer", "lr", "momentum", "weight_decay", "schedule", "warmup_epochs", "label_smoothing")
    assert [name for name in (*learned, "base_batch", "global_batch_size") if getattr(config, name) is None] == []


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "model_options": {"blocks": (1, 3), "width": 8}, "topology": "1x2", "accumulate": 2, "global_batch_size": 64,
            "augment": "none", "device": "cpu",
        },
        {"model": "vgg11", "optimizer": "adamw", "lr": 0.05, "weight_decay": 5e-4, "elastic": "1x1:1x2"},
        {"model": "simple_cnn", "optimizer": "adamw", "epochs": 1, "lr": 0.003, "warmup_epochs": 0.5},
    ],
)  # fmt: skip
def test_a_command_does_the_same_again_and_leaves_out_defaults_and_where_the_run_is(values: dict[str, object]) -> None:
    config = resolved(DIGITS, cpus_per_worker=None, **values)
    elsewhere = resolved(DIGITS, cpus_per_worker=None, run_name="x", storage="y", verbose=True, **values)
    words = recipe.command(elsewhere)
    assert words.startswith("cifar-ray train --dataset digits ")
    assert recipe.resolve(typed.run(*words.split()[2:])) == config
    assert not {"--run-name", "--storage", "--verbose", "--accumulate 1", "--max-failures"} & {*words.split()}
    assert "--epochs 20" in recipe.command(config, epochs=20)


def test_batch_norm_is_synchronised_on_gpus_alone() -> None:
    config = recipe.resolve(TrainConfig(sync_batchnorm=True))
    recipe.check_place(config, replace(Decided.asked(config), device="cuda"))
    with pytest.raises(ConfigError, match="sync_batchnorm needs GPUs"):
        recipe.check_place(config, replace(Decided.asked(config), device="cpu"))


def test_a_batch_per_worker_is_a_global_batch_once_it_is_asked_for(tmp_path: Path) -> None:
    assert TrainConfig(batch_size=64, topology="1x2").global_batch_size == 128
    assert TrainConfig(batch_size=8, elastic="1x1:2x2", accumulate=2).global_batch_size == 64
    file = tmp_path / "run.yaml"
    file.write_text("batch_size: 32")
    asked = typed.run("--config", str(file), "--topology", "1x2")
    config = recipe.resolve(asked)
    assert (asked.global_batch_size, config.global_batch_size, config.batch_size) == (64, 64, None)


def test_a_config_is_validated_where_it_enters_and_resolved_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, digits: Dataset
) -> None:
    made: list[str] = []
    check = TrainConfig.__post_init__  # the last of every validated construction
    monkeypatch.setattr(TrainConfig, "__post_init__", lambda self: (made.append(type(self).__name__), check(self))[1])
    words = "--dataset digits --model simple_cnn --epochs 1 --batch-size 64 --precision fp32 --cpus-per-worker 1"
    config = recipe.resolve(typed.run(*words.split()))
    decided = Decided.asked(config)
    assert runfile.params(config, decided)["batch_size"] == "64"
    assert "--global-batch-size 64 --topology 1x1 " in recipe.command(config)
    assert "global_batch_size: 64" in runfile.to_yaml(config, decided)
    with pytest.raises(Stopped):
        train_here(config, digits, tmp_path, Recorder(stop_after=1))
    assert made == ["TrainConfig", "ResolvedConfig"]
