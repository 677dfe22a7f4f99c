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
EXCHANGED = "no finished run did the same, and what an exchange between workers costs is not known"


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


def mid(span: Span | str) -> float:
    assert isinstance(span, Span), span
    return span.mid


def test_another_batch_lies_on_the_line_between_two_that_were_measured() -> None:
    runs = [run(config(64)), run(config(16))]
    assert mid(expected.seconds(config(32), Decided.asked(config(32)), runs)) == pytest.approx(
        2 * (DIGITS // 32) * 0.034 + 25
    )
    longer = expected.seconds(config(32, epochs=20), Decided.asked(config(32, epochs=20)), runs)
    assert mid(longer) == pytest.approx(20 * (DIGITS // 32) * 0.034 + 20 * 2.5 + 20), "it starts once"


def test_the_same_work_takes_what_it_took() -> None:
    runs = [run(config(64, seed=seed), **{"time/placed_s": took}) for seed, took in enumerate((10.0, 14.0, 18.0))]
    assert expected.seconds(config(64, seed=9), Decided.asked(config(64, seed=9)), runs) == Span(10.0, 14.0, 18.0)
    two = config(64, topology="2x1")
    assert expected.seconds(two, Decided.asked(two), [run(two, **{"time/placed_s": 7.0})]) == Span.exactly(7.0)
    other = replace(runs[0], tags={HARDWARE_TAG: "another"})
    assert expected.seconds(config(64), Decided.asked(config(64)), [other, runs[1]]) == (
        "finished runs tell it of several machines: a processor; another"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "resnet"}, expected.UNKNOWN),
        ({"augment": "none"}, expected.UNKNOWN),
        ({"cpus_per_worker": 2}, expected.UNKNOWN),
        ({"val_share": 0.1}, expected.UNKNOWN),
        ({"topology": "2x1"}, EXCHANGED),
        ({"topology": "1x2", "strategy": "fsdp"}, EXCHANGED),
        ({"batch": 32}, "needs a run with about 32 images per worker and micro-batch; those given have 64"),
    ],
)
def test_what_no_run_tells_is_unknown_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    assert expected.seconds(config(**changes), Decided.asked(config(**changes)), [run(config(64))]) == reason


def test_runs_that_have_not_finished_or_have_no_times_tell_nothing() -> None:
    failed = replace(run(config(64)), status="FAILED")
    assert expected.seconds(config(64), Decided.asked(config(64)), [failed]) == expected.UNKNOWN
    bare = replace(run(config(64)), metrics={})
    assert str(expected.seconds(config(64), Decided.asked(config(64)), [bare])).startswith(
        f"{expected.UNKNOWN}: --from must name a run that "
    )


def test_fewer_test_images_are_evaluated_faster() -> None:
    runs = [run(config(64, test_images=36)), run(config(16, test_images=36))]
    whole, few = (
        mid(expected.seconds(config(32, test_images=images), Decided.asked(config(32, test_images=images)), runs))
        for images in (None, 36)
    )
    assert whole - few == pytest.approx(9 * 4.0), "digits has 360 test images"


def test_runs_that_evaluated_different_numbers_of_images_are_told_apart() -> None:
    small = run(config(16, test_images=36))
    took = {"time/evaluation_s": 0.4, "time/placed_s": small.metrics["time/placed_s"] - 3.6}
    small = replace(small, metrics={**small.metrics, **took})
    assert mid(expected.seconds(config(32), Decided.asked(config(32)), [run(config(64)), small])) == pytest.approx(
        2 * (DIGITS // 32) * 0.034 + 25
    )


def test_steps_that_were_lost_at_a_restart_are_no_start_up() -> None:
    lost = {"time/startup_s": 15.0, "time/data_s": 3.0, "time/other_s": 2.0, "time/placed_s": 400.0}
    longer = expected.seconds(config(64, epochs=20), Decided.asked(config(64, epochs=20)), [run(config(64), **lost)])
    assert mid(longer) == pytest.approx(20 * (DIGITS // 64) * 0.066 + 20 * 2.5 + 20)


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
