"""Loss scaling, which float16 needs: its smallest gradients vanish, and its largest overflow.

Source: Micikevicius et al. 2018, "Mixed Precision Training".
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class LossScaler(torch.amp.GradScaler):
    """PyTorch's scaler, which also counts the steps that it skips. In other precisions it does nothing.

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

    def agree(self, device: torch.device) -> None:
        """Give every rank the least scale of all, and the most skipped steps."""
        if not self.is_enabled() or not dist.is_initialized():
            return
        state = self.state_dict()
        least = torch.tensor([state["scale"], state["_growth_tracker"], -self.skipped], dtype=torch.float64)
        least = least.to(device)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        scale, tracker, skipped = least.tolist()
        self.load_state_dict({**state, "scale": scale, "_growth_tracker": int(tracker), "skipped": -int(skipped)})

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "skipped": self.skipped} if self.is_enabled() else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.skipped = state_dict.get("skipped", 0)
