"""Gradients and other tensors as plain vectors, the form in which they are sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def flat_gradients(model: nn.Module) -> list[Tensor]:
    """Every gradient as a vector over its own memory, whatever its layout; changing one changes the gradient."""
    return [flat(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]


def flat(tensor: Tensor) -> Tensor:
    """A dense tensor as a vector over its own memory, in the order of that memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def scatter_back(together: Tensor, vectors: Sequence[Tensor]) -> None:
    """Copy one long vector back into the vectors that it was concatenated from."""
    for vector, part in zip(vectors, torch.split(together, [len(vector) for vector in vectors])):
        vector.copy_(part)


def swap(sent: Tensor, to: int, received: Tensor, source: int) -> None:
    """Send a tensor to rank ``to`` and receive ``received`` from rank ``source`` at the same time."""
    exchange = [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, received, source)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()


def gather(mine: Tensor) -> list[Tensor]:
    """All-gather tensors of equal shape, in the order of the ranks."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [mine]
    every = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return every


def average(tensors: Iterable[Tensor]) -> None:
    """Replace dense tensors by their mean over all ranks, in one all-reduce; integer tensors become rank 0's."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    vectors = [flat(tensor.detach()) for tensor in tensors]
    numbers = [vector for vector in vectors if vector.is_floating_point()]
    if numbers:
        together = torch.cat(numbers)
        dist.all_reduce(together)
        together /= dist.get_world_size()
        scatter_back(together, numbers)
    for vector in vectors:
        if not vector.is_floating_point():
            dist.broadcast(vector, src=0)


def numbered(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """An optimizer's parameters in the order of their indices in its state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def restore(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state, each tensor in the memory layout of its parameter.

    The model of the checkpoint may have had another layout, and a fused optimizer reads a parameter and its state
    in memory order, whatever their strides.
    """
    optimizer.load_state_dict(dict(state))
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter).copy_(value)


def on_cpu(values: Mapping[str, Any]) -> dict[str, Any]:
    """One parameter's optimizer state with its tensors on the CPU."""
    return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in values.items()}


def state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All tensors of an optimizer's state."""
    return [value for of in optimizer.state.values() for value in of.values() if isinstance(value, Tensor)]
