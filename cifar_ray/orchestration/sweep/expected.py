"""What a run is expected to take on its nodes, by the planner's model, from what finished runs have measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cifar_ray import data
from cifar_ray.config import option, runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.planning import measured, model
from cifar_ray.planning.exchange import WHOLE, Exchange, Gradients
from cifar_ray.planning.model import Means, Work
from cifar_ray.planning.span import Span
from cifar_ray.tracking.study import HARDWARE_TAG, STOPPED_BY_TAG, Study, Trial

UNKNOWN = "no finished run tells it"

WORK = (
    *("topology", "batch_size", "accumulate", "strategy", "sync_batchnorm", "bucket_cap_mb"),
    *("strategy_options.comm_hook", "strategy_options.sync_every"),
    *("epochs", "steps_per_epoch", "test_images"),
)
"""Options that tell runs of one kind (:data:`cifar_ray.planning.measured.KIND`) apart in time."""

_NOT_THE_SAME = "no finished run did the same"
_UNDECIDED = (None, "auto")
_WITHIN = ("training", "evaluation", "checkpoint")  # phases of which the model makes more than what happens once
_ONCE = ("startup", "data", "other")


def seconds(config: ResolvedConfig, decided: Decided, runs: Sequence[Trial]) -> Span | str:
    """Seconds on its nodes that a run takes, or why they are not known.

    What finished runs of the same work took counts first, then the planner's model.
    """
    if not (same := of_same_work(config, decided, runs)):
        return _planned(config, decided, runs)
    if len(machines := {run.tags.get(HARDWARE_TAG) or "unknown hardware" for run in same}) > 1:
        return f"finished runs tell it of several machines: {'; '.join(sorted(machines))}"
    return Span.of([_took(run) for run in same])


def of_same_work(config: ResolvedConfig, decided: Decided, runs: Sequence[Trial]) -> list[Trial]:
    """The finished runs whose whole time is that of a run, since they did the same, each to its last epoch."""
    params = runfile.params(config, decided)
    return [
        run
        for run in _alike(config, decided, runs)
        if all(run.params.get(name) == params.get(name) for name in WORK)
        and run.timed
        and not run.changed
        and STOPPED_BY_TAG not in run.tags
        and _took(run)
    ]


def _took(run: Trial) -> float:
    """Seconds of a whole run on its nodes; 0 when not recorded."""
    return run.metrics.get("time/placed_s", run.metrics.get("time/wall_s", 0.0))


def _planned(config: ResolvedConfig, decided: Decided, runs: Sequence[Trial]) -> Span | str:
    """As :func:`seconds`, by the model alone: of one worker, since what an exchange costs is not known."""
    alike = _alike(config, decided, runs)
    if not alike:
        return UNKNOWN
    if config.world_size > 1:
        return f"{_NOT_THE_SAME}, and what an exchange between workers costs is not known"
    if config.strategy not in WHOLE:
        return f"{_NOT_THE_SAME}, and {config.strategy} cannot be planned"
    try:
        known, _, _ = measured.of_study(Study("", [_as_planned(run, config) for run in alike], "", ""))
    except ConfigError as error:
        return f"{UNKNOWN}: --from {error.problem}"
    known = replace(known, is_fixed=known.device == "cuda" or decided.cpus_per_worker is not None)
    nothing = Exchange(config.strategy, Gradients((0,), (1.0,)))
    steps = data.steps_per_epoch(config)
    work = Work(config.global_batch_size, config.accumulate, steps, config.epochs, nothing)
    plan = model.plan(known, work, [config.placement], Means())
    return plan.rows[0].total_s if plan.rows else plan.skipped[config.topology]


def _alike(config: ResolvedConfig, decided: Decided, runs: Sequence[Trial]) -> list[Trial]:
    """The finished runs of the same model, data and arithmetic, as far as these are decided."""
    params = runfile.params(config, decided)
    kind = [name for name in measured.KIND if name != "test_images"]  # its evaluation is scaled
    names = [*kind, *["cpus_per_worker"] * (decided.cpus_per_worker is not None and decided.device != "cuda")]
    asked = {name: params[name] for name in names if params.get(name) not in _UNDECIDED}
    asked |= measured.model_options(params)
    return [
        run
        for run in runs
        if run.finished
        and run.params.get("val_share") == params.get("val_share")  # none is a decision, too
        and all(run.params.get(name) in (None, value, option.short(value)) for name, value in asked.items())
    ]


def _as_planned(run: Trial, config: ResolvedConfig) -> Trial:
    """A run as if it had evaluated the images of a config, and with that alone as its start-up which passed on its
    nodes, where that was recorded; steps that were lost at a restart are none of it."""
    metrics, params = dict(run.metrics), dict(run.params)
    if "time/placed_s" in metrics:
        once = [metrics["time/placed_s"] - sum(metrics.get(f"time/{phase}_s", 0.0) for phase in _WITHIN)]
        if recorded := [metrics[name] for phase in _ONCE if (name := f"time/{phase}_s") in metrics]:
            once.append(sum(recorded))
        metrics |= {"time/startup_s": max(min(once), 0.0), "time/data_s": 0.0, "time/other_s": 0.0}
    facts = data.facts(config)
    if not facts.val_size and "time/evaluation_s" in metrics:  # validation images are all measured
        whole = facts.test_size
        metrics["time/evaluation_s"] *= (config.test_images or whole) / int(params.get("test_images", whole))
    params.pop("test_images", None)
    return replace(run, metrics=metrics, params=params)
