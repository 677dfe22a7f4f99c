from __future__ import annotations

import pytest
import torch
from torch import nn

from cifar_ray import models
from cifar_ray.config.train import ResNet50Options, ResNetOptions, TrainConfig, ViTOptions
from cifar_ray.data import SPECS


def build(**values: object) -> nn.Module:
    torch.manual_seed(0)
    config = TrainConfig(**values)  # type: ignore[arg-type]
    return models.build(config, SPECS[config.dataset])


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", sorted(models.REGISTRY))
@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_every_model_gives_logits_and_gradients(name: str, dataset: str) -> None:
    model = build(model=name, dataset=dataset)
    logits = model(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, SPECS[dataset].num_classes)
    logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", sorted(models.REGISTRY))
def test_layers_one_after_the_other_are_the_model(name: str, training: bool, stem: str) -> None:
    if stem == "cifar" and name != "resnet50":
        pytest.skip("only resnet50 has stems")
    options = {"resnet50": ResNet50Options(stem)} if name == "resnet50" else {}  # type: ignore[arg-type]
    config = TrainConfig(model=name, vit=ViTOptions(dropout=0.1) if name == "vit" else ViTOptions(), **options)  # type: ignore[arg-type]
    model = build(model=name, vit=config.vit, **options).train(training)
    names = list(model.state_dict())
    images = torch.randn(4, 3, 32, 32)
    layers = models.layers(config, model)
    torch.manual_seed(1)
    x = images
    for layer in layers:
        x = layer(x)
    torch.manual_seed(1)
    assert torch.equal(x, model(images))
    theirs = [parameter for layer in layers for parameter in layer.parameters()]
    assert {id(parameter) for parameter in theirs} == {id(parameter) for parameter in model.parameters()}
    assert len(theirs) == len(list(model.parameters()))
    assert list(model.state_dict()) == names


def test_simple_cnn_is_the_studys() -> None:
    # 3->4 and 4->8 filters of 3x3, then 512->32->10, each with biases
    assert parameters(build(model="simple_cnn")) == 4 * 28 + 8 * 37 + 32 * 513 + 10 * 33


def test_resnet18_has_the_usual_size() -> None:
    assert parameters(build(model="resnet18")) == 11_173_962


def test_resnet_follows_its_options() -> None:
    same_as_18 = build(model="resnet", resnet=ResNetOptions(blocks=(2, 2, 2, 2), width=64))
    assert parameters(same_as_18) == 11_173_962
    # blocks 3 3 3 and width 16 with projections instead of padded shortcuts: He et al.'s 0.27 M
    assert 270_000 < parameters(build(model="resnet", resnet=ResNetOptions((3, 3, 3), 16))) < 275_000


def test_vgg11_is_configuration_a_with_batch_norm() -> None:
    model = build(model="vgg11")
    filters = [module.out_channels for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert filters == [64, 128, 256, 256, 512, 512, 512, 512]
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == 8
    assert sum(isinstance(module, nn.MaxPool2d) for module in model.modules()) == 5


def feature_side(stem: str) -> int:
    model = build(model="resnet50", resnet50=ResNet50Options(stem=stem))  # type: ignore[arg-type]
    sides: list[int] = []
    model.layer1.register_forward_hook(lambda module, inputs, output: sides.append(inputs[0].shape[-1]))
    model.eval()(torch.randn(1, 3, 32, 32))
    return sides[0]


def test_resnet50s_stems_leave_what_their_help_says() -> None:
    assert feature_side("imagenet") == 8
    assert feature_side("cifar") == 32


def test_vit_drops_and_skips_in_training_only() -> None:
    model = build(model="vit", vit=ViTOptions(dim=48, depth=3, heads=3, dropout=0.2, stochastic_depth=0.5))
    images = torch.randn(4, 3, 32, 32)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


def test_vit_skips_later_blocks_more_often() -> None:
    model = build(model="vit", vit=ViTOptions(depth=5, stochastic_depth=0.2))
    assert [block.skip for block in model.blocks] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])  # type: ignore[union-attr]


def test_vit_sees_every_patch_and_its_position() -> None:
    model = build(model="vit", vit=ViTOptions(dim=48, depth=2, heads=3, stochastic_depth=0.0)).eval()
    images = torch.randn(1, 3, 32, 32)
    swapped = images.clone()
    swapped[..., :4, :4], swapped[..., 28:, 28:] = images[..., 28:, 28:], images[..., :4, :4]
    assert not torch.allclose(model(images), model(swapped))


def test_equal_seeds_give_equal_weights() -> None:
    first, second = build(model="resnet"), build(model="resnet")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
