"""One worker of a run, and how it computes: what strategies and the loop both need."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_CPU = torch.device("cpu")

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions that compute in 16 bits, and their types."""


@dataclass(frozen=True)
class Worker:
    """One worker of a run.

    Attributes:
        rank: number of this worker, from 0.
        world_size: workers in all.
        local_rank: number of this worker among those of its node.
        node: name of the node, the same for all workers on it.
        device: where it computes.
        gpus: PyTorch's numbers of all its GPUs, that of ``device`` first; empty on a CPU.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node: str = "localhost"
    device: torch.device = _CPU
    gpus: tuple[int, ...] = ()


def seed(value: int, device: torch.device, others: Sequence[int] = ()) -> None:
    """Start the generators that a model draws from on ``device``, and on GPUs of these numbers.

    ``torch.manual_seed`` asks every kind of device and every GPU, of which a worker sees those of its whole node.
    """
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        for number in {device.index, *others}:
            torch.cuda.default_generators[number].manual_seed(value)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Around a forward pass: matrix products and convolutions in 16 bits when ``precision`` says so."""
    return torch.autocast(device.type, HALVES.get(precision, torch.bfloat16), enabled=precision in HALVES)


def moment(device: torch.device, again: Any = None) -> Any:
    """This moment: on a GPU, when it has come to what is queued; its event is used ``again`` where there is one."""
    if device.type != "cuda":
        return time.perf_counter()
    event = again or torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds_between(begin: Any, end: Any) -> float:
    """From one moment to another, both of the same device."""
    return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1000


class LossScaler(torch.amp.GradScaler):
    """PyTorch's scaler of the loss, which float16 needs, that also counts the steps it skips. Else it does nothing.

    Source: Micikevicius et al. 2018, "Mixed Precision Training": the smallest gradients vanish, the largest overflow.

    A step whose gradients are not all finite is skipped and halves the scale; 2,000 others in a row double it.
    Gradients are exchanged while they are scaled, so what is not finite on one rank is so on all, and all skip the
    same step. With ``fsdp``, each has a part of the gradients, and PyTorch shares what they have found.

    Attributes:
        skipped: steps skipped since the run began.
    """

    def __init__(self, precision: str, device: torch.device) -> None:
        super().__init__(device.type, enabled=precision == "fp16")
        self.skipped = 0

    def advance(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the optimizer's step, or skip it. A GPU waits here, since the learning rate follows from which it is."""
        before = self.get_scale()
        self.step(optimizer)
        self.update()
        self.skipped += self.get_scale() < before

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "skipped": self.skipped} if self.is_enabled() else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.skipped = state_dict.get("skipped", 0)


@contextmanager
def unchanged(*modules: nn.Module) -> Iterator[None]:
    """Context manager: buffers, and numbers and text that modules have as attributes, are afterwards as before.

    A pass in between can be one that only looks; a module that counts its steps does not see it.
    """
    every = {module for root in modules for module in root.modules()}
    plain = [(module, {k: v for k, v in vars(module).items() if isinstance(v, int | float | str)}) for module in every]
    buffers = [(module, name, of, of.clone()) for module in every for name, of in module.named_buffers(recurse=False)]
    try:
        yield
    finally:
        for module, values in plain:
            vars(module).update(values)
        for module, name, buffer, value in buffers:
            setattr(module, name, buffer.copy_(value))  # it may have another tensor under the name
