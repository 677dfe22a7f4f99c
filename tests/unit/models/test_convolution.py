from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import Tensor, nn

from cifar_ray.models import convolution

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.02}


def installed(network: nn.Module, chosen: str = "products8") -> nn.Module:
    """A copy of ``network`` whose convolutions compute as ``chosen`` says."""
    changed = copy.deepcopy(network)
    convolution.install(changed, chosen)
    return changed


def passes(network: nn.Module, images: Tensor, autocast: bool = False) -> list[Tensor]:
    """Output, and the gradients of the input and of every parameter."""
    network.zero_grad()
    images = images.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = network(images)
    out.double().square().sum().backward()
    return [out, images.grad, *(parameter.grad for parameter in network.parameters())]  # type: ignore[list-item]


def assert_close(results: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for one, other in zip(results, wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.allclose(one.double(), other.double(), rtol=0, atol=tolerance * other.abs().max().item())


@pytest.mark.parametrize("seed", range(60))
def test_products_are_the_convolution(seed: int) -> None:
    """Kernels of 1 to 7, square or not, with any stride, padding, bias, dtype, layout and with or without the gradient of the input."""
    draw = random.Random(seed)
    kernel = (draw.randint(1, 7), draw.randint(1, 7)) if draw.random() < 0.5 else draw.choice((1, 2, 3, 5, 7))
    stride = (draw.randint(1, 3), draw.randint(1, 3)) if draw.random() < 0.5 else draw.randint(1, 3)
    padding = (draw.randint(0, 3), draw.randint(0, 3)) if draw.random() < 0.5 else draw.randint(0, 3)
    channels, filters = draw.choice((1, 3, 8)), draw.choice((1, 5, 16))
    dtype, autocast = draw.choice(((torch.float64, False), (torch.float32, False), (torch.float32, True)))
    torch.manual_seed(seed)
    layer = nn.Conv2d(channels, filters, kernel, stride, padding, bias=draw.random() < 0.5).to(dtype)
    images = torch.randn(draw.randint(1, 5), channels, draw.randint(7, 12), draw.randint(7, 12), dtype=dtype)
    if draw.random() < 0.5:
        layer, images = (of.to(memory_format=torch.channels_last) for of in (layer, images))
    product = installed(layer, draw.choice(("products99", "products99_forward_weight")))
    assert type(product) in (convolution.Convolution, convolution.Subsampled)
    tolerance = TOLERANCE[torch.bfloat16 if autocast else dtype]
    assert_close(passes(product, images, autocast), passes(layer, images, autocast), tolerance)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, 2, 1, bias=False)),
        *(nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 4, 1), nn.Flatten()),
    )


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_what_no_product_stands_for_stays_as_it_is_and_so_do_parameters_and_names() -> None:
    class Own(nn.Conv2d):
        pass

    before = nn.Sequential(*network(), nn.Unflatten(1, (4, 2, 2)), Own(4, 4, 1), nn.Conv2d(4, 4, 3, padding="same"))
    after = installed(before)
    is_product = [type(layer) is convolution.Convolution for layer in after if isinstance(layer, nn.Conv2d)]
    assert is_product == [True, True, False, True, False, False]
    assert list(after.state_dict()) == list(before.state_dict())
    assert str(next(after.children())) == "Convolution(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))"
    assert_close(passes(after, IMAGES), passes(before, IMAGES), TOLERANCE[torch.float32])


def test_without_gradients_and_for_larger_sides_it_is_the_convolution_itself() -> None:
    layer = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    product = installed(layer)
    larger = torch.randn(2, 3, 11, 11)
    with torch.no_grad():
        assert torch.equal(product(IMAGES), layer(IMAGES))
    assert all(map(torch.equal, passes(product, larger), passes(layer, larger)))
    assert product(IMAGES).grad_fn.name() == "_ProductsBackward"
    assert product(larger).grad_fn.name() != "_ProductsBackward"


def test_a_device_other_than_the_cpu_keeps_its_convolutions() -> None:
    product = installed(nn.Conv2d(3, 8, 3)).to("meta")
    assert product(IMAGES.to("meta")).grad_fn.name() != "_ProductsBackward"


def test_a_layer_with_large_columns_stays_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    product = installed(nn.Conv2d(3, 8, 3))
    size = 2 * 6 * 6 * 27 * 4
    for most, is_product in ((size, True), (size - 1, False)):
        monkeypatch.setattr(convolution, "MOST_BYTES", most)
        assert (product(IMAGES).grad_fn.name() == "_ProductsBackward") is is_product


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_matrix_product_is_the_1x1_convolution(stride: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(6, 10, 1, stride, bias=bias)
    network = nn.Sequential(copy.deepcopy(plain))
    convolution.make_pointwise(network)
    (product,) = network
    assert isinstance(product, convolution.Pointwise)
    images = torch.randn(3, 6, 5, 5).to(memory_format=torch.channels_last)
    for autocast, tolerance in ((False, 0.0), (True, TOLERANCE[torch.bfloat16])):
        assert_close(passes(product, images, autocast), passes(plain, images, autocast), tolerance)


def test_only_1x1_convolutions_are_replaced_and_keep_their_weights() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 5, 1), nn.ReLU()), nn.Linear(5, 1))
    before = network.state_dict()
    convolution.make_pointwise(network)
    kinds = [type(module) for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert kinds == [nn.Conv2d, convolution.Pointwise]
    after = network.state_dict()
    assert list(before) == list(after)
    assert all(before[name].data_ptr() == after[name].data_ptr() for name in before)


def test_a_1x1_convolution_with_a_stride_and_few_channels_is_computed_without_a_crash() -> None:
    """At 64 pixels, PyTorch's own backward pass ends the process."""
    layer = nn.Conv2d(8, 16, 1, stride=2)
    network, images = copy.deepcopy(layer), torch.rand(4, 8, 64, 64)
    convolution.install(network, None)
    outs = [
        module(images.contiguous(memory_format=of))
        for module, of in ((layer, torch.contiguous_format), (network, torch.channels_last))
    ]
    for out in outs:
        out.square().mean().backward()
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(network.weight.grad, layer.weight.grad.to(memory_format=torch.channels_last))
