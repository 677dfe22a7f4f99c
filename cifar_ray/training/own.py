"""Optimizers, courses of the learning rate and tasks of the user's own: ``--optimizer``, ``--schedule`` and ``--task``.

An optimizer is made as ``build(groups, lr=..., **options)``, as torch.optim's classes are: groups of parameters, each
with its ``weight_decay``. A course is called as ``course(done)`` with the share of the steps after the warm-up that are
done, and returns the share of the peak learning rate.
"""

from __future__ import annotations

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

_SAMPLES = 64
"""Samples that a task is tried on, spread over all."""

_checked: set[str] = set()


def optimizer(config: ResolvedConfig, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
    """What the user's function makes of the groups of parameters.

    Raises:
        ConfigError: when it fails, or makes no optimizer of all these parameters in groups with these learning rates.
    """
    imports.check_source(config, "optimizer")
    path = config.optimizer
    with imports.calling(path, "optimizer", "must make an optimizer of (groups, lr=..., **options)"):
        made = imports.load(path, "optimizer")(list(groups), lr=config.lr, **config.optimizer_options)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError("optimizer", f"must make a torch.optim.Optimizer, and {path} makes {brief(made)}")
    if _factors(groups) != _factors(made.param_groups):
        raise ConfigError("optimizer", f"must keep all parameters in the groups that it is given; {path} does not")
    return made


def _factors(groups: Sequence[dict[str, Any]]) -> dict[int, float]:
    """The learning rate of every parameter as a multiple of the run's."""
    return {id(parameter): group.get("lr_factor", 1.0) for group in groups for parameter in group["params"]}


def course(path: str, done: float) -> float:
    """The share of the peak by the user's function, when this share of the steps after the warm-up is done.

    Raises:
        ConfigError: when it fails, or returns none.
    """
    with imports.calling(path, "schedule", "must be a function of one number"):
        share: Any = imports.load(path, "schedule")(done)
    if not isinstance(share, int | float) or not 0 <= share < math.inf:
        raise ConfigError(
            "schedule", f"must return a share of the peak, 0 or more, and {path} returns {brief(share)} for {done:.2f}"
        )
    return share


def check(config: ResolvedConfig, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    """Try what is the user's own, once in a process; torch's generator is left as it was.

    It is a step of the optimizer, whose state a checkpoint must hold, the end of a course, and some samples of a task.

    Raises:
        ConfigError: when they cannot be used.
    """
    if repr(config) in _checked:
        return
    with torch.random.fork_rng(devices=[]):
        if is_own(config.schedule):
            imports.check_source(config, "schedule")
            course(config.schedule, 0.99)
        if is_own(config.optimizer):
            _check_optimizer(config, make)
        if is_own(config.task):
            _check_task(config)
    _checked.add(repr(config))


def _check_optimizer(config: ResolvedConfig, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    model = models.build(config, data.facts(config))
    freezing.freeze(model, config)
    made = make(model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 1e-3)
    rule = "must take steps without arguments, and have a state of tensors, numbers and text, which a checkpoint holds"
    with imports.calling(config.optimizer, "optimizer", rule):
        made.step()
        kept = io.BytesIO()
        torch.save(made.state_dict(), kept)
        torch.load(io.BytesIO(kept.getvalue()), weights_only=True)


def _check_task(config: ResolvedConfig) -> None:
    """Train on some samples and evaluate them; labels that have not been read yet are made up."""
    spec = data.facts(config)
    task = tasks.build(config, spec)
    shape = task.spec.outputs(spec.num_classes, spec.image_size)
    targets = torch.arange(_SAMPLES * math.prod(shape[1:])).view(_SAMPLES, *shape[1:]) % spec.num_classes
    if option.chosen(config.dataset) == OWN:
        column = as_tensor(data.find(config).parts["train"].targets)
        targets = column[:: max(len(column) // _SAMPLES, 1)][:_SAMPLES]
    size = len(targets)
    outputs = models.build(config, spec).train()(modality.of(spec).example(size))
    with imports.calling(str(config.task), "task", "must have the methods of cifar_ray.tasks.protocol.Task"):
        counts = task.counts(targets)
        loss = task.loss(outputs, targets, float(size if counts is None else counts.sum().clamp(min=1)))
        metrics = task.evaluation(task.tally(outputs.detach(), targets), size).metrics
        answers = task.predictions(outputs.detach())
    answer = shape[1:] or shape  # of masks a number for each pixel
    figures = {LOSS.name, *(each.name for each in task.spec.figures if not each.optional or each.name in metrics)}
    for holds, rule in (
        (counts is None or not counts.is_floating_point(), "count whole numbers (N,)"),
        (isinstance(loss, Tensor) and loss.shape == (), "have a loss of one number, with a gradient"),
        (metrics.keys() == figures, f"evaluate {', '.join(sorted(figures))}"),
        (answers.shape == (size, *answer), f"predict {math.prod(answer)} numbers for a sample"),
    ):
        if not holds:
            raise ConfigError("task", f"must {rule}, and {config.task} does not")
