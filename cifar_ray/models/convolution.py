"""Convolutions that are matrix products where their result has few pixels, and 1x1 convolutions that always are.

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
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

MOST_BYTES = 256 * 2**20
"""A layer with larger columns, which are kept for the backward pass, is left a convolution."""

Pair = tuple[int, int]  # vertical, horizontal


def laid_out(inputs: Tensor, chosen: str | None) -> Tensor:
    """A model's inputs with images as they are to lie in memory."""
    return inputs.to(memory_format=_format(chosen)) if inputs.ndim == 4 else inputs


def _format(chosen: str | None) -> torch.memory_format:
    return torch.contiguous_format if chosen == "contiguous" else torch.channels_last


def install(network: nn.Module, chosen: str | None) -> None:
    """Have the weights of ``network`` lie in memory, and its convolutions compute, as ``chosen`` says, in place.

    The convolutions' class changes; their parameters, names and hooks stay.
    """
    network.to(memory_format=_format(chosen))
    way = chosen or ""
    for layer in network.modules():
        if type(layer) is not nn.Conv2d:
            continue
        if _crashes(layer):
            layer.__class__ = Subsampled
        elif (
            way.startswith("products")
            and (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
            and not isinstance(layer.padding, str)
        ):
            layer.__class__ = Convolution
            assert isinstance(layer, Convolution)
            side, _, parts = way.removeprefix("products").partition("_")
            layer.most_side, layer.with_data = int(side), not parts


def _crashes(layer: nn.Conv2d) -> bool:
    is_plain = (layer.kernel_size, layer.groups) == ((1, 1), 1) and layer.padding in ((0, 0), "valid")
    return is_plain and layer.stride != (1, 1) and layer.in_channels < 16 and layer.weight.device.type == "cpu"


def _picked(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The pixels that a 1x1 convolution reads."""
    vertical, horizontal = layer.stride
    return x[:, :, ::vertical, ::horizontal]


class Subsampled(nn.Conv2d):
    """A 1x1 convolution with a stride that picks its pixels first; (B, C, H, W) to (B, filters, H', W').

    With channels last, fewer than 16 of them and images above some 48 pixels, the backward pass of PyTorch 2.15 ends
    the process by SIGSEGV.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(_picked(self, x), self.weight, self.bias)


class Convolution(nn.Conv2d):
    """A convolution that :func:`install` has changed; (B, C, H, W) to (B, filters, H', W').

    It is a product in training on a CPU, where no side of the result is longer than ``most_side``; without
    ``with_data`` the gradient of the input is a convolution's.
    """

    most_side: int
    with_data: bool

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4 or input.device.type != "cpu" or not torch.is_grad_enabled():
            return super().forward(input)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        how: tuple[Pair, Pair] = self.stride, self.padding  # type: ignore[assignment]
        sides = [
            (side + 2 * padding - kernel) // stride + 1
            for side, kernel, stride, padding in zip(input.shape[2:], self.kernel_size, *how)
        ]
        size = len(input) * math.prod(sides) * self.weight[0].numel() * dtype.itemsize
        if max(sides) > self.most_side or size > MOST_BYTES:
            return super().forward(input)
        bias = None if self.bias is None else self.bias.to(dtype)
        out: Tensor = _Products.apply(input.to(dtype), self.weight.to(dtype), bias, *how, self.with_data)
        return out


class Pointwise(nn.Conv2d):
    """A 1x1 convolution without padding; (B, C, H, W) to (B, filters, H/stride, W/stride).

    In bfloat16 on a CPU it is a matrix product over the channels, which is the same arithmetic. oneDNN's backward pass
    of such a convolution over images of few pixels is slow: 512 to 2,048 channels over 64 images of one pixel took
    14.9 ms of CPU time, forward and backward, against 1.6, and 64 to 256 channels over 8x8 pixels 1.43 against 1.28
    (least of n = 3, one thread of an AMD EPYC). In float32 the convolution is faster but for single pixels.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
            return super().forward(x)
        pixels = _picked(self, x).permute(0, 2, 3, 1)
        return F.linear(pixels, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def make_pointwise(network: nn.Module) -> None:
    """Make every 1x1 convolution within ``network`` a :class:`Pointwise` one, in place."""
    for layer in network.modules():
        if type(layer) is nn.Conv2d and layer.kernel_size == (1, 1):
            layer.__class__ = Pointwise


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, with_data: bool
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
        ctx.save_for_backward(x, weight, columns)
        ctx.how, ctx.with_data = (stride, padding), with_data
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, columns = ctx.saved_tensors
        data = of_weight = of_bias = None
        rows = gradient.permute(0, 2, 3, 1).flatten(0, 2)  # one for every pixel: (B x H' x W', filters)
        if ctx.needs_input_grad[0] and ctx.with_data:
            data = _data_gradient(rows, gradient, weight, x, *ctx.how)
        elif ctx.needs_input_grad[0]:
            how = ([len(weight)], *ctx.how, (1, 1), False, (0, 0), 1)
            data = torch.ops.aten.convolution_backward(gradient, x, weight, *how, (True, False, False))[0]
        if ctx.needs_input_grad[1]:
            filters, channels, *kernel = weight.shape
            of_weight = (rows.t() @ columns).view(filters, *kernel, channels).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum((0, 2, 3))
        return data, of_weight, of_bias, None, None, None


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
