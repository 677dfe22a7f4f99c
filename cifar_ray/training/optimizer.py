"""The optimizer and the course of its learning rate: a pure function of the step, with no state to save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cifar_ray import models
from cifar_ray.config import imports
from cifar_ray.config.option import is_own
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.training import freezing, own
from cifar_ray.training.freezing import Rule

_POWER = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
_TRIANGLE = (0.2, 0.07)
"""Where schedule triangle begins and ends, as shares of the peak."""
_AVERAGE = "ema"
"""Of a parameter's state, what its moving average is under."""
_LOOKAHEAD_STEPS, _LOOKAHEAD_SHARE = 5, 0.95


def build(model: nn.Module, config: ResolvedConfig, rules: Sequence[Rule] | None = None) -> torch.optim.Optimizer:
    """The optimizer of a resolved config; biases, norms and other vectors do not decay.

    With a recipe that gives batch norms' biases a learning rate of their own, those do: by as much in a step as the
    matrices. With ``ema``, a parameter's moving average is part of its state. Frozen parameters have their places in
    it, so that these are the same once they learn, and no state before that. ``rules`` say how each parameter is
    treated, for a model whose parameters have no names; else they follow from these.
    """
    optimizer = _build(model, config, freezing.rules(model, config) if rules is None else rules)
    if is_own(config.schedule):
        imports.check_source(config, "schedule")
    if config.ema is not None:
        for group in optimizer.param_groups:
            group["ema"] = config.ema
        optimizer.register_step_post_hook(_follow)
    return optimizer


def _build(model: nn.Module, config: ResolvedConfig, rules: Sequence[Rule]) -> torch.optim.Optimizer:
    recipe = models.recipe(config)
    every = list(model.parameters())
    rule: dict[Tensor, Rule] = dict(zip(every, rules or [Rule()] * len(every), strict=True))
    learning = [parameter for parameter in every if parameter.requires_grad or rule[parameter].frozen]
    matrices = [parameter for parameter in learning if parameter.ndim > 1]
    vectors = [parameter for parameter in learning if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": config.weight_decay}]
    if recipe is not None and recipe.norm_bias_lr != 1:
        biases = [module.bias for module in model.modules() if isinstance(module, _BatchNorm)]
        vectors = [vector for vector in vectors if all(vector is not bias for bias in biases)]
        decay = config.weight_decay / recipe.norm_bias_lr
        groups.append({"params": biases, "weight_decay": decay, "lr_factor": recipe.norm_bias_lr})
    groups.append({"params": vectors, "weight_decay": 0.0})
    groups = [part for group in groups for part in _by_scale(group, rule)]
    if is_own(config.optimizer):
        return own.optimizer(config, groups)
    # A fused step of float16 decides on the GPU whether it is skipped, and the hooks of averages would not hear of it.
    # None, and not False, with which a GPU would take the parameters one by one.
    plain = config.precision == "fp16" or any(parameter.is_complex() for parameter in learning)
    fused = None if plain else True
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, fused=fused)
    has_momentum = config.momentum > 0
    optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=has_momentum, fused=fused)
    if has_momentum and (config.unfreeze_epoch is not None or is_own(config.model)):
        optimizer.register_step_pre_hook(_catch_up)
    if recipe is not None and recipe.lookahead:
        for group in optimizer.param_groups:
            group["kept"] = None
        optimizer.register_step_pre_hook(_keep_slow)
        optimizer.register_step_post_hook(_look_ahead)
    return optimizer


@torch.no_grad()
def _keep_slow(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Give every parameter its average for :func:`_look_ahead`, which begins where the parameter does."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and "slow" not in optimizer.state[parameter]:
                optimizer.state[parameter]["slow"] = parameter.detach().clone()


@torch.no_grad()
def _look_ahead(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Draw the weights, every five steps, to a moving average of themselves.

    Source: Zhang et al. 2019, "Lookahead Optimizer"; Jordan 2024 for the share that the average keeps of itself, which
    rises over a run; after the last step, the average is the result. :func:`schedule` sets the share in every step.
    """
    for group in optimizer.param_groups:
        if group["kept"] is None:
            continue
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.copy_(optimizer.state[parameter]["slow"].lerp_(parameter, 1 - group["kept"]))


def _catch_up(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Give a momentum of zeros to parameters whose first gradient comes after others', which a fused step asks for."""
    for group in optimizer.param_groups:
        used = [parameter for parameter in group["params"] if parameter.grad is not None]
        fresh = [parameter for parameter in used if parameter not in optimizer.state]
        for parameter in fresh if len(fresh) < len(used) else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _by_scale(group: Mapping[str, Any], rule: Mapping[Tensor, Rule]) -> Iterator[dict[str, Any]]:
    """A group of parameters as one for each learning rate."""
    by_scale: dict[float, list[Tensor]] = {} if group["params"] else {1.0: []}
    for parameter in group["params"]:
        by_scale.setdefault(rule[parameter].lr_scale, []).append(parameter)
    for scale, parameters in by_scale.items():
        factor = scale * group.get("lr_factor", 1.0)
        yield {**group, "params": parameters, **({"lr_factor": factor} if factor != 1 else {})}


@torch.no_grad()
def _follow(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Draw the moving averages to the weights that have just moved."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:  # of another rank's stage, which has its state
                continue
            state = optimizer.state[parameter]
            if _AVERAGE in state:
                state[_AVERAGE].mul_(group["ema"]).add_(parameter, alpha=1 - group["ema"])
            else:
                state[_AVERAGE] = parameter.detach().clone()


@torch.no_grad()
def exchange(optimizer: torch.optim.Optimizer) -> None:
    """Let weights and their moving averages change places; a checkpoint has them like this."""
    for parameter, state in optimizer.state.items():
        if _AVERAGE in state:
            kept = parameter.detach().clone()
            parameter.copy_(state[_AVERAGE])
            state[_AVERAGE].copy_(kept)


def schedule(
    optimizer: torch.optim.Optimizer, config: ResolvedConfig, step: int, steps_per_epoch: int, skipped: int = 0
) -> float:
    """Set everything that changes from step to step, for one step of a resolved config.

    Args:
        optimizer: as :func:`build` makes it.
        config: a resolved config.
        step: optimizer step over the whole run, from 0.
        steps_per_epoch: optimizer steps in an epoch.
        skipped: those of the ``step`` that left the weights alone; learning rate and ``ema`` wait for them.

    Returns:
        The learning rate, of :func:`learning_rate`.
    """
    kept = _kept(step + 1, config.epochs * steps_per_epoch)
    step -= skipped
    lr = learning_rate(config, step, steps_per_epoch)
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)
        if "kept" in group:
            group["kept"] = kept
        if config.ema is not None:  # the first steps count less: they are far from where the weights will be
            group["ema"] = min(config.ema, (1 + step) / (10 + step))
    return lr


def _kept(done: int, total: int) -> float | None:
    """The share that the average of :func:`_look_ahead` keeps of itself after ``done`` steps; None at most steps."""
    if done == total:
        return 1.0
    return _LOOKAHEAD_SHARE**_LOOKAHEAD_STEPS * (done / total) ** 3 if done % _LOOKAHEAD_STEPS == 0 else None


def learning_rate(config: ResolvedConfig, step: int, steps_per_epoch: int) -> float:
    """Learning rate of one step of a resolved config.

    It rises linearly over the warm-up and then stays, follows a function of the user's own, or falls along half a
    cosine towards zero, which it would reach one step after the last. A triangle begins its rise at 0.2 of the peak and
    falls linearly towards 0.07 of it. The peak follows the global batch as ``lr_scaling`` says. Arguments are those of
    :func:`schedule`.
    """
    peak = config.lr * (config.global_batch_size / config.base_batch) ** _POWER[config.lr_scaling]
    total = config.epochs * steps_per_epoch
    warmup = config.warmup_epochs * steps_per_epoch
    if config.schedule == "triangle":
        begin, end = _TRIANGLE
        if step < warmup:
            return peak * (begin + (1 - begin) * step / warmup)
        return peak * (1 - (1 - end) * (step - warmup) / max(total - warmup, 1))
    if step < warmup:
        return peak * min((step + 1) / warmup, 1.0)
    if config.schedule == "constant":
        return peak
    done = (step - warmup) / max(total - warmup, 1)
    if is_own(config.schedule):
        return peak * own.course(config.schedule, done)
    return peak * 0.5 * (1 + math.cos(math.pi * done))
