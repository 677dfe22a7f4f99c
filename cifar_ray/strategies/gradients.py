"""Gradients and other tensors as plain vectors, the form in which they are sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def learning(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that learn, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def flat_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Every parameter's gradient as a vector over its own memory; changing one changes the gradient.

    A parameter that has none gets one of zeros.
    """
    vectors = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.is_conj():  # a view that negates imaginary parts when it is read
            parameter.grad = parameter.grad.resolve_conj()
        vectors.append(flat(parameter.grad))
    return vectors


def used_on_any_rank(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Those for which some rank has a gradient, the same on every rank; takes a message."""
    has = torch.tensor([float(parameter.grad is not None) for parameter in parameters], device=parameters[0].device)
    dist.all_reduce(has)
    return list(compress(parameters, has.tolist()))


def flat(tensor: Tensor) -> Tensor:
    """A dense tensor as a vector of real numbers over its own memory, in the order of that memory."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.as_strided((tensor.numel(),), (1,))


Layout = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Shape and strides of every parameter, in the model's order."""


def layout(model: nn.Module) -> Layout:
    """The layout of a model's parameters, all of them dense."""
    return tuple((tuple(parameter.shape), parameter.stride()) for parameter in model.parameters())


def views(vector: Tensor, layout: Layout) -> Iterator[Tensor]:
    """The part of a vector that belongs to each parameter, shaped and laid out like it; not a copy."""
    start = 0
    for shape, stride in layout:
        count = math.prod(shape)
        yield vector[start : start + count].as_strided(shape, stride)
        start += count


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
    """Replace dense tensors by their mean over all ranks, in one all-reduce; integer tensors become rank 0's.

    Some may be on the CPU, as the counts of steps that an optimizer keeps, while the first is on a GPU.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    vectors = [flat(tensor.detach()) for tensor in tensors]
    numbers = [vector for vector in vectors if vector.is_floating_point()]
    if numbers:
        together = torch.cat([vector.to(numbers[0].device) for vector in numbers])
        dist.all_reduce(together)
        together /= dist.get_world_size()
        scatter_back(together, numbers)
    for vector in vectors:
        if not vector.is_floating_point():
            dist.broadcast(vector, src=0)


def numbered(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """An optimizer's parameters in the order of their indices in its state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def places(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[int]:
    """The place in the model of each of :func:`numbered`."""
    order = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    return [order[id(parameter)] for parameter in numbered(optimizer)]


def restore(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state, each tensor in the memory layout of its parameter.

    The model of the checkpoint may have had another layout, and a fused optimizer reads a parameter and its state
    in memory order, whatever their strides. What the state leaves out of a group's options stays as it is.
    """
    groups = [{**built, **saved} for built, saved in zip(optimizer.param_groups, state["param_groups"], strict=True)]
    optimizer.load_state_dict({**state, "param_groups": groups})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter).copy_(value)


def on_cpu(values: Mapping[str, Any]) -> dict[str, Any]:
    """One parameter's optimizer state with its tensors on the CPU."""
    return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in values.items()}


def average_with_state(tensors: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> None:
    """As :func:`average`, for tensors and an optimizer's state together.

    A rank that has no state for a parameter, since it has not used it yet, counts as zeros.
    """
    parameters = [parameter for parameter in numbered(optimizer) if parameter.requires_grad]
    states: list[dict[str, Any]] = [optimizer.state[parameter] for parameter in parameters]
    usual = next((place for place, state in enumerate(states) if state), 0)
    for parameter, state in zip(parameters, states):
        for name, value in states[usual].items() if not state else ():
            if isinstance(value, Tensor):
                value = torch.zeros_like(parameter if value.shape == parameters[usual].shape else value)
            state[name] = value
    kept = [state[name] for state in states for name in sorted(state) if isinstance(state[name], Tensor)]
    average([*tensors, *kept])
