"""Gradients and other tensors as plain vectors, as they are sent."""

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
    """Make dense tensors the mean over all ranks, in place and at once; those of whole numbers become rank 0's."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    vectors = [flat(tensor.detach()) for tensor in tensors]
    numbers = [vector for vector in vectors if vector.is_floating_point()]
    if numbers:
        together = torch.cat(numbers)
        dist.all_reduce(together)
        together /= dist.get_world_size()
        for vector, mean in zip(numbers, torch.split(together, [len(vector) for vector in numbers])):
            vector.copy_(mean)
    for vector in vectors:
        if not vector.is_floating_point():
            dist.broadcast(vector, src=0)


def state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Everything that an optimizer remembers of every parameter."""
    return [value for of in optimizer.state.values() for value in of.values() if isinstance(value, Tensor)]
