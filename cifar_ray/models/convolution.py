"""Convolutions that are matrix products where their result has few pixels.

A convolution's forward pass and both its gradients are products of a matrix that has a row for every pixel of the
result, the patch of the input that it comes from ("columns", im2col; Chellapilla et al. 2006). It is kernel height x
width times as large as the input, so libraries work without it. Where channels are many and sides small, oneDNN's
convolutions in bfloat16 are several times slower than the products. Up to which side the products gain depends on the
processor, so whole passes are timed (:mod:`cifar_ray.training.arithmetic`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KEPT_BYTES = 256 * 2**20
"""Columns that all layers of a model keep for the backward pass, at most: as much as the activations of a small model.
A layer with more than its share of it makes them again, which takes a tenth of a product's time where it pays."""

MOST_BYTES = 256 * 2**20
"""A layer with larger columns is left a convolution: memory that is written once, and never again from a cache."""

Pair = tuple[int, int]  # vertical, horizontal


def memory_format(chosen: str | None) -> torch.memory_format:
    """How images and weights lie in memory."""
    return torch.contiguous_format if chosen == "contiguous" else torch.channels_last


def laid_out(inputs: Tensor, chosen: str | None) -> Tensor:
    """A model's inputs with images as they are to lie in memory."""
    return inputs.to(memory_format=memory_format(chosen)) if inputs.ndim == 4 else inputs


def replaceable(network: nn.Module) -> list[nn.Conv2d]:
    """The layers of ``network`` that can be products."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d) and type(layer) is nn.Conv2d]
    return [
        layer
        for layer in layers
        if layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    ]


def install(network: nn.Module, chosen: str | None) -> None:
    """Have the convolutions of ``network`` compute as ``chosen`` says, in place.

    Their class changes; their parameters, names and hooks stay.
    """
    if chosen is None or not chosen.startswith("products"):
        return
    side, _, parts = chosen.removeprefix("products").partition("_")
    layers = replaceable(network)
    for layer in layers:
        layer.__class__ = Convolution
        assert isinstance(layer, Convolution)
        layer.most_side, layer.with_data, layer.kept_bytes = int(side), not parts, KEPT_BYTES // len(layers)


class Convolution(nn.Conv2d):
    """A convolution that :func:`install` has changed; (B, C, H, W) to (B, filters, H', W').

    It is a product in training on a CPU, where no side of the result is longer than ``most_side``; without
    ``with_data`` the gradient of the input is a convolution's.
    """

    most_side: int
    with_data: bool
    kept_bytes: int

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim == 4 and input.device.type == "cpu" and torch.is_grad_enabled():
            is_cast = torch.is_autocast_enabled("cpu") and input.dtype == torch.float32
            dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else self.weight.dtype
            sides = _result(input, self)
            size = len(input) * math.prod(sides) * self.weight[0].numel() * dtype.itemsize
            if max(sides) <= self.most_side and size <= MOST_BYTES and (is_cast or input.dtype == dtype):
                bias = None if self.bias is None else self.bias.to(dtype)
                how = (self.stride, self.padding, self.with_data, size <= self.kept_bytes)
                out: Tensor = _Products.apply(input.to(dtype), self.weight.to(dtype), bias, *how)
                return out
        return super().forward(input)


def _result(images: Tensor, layer: nn.Conv2d) -> list[int]:
    """Height and width of a layer's result for images (B, C, H, W)."""
    assert not isinstance(layer.padding, str)
    sizes = zip(images.shape[2:], layer.kernel_size, layer.stride, layer.padding)
    return [(side + 2 * padding - kernel) // stride + 1 for side, kernel, stride, padding in sizes]


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Pair,
        padding: Pair,
        with_data: bool,
        keep: bool,
    ) -> Tensor:
        patches = _patches(x, weight, stride, padding)
        (images, tall, wide), matrix = patches.shape[:3], _matrix(weight).t()
        columns = patches.reshape(images * tall * wide, -1)
        out = torch.empty((images, len(weight), tall, wide), dtype=x.dtype, memory_format=torch.channels_last)
        rows = out.permute(0, 2, 3, 1).view(len(columns), -1)
        if bias is None:  # the product is written into the result, which a layer may change in place, as it may no view
            torch.mm(columns, matrix, out=rows)
        else:
            torch.addmm(bias, columns, matrix, out=rows)
        ctx.save_for_backward(x, weight, columns if keep else None)
        ctx.stride, ctx.padding, ctx.with_data = stride, padding, with_data
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        x, weight, columns = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        results: list[Tensor | None] = [None, None, None]
        if not torch.is_grad_enabled():  # a gradient's gradient is that of convolutions
            rows = gradient.permute(0, 2, 3, 1).flatten(0, 2)  # one for every pixel: (B x H' x W', filters)
            if wanted[0] and ctx.with_data:
                results[0] = _data_gradient(rows, gradient, weight, x, ctx.stride, ctx.padding)
            if wanted[1]:
                if columns is None:
                    columns = _patches(x, weight, ctx.stride, ctx.padding).reshape(len(rows), -1)
                filters, channels, *kernel = weight.shape
                results[1] = (rows.t() @ columns).view(filters, *kernel, channels).permute(0, 3, 1, 2)
            results[2] = gradient.sum((0, 2, 3)) if wanted[2] else None
        missing = [needed and result is None for needed, result in zip(wanted, results)]
        if any(missing):
            sizes = ([len(weight)], ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1)
            others = torch.ops.aten.convolution_backward(gradient, x, weight, *sizes, missing)
            results = [other if result is None else result for result, other in zip(results, others)]
        return *results, None, None, None, None


def _patches(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The patch of every pixel of the result: (B, C, H, W) to (B, H', W', kernel height, kernel width, C)."""
    (vertical, horizontal), pixels = padding, x.permute(0, 2, 3, 1)
    if any(padding):
        pixels = F.pad(pixels, (0, 0, horizontal, horizontal, vertical, vertical))
    for side in (0, 1):
        pixels = pixels.unfold(1 + side, weight.shape[2 + side], stride[side])
    return pixels.permute(0, 1, 2, 4, 5, 3)


def _data_gradient(rows: Tensor, gradient: Tensor, weight: Tensor, x: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The gradient of the input ``x``, (B, C, H, W), channels last.

    The gradient of every patch is added where the patch comes from, in float32: in bfloat16, sums of many would lose
    their last bits.
    """
    (_, channels, *kernel), (images, _, height, width), (tall, wide) = weight.shape, x.shape, gradient.shape[2:]
    patches = (rows @ _matrix(weight)).view(images, tall, wide, *kernel, channels)
    if (kernel, stride, padding) == ([1, 1], (1, 1), (0, 0)):
        return patches.view(images, height, width, channels).permute(0, 3, 1, 2)
    (top, left), (down, right) = padding, stride
    dtype = torch.promote_types(x.dtype, torch.float32)
    pixels = x.new_zeros(images, height + 2 * top, width + 2 * left, channels, dtype=dtype)
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            place = pixels[:, row : row + down * tall : down, column : column + right * wide : right]
            place += patches[:, :, :, row, column]
    inner = pixels[:, top : top + height, left : left + width]
    return inner.to(x.dtype).contiguous().permute(0, 3, 1, 2)


def _matrix(weight: Tensor) -> Tensor:
    """A row for every filter, in the order of the columns."""
    return weight.permute(0, 2, 3, 1).reshape(len(weight), -1)
