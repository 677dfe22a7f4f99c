"""Models that give a class for each pixel: their sizes, which are the papers', and images of any side."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from cifar_ray import models
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.models.segnet import SegNet
from cifar_ray.models.unet import UNet

VGG16 = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 256), (256, 512)] + [(512, 512)] * 5


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_unet_has_the_parameters_of_its_paper() -> None:
    with torch.device("meta"):
        assert size(UNet(16, 1, 2, width=64, norm="none")) == 31_030_658
        assert size(UNet(16, 3, 1, width=64)) == 31_037_633


def test_segnet_is_vgg16_and_its_mirror_image() -> None:
    classes = 12
    encoder = sum(9 * inputs * outputs + 2 * outputs for inputs, outputs in VGG16)
    decoder = sum(9 * inputs * outputs + 2 * inputs for inputs, outputs in VGG16[1:]) + 9 * 64 * classes + classes
    with torch.device("meta"):
        found = size(SegNet(32, 3, classes, width=64))
    assert found == encoder + decoder == 29_441_996


@pytest.mark.parametrize(("name", "parameters"), [("unet", 1_942_730), ("segnet", 1_844_442)])
def test_defaults_have_more_than_a_million_parameters(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert size(models.build(TrainConfig(model=name), SPECS["cifar10"])) == parameters


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("side", [32, 35, 48])
@pytest.mark.parametrize("name", ["unet", "segnet"])
def test_logits_are_as_large_as_the_image(name: str, side: int, training: bool) -> None:
    spec = dataclasses.replace(SPECS["cifar10"], shape=(3, side, side))
    config = TrainConfig(model=name, model_options={"width": 2})  # type: ignore[arg-type]
    model = models.build(config, spec).train(training)
    logits = model(torch.rand(2, 3, side, side))
    assert logits.shape == (2, 10, side, side)
    logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_what_a_pixel_is_given_depends_on_its_neighbourhood_alone() -> None:
    """A mirrored image has the mirrored logits where the weights are mirrored, too: nothing is shifted on its way."""
    model = UNet(16, 3, 4, width=2, norm="none").eval()
    images = torch.rand(1, 3, 32, 32)
    expected = model(images)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                module.weight.copy_(module.weight.flip(3))
    assert torch.allclose(model(images.flip(3)).flip(3), expected, atol=1e-5)
