"""Decide precision and convolutions once for each model of a sweep: runs that compute differently would not compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import ray
import torch

from cifar_ray import data
from cifar_ray.config import errors
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.facts import Facts
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.orchestration.cluster import allocation
from cifar_ray.orchestration.sweep.plan import PlannedCell
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import arithmetic, hardware


def decide(
    cells: Sequence[PlannedCell], say: Callable[[str], None], decided: MutableMapping[Any, arithmetic.Choice]
) -> None:
    """Decide what the config of every cell leaves open that is to run, by a measurement where a worker would compute.

    Of each model the largest batch is measured: on a GPU the smaller ones may be faster in another precision. What
    earlier calls have ``decided`` for each model holds, and this one adds to it.

    Raises:
        ConfigError: when a model cannot be compiled.
        RunFailedError: when the process that measures dies, or gives no answer in time.
    """
    asking: dict[Any, list[tuple[PlannedCell, ResolvedConfig]]] = {}
    for cell in cells:
        begun = cell.folder is not None  # an earlier driver's; it goes on as its checkpoint says
        if cell.config is not None and not begun:
            asking.setdefault(_kind(cell.config, cell.decided.device), []).append((cell, cell.config))
    for kind, alike in asking.items():
        if kind not in decided:
            decided[kind] = _chosen([config for _, config in alike], alike[0][0].decided.device, say)
        precision, convolutions = decided[kind].precision, decided[kind].convolutions
        for cell, _ in alike:
            cell.decided = dataclasses.replace(cell.decided, precision=precision, convolutions=convolutions)


def earlier(cells: Sequence[PlannedCell]) -> dict[Any, arithmetic.Choice]:
    """What an earlier driver has decided, for :func:`decide`: what its cells compute with."""
    return {
        _kind(cell.config, of.device): arithmetic.Choice(of.precision, of.convolutions)
        for cell in cells
        if cell.config is not None and (of := cell.decided).convolutions is not None and of.precision != "auto"
    }


def _chosen(configs: Sequence[ResolvedConfig], device: str, say: Callable[[str], None]) -> arithmetic.Choice:
    passes = sum(map(arithmetic.passes_of, configs))
    largest = max(configs, key=lambda config: config.images_per_worker)
    given = largest, data.facts(largest), device, passes
    if not arithmetic.undecided(largest, device, passes):
        return _measure(*given)
    gpus = largest.gpus_per_worker if device == "cuda" else 0
    task = ray.remote(num_cpus=1, num_gpus=gpus)(_measure)
    try:
        chosen: arithmetic.Choice = ray.get(task.remote(*given), timeout=allocation.start_timeout_s())
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


def _kind(config: ResolvedConfig, device: str) -> Any:
    """What the runs have in common that are to compute alike; with ``reproducible`` nothing is measured."""
    return (
        config.strategy == "reproducible",
        config.model_key,
        device,
        config.precision,
        config.convolutions,
        config.compile,
    )


def _measure(config: ResolvedConfig, facts: Facts, device: str, passes: int) -> arithmetic.Choice:
    data.keep(config, facts)  # on another node, which may not have the data
    hardware.choose_kernels(torch.device(device), is_repeated=config.strategy == "reproducible")
    return arithmetic.choose(config, Worker(device=torch.device(device)), passes)
