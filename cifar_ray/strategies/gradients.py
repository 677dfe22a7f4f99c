"""Gradients as plain vectors, as they are sent."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def flat_gradients(model: nn.Module) -> list[Tensor]:
    """Every gradient as a vector over its own memory, whatever its layout; changing one changes the gradient."""
    return [flat(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]


def flat(tensor: Tensor) -> Tensor:
    """A dense tensor as a vector over its own memory, in the order of that memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def average(tensors: Iterable[Tensor]) -> None:
    """Make dense float tensors of one type the mean over all ranks, in place, with one all-reduce."""
    vectors = [flat(tensor.detach()) for tensor in tensors]
    if not vectors:
        return
    together = torch.cat(vectors)
    dist.all_reduce(together)
    together /= dist.get_world_size()
    for vector, mean in zip(vectors, torch.split(together, [len(vector) for vector in vectors])):
        vector.copy_(mean)
