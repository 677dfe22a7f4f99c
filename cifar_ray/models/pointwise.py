"""1x1 convolutions as matrix products."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        vertical, horizontal = self.stride
        pixels = x[:, :, ::vertical, ::horizontal].permute(0, 2, 3, 1)
        return F.linear(pixels, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def replace(network: nn.Module) -> None:
    """Make every 1x1 convolution within ``network`` a :class:`Pointwise` one with the same parameters."""
    for parent in network.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Conv2d and child.kernel_size == (1, 1):
                with torch.device("meta"):  # no memory and no random numbers for weights that are not kept
                    layer = Pointwise(child.in_channels, child.out_channels, 1, bias=child.bias is not None)
                layer.stride, layer.weight, layer.bias = child.stride, child.weight, child.bias
                setattr(parent, name, layer)
