"""Optimizers and courses of the learning rate as users bring them, good ones and bad ones."""

from __future__ import annotations

import math
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Steps of equal size in the direction of a moving average (Chen et al. 2023), with a number in its state."""

    def __init__(self, groups: Any, lr: float, beta: float = 0.9) -> None:
        super().__init__(groups, {"lr": lr, "beta": beta, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state |= {"average": torch.zeros_like(parameter), "steps": 0}
                state["steps"] += 1
                state["average"].lerp_(parameter.grad, 1 - group["beta"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(self.direction(state["average"]), alpha=group["lr"])

    def direction(self, average: torch.Tensor) -> torch.Tensor:
        return average.sign()


class SmoothLion(Lion):
    """Short steps where the average is near zero, whose sign depends on rounding."""

    def direction(self, average: torch.Tensor) -> torch.Tensor:
        return torch.tanh(average / 1e-3)


def no_optimizer(groups: Any, lr: float) -> Any:
    return "steps"


def of_some(groups: Any, lr: float) -> Any:
    return torch.optim.SGD(groups[:1], lr=lr)


class Odd(Lion):
    """An optimizer that keeps what a checkpoint cannot hold."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "odd": Odd}


class Asking(Lion):
    """An optimizer whose step needs an argument."""

    def step(self, closure: Any = None) -> None:
        closure()


def falling(done: float) -> float:
    return (1 - done) ** 2


def negative(done: float) -> float:
    return 0.5 - done


def unknown(done: float) -> float:
    return math.nan


def text(done: float) -> Any:
    return "half"


def failing(done: float) -> float:
    return 1 / (done - done)


def merged(groups: Any, lr: float) -> torch.optim.Optimizer:
    """An optimizer that treats all parameters alike."""
    return torch.optim.SGD([parameter for group in groups for parameter in group["params"]], lr=lr)
