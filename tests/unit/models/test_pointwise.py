from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cifar_ray.models import convolution


def passes(layer: nn.Module, images: torch.Tensor, bf16: bool) -> list[torch.Tensor]:
    """Output, and the gradients of the input and of every parameter."""
    layer.zero_grad()
    images = images.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        out = layer(images)
    out.float().square().sum().backward()
    assert images.grad is not None
    return [out.float(), images.grad, *(parameter.grad for parameter in layer.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_matrix_product_is_the_convolution(stride: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(6, 10, 1, stride, bias=bias)
    network = nn.Sequential(copy.deepcopy(plain))
    convolution.make_pointwise(network)
    (product,) = network
    assert isinstance(product, convolution.Pointwise)
    images = torch.randn(3, 6, 5, 5).to(memory_format=torch.channels_last)
    for bf16, tolerance in ((False, 0.0), (True, 0.02)):
        results = zip(passes(product, images, bf16), passes(plain, images, bf16), strict=True)
        for one, other in results:
            assert one.shape == other.shape
            assert torch.allclose(one, other, rtol=0, atol=tolerance * other.abs().max().item())


def test_only_1x1_convolutions_are_replaced_and_keep_their_weights() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 5, 1), nn.ReLU()), nn.Linear(5, 1))
    before = network.state_dict()
    convolution.make_pointwise(network)
    kinds = [type(module) for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert kinds == [nn.Conv2d, convolution.Pointwise]
    after = network.state_dict()
    assert list(before) == list(after)
    assert all(before[name].data_ptr() == after[name].data_ptr() for name in before)
