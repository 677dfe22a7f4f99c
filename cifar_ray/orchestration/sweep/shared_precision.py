"""Decide ``--precision auto`` once for each model of a sweep: runs in two precisions would not compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ray
import torch

from cifar_ray.config import errors, option
from cifar_ray.config.errors import RunFailedError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.orchestration.sweep.planner import PlannedTrial
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import precision, recipe


def decide(trials: Sequence[PlannedTrial], say: Callable[[str], None]) -> None:
    """Replace ``auto`` in the config of every trial that is to run, by a measurement where a worker would compute.

    Of each model the largest batch is measured: on a GPU the smaller ones may be faster in another precision.

    Raises:
        RunFailedError: when the process that measures dies, or gives no answer in time.
    """
    asking: dict[Any, list[tuple[PlannedTrial, ResolvedConfig]]] = {}
    for trial in trials:
        begun = trial.folder is not None  # an earlier driver's; it goes on as its checkpoint says
        if trial.config is not None and trial.config.precision == "auto" and not begun:
            asking.setdefault(_kind(trial.config), []).append((trial, trial.config))
    for alike in asking.values():
        configs = [config for _, config in alike]
        largest = max(configs, key=lambda config: config.images_per_worker)
        task = ray.remote(num_cpus=1, num_gpus=largest.gpus_reserved)(_measure)
        try:
            chosen, measured = ray.get(task.remote(largest), timeout=largest.start_timeout_s)
        except ray.exceptions.RayError as error:
            reason = errors.first_line(error)
            raise RunFailedError(f"the precision could not be measured: {reason}; name it with --precision") from None
        say(f"{largest.model} trains in {chosen}" + (f" ({measured})" if measured else ""))
        for trial, config in alike:
            trial.config = recipe.with_precision(config, chosen)


def _kind(config: ResolvedConfig) -> Any:
    """What the runs have in common that are to have one precision; with ``reproducible`` nothing is measured."""
    return (
        config.strategy == "reproducible",
        config.model,
        config.device,
        *(repr(option.value_of(config, name)) for name in option.names_for(TrainConfig, "model")),
    )


def _measure(config: ResolvedConfig) -> tuple[str, str]:
    return precision.choose(config, Worker(device=torch.device(config.device)))
