"""Searches made of given figures, for tests of their reports: nothing is trained."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cifar_ray.tracking.study import STOPPED_TAG, Point, Run, Sweep
from tests.support.studies import study, trial, validated

ANY = {"search": "random", "ranges": {"lr": "loguniform"}}
"""How a search was made."""


def tried(
    number: int, value: float, params: Mapping[str, str], *, stopped_at: int = 0, images: int = 1000, **changes: Any
) -> Run:
    """A run of a search with this validation accuracy, stopped early after an epoch if one is given."""
    run = trial(accuracies=(0.1, 0.5, max(min(value - 0.02, 1.0), 0.0)), params={**params})
    (run,) = validated(study(run), value).trials
    by_epoch = [Point(n, n * 1000, value * n / 3) for n in (1, 2)] + [Point(3, 3000, value)]
    history = {**run.history, "val/accuracy": by_epoch}
    metrics = {**run.metrics, "val/accuracy": value, "val/images": float(images)}
    run = replace(run, name=f"t{number}", run_id=f"id{number}", metrics=metrics, history=history)
    if stopped_at:
        kept = {"val/accuracy": by_epoch[:stopped_at], "epoch_s": run.history["epoch_s"][:stopped_at]}
        of_epochs = {name: metrics[name] for name in ("val/loss", "val/images", "epoch_s", "epoch_images_per_s")}
        run = replace(run, status="KILLED", reason="stopped early by ASHA", tags={**run.tags, STOPPED_TAG: "asha"})
        run = replace(run, history=kept, metrics={**of_epochs, "val/accuracy": value})
    return replace(run, **changes)


def searched(
    trials: Sequence[Run], axes: Sequence[str] = ("lr",), search: Mapping[str, Any] = ANY, **changes: Any
) -> Sweep:
    """A finished search over these axes."""
    whole = study(*trials, name="search", axes=tuple(axes), hold="batch", **search)
    return replace(whole, command="cifar-ray sweep --name search --search random", **changes)


AXES = ("lr", "weight_decay", "warmup", "optimizer", "batch_size", "dropout")


def drawn(count: int, axes: Sequence[str] = AXES, *, stopped: bool = True, images: int = 1000) -> Sweep:
    """A search of so many runs whose accuracy follows the learning rate, and the optimizer a little."""
    state = random.Random(0)
    trials = []
    for number in range(count):
        rate = 10 ** state.uniform(-4, 0)
        values = {
            "lr": repr(rate),
            "weight_decay": repr(state.uniform(0, 0.01)),
            "warmup": str(state.randint(0, 8)),
            "optimizer": state.choice(["sgd", "adamw", "nets:Lion"]),
            "batch_size": state.choice(["16", "32", "64", "128"]),
            "dropout": state.choice(["0", "0.1", "0.25"]),
        }
        value = 0.93 - 0.12 * (len(str(round(rate, 5))) % 4) / 4 - 0.1 * (values["optimizer"] == "sgd")
        value = round(value + state.uniform(-0.03, 0.03), 3)
        at = state.choice([1, 2]) if stopped and value < 0.85 else 0
        kept = {name: values[name] for name in axes}
        trials.append(tried(number, value, kept, stopped_at=at, images=images))
    ranges = {"lr": "loguniform", "weight_decay": "uniform", "warmup": "int"}
    return searched(trials, axes, {"search": "optuna", "scheduler": "asha", "ranges": ranges})
