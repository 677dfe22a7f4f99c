"""Checks for figures of a study that cannot be right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_CLASSES = {"cifar10": 10, "cifar100": 100}  # data sets with as many test images of every class
# Strategies after which every rank holds the same weights.
_SAME_WEIGHTS = ("gather_scatter", "send_recv", "all_reduce", "ddp", "reproducible")
_PRINTED = 1e-4  # a share that was printed with four decimals is off by half of this; so is what is computed from it
_CHANCE = 1.05  # what chance and rounding may make of a ratio of two times


def faults(row: Mapping[str, Any], dataset: str) -> Iterator[str]:
    """Why a row's figures cannot be right, one sentence each: macro averages, 0 to 1, and losses of every rank."""

    def share(name: str) -> float:
        values = np.atleast_1d(row.get(name, math.nan))
        return float(values[0]) if len(values) == 1 else math.nan  # NaN exceeds nothing

    accuracy, recall, specificity = share("accuracy"), share("recall"), share("specificity")
    if dataset in _CLASSES and abs(accuracy - recall) > _PRINTED:
        same = "with as many test images of every class they are one figure"
        yield f"accuracy {accuracy:.4f} beside macro recall {recall:.4f}: {same}"
    must_be = 1 - (1 - accuracy) / (_CLASSES.get(dataset, math.nan) - 1)
    if abs(specificity - must_be) > _PRINTED:
        yield f"macro specificity {specificity:.4f}: accuracy {accuracy:.4f} makes it {must_be:.4f}"
    most = (share("precision") + recall) / 2
    if share("f1") > most + _PRINTED:
        yield f"macro F1 {share('f1'):.4f}: it is at most the mean of macro precision and recall, {most:.4f}"
    losses, strategy = np.atleast_1d(row.get("test_loss", 0.0)), row.get("strategy", "")
    if strategy in _SAME_WEIGHTS and np.ptp(losses) > _PRINTED:
        yield (
            f"test losses {losses.min():.4f} to {losses.max():.4f} on {len(losses)} ranks: after {strategy} all hold "
            "the same weights, though batch norm's running statistics may differ"
        )


def too_fast(speed_up: float, workers: int, std: float = 0.0) -> Iterator[str]:
    """Why a speed-up against a single worker, with its standard deviation, cannot be right."""
    if speed_up - 2 * std > workers * _CHANCE:
        yield f"{speed_up:.2f} times as fast with {workers} workers: something else has changed as well"
