"""What a run is expected to take, from made-up runs whose times are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cifar_ray.config import runfile, schema
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.orchestration.sweep import expected
from cifar_ray.planning.span import Span
from cifar_ray.tracking.study import HARDWARE_TAG, Trial
from cifar_ray.training import recipe

DIGITS = 1437  # images for training


def config(batch: int = 64, **changes: Any) -> ResolvedConfig:
    usual = {"dataset": "digits", "model": "simple_cnn", "epochs": 2, "precision": "fp32", "device": "cpu"}
    return recipe.resolve(schema.build(TrainConfig, {**usual, "batch_size": batch, "cpus_per_worker": 1, **changes}))


def run(of: ResolvedConfig, exchange: float = 0.0, machine: str = "a processor", **metrics: float) -> Trial:
    """A worker takes 1 ms for an image and 2 ms for a step; 4 s of evaluation, 1 s of checkpoints, 20 s of the rest."""
    passes = of.images_per_worker / 1000
    parts = {"data": 0.0, "forward": passes / 3, "backward": 2 * passes / 3, "communication": exchange}
    times = {f"time/step_{part}_s": seconds for part, seconds in {**parts, "optimizer": 0.002}.items()}
    step = passes + 0.002 + exchange
    times |= {f"time/iteration_{name}_s": step for name in ("mean", "median", "p95")}
    training = of.epochs * (DIGITS // of.global_batch_size) * step
    times |= {"time/training_s": training, "time/evaluation_s": 4.0, "time/checkpoint_s": 1.0}
    times |= {"time/startup_s": 500.0, "time/placed_s": training + 25}  # most of its start was before it had nodes
    tags = {HARDWARE_TAG: machine}
    return Trial(
        "run", "id", "FINISHED", params=runfile.params(of, Decided.asked(of)), tags=tags, metrics={**times, **metrics}
    )


def test_the_same_work_takes_what_it_took() -> None:
    runs = [run(config(64, seed=seed), **{"time/placed_s": took}) for seed, took in enumerate((10.0, 14.0, 18.0))]
    assert expected.seconds(config(64, seed=9), Decided.asked(config(64, seed=9)), runs) == Span(10.0, 14.0, 18.0)
    two = config(64, topology="2x1")
    assert expected.seconds(two, Decided.asked(two), [run(two, **{"time/placed_s": 7.0})]) == Span.exactly(7.0)
    other = replace(runs[0], tags={HARDWARE_TAG: "another"})
    assert expected.seconds(config(64), Decided.asked(config(64)), [other, runs[1]]) is None, "of several machines"
    for failed in (replace(runs[0], status="FAILED"), replace(runs[0], metrics={})):
        assert expected.seconds(config(64), Decided.asked(config(64)), [failed]) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "resnet"},
        {"augment": "none"},
        {"cpus_per_worker": 2},
        {"val_share": 0.1},
        {"topology": "2x1"},
        {"batch": 32},
        {"epochs": 20},
        {"test_images": 36},
    ],
)
def test_other_work_tells_nothing(changes: dict[str, Any]) -> None:
    assert expected.seconds(config(**changes), Decided.asked(config(**changes)), [run(config(64))]) is None


@pytest.mark.parametrize(
    "tags",
    [
        {"cifar_ray.stopped_by": "patience"},
        {"cifar_ray.measure": "accuracy"},
        {"cifar_ray.earlier.cifar_ray.hardware": "another processor"},
    ],
)
def test_runs_that_were_not_whole_or_not_timed_are_not_the_same_work(tags: dict[str, str]) -> None:
    whole = run(config(64, seed=1), **{"time/placed_s": 10.0})
    other = replace(whole, tags={**whole.tags, **tags}, metrics={**whole.metrics, "time/placed_s": 2.0})
    assert expected.seconds(config(64), Decided.asked(config(64)), [whole, other]) == Span.exactly(10.0)
