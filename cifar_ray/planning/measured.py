"""What finished runs have measured, as a plan uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from cifar_ray.config.errors import ConfigError, counted, one_of
from cifar_ray.planning.exchange import AFTER
from cifar_ray.planning.span import Span
from cifar_ray.tracking.study import HARDWARE_TAG, Run

_PARTS = ("data", "forward", "backward", "optimizer")
_P95 = 1.645  # standard deviations from a normal distribution's median to its 95th percentile


@dataclass(frozen=True)
class Sample:
    """One finished run; seconds are means of a step, unless they are said to be others."""

    strategy: str  # its strategy
    nodes: int  # its machines
    workers: int  # on each of them
    images: int  # of a worker in a micro-batch
    micro_batches: int  # of a worker in a step
    data: float  # making batches
    forward: float  # forward passes
    backward: float  # backward passes, and what they hide
    exchange: float  # waiting for other workers
    optimizer: float  # the optimizer's step
    iteration: float  # the whole step
    jitter: float  # the standard deviation of an iteration, from its median and 95th percentile
    evaluation: float  # of an epoch, times the workers that shared it
    checkpoint: float  # of an epoch
    once: float  # of a run, everything that is in no epoch: start-up, data, the end

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
class Measured:
    """Runs of one model on one kind of machine."""

    samples: tuple[Sample, ...]  # one for each run
    hardware: str  # what they computed on
    device: str  # ``cpu`` or ``cuda``
    # whether each worker had as many CPUs at any number of workers, or a GPU, so that it computes the same
    is_fixed: bool
    speed: float = 1.0  # how many times as fast as that hardware the machine is that a plan is for

    def on(self, workers: int) -> tuple[Sample, ...]:
        """The runs that tell how a worker computes beside so many on its machine; the nearest, where it is the same."""
        same = tuple(sample for sample in self.samples if sample.workers == workers)
        return same or (self.samples if self.is_fixed else ())

    def passes(self, images: int, workers: int) -> tuple[Span, float] | str:
        """Seconds of a micro-batch with so many workers on a machine, and the backward pass's share; or why not known.

        Between two sizes that were measured lies a straight line; nothing is said of sizes beyond them.
        """
        import numpy as np  # takes long to import

        runs = [sample for sample in self.on(workers) if sample.is_plain]
        if not runs and self.is_fixed:
            runs = [sample for sample in self.samples if sample.is_plain]
        if not runs:
            return f"needs a run with {counted(workers, 'worker')} on a node, in whose passes nothing is exchanged"
        sizes = sorted({sample.images for sample in runs})
        if not sizes[0] <= images <= sizes[-1]:
            known = one_of(map(str, sizes))
            return f"needs a run with about {images} images per worker and micro-batch; those given have {known}"
        alike = [[sample for sample in runs if sample.images == size] for size in sizes]
        spans = list(map(_passes, alike))

        def at(of_sizes: list[float]) -> float:
            return float(np.interp(images, sizes, of_sizes))

        seconds = Span(*(at([getattr(span, end) for span in spans]) for end in ("low", "mid", "high")))
        shares = [fmean(run.backward / (run.computing * run.micro_batches) for run in of_size) for of_size in alike]
        return seconds.times(1 / self.speed), at(shares)

    def jitter(self, workers: int) -> float:
        """The standard deviation of a step's computing, as a share of it, where no worker waits for another."""
        runs = self.on(workers)
        alone = [sample for sample in runs if sample.world_size == 1] or runs
        return fmean(sample.jitter / sample.iteration for sample in alone)

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

    def once(self) -> Span:
        """Seconds of a run in no epoch."""
        return Span.of([sample.once for sample in self.samples])


def of_trials(trials: Sequence[Run]) -> tuple[Measured, list[str]]:
    """What runs of one training have measured, and a sentence on each that was left out.

    Raises:
        ConfigError: when none has what a plan needs.
    """
    needed = [*(f"time/step_{part}_s" for part in _PARTS), "time/iteration_mean_s", "time/iteration_p95_s"]
    usable, left = [], []
    for trial in trials:
        if not trial.finished:
            left.append(f"{trial.name} is left out: it has not finished ({trial.status})")
        elif trial.tags.get("times_are_a_clusters") == "false":
            left.append(f"{trial.name} is left out: it had more workers than CPUs, or several nodes on one machine")
        elif any(name not in trial.metrics for name in needed):
            left.append(f"{trial.name} is left out: it has not recorded the parts of its steps, for which it needs two")
        else:
            usable.append(trial)
    if not usable:
        raise ConfigError("", f"there is no run that a plan can be made from: {left[0]}")
    device, first = usable[0].params.get("device", "cpu"), usable[0]
    fixed = device == "cuda" or all(
        "--cpus-per-worker" in trial.tags.get("cifar_ray.command", "")
        and trial.params.get("cpus_per_worker") == first.params.get("cpus_per_worker")
        for trial in usable
    )
    return Measured(tuple(map(_sample, usable)), first.tags.get(HARDWARE_TAG, ""), device, fixed), left


def _sample(trial: Run) -> Sample:
    metrics = trial.metrics
    epochs = len(trial.history.get("epoch_s", ())) or int(trial.params.get("epochs", "1"))
    step = {part: metrics[f"time/step_{part}_s"] for part in _PARTS}
    once = sum(metrics.get(f"time/{phase}_s", 0.0) for phase in ("startup", "data", "other"))
    iteration = metrics["time/iteration_mean_s"]
    median = metrics.get("time/iteration_median_s", iteration)
    return Sample(
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
        fmean(sample.computing for sample in samples),
        max(sample.computing * share for sample, share in zip(samples, shares)),
    )
