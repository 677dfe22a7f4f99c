from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from cifar_ray import models
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS, Dataset, modality
from cifar_ray.data.datasets import as_tensor
from cifar_ray.models import speednet, vit
from cifar_ray.models.segnet import SegNet
from cifar_ray.models.unet import UNet

IMAGES = (torch.arange(2 * 3 * 32 * 32) % 251 / 251).view(2, 3, 32, 32)
SMALL_VIT = {"dim": 48, "depth": 3, "heads": 3, "dropout": 0.2, "stochastic_depth": 0.5}


def build(**values: object) -> nn.Module:
    torch.manual_seed(0)
    config = TrainConfig(**values)  # type: ignore[arg-type]
    return models.build(config, SPECS[config.dataset])


CIFAR100: dict[str, object] = {"dataset": "cifar100"}
SHORT: dict[str, object] = {"model": "resnet", "model_options": {"blocks": (3, 3), "width": 16}}
RESNET18 = 11_173_962, (-0.039738, 0.1199, 0.018059)


@pytest.mark.parametrize(
    ("values", "parameters", "logits"),
    [
        ({"model": "simple_cnn"}, 4 * 28 + 8 * 37 + 32 * 513 + 10 * 33, (0.044957, 0.10546, -0.28689)),
        ({"model": "resnet18"}, *RESNET18),
        ({"model": "resnet", "model_options": {"blocks": (2, 2, 2, 2), "width": 64}}, *RESNET18),
        (CIFAR100 | SHORT, 69_428, (0.38963, -1.9937, -0.81777)),
        ({"model": "resnet50"}, 23_528_522, (-0.94436, -2.5567, 2.6803)),
        ({"model": "vgg11"}, 9_231_114, (-0.0098977, -0.091773, -0.011886)),
        ({"model": "vit"}, 1_806_538, (-0.43436, -0.20207, -0.44582)),
        (CIFAR100 | {"model": "vit", "model_options": SMALL_VIT}, 67_396, (0.028199, -0.036634, -0.13132)),
    ],
)
def test_a_seed_gives_the_same_model_for_ever(
    values: dict[str, object], parameters: int, logits: tuple[float, ...]
) -> None:
    """Its size, and what it makes of fixed images: what was stored depends on it."""
    model = build(**values)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    found = model.eval()(IMAGES)
    if parameters < 20_000_000:  # larger ones are torchvision's own, and slow
        found.square().mean().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert found.shape == (2, SPECS[str(values.get("dataset", "cifar10"))].num_classes)
    assert found[1, :3].tolist() == pytest.approx(logits, rel=1e-3)


OPTIONS = [
    *(
        {"model": name}
        for name, entry in models.registry().items()
        if entry.inputs == "images" and not entry.has_masks and name != "vit"
    ),
    {"model": "vit", "model_options": SMALL_VIT},
]


@pytest.mark.parametrize("values", OPTIONS, ids=lambda values: "-".join(values))
def test_layers_one_after_the_other_are_the_model(values: dict[str, object]) -> None:
    config = TrainConfig(**values)  # type: ignore[arg-type]
    model = build(**values).train()
    names = list(model.state_dict())
    layers = models.layers(config, model)
    torch.manual_seed(1)
    x = IMAGES
    for layer in layers:
        x = layer(x)
    torch.manual_seed(1)
    assert torch.equal(x, model(IMAGES))
    theirs = [id(parameter) for layer in layers for parameter in layer.parameters()]
    assert sorted(theirs) == sorted(id(parameter) for parameter in model.parameters())
    assert (list(model.state_dict()), len(layers) > 3) == (names, True)


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("cifar", 32)])
def test_resnet50s_stems_leave_what_their_help_says(stem: str, side: int) -> None:
    config = TrainConfig(model="resnet50", model_options={"stem": stem})  # type: ignore[arg-type]
    with torch.device("meta"):
        model = models.build(config, SPECS["cifar10"])
        stem_alone = nn.Sequential(*models.layers(config, model)[:4])
        assert stem_alone(torch.empty(2, 3, 32, 32)).shape == (2, 64, side, side)


def test_vit_drops_and_skips_in_training_only() -> None:
    attention, tokens = vit.SelfAttention(48, 3, dropout=0.5), torch.randn(2, 17, 48)
    model = build(model="vit", model_options=SMALL_VIT)
    for module, x in ((model, IMAGES), (attention, tokens)):
        with torch.autocast("cpu", torch.bfloat16, enabled=module is attention):
            assert not torch.equal(module(x), module(x))
            module.eval()
            assert torch.equal(module(x), module(x))
    assert [block.skip for block in model.blocks] == [0, 0.25, 0.5]  # type: ignore[union-attr]  # later ones more often
    assert build(model="vit", model_options={"dim": 48, "depth": 1, "heads": 3}).blocks[0].skip == 0  # type: ignore[index, union-attr]


def test_a_sample_that_skips_a_half_of_a_block_is_made_up_for_by_the_others() -> None:
    block, x = vit.Block(8, heads=2, hidden=16, dropout=0.0, skip=0.25), torch.randn(40, 5, 8)

    def kept() -> torch.Tensor:
        return (torch.rand(40, 1, 1) >= 0.25) / 0.75

    torch.manual_seed(1)
    found = block(x)
    torch.manual_seed(1)
    expected = x + kept() * block.attention(block.norm1(x))
    expected = expected + kept() * block.mlp(block.norm2(expected))
    torch.testing.assert_close(found, expected)


def test_vits_attention_is_the_fused_one_however_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    attention = vit.SelfAttention(48, 3, dropout=0.0)
    tokens = torch.randn(4, 17, 48)

    def passes() -> list[torch.Tensor]:
        attention.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            mixed = attention(tokens)
        mixed.float().square().sum().backward()
        return [mixed.float(), *(parameter.grad.clone() for parameter in attention.parameters())]

    plain = passes()
    monkeypatch.setattr(vit, "PLAIN_TOKENS", 16)
    fused = passes()
    assert not torch.equal(plain[1], fused[1])  # two computations
    for one, other in zip(plain, fused, strict=True):
        assert torch.allclose(one, other, rtol=0.02, atol=0.02 * other.abs().max().item())


def test_the_first_convolution_whitens_the_images() -> None:
    network, images = build(model="speednet"), torch.randn(700, 3, 32, 32, generator=torch.Generator().manual_seed(1))
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
    network = build(model="speednet")
    speednet.whiten(network, modality.of(digits.spec).normaliser()(as_tensor(digits.train.inputs)[:500]))
    assert network[0].weight.abs().max() < 1 / 5e-4**0.5


def test_convolutions_begin_as_identities_of_their_channels() -> None:
    images = torch.randn(2, 64, 5, 5)
    second = [module for module in build(model="speednet") if isinstance(module, nn.Conv2d)][2]
    assert (second.in_channels, second.out_channels) == (64, 64)
    assert torch.equal(second(images), images)
    wider = [module for module in build(model="speednet") if isinstance(module, nn.Conv2d)][3]
    handed_on = wider(images)
    assert torch.equal(handed_on[:, :64], images)
    assert handed_on[:, 64:].abs().max() > 0


def test_neither_the_first_convolution_nor_a_norms_scale_learns() -> None:
    fixed = [name for name, parameter in build(model="speednet").named_parameters() if not parameter.requires_grad]
    norms = [name for name, module in build(model="speednet").named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert sorted(fixed) == sorted(["0.weight", *(f"{name}.weight" for name in norms)])


def test_outside_training_an_image_and_its_mirror_image_give_the_same() -> None:
    network, images = build(model="speednet").eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        plain = nn.Sequential(*network)
        assert torch.equal(network(images), (plain(images) + plain(images.flip(3))) / 2)
        assert torch.equal(network(images), network(images.flip(3)))
        assert torch.equal(network.train()(images), plain.train()(images))
    digits = build(model="speednet", dataset="digits").eval()
    assert not torch.allclose(digits(images), digits(images.flip(3)))  # a mirrored digit is none


VGG16 = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 256), (256, 512)] + [(512, 512)] * 5


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_sizes_are_those_of_the_papers_and_of_stored_runs() -> None:
    classes = 12
    encoder = sum(9 * inputs * outputs + 2 * outputs for inputs, outputs in VGG16)
    decoder = sum(9 * inputs * outputs + 2 * inputs for inputs, outputs in VGG16[1:]) + 9 * 64 * classes + classes
    with torch.device("meta"):
        assert size(UNet(16, 1, 2, width=64, norm="none")) == 31_030_658
        assert size(UNet(16, 3, 1, width=64)) == 31_037_633
        assert size(SegNet(32, 3, classes, width=64)) == encoder + decoder == 29_441_996
        assert [size(build(model=name)) for name in ("unet", "segnet")] == [1_942_730, 1_844_442]


@pytest.mark.parametrize(("side", "training"), [(32, True), (35, True), (48, False)])
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
