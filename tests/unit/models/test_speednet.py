from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cifar_ray import models
from cifar_ray.config.sections import DatasetName
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS, Dataset, modality
from cifar_ray.data.datasets import as_tensor
from cifar_ray.models import speednet


def build(dataset: DatasetName = "cifar10") -> Any:
    torch.manual_seed(0)
    return models.build(TrainConfig(model="speednet", dataset=dataset), SPECS[dataset])


def test_the_first_convolution_whitens_the_images() -> None:
    network, images = build(), torch.randn(700, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    images[:, 1] += 0.5 * images[:, 0]  # neighbours in space and colour go together
    images[:, :, 1:] += 0.3 * images[:, :, :-1]
    speednet.whiten(network, images)
    with torch.no_grad():
        whitened = network[0](images) - network[0].bias[:, None, None]
    rows = whitened.transpose(0, 1).flatten(1)
    assert torch.allclose(rows[12:], -rows[:12], atol=1e-5)
    covariance = rows[:12] @ rows[:12].T / rows.shape[1]
    assert torch.allclose(covariance, torch.eye(12), atol=0.02)


def test_what_hardly_varies_is_not_blown_up(digits: Dataset) -> None:
    """In grey images the three channels are one."""
    network = build()
    speednet.whiten(network, modality.of(digits.spec).normaliser()(as_tensor(digits.train.inputs)[:500]))
    assert network[0].weight.abs().max() < 1 / 5e-4**0.5


def test_convolutions_begin_as_identities_of_their_channels() -> None:
    images = torch.randn(2, 64, 5, 5)
    second = [module for module in build() if isinstance(module, nn.Conv2d)][2]
    assert (second.in_channels, second.out_channels) == (64, 64)
    assert torch.equal(second(images), images)
    wider = [module for module in build() if isinstance(module, nn.Conv2d)][3]
    handed_on = wider(images)
    assert torch.equal(handed_on[:, :64], images)
    assert handed_on[:, 64:].abs().max() > 0


def test_neither_the_first_convolution_nor_a_norms_scale_learns() -> None:
    fixed = [name for name, parameter in build().named_parameters() if not parameter.requires_grad]
    norms = [name for name, module in build().named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert sorted(fixed) == sorted(["0.weight", *(f"{name}.weight" for name in norms)])


def test_outside_training_an_image_and_its_mirror_image_give_the_same() -> None:
    network, images = build().eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        plain = nn.Sequential(*network)
        assert torch.equal(network(images), (plain(images) + plain(images.flip(3))) / 2)
        assert torch.equal(network(images), network(images.flip(3)))
        assert torch.equal(network.train()(images), plain.train()(images))
    digits = build("digits").eval()
    assert not torch.allclose(digits(images), digits(images.flip(3)))  # a mirrored digit is none
