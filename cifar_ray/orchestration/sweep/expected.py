"""What a run is expected to take on its nodes, by the planner's model, from what finished runs have measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cifar_ray import data, models
from cifar_ray.config import option, runfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.planning import measured, model
from cifar_ray.planning.exchange import AFTER, Exchange, Gradients
from cifar_ray.planning.model import Means, Work
from cifar_ray.planning.span import Span
from cifar_ray.strategies.gradients import learning
from cifar_ray.tracking.study import HARDWARE_TAG, Study, Trial

UNKNOWN = "no finished run tells it"

_NOT_THE_SAME = "no finished run did the same"
_PLANNED = (*AFTER, "ddp", "local_sgd")
_KIND = (
    *("model", "dataset", "augment", "optimizer", "freeze", "compile", "precision", "device"),
    *option.names_for(TrainConfig, "model"),
)
_WORK = ("topology", "batch_size", "accumulate", "strategy", "epochs", "steps_per_epoch")
_UNDECIDED = (None, "auto")
_WITHIN = ("training", "evaluation", "checkpoint")  # phases of which the model makes more than what happens once


def seconds(config: ResolvedConfig, runs: Sequence[Trial]) -> Span | str:
    """Seconds on its nodes that a run takes, or why they are not known.

    Args:
        config: of the run.
        runs: finished ones; what those of the same work took counts first, then the planner's model.
    """
    params = runfile.params(config)
    names = [runfile.parameter(name) for name in _WORK]
    same = [run for run in _alike(config, runs) if all(run.params.get(name) == params.get(name) for name in names)]
    took = [seconds for run in same if (seconds := run.metrics.get("time/placed_s", run.metrics.get("time/wall_s")))]
    if not took:
        return planned(config, runs)
    if len(machines := {run.tags.get(HARDWARE_TAG) or "unknown hardware" for run in same}) > 1:
        return f"finished runs tell it of several machines: {'; '.join(sorted(machines))}"
    return Span.of(took)


def planned(config: ResolvedConfig, runs: Sequence[Trial]) -> Span | str:
    """As :func:`seconds`, by the model alone, which takes one node and workers that have the whole model each."""
    alike = _alike(config, runs)
    if not alike:
        return UNKNOWN
    if config.placement.nodes > 1:
        return f"{_NOT_THE_SAME}, and the link between nodes is not known"
    odd = config.sync_batchnorm or config.freeze or config.ddp.comm_hook == "powersgd"
    if config.strategy not in _PLANNED or (odd and config.world_size > 1):
        return f"{_NOT_THE_SAME}, and what it exchanges cannot be planned here"
    try:
        known, first, _ = measured.of_study(Study("", [_on_nodes(run) for run in alike], "", ""))
    except ConfigError as error:
        return f"{UNKNOWN}: --plan-from {error.problem}"
    known = replace(known, is_fixed=known.device == "cuda" or _is_given(config))
    exchange = _exchange(config, known)
    work = Work(
        config.global_batch_size,
        config.accumulate,
        data.steps_per_epoch(config),
        config.epochs,
        exchange,
        _evaluated(config, first),
        measured.sent(runfile.params(config)),
    )
    host = model.host(known, exchange) if config.world_size > 1 else None
    plan = model.plan(known, work, [config.placement], Means(host=host))
    return plan.rows[0].total_s if plan.rows else plan.skipped[config.topology]


def _alike(config: ResolvedConfig, runs: Sequence[Trial]) -> list[Trial]:
    """The finished runs of the same model, data and arithmetic, as far as these are decided."""
    params = runfile.params(config)
    names = [*map(runfile.parameter, _KIND), *["cpus_per_worker"] * (_is_given(config) and config.device != "cuda")]
    asked = {name: params[name] for name in names if params.get(name) not in _UNDECIDED}
    return [
        run
        for run in runs
        if run.finished and all(run.params.get(name) in (None, value) for name, value in asked.items())
    ]


def _is_given(config: ResolvedConfig) -> bool:
    """Whether a worker's CPUs are decided, and not what a topology by itself would leave."""
    return config.cpus_per_worker is not None and not config.cpus_follow


def _on_nodes(run: Trial) -> Trial:
    """A run with that alone as its start-up which passed on its nodes, where that was recorded."""
    if "time/placed_s" not in run.metrics:
        return run
    within = sum(run.metrics.get(f"time/{phase}_s", 0.0) for phase in _WITHIN)
    once = {"time/startup_s": max(run.metrics["time/placed_s"] - within, 0.0), "time/data_s": 0.0, "time/other_s": 0.0}
    return replace(run, metrics={**run.metrics, **once})


def _exchange(config: ResolvedConfig, known: measured.Measured) -> Exchange:
    """What a run exchanges; without gradients where the runs do not tell what an exchange on one node costs.

    When each gradient is ready is not measured here, where others train: all are taken to be ready after the pass.
    """
    tells = any(sample.world_size > 1 and sample.strategy in AFTER for sample in known.samples)
    sizes: tuple[int, ...] = (0,)
    if tells and config.world_size > 1:
        outline = models.outline(config, data.spec(config))
        sizes = tuple(parameter.nbytes for parameter in reversed(learning(outline)))
    return Exchange(
        config.strategy,
        Gradients(sizes, (1.0,) * len(sizes)),
        bucket_bytes=int(config.ddp.bucket_cap_mb * 2**20),
        compression=1.0 if config.ddp.comm_hook == "none" else 0.5,
        sync_every=config.local_sgd.sync_every,
    )


def _evaluated(config: ResolvedConfig, run: Trial) -> float:
    """Images of an evaluation, as a multiple of a run's; with validation images, both have all of them."""
    if config.validated:
        return 1.0
    whole = data.spec(config).test_size
    return (config.test_images or whole) / int(run.params.get("test_images", whole))
