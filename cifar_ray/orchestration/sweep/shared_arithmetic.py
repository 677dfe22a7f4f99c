"""Decide precision and convolutions once for each model of a sweep: runs that compute differently would not compare."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import ray
import torch

from cifar_ray.config import errors
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.model import USUAL
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.orchestration.cluster import allocation
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import arithmetic, hardware, recipe


def decide(
    trials: Sequence[PlannedTrial], say: Callable[[str], None], decided: MutableMapping[Any, arithmetic.Choice]
) -> None:
    """Decide what the config of every trial leaves open that is to run, by a measurement where a worker would compute.

    Of each model the largest batch is measured: on a GPU the smaller ones may be faster in another precision. What
    earlier calls have ``decided`` for each model holds, and this one adds to it.

    Raises:
        ConfigError: when a model cannot be compiled.
        RunFailedError: when the process that measures dies, or gives no answer in time.
    """
    asking: dict[Any, list[tuple[PlannedTrial, ResolvedConfig]]] = {}
    for trial in trials:
        begun = trial.folder is not None  # an earlier driver's; it goes on as its checkpoint says
        if trial.config is not None and not begun:
            asking.setdefault(_kind(trial.config), []).append((trial, trial.config))
    for kind, alike in asking.items():
        configs = [config for _, config in alike]
        if kind not in decided:
            decided[kind] = _chosen(configs, say)
        for trial, config in alike:
            trial.config = recipe.computing(config, decided[kind].precision, decided[kind].convolutions)


def earlier(trials: Sequence[PlannedTrial]) -> dict[Any, arithmetic.Choice]:
    """What an earlier driver has decided, for :func:`decide`: what its trials compute with."""
    decided = {}
    for config in (trial.config for trial in trials if trial.config is not None):
        for precision, convolutions in itertools.product(("auto", config.precision), (None, config.convolutions)):
            left_open = dataclasses.replace(config, precision=precision, convolutions=convolutions)
            decided[_kind(left_open)] = arithmetic.Choice(config.precision, config.convolutions or USUAL)
    return decided


def _chosen(configs: Sequence[ResolvedConfig], say: Callable[[str], None]) -> arithmetic.Choice:
    passes = sum(map(arithmetic.passes_of, configs))
    largest = max(configs, key=lambda config: config.images_per_worker)
    if not arithmetic.undecided(largest, passes):
        return _measure(largest, passes)
    task = ray.remote(num_cpus=1, num_gpus=largest.gpus_reserved)(_measure)
    try:
        chosen: arithmetic.Choice = ray.get(task.remote(largest, passes), timeout=allocation.start_timeout_s())
    except ray.exceptions.RayError as error:
        raise _refusal(error) from None
    say(f"{largest.model} trains in {chosen.words} ({chosen.measured})")
    return chosen


def _refusal(error: ray.exceptions.RayError) -> Exception:
    """Why nothing was measured: a refusal of the config as it is, such as of a model that does not compile."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, ConfigError):
        return cause
    return RunFailedError(f"the speeds could not be measured: {errors.first_line(error)}")


def _kind(config: ResolvedConfig) -> Any:
    """What the runs have in common that are to compute alike; with ``reproducible`` nothing is measured."""
    return (
        config.strategy == "reproducible",
        config.model_key,
        config.device,
        config.precision,
        config.convolutions,
        config.compile,
    )


def _measure(config: ResolvedConfig, passes: int) -> arithmetic.Choice:
    device = torch.device(config.device)
    hardware.choose_kernels(device, is_repeated=config.strategy == "reproducible")
    return arithmetic.choose(config, Worker(device=device), passes)
