"""PyTorch's fully_shard (FSDP2): every rank keeps a part of the weights, gradients and optimizer state.

Label: close. The mean gradient is that of one worker with the whole global batch, added up in another
order; batch-norm statistics are those of each worker's own images unless ``--sync-batchnorm``.
Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel"; Rajbhandari et al.
2020, "ZeRO".
Cost per step: messages ``3 * L``, bytes ``(1 + 2 / W) * G``. Each of the L children of the model that have
parameters is gathered for the forward pass and again for the backward pass, to which each rank hands its part of
the weights (G / W bytes each time), and its gradients are reduced and scattered (G bytes). A ring sends
(W - 1) / W of G in each of the three. Parameters of the model's own, as the ViT has, are one more, gathered once.
With ``--accumulate`` the weights are gathered for every micro-batch.

For evaluations and checkpoints there is also a whole copy of the weights on every rank, so what is saved is the
memory of gradients and optimizer state. What a GPU waits for weights is part of its forward and backward pass.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from cifar_ray.config.errors import ConfigError
from cifar_ray.strategies.gradients import numbered, on_cpu
from cifar_ray.strategies.protocol import StrategyContext
from cifar_ray.strategies.replicas import Replicas


class FSDP(Replicas):
    """See the module. With one worker there is nothing to shard and the model trains as it is."""

    cannot = frozenset({"scalar", "dtype", "unused"})

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._choose_step()
        self.passing = "forward"
        if context.worker.device.type == "cpu":
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.set_custom_all_gather(_Timed(self, dist.all_gather_into_tensor))  # type: ignore[arg-type]
                    module.set_custom_reduce_scatter(_Timed(self, dist.reduce_scatter_tensor))  # type: ignore[arg-type]

    @staticmethod
    def trained(context: StrategyContext) -> nn.Module:
        return context.model if context.worker.world_size == 1 else _sharded(context)

    def forward(self, inputs: Tensor) -> Tensor:
        self.passing = "forward"
        logits = self.model(inputs)
        self.passing = "backward"
        return logits

    def _choose_step(self) -> None:
        """Leave the step of SGD to PyTorch: the fused one has no version for sharded weights, and False would take
        them one by one, where a GPU takes all at once."""
        if self.model is not self.context.model and isinstance(self.optimizer, torch.optim.SGD):
            for group in self.optimizer.param_groups:
                group["fused"] = None

    def accumulating(self, last: bool) -> AbstractContextManager[object]:
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def exchange(self) -> None:
        """Gradients have been exchanged during the backward pass, if each rank had them all."""
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise ConfigError(
                    "strategy",
                    f"must be other than fsdp where a step leaves out a parameter, and {name} has no gradient in this "
                    "one; ddp trains such a model",
                )

    @property
    def incomparable(self) -> str:
        on_gpu = self.context.worker.device.type == "cuda"
        return "on a GPU the passes of fsdp wait for weights" if on_gpu else super().incomparable

    def consolidate(self) -> None:
        super().consolidate()
        if self.model is not self.context.model:
            with torch.no_grad():
                for whole, part in zip(self.context.model.parameters(), self.model.parameters(), strict=True):
                    whole.copy_(_whole(part))
            _share_buffers(self.model, self.context.model)  # a forward pass may have put others there

    def state(self) -> dict[str, Any]:
        state = super().state()
        each: dict[int, dict[str, Any]] = {}
        for index, of in state["state"].items():
            whole = {key: _whole(value) for key, value in of.items()}
            if self.context.worker.rank == 0:  # one parameter at a time is on the device in full
                each[index] = on_cpu(whole)
        return {**state, "state": each}

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        if self.model is self.context.model:
            super().load(weights, state)
            return
        self.context.model.load_state_dict(weights)
        _share_buffers(self.context.model, self.model)
        with torch.no_grad():
            for whole, part in zip(self.context.model.parameters(), self.model.parameters(), strict=True):
                part.copy_(_like(whole, part))
        self.optimizer.zero_grad()
        if state is not None:
            order = numbered(self.optimizer)
            each = {
                index: {key: _like(value, order[index]) for key, value in of.items()}
                for index, of in state["state"].items()
            }
            self.restore({**state, "state": each})
            self._choose_step()


class _Timed:
    """A collective that marks when it begins and ends; on a CPU, the pass waits for it."""

    def __init__(self, strategy: FSDP, collective: Callable[..., Any]) -> None:
        self._strategy, self._collective = strategy, collective

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **how: Any) -> Any:
        self._strategy.context.mark(self._strategy.passing)
        work = self._collective(output_tensor, input_tensor, **how)
        self._strategy.context.mark("communication")
        return work


def _sharded(context: StrategyContext) -> nn.Module:
    """A copy of the model whose parameters are spread over the ranks; it shares the model's buffers."""
    model = copy.deepcopy(context.model).to(memory_format=torch.contiguous_format)
    _share_buffers(context.model, model)
    mesh = init_device_mesh(context.worker.device.type, (context.worker.world_size,))
    for part in parts(model):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)  # what is left, and weights that several units have
    if dist.get_backend() == "gloo":  # it has no mean
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    return model


def parts(model: nn.Module) -> list[nn.Module]:
    """The parts of a model that are gathered by themselves: those that share no weight with another."""
    units = list(_units(model))
    held = Counter(id(parameter) for unit in units for parameter in unit.parameters())
    held.update(map(id, model.parameters(recurse=False)))
    return [unit for unit in units if all(held[id(parameter)] == 1 for parameter in unit.parameters())]


def _share_buffers(source: nn.Module, target: nn.Module) -> None:
    """Give one of two models of the same structure the buffers of the other."""
    for theirs, mine in zip(source.modules(), target.modules(), strict=True):
        mine._buffers.update(theirs._buffers)


def _units(model: nn.Module) -> Iterator[nn.Module]:
    """The children that compute; of one that only holds others, as a ``ModuleList`` does, those that it holds."""
    for child in model.children():
        if type(child).forward is nn.Module.forward:
            yield from _units(child)
        elif any(True for _ in child.parameters()):
            yield child


def _whole(value: Any) -> Any:
    """A sharded tensor on every rank in full; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _like(value: Any, part: Tensor) -> Any:
    """This rank's part of a whole tensor that belongs to the sharded parameter ``part``; anything else as it is."""
    if not isinstance(value, Tensor) or not isinstance(part, DTensor) or value.shape != part.shape:
        return value
    whole = value.to(part.device).contiguous()
    return distribute_tensor(whole, part.device_mesh, part.placements, src_data_rank=None)


STRATEGY = FSDP
