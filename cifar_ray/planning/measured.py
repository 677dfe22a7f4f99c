"""What finished runs have measured, as a plan uses it."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from cifar_ray.config.errors import ConfigError, counted, one_of
from cifar_ray.planning.exchange import AFTER, WHOLE
from cifar_ray.planning.span import Span
from cifar_ray.tracking.study import HARDWARE_TAG, Run, Sweep

_PARTS = ("data", "forward", "backward", "optimizer")
KIND = (
    *("model", "dataset", "augment", "optimizer", "freeze", "precision", "device", "compile"),
    *("image_size", "text.max_length", "stream", "val_share", "test_images"),
)
"""Options that, beside those of the model, tell the work of a step or of an evaluation from others."""

_P95 = 1.645  # standard deviations from a normal distribution's median to its 95th percentile


@dataclass(frozen=True)
class Sample:
    """One finished run; seconds are means of a step, unless they are said to be others.

    Attributes:
        name: the run's.
        strategy: its strategy.
        nodes: its machines.
        workers: on each of them.
        images: of a worker in a micro-batch.
        micro_batches: of a worker in a step.
        data: making batches.
        forward: forward passes.
        backward: backward passes, and what they hide.
        exchange: waiting for other workers.
        optimizer: the optimizer's step.
        iteration: the whole step.
        jitter: the standard deviation of an iteration, from its median and 95th percentile.
        evaluation: of an epoch, times the workers that shared it.
        checkpoint: of an epoch.
        once: of a run, everything that is in no epoch: start-up, data, the end.
    """

    name: str
    strategy: str
    nodes: int
    workers: int
    images: int
    micro_batches: int
    data: float
    forward: float
    backward: float
    exchange: float
    optimizer: float
    iteration: float
    jitter: float
    evaluation: float
    checkpoint: float
    once: float

    @property
    def world_size(self) -> int:
        """Its workers in all."""
        return self.nodes * self.workers

    @property
    def is_plain(self) -> bool:
        """Whether nothing is exchanged within its passes, so that they are computing alone."""
        return self.world_size == 1 or self.strategy in AFTER

    @property
    def computing(self) -> float:
        """Seconds of one micro-batch: making it, and both passes."""
        return (self.data + self.forward + self.backward) / self.micro_batches


@dataclass(frozen=True)
class Passes:
    """One micro-batch of some size on one worker: its seconds, and the share of them of the backward pass."""

    seconds: Span
    backward: float


@dataclass(frozen=True)
class Measured:
    """Runs of one model on one kind of machine.

    Attributes:
        samples: one for each run.
        hardware: what they computed on.
        device: ``cpu`` or ``cuda``.
        is_fixed: whether each worker had as many CPUs at any number of workers, or a GPU, so that it computes the same.
        speed: how many times as fast as that hardware the machine is that a plan is for.
    """

    samples: tuple[Sample, ...]
    hardware: str
    device: str
    is_fixed: bool
    speed: float = 1.0

    def on(self, workers: int) -> tuple[Sample, ...]:
        """The runs that tell how a worker computes beside so many on its machine; the nearest, where it is the same."""
        same = tuple(sample for sample in self.samples if sample.workers == workers)
        return same or (self.samples if self.is_fixed else ())

    def passes(self, images: int, workers: int) -> Passes | str:
        """One micro-batch of so many images with so many workers on a machine, or why it is not known.

        Between two sizes that were measured lies a straight line; nothing is said of sizes beyond them.
        """
        runs = [sample for sample in self.on(workers) if sample.is_plain]
        if not runs and self.is_fixed:
            runs = [sample for sample in self.samples if sample.is_plain]
        if not runs:
            plain = f"--strategy {AFTER[0]}" if workers > 1 else "one worker"
            return f"needs a run with {counted(workers, 'worker')} on a node and {plain}, in which passes hide nothing"
        sizes = sorted({sample.images for sample in runs})
        at = {size: [sample for sample in runs if sample.images == size] for size in sizes}
        if not sizes[0] <= images <= sizes[-1]:
            known = one_of(map(str, sizes))
            return f"needs a run with about {images} images per worker and micro-batch; those given have {known}"
        above = bisect.bisect_left(sizes, images)
        near = [images] if images in at else sizes[above - 1 : above + 1]
        spans = [_passes(at[size]) for size in near]
        share = (images - near[0]) / (near[1] - near[0]) if len(near) > 1 else 0.0
        seconds = spans[0].times(1 - share) + spans[-1].times(share)
        backward = _mean([run.backward / (run.computing * run.micro_batches) for run in at[near[-1]]])
        return Passes(seconds.times(1 / self.speed), backward)

    def jitter(self, workers: int) -> float:
        """The standard deviation of a step's computing, as a share of it, where no worker waits for another."""
        runs = self.on(workers)
        alone = [sample for sample in runs if sample.world_size == 1] or runs
        return _mean([sample.jitter / sample.iteration for sample in alone])

    def optimizer(self, workers: int) -> Span:
        """Seconds of the optimizer's step, and of a step's rest such as its record, with so many workers."""
        took = []
        for sample in self.on(workers):
            parts = sample.data + sample.forward + sample.backward + sample.exchange
            took.append(max(sample.iteration - parts, sample.optimizer))
        return Span.of(took).times(1 / self.speed)

    def evaluation(self, topology_workers: int, world_size: int) -> Span:
        """Seconds of an evaluation that so many workers share."""
        return Span.of([sample.evaluation for sample in self.on(topology_workers)]).times(1 / world_size / self.speed)

    def checkpoint(self) -> Span:
        """Seconds of a checkpoint, which rank 0 writes while the others wait."""
        return Span.of([sample.checkpoint for sample in self.samples])

    def once(self, nodes: int) -> Span:
        """Seconds of a run in no epoch, by its nodes: a line through the runs that does not fall, nor below zero."""
        counts = [sample.nodes for sample in self.samples]
        times = [sample.once for sample in self.samples]
        mean_count, mean = _mean(counts), _mean(times)
        spread = sum((count - mean_count) ** 2 for count in counts)
        slope = sum((count - mean_count) * (time - mean) for count, time in zip(counts, times)) / (spread or 1)
        mid = mean + max(slope, 0.0) * (nodes - mean_count)
        return Span(*(max(mid + time - mean, 0.0) for time in (min(times), mean, max(times))))


def of_study(study: Sweep, model: str | None = None) -> tuple[Measured, Run, list[str]]:
    """What the runs of a study have measured, one of the runs, and sentences on those that were left out.

    Args:
        study: the runs.
        model: whose runs count, where there are several.

    Raises:
        ConfigError: when none has what a plan needs, or they are not all of one kind.
    """
    trials = [trial for trial in study.trials if model in (None, trial.model)]
    if not trials:
        has = one_of(dict.fromkeys(trial.model for trial in study.trials))
        raise ConfigError("model", f"must be that of the runs to plan from, {has}, got {model!r}")
    reasons = {trial.name: why_not(trial) for trial in trials}
    usable = [trial for trial in trials if not reasons[trial.name]]
    if not usable:
        name, reason = next(iter(reasons.items()))
        raise ConfigError("from_", f"must name a run that a plan can be made from, and {name} {reason}")
    kinds = list(dict.fromkeys(tuple(_kind(trial).items()) for trial in usable))
    if len(models := list(dict.fromkeys(trial.model for trial in usable))) > 1:
        raise ConfigError("model", f"must be given, {one_of(models)}: the runs have several")
    if len(kinds) > 1:
        first, other = map(dict, kinds[:2])
        name = next(name for name in first if first[name] != other[name])
        problem = f"must name runs of one kind: {name} is {first[name] or 'unknown'} in some"
        raise ConfigError("from_", f"{problem}, {other[name] or 'unknown'} in others")
    device = usable[0].params.get("device", "cpu")
    fixed = device == "cuda" or all(
        "--cpus-per-worker" in trial.tags.get("cifar_ray.command", "")
        and trial.params.get("cpus_per_worker") == usable[0].params.get("cpus_per_worker")
        for trial in usable
    )
    hardware = usable[0].tags.get(HARDWARE_TAG, "")
    measured = Measured(tuple(map(_sample, usable)), hardware, device, fixed)
    left = [f"{name} is left out: it {reason}" for name, reason in reasons.items() if reason]
    return measured, usable[0], left


def why_not(trial: Run) -> str:
    """Why a run tells a plan nothing; empty when it does."""
    if not trial.finished:
        return f"has not finished ({trial.status})"
    if not trial.timed or trial.changed:
        return "was not made for its times" if not trial.timed else f"changed its {trial.changed[0]} while it trained"
    if trial.tags.get("times_are_a_clusters") == "false":
        return "had more workers than CPUs, or several nodes on one machine, so its times are not a cluster's"
    if trial.strategy not in WHOLE:
        return f"was trained with {trial.strategy}; a plan needs one of {one_of(WHOLE)}"
    needed = [f"time/step_{part}_s" for part in _PARTS] + ["time/iteration_mean_s", "time/iteration_p95_s"]
    if any(name not in trial.metrics for name in needed):
        return "has not recorded the parts of its steps, which takes two steps at least"
    return ""


def _kind(trial: Run) -> dict[str, str]:
    """What tells the work of one step, and the machine, from others."""
    return {
        **{name: trial.params.get(name, "") for name in KIND},
        **{name: value for name, value in trial.params.items() if name.startswith("model_options.")},
        "hardware": trial.tags.get(HARDWARE_TAG, ""),
    }


def _sample(trial: Run) -> Sample:
    metrics = trial.metrics
    epochs = len(trial.history.get("epoch_s", ())) or int(trial.params.get("epochs", "1"))
    step = {part: metrics[f"time/step_{part}_s"] for part in _PARTS}
    once = sum(metrics.get(f"time/{phase}_s", 0.0) for phase in ("startup", "data", "other"))
    iteration = metrics["time/iteration_mean_s"]
    median = metrics.get("time/iteration_median_s", iteration)
    return Sample(
        name=trial.name,
        strategy=trial.strategy,
        nodes=trial.nodes,
        workers=trial.world_size // trial.nodes,
        images=trial.batch_size,
        micro_batches=int(trial.params.get("accumulate", "1")),
        **step,
        exchange=metrics.get("time/step_communication_s", 0.0),
        iteration=iteration,
        jitter=max(metrics["time/iteration_p95_s"] - median, 0.0) / _P95,
        evaluation=metrics.get("time/evaluation_s", 0.0) / epochs * trial.world_size,
        checkpoint=metrics.get("time/checkpoint_s", 0.0) / epochs,
        once=once,
    )


def _passes(samples: Sequence[Sample]) -> Span:
    """A micro-batch in runs alike: their mean, and from the least to the most that 95 % of the steps of one keep to."""
    shares = [1 + _P95 * sample.jitter / sample.iteration for sample in samples]
    return Span(
        min(sample.computing / share for sample, share in zip(samples, shares)),
        _mean([sample.computing for sample in samples]),
        max(sample.computing * share for sample, share in zip(samples, shares)),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
