"""Optimizers, courses of the learning rate and tasks of the user's own: ``--optimizer``, ``--schedule`` and ``--task``.

An optimizer is made as ``build(groups, lr=..., **options)``, as torch.optim's classes are: groups of parameters, each
with its ``weight_decay``. A course is called as ``course(done)`` with the share of the steps after the warm-up that are
done, and returns the share of the peak learning rate.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cifar_ray import data, models, tasks
from cifar_ray.config import imports, option
from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.option import OWN, is_own
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import modality
from cifar_ray.data.datasets import as_tensor
from cifar_ray.tasks import LOSS
from cifar_ray.training import freezing

_TRIED = 101
"""Places at which a course is tried."""

_SAMPLES = 64
"""Samples that a task is tried on, spread over all."""

_checked: set[str] = set()


def optimizer(config: ResolvedConfig, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
    """What the user's function makes of the groups of parameters.

    Raises:
        ConfigError: when it fails, or makes no optimizer of all these parameters.
    """
    imports.check_source(config, "optimizer")
    path = config.optimizer
    with imports.calling(path, "optimizer", "must make an optimizer of (groups, lr=..., **options)"):
        made = imports.load(path, "optimizer")(list(groups), lr=config.lr, **config.optimizer_options)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError("optimizer", f"must make a torch.optim.Optimizer, and {path} makes {brief(made)}")
    held = {id(parameter) for group in made.param_groups for parameter in group["params"]}
    if held != {id(parameter) for group in groups for parameter in group["params"]}:
        raise ConfigError("optimizer", f"must take all the parameters that it is given, and {path} does not")
    factors = {id(parameter): group.get("lr_factor", 1.0) for group in groups for parameter in group["params"]}
    for group in made.param_groups:
        factor, *others = {factors[id(parameter)] for parameter in group["params"]} or {1.0}
        if others:
            raise ConfigError("lr_scale", f"needs an optimizer that keeps its groups apart, and {path} makes others")
        if factor != 1:
            group["lr_factor"] = factor
    return made


@functools.cache
def course(path: str) -> Callable[[float], float]:
    """The user's function of the share that is done."""
    return imports.load(path, "schedule")


def check(config: ResolvedConfig, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    """Try what is the user's own, once in a process; torch's generator is left as it was.

    It is two steps of the optimizer, whose state a checkpoint must hold, all of a course, and some samples of a task.

    Raises:
        ConfigError: when they cannot be used.
    """
    for key in ("schedule", "optimizer", "task"):
        if is_own(getattr(config, key)):
            imports.check_source(config, key)
    if repr(config) in _checked:
        return
    if is_own(config.schedule):
        _check_course(config.schedule)
    if is_own(config.optimizer):
        with torch.random.fork_rng(devices=[]):
            model = models.build(config, data.facts(config))
            freezing.freeze(model, config)
            _check_optimizer(config.optimizer, model, make)
    if is_own(config.task):
        with torch.random.fork_rng(devices=[]):
            _check_task(config)
    _checked.add(repr(config))


def _check_course(path: str) -> None:
    for done in (place / _TRIED for place in range(_TRIED)):
        with imports.calling(path, "schedule", "must be a function of one number"):
            share = imports.load(path, "schedule")(done)
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not math.isfinite(share) or share < 0:
            raise ConfigError(
                "schedule",
                f"must return a share of the peak, 0 or more, and {path} returns {brief(share)} for {done:.2f}",
            )


def _check_optimizer(path: str, model: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    made = make(model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 1e-3)
    with imports.calling(path, "optimizer", "must take steps without arguments"):
        for _ in range(2):
            made.step()
    rule = "must have a state of tensors, numbers and text, which a checkpoint holds"
    with imports.calling(path, "optimizer", rule):
        kept = io.BytesIO()
        torch.save(made.state_dict(), kept)
        kept.seek(0)
        make(model).load_state_dict(torch.load(kept, weights_only=True))


def _check_task(config: ResolvedConfig) -> None:
    """Train on some samples and evaluate them; labels that have not been read yet are made up."""
    facts, path = data.facts(config), config.task
    task = tasks.build(config, facts)
    shape = task.spec.outputs(facts.num_classes, facts.image_size)
    targets = torch.arange(_SAMPLES * math.prod(shape[1:])).view(_SAMPLES, *shape[1:]) % facts.num_classes
    if option.chosen(config.dataset) == OWN:
        column = as_tensor(data.find(config).parts["train"].targets)
        targets = column[:: max(len(column) // _SAMPLES, 1)][:_SAMPLES]
    size = len(targets)
    outputs = models.build(config, facts).train()(modality.of(facts).example(size))
    with imports.calling(str(path), "task", "must have the methods of cifar_ray.tasks.protocol.Task"):
        counts = task.counts(targets)
        loss = task.loss(outputs, targets, float(size if counts is None else counts.sum().clamp(min=1)))
        tally = task.tally(outputs.detach(), targets)
        metrics = {name: float(value) for name, value in task.evaluation(tally, size).metrics.items()}
        answers = task.predictions(outputs.detach())
    answer = shape[1:] or shape  # of masks a number for each pixel
    figures = {LOSS.name, *(each.name for each in task.spec.figures if not each.optional or each.name in metrics)}
    is_loss = isinstance(loss, Tensor) and loss.shape == () and loss.requires_grad
    is_count = counts is None or (counts.shape == (size,) and not counts.is_floating_point())
    for holds, rule in (
        (is_count, "count whole numbers (N,)"),
        (is_loss, "have a loss of one number, with a gradient"),
        (all(isinstance(each, Tensor) for each in tally.values()), "tally tensors"),
        (metrics.keys() == figures, f"evaluate {', '.join(sorted(figures))}"),
        (answers.shape == (size, *answer), f"predict {math.prod(answer)} numbers for a sample"),
    ):
        if not holds:
            raise ConfigError("task", f"must {rule}, and {path} does not")
