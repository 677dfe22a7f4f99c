from __future__ import annotations

import pytest
import torch
from torch import nn

from cifar_ray import models
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.models import speednet, vit

IMAGES = (torch.arange(2 * 3 * 32 * 32) % 251 / 251).view(2, 3, 32, 32)
SMALL_VIT = {"dim": 48, "depth": 3, "heads": 3, "dropout": 0.2, "stochastic_depth": 0.5}


def build(**values: object) -> nn.Module:
    torch.manual_seed(0)
    config = TrainConfig(**values)  # type: ignore[arg-type]
    return models.build(config, SPECS[config.dataset])


RESNET18 = 11_173_962, (-0.039738, 0.1199, 0.018059)


@pytest.mark.parametrize(
    ("values", "parameters", "logits"),
    [
        ({"model": "simple_cnn"}, 4 * 28 + 8 * 37 + 32 * 513 + 10 * 33, (0.044957, 0.10546, -0.28689)),
        ({"model": "resnet18"}, *RESNET18),
        ({"model": "resnet", "model_options": {"blocks": (2, 2, 2, 2), "width": 64}}, *RESNET18),
        (
            {"model": "resnet", "model_options": {"blocks": (3, 3), "width": 16}, "dataset": "cifar100"},
            69_428,
            (0.38963, -1.9937, -0.81777),
        ),
        ({"model": "resnet50"}, 23_528_522, (-0.94436, -2.5567, 2.6803)),
        (
            {"model": "resnet50", "model_options": {"stem": "cifar"}, "dataset": "cifar100"},
            23_705_252,
            (5.1022, 1.5499, 2.1022),
        ),
        ({"model": "vgg11"}, 9_231_114, (-0.0098977, -0.091773, -0.011886)),
        ({"model": "vit"}, 1_806_538, (-0.43436, -0.20207, -0.44582)),
        ({"model": "vit", "model_options": SMALL_VIT, "dataset": "cifar100"}, 67_396, (0.028199, -0.036634, -0.13132)),
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
    {"model": "resnet50", "model_options": {"stem": "cifar"}},
    {"model": "vit", "model_options": SMALL_VIT},
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("values", OPTIONS, ids=lambda values: "-".join(values))
def test_layers_one_after_the_other_are_the_model(values: dict[str, object], training: bool) -> None:
    config = TrainConfig(**values)  # type: ignore[arg-type]
    model = build(**values).train(training)
    if isinstance(model, speednet.Mirrored):  # outside training it looks twice
        model.train()
    names = list(model.state_dict())
    layers = models.layers(config, model)
    torch.manual_seed(1)
    x = IMAGES
    for layer in layers:
        x = layer(x)
    torch.manual_seed(1)
    assert torch.equal(x, model(IMAGES))
    theirs = [parameter for layer in layers for parameter in layer.parameters()]
    assert {id(parameter) for parameter in theirs} == {id(parameter) for parameter in model.parameters()}
    assert len(theirs) == len(list(model.parameters()))
    assert list(model.state_dict()) == names
    assert len(layers) > 3


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("cifar", 32)])
def test_resnet50s_stems_leave_what_their_help_says(stem: str, side: int) -> None:
    config = TrainConfig(model="resnet50", model_options={"stem": stem})  # type: ignore[arg-type]
    with torch.device("meta"):
        model = models.build(config, SPECS["cifar10"])
        stem_alone = nn.Sequential(*models.layers(config, model)[:4])
        assert stem_alone(torch.empty(2, 3, 32, 32)).shape == (2, 64, side, side)


def test_vit_drops_and_skips_in_training_only() -> None:
    model = build(model="vit", model_options=SMALL_VIT)
    assert not torch.equal(model(IMAGES), model(IMAGES))
    model.eval()
    assert torch.equal(model(IMAGES), model(IMAGES))
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


def test_vit_sees_every_patch_and_its_position() -> None:
    model = build(model="vit", model_options=SMALL_VIT).eval()
    swapped = IMAGES.clone()
    swapped[..., :4, :4], swapped[..., 28:, 28:] = IMAGES[..., 28:, 28:], IMAGES[..., :4, :4]
    assert not torch.allclose(model(IMAGES), model(swapped))


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


def test_plain_attention_drops_in_training_only() -> None:
    torch.manual_seed(0)
    attention = vit.SelfAttention(48, 3, dropout=0.5)
    tokens = torch.randn(2, 17, 48)
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(attention(tokens), attention(tokens))
        attention.eval()
        assert torch.equal(attention(tokens), attention(tokens))
