"""Networks of torchvision and timm: built for the images at hand, or refused in a sentence."""

from __future__ import annotations

import dataclasses
import re
import sys

import pytest
import torch

from cifar_ray import models
from cifar_ray.cli.main import main
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.models import libraries
from cifar_ray.runs import weights
from cifar_ray.training import recipe
from tests.support.helpers import resolved

SMALL = "torchvision:shufflenet_v2_x0_5"
DIGITS: dict[str, object] = {"dataset": "digits"}


def refusal(**values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(DIGITS, **values)
    return caught.value.as_flag()


@pytest.mark.parametrize("name", [SMALL, "timm:test_resnet", "timm:test_vit"])
def test_a_network_is_trained_by_every_way_that_takes_it_whole(name: str) -> None:
    ways = [{"topology": "1x2", "strategy": way} for way in ("parameter_server", "fsdp")]
    for values in ({}, {"strategy": "reproducible"}, *ways):
        config = resolved(DIGITS, model=name, **values)
        assert (recipe.resolve(config), config.model_source) == (config, None)
        assert f"--model {name}" in recipe.command(config)
    assert "is no nn.Sequential" in refusal(model=name, topology="1x2", strategy="gpipe")


def test_logits_are_those_of_the_classes_and_options_reach_the_network() -> None:
    config = TrainConfig(model="torchvision:mobilenet_v3_small", model_options={"dropout": 0.5})
    network = models.build(config, SPECS["cifar100"])
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
    assert [layer.p for layer in network.modules() if isinstance(layer, torch.nn.Dropout)] == [0.5]


@pytest.mark.parametrize(("name", "side"), [("googlenet", 32), ("inception_v3", 80)])
def test_auxiliary_classifiers_are_left_out(name: str, side: int) -> None:
    spec = dataclasses.replace(SPECS["digits"], shape=(3, side, side))
    with torch.random.fork_rng(devices=[]):
        network = models.build(TrainConfig(model=f"torchvision:{name}"), spec).train()  # type: ignore[arg-type]
    assert network(torch.rand(2, 3, side, side)).shape == (2, 10)
    assert network.transform_input  # as torchvision's own weights need it


@pytest.mark.parametrize(
    ("model", "tag", "normalise", "theirs"),
    [
        ("torchvision:resnet18", "DEFAULT", "imagenet", ""),
        ("torchvision:resnet18", "DEFAULT", "dataset", "imagenet"),
        ("timm:vit_base_patch16_224", "augreg_in1k", "imagenet", "half"),
        ("timm:vit_base_patch16_clip_224", "openai", "imagenet", "other"),
    ],
)
def test_weights_of_other_pixels_are_named_with_what_fits(
    model: str, tag: str, normalise: str, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "fetch", lambda *_: {})
    config = recipe.resolve(TrainConfig(dataset="digits"))
    config = dataclasses.replace(config, model=model, normalise=normalise, weights=tag)  # type: ignore[arg-type]
    notes: list[str] = []
    weights._read(config, "", notes.append)
    assert [f" {theirs} constants" in note for note in notes] == [True] * bool(theirs)


@pytest.mark.parametrize("name", ["torchvision:vit_b_16", "timm:vit_small_patch16_224"])
def test_a_network_for_images_of_one_size_is_built_for_theirs(name: str) -> None:
    with torch.device("meta"):
        network = models.build(TrainConfig(model=name), SPECS["digits"])  # type: ignore[arg-type]
        assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": "torchvision:resnet19"}, "--model must name a network of torchvision .*; did you mean 'resnet18'"),
        ({"model": "torchvision:fcn_resnet50"}, "--model must name a network of torchvision .*, got torchvision:fcn"),
        ({"model": "timm:test_vitt"}, "--model must name a network of timm .*; did you mean 'test_vit'"),
        ({"model": "torchvision:alexnet"}, "--model must give .* and torchvision:alexnet fails: RuntimeError: "),
        ({"model": "torchvision:googlenet", "model_options": {"aux_logits": True}}, "--model must "),
        ({"model": SMALL, "model_options": {"width": 2}}, f"--model must build .* {SMALL} fails: TypeError: .*'width'"),
        ({"model": SMALL, "model_options": {"weights": "DEFAULT"}}, "--model-options must not have weights"),
        ({"model": "timm:test_vit", "model_options": {"checkpoint_path": "a.pt"}}, "--model-options must not have che"),
        ({"model": "timm:test_vit", "model_options": {"width": 2}}, "--model must build .* timm:test_vit fails: Type"),
        ({"model": "timm:test_resnet", "sync_batchnorm": True}, "--sync-batchnorm must be off for timm:test_resnet"),
    ],
)
def test_what_cannot_be_a_network_is_refused(values: dict[str, object], sentence: str) -> None:
    assert re.match(sentence, refusal(**values))


def test_timm_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    libraries.load.cache_clear()
    libraries.find.cache_clear()
    assert refusal(model="timm:test_efficientnet").startswith("--model needs timm; ")
    assert main(["models", "simple"]) == 0
    assert "timm is not installed" in capsys.readouterr().err


def test_models_are_listed_by_part_of_a_name_or_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "*resnet18"]) == 0
    _, *listed = (line.split() for line in capsys.readouterr().out.splitlines())
    assert listed[:2] == [["resnet18"], ["torchvision:resnet18", "IMAGENET1K_V1", "DEFAULT"]]
    assert ["timm:skresnet18", "ra_in1k"] in listed
    assert main(["models", "torchvision:vgg1?_bn"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == ["model", *(f"torchvision:vgg1{depth}_bn" for depth in (1, 3, 6, 9))]
    assert main(["models"]) == 0
    everything = capsys.readouterr().out
    assert "speednet\n" in everything
    assert "fcn_resnet50" not in everything
    assert main(["models", "resnet1000"]) == 2
    assert "PATTERN" in capsys.readouterr().err


def test_one_model_of_this_package_is_named_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "mlp"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    assert "--model-options.width INT Units per hidden layer. (default: 128) " in listed
    assert "One of none, batch or layer. (default: none)" in listed
    assert main(["models", "tests.support.nets:build"]) == 0
    assert "--model-options.width INT" in capsys.readouterr().out
    assert main(["models", "resnet18"]) == 0
    assert "resnet18 has no options" in capsys.readouterr().out
