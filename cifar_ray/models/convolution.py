"""Convolutions whose parts are matrix products where these are faster.

A convolution's forward pass and both its gradients are products of a matrix that has a row for every pixel of the
result, the patch of the input that it comes from ("columns", im2col; Chellapilla et al. 2006). It is kernel height x
width times as large as the input, so libraries work without it. Where channels are many and sides small, oneDNN's
convolutions in bfloat16 are several times slower than the products. Which parts of which layers gain depends on the
processor, so this is measured (:mod:`cifar_ray.training.arithmetic`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cifar_ray.config.model import Convolutions, ConvolutionShape

KEPT_BYTES = 256 * 2**20
"""Columns that all layers of a model keep for the backward pass, at most: as much as the activations of a small model.
A layer with more than its share of it makes them again, which takes a tenth of a product's time where it pays."""

MOST_BYTES = 256 * 2**20
"""A layer with larger columns is left a convolution: memory that is written once, and never again from a cache."""


def shape_of(layer: nn.Module, images: Tensor) -> ConvolutionShape | None:
    """The shape of a layer that can be computed as products, for images (B, C, H, W); None for any other."""
    if type(layer) not in (nn.Conv2d, Convolution) or not isinstance(layer, nn.Conv2d) or images.ndim != 4:
        return None
    if layer.groups > 1 or layer.dilation != (1, 1) or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    channels, height, width = images.shape[1:]
    sizes = (layer.kernel_size, layer.stride, layer.padding)
    return ConvolutionShape(channels, height, width, layer.out_channels, *sizes)  # type: ignore[arg-type]


def memory_format(chosen: Convolutions) -> torch.memory_format:
    """How images and weights lie in memory."""
    return torch.channels_last if chosen.is_channels_last else torch.contiguous_format


def laid_out(inputs: Tensor, chosen: Convolutions) -> Tensor:
    """A model's inputs with images as they are to lie in memory."""
    return inputs.to(memory_format=memory_format(chosen)) if inputs.ndim == 4 else inputs


def install(network: nn.Module, chosen: Convolutions) -> None:
    """Have the convolutions of ``network`` compute the chosen parts as products, in place.

    Their class changes; their parameters, names and hooks stay.
    """
    layers, sides = [], {(shape.height, shape.width) for shape in chosen.products}
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            shapes = {shape_of(layer, torch.empty(1, layer.in_channels, *side, device="meta")) for side in sides}
            products = {shape: parts for shape, parts in chosen.products.items() if shape in shapes}
            if products:
                layer.__class__ = Convolution
                layer.products = products  # type: ignore[assignment]
                layers.append(layer)
    for layer in layers:
        layer.kept_bytes = KEPT_BYTES // len(layers)  # type: ignore[assignment]


class Convolution(nn.Conv2d):
    """A convolution that :func:`install` has changed; (B, C, H, W) to (B, filters, H', W').

    Products are for training on a CPU, with images of the sizes that were chosen for; else it is the convolution.
    """

    products: dict[ConvolutionShape, frozenset[str]]
    kept_bytes: int

    def forward(self, input: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else self.weight.dtype
        is_cast = torch.is_autocast_enabled("cpu") and input.dtype == torch.float32
        shape = shape_of(self, input)
        parts = self.products.get(shape) if shape else None
        if (
            shape is None
            or parts is None
            or input.device.type != "cpu"
            or not torch.is_grad_enabled()
            or not (is_cast or input.dtype == dtype)
            or (size := columns_bytes(shape, len(input), dtype)) > MOST_BYTES
        ):
            return super().forward(input)
        bias = None if self.bias is None else self.bias.to(dtype)
        keep = {"forward", "weight"} <= parts and size <= self.kept_bytes
        out: Tensor = _Products.apply(input.to(dtype), self.weight.to(dtype), bias, shape, parts, keep)
        return out


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvolutionShape, parts: Any, keep: bool
    ) -> Tensor:
        columns = None
        if "forward" in parts:
            columns = columns_of(x, shape)
            out = forward(columns, weight, bias, x, shape)
        else:
            out = F.conv2d(x, weight, bias, shape.stride, shape.padding)
        ctx.save_for_backward(x, weight, columns if keep else None)
        ctx.shape, ctx.parts = shape, parts
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        x, weight, columns = ctx.saved_tensors
        shape, needed = ctx.shape, ctx.needs_input_grad[:3]
        parts = () if torch.is_grad_enabled() else ctx.parts  # a gradient's gradient is that of convolutions
        results: list[Tensor | None] = [None, None, None]
        if needed[0] and "data" in parts:
            results[0] = data_gradient(gradient, weight, x, shape)
        if needed[1] and "weight" in parts:
            results[1] = weight_gradient(gradient, columns_of(x, shape) if columns is None else columns, weight)
            results[2] = gradient.sum((0, 2, 3)) if needed[2] else None
        missing = [wanted and result is None for wanted, result in zip(needed, results)]
        if any(missing):
            found = convolution_gradients(gradient, x, weight, shape, missing)
            results = [result if result is not None else other for result, other in zip(results, found)]
        return *results, None, None, None


def convolution_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, shape: ConvolutionShape, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The ones of the input, the weight and the bias that are ``wanted``, as the library has them."""
    sizes = ([len(weight)], shape.stride, shape.padding, (1, 1), False, (0, 0), 1)
    found: Any = torch.ops.aten.convolution_backward(gradient, x, weight, *sizes, wanted)
    return found  # type: ignore[no-any-return]


def columns_bytes(shape: ConvolutionShape, images: int, dtype: torch.dtype) -> int:
    """Size of :func:`columns_of`."""
    return images * shape.channels * math.prod((*shape.result, *shape.kernel)) * dtype.itemsize


def columns_of(x: Tensor, shape: ConvolutionShape) -> Tensor:
    """The patch of every pixel of the result: (B, C, H, W) to (B x H' x W', kernel height x width x C)."""
    (vertical, horizontal), pixels = shape.padding, x.permute(0, 2, 3, 1)
    if any(shape.padding):
        pixels = F.pad(pixels, (0, 0, horizontal, horizontal, vertical, vertical))
    for side in (0, 1):
        pixels = pixels.unfold(1 + side, shape.kernel[side], shape.stride[side])
    return pixels.permute(0, 1, 2, 4, 5, 3).reshape(len(x) * math.prod(shape.result), -1)


def forward(columns: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, shape: ConvolutionShape) -> Tensor:
    """The result, (B, filters, H', W'), channels last."""
    matrix = _matrix(weight).t()
    result = torch.empty((len(x), len(weight), *shape.result), dtype=x.dtype, memory_format=torch.channels_last)
    rows = result.permute(0, 2, 3, 1).view(len(columns), -1)
    if bias is None:  # the product is written into the result, which a layer may change in place, as it may no view
        torch.mm(columns, matrix, out=rows)
    else:
        torch.addmm(bias, columns, matrix, out=rows)
    return result


def weight_gradient(gradient: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
    """The gradient of ``weight``, (filters, C, kernel height, kernel width)."""
    filters, channels, tall, wide = weight.shape
    return (_rows(gradient).t() @ columns).view(filters, tall, wide, channels).permute(0, 3, 1, 2)


def data_gradient(gradient: Tensor, weight: Tensor, x: Tensor, shape: ConvolutionShape) -> Tensor:
    """The gradient of the input ``x``, (B, C, H, W), channels last.

    The gradient of every patch is added where the patch comes from, in float32: in bfloat16, sums of many would lose
    their last bits.
    """
    patches = (_rows(gradient) @ _matrix(weight)).view(len(x), *shape.result, *shape.kernel, shape.channels)
    if (shape.kernel, shape.stride, shape.padding) == ((1, 1), (1, 1), (0, 0)):
        return patches.view(len(x), shape.height, shape.width, shape.channels).permute(0, 3, 1, 2)
    (top, left), (down, right) = shape.padding, shape.stride
    dtype = torch.promote_types(x.dtype, torch.float32)
    pixels = x.new_zeros(len(x), shape.height + 2 * top, shape.width + 2 * left, shape.channels, dtype=dtype)
    tall, wide = shape.result
    for row in range(shape.kernel[0]):
        for column in range(shape.kernel[1]):
            place = pixels[:, row : row + down * tall : down, column : column + right * wide : right]
            place += patches[:, :, :, row, column]
    inner = pixels[:, top : top + shape.height, left : left + shape.width]
    return inner.to(x.dtype).contiguous().permute(0, 3, 1, 2)


def _rows(gradient: Tensor) -> Tensor:
    """A row for every pixel: (B, filters, H', W') to (B x H' x W', filters)."""
    return gradient.permute(0, 2, 3, 1).reshape(-1, gradient.shape[1])


def _matrix(weight: Tensor) -> Tensor:
    """A row for every filter, in the order of the columns."""
    return weight.permute(0, 2, 3, 1).reshape(len(weight), -1)
