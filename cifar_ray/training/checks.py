"""Refuse configs whose parts do not go together: sizes, task and model, precision, and what shapes alone tell."""

from __future__ import annotations

import warnings

import torch

from cifar_ray import models, strategies, tasks
from cifar_ray.config import errors, option
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import OWN, SIZED, is_own, library_of
from cifar_ray.config.strategy import SCALING
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Facts, modality, order
from cifar_ray.models import own as own_models
from cifar_ray.training import profiling


def sizes(config: ResolvedConfig, spec: Facts, batch: str = "global_batch_size") -> None:
    """Refuse a config that needs more samples than a data set has; ``batch`` is the option that gave the batch."""
    unit = tasks.spec(config, spec).unit
    if config.global_batch_size > spec.train_size:
        raise ConfigError(
            batch,
            f"must leave at least one step per epoch: {config.images_per_worker} x {config.world_size} workers x "
            f"{config.accumulate} micro-batches is {config.global_batch_size} {unit} per step, and "
            f"{config.dataset} has {spec.train_size} training {unit}",
        )
    whole = order.steps_per_epoch(spec.train_size, config.global_batch_size)
    if config.steps_per_epoch is not None and config.steps_per_epoch > whole:
        raise ConfigError(
            "steps_per_epoch",
            f"must be at most {whole}, the global batches of {config.global_batch_size} {unit} in {config.dataset}, "
            f"got {config.steps_per_epoch}",
        )
    profiling.start(config, config.steps_per_epoch or whole)
    counted = config.test_images or spec.test_size
    if counted > spec.test_size:
        raise ConfigError("test_images", f"must be at most {spec.test_size}, all of {config.dataset}, got {counted}")
    if counted < config.world_size:
        raise ConfigError("topology", f"must have at most one worker per test {unit[:-1]} ({counted})")
    if 0 < spec.val_size < config.world_size:
        raise ConfigError("topology", f"must have at most one worker per validation {unit[:-1]} ({spec.val_size})")


def task(config: TrainConfig, spec: Facts) -> None:
    """Refuse a task that learns what the data set does not have, and a model for another kind of inputs or of task."""
    task, column = tasks.of(config), tasks.column(config)
    if task.target != column and option.chosen(config.dataset) != OWN:
        raise ConfigError(
            "task",
            f"must learn the {column} of {config.dataset}, and {config.task} learns {task.target}; a --dataset of "
            "your own can have others",
        )
    wanted = (spec.inputs, task.spec.answer == "masks")
    kinds = {name: (one.inputs, one.has_masks) for name, one in models.registry().items()}
    if library_of(config.model):
        kinds[config.model] = ("images", wanted[1])  # what it gives is tried
    if kinds.get(config.model, wanted) != wanted:
        known = [name for name, kind in kinds.items() if kind == wanted]
        what = "pixels" if wanted[1] else modality.of(spec).learned_of
        raise ConfigError(
            "model",
            f"must be {errors.one_of([*known, 'one of your own'])} to learn the {task.target} of {what}, as "
            f"{config.dataset} has them, got {config.model}",
        )


def side(config: ResolvedConfig, spec: Facts) -> None:
    """Refuse images that are too small for one of this package's models, or of a size that it is not made for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers without weights
        takes = _takes(config, spec, 2)
    if not takes:
        raise ConfigError(
            "image_size" if option.chosen(config.dataset) in SIZED else "dataset",
            f"must suit --model {config.model}, which cannot take images of {spec.image_size}x{spec.image_size} "
            "pixels; 32 suits all",
        )


def single_image(config: ResolvedConfig, spec: Facts) -> None:
    """Batch norm has no variance over one image that has shrunk to one pixel; shapes alone tell."""
    if not _takes(config, spec, 1):
        unit, cut = tasks.spec(config, spec).unit, strategies.of(config).cut
        raise ConfigError(
            cut or "global_batch_size",
            f"must leave at least 2 {unit} in each forward pass for this {config.model}, whose batch norm needs "
            f"several values, got {option.value_of(config, cut or 'global_batch_size')}",
        )


def _takes(config: ResolvedConfig, spec: Facts, samples: int) -> bool:
    """Whether the model takes a batch of so many samples, as far as shapes tell."""
    model = models.outline(config, spec)
    with next(model.parameters()).device, torch.random.fork_rng(devices=[]):
        try:
            model(modality.of(spec).example(samples))
        except (RuntimeError, ValueError, ZeroDivisionError):
            return False
    return True


def fp16(config: ResolvedConfig, spec: Facts) -> None:
    """Refuse float16 where its loss cannot be scaled."""
    if config.strategy not in SCALING:
        raise ConfigError(
            "precision",
            f"must be other than fp16 for --strategy {config.strategy}; those that scale its loss are "
            f"{', '.join(SCALING)}",
        )
    if config.strategy_options.get("comm_hook") == "powersgd":
        raise ConfigError(
            "strategy_options.comm_hook",
            "must be other than powersgd with --precision fp16: it would carry over what overflows",
        )
    if is_own(config.model):
        own_models.check_float32(config, spec, "precision", "fp16")
