"""What a run is expected to take on its nodes: what finished runs of the same work took."""

from __future__ import annotations

from collections.abc import Sequence

from cifar_ray.config import option, runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.planning.measured import KIND, model_options
from cifar_ray.planning.span import Span
from cifar_ray.tracking.study import HARDWARE_TAG, STOPPED_BY_TAG, Trial

WORK = (
    *("topology", "batch_size", "accumulate", "strategy", "sync_batchnorm", "bucket_cap_mb"),
    *("strategy_options.comm_hook", "strategy_options.sync_every"),
    *("epochs", "steps_per_epoch", "test_images"),
)
"""Options that tell runs of one kind (:data:`cifar_ray.planning.measured.KIND`) apart in time."""

_UNDECIDED = (None, "auto")


def seconds(config: ResolvedConfig, decided: Decided, runs: Sequence[Trial]) -> Span | None:
    """Seconds on its nodes that a run takes; None where no finished run did the same, or some did on other machines."""
    same = [run for run in runs if _is_same_work(config, decided, run)]
    return Span.of([_took(run) for run in same]) if len({run.tags.get(HARDWARE_TAG) for run in same}) == 1 else None


def _is_same_work(config: ResolvedConfig, decided: Decided, run: Trial) -> bool:
    """Whether a run is finished and its whole time that of a config, since it did the same to its last epoch."""
    params = runfile.params(config, decided)
    kind = [*KIND, *["cpus_per_worker"] * (decided.cpus_per_worker is not None and decided.device != "cuda")]
    asked = {name: params[name] for name in kind if params.get(name) not in _UNDECIDED} | model_options(params)
    return (
        run.finished
        and run.timed
        and not run.changed
        and STOPPED_BY_TAG not in run.tags
        and _took(run) > 0
        and all(run.params.get(name) == params.get(name) for name in (*WORK, "val_share"))
        and all(run.params.get(name) in (None, value, option.short(value)) for name, value in asked.items())
    )


def _took(run: Trial) -> float:
    """Seconds of a whole run on its nodes; 0 when not recorded."""
    return run.metrics.get("time/placed_s", run.metrics.get("time/wall_s", 0.0))
