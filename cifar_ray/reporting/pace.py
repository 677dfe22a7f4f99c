"""How long an iteration takes, and what its measured parts leave over."""

from __future__ import annotations

from cifar_ray.reporting.aggregate import Measure, metric
from cifar_ray.tracking.study import Trial

STEP_PARTS = ("data", "forward", "backward", "communication", "optimizer")
"""Parts of one optimizer step, in their order; of the communication, what the backward pass does not hide."""

ASYNCHRONOUS = ("parameter_server", "hogwild")
"""Strategies whose workers do not wait for each other: each has a pace of its own."""

_ROUNDING = 1e-6  # seconds by which parts may exceed their sum


def own_paces(trial: Trial) -> bool:
    """Whether its ranks have a pace each, so that none of them is the run's."""
    return trial.strategy in ASYNCHRONOUS and trial.world_size > 1


def iteration(scale: float = 1.0) -> Measure:
    """Mean seconds of an optimizer step in steady state, times ``scale``.

    The recorded time is rank 0's. Where every rank has its own pace, it is what a global batch takes all of them, the
    wait for the slowest included.
    """

    def read(trial: Trial) -> float | None:
        if not own_paces(trial):
            return metric("time/iteration_mean_s", scale)(trial)
        images_per_s = trial.metrics.get("images_per_s")
        return trial.global_batch_size / images_per_s * scale if images_per_s else None

    return read


def iteration_p95_ms(trial: Trial) -> float | None:
    """95th percentile of the iterations in milliseconds; None where ranks have a pace each, since it is rank 0's."""
    return None if own_paces(trial) else metric("time/iteration_p95_s", 1000.0)(trial)


def unsplit_ms(trial: Trial) -> float | None:
    """Milliseconds of a mean iteration that none of its measured parts accounts for.

    None when they exceed it, and where ranks have a pace each: parts are means over the ranks.
    """
    whole = iteration()(trial)
    if whole is None or own_paces(trial):
        return None
    rest = whole - sum(trial.metrics.get(f"time/step_{part}_s", 0.0) for part in STEP_PARTS)
    return max(rest, 0.0) * 1000 if rest >= -_ROUNDING else None
