"""The optimizer and the course of its learning rate: a pure function of the step, with no state to save."""

from __future__ import annotations

import math

import torch
from torch import nn

from cifar_ray.config.train import ResolvedConfig

_POWER = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}


def build(model: nn.Module, config: ResolvedConfig) -> torch.optim.Optimizer:
    """The optimizer of a resolved config; biases, norms and other vectors do not decay."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, fused=True)
    momentum = config.momentum
    return torch.optim.SGD(groups, lr=config.lr, momentum=momentum, nesterov=momentum > 0, fused=True)


def learning_rate(config: ResolvedConfig, step: int, steps_per_epoch: int) -> float:
    """Learning rate of one step of a resolved config.

    It rises linearly over the warm-up and then stays, or falls along half a cosine towards zero, which
    it would reach one step after the last. The peak follows the global batch as ``lr_scaling`` says.

    Args:
        config: a resolved config.
        step: optimizer step over the whole run, from 0.
        steps_per_epoch: optimizer steps in an epoch.
    """
    peak = config.lr * (config.images_per_step / config.base_batch) ** _POWER[config.lr_scaling]
    total = config.epochs * steps_per_epoch
    warmup = config.warmup_epochs * steps_per_epoch
    if step < warmup:
        return peak * min((step + 1) / warmup, 1.0)
    if config.schedule == "constant":
        return peak
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Give every parameter group the same learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = value
