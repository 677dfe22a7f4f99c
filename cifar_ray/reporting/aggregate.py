"""Runs that differ in nothing but the seed, taken together; and figures that follow from recorded ones."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from cifar_ray.config import runfile, schema
from cifar_ray.config.train import TrainConfig
from cifar_ray.tracking.study import HARDWARE_TAG, Point, Study, Trial

Measure = Callable[[Trial], "float | None"]
"""One figure of one run; None when it was not measured."""

ORIGIN = {
    "commit": "mlflow.source.git.commit",
    "machine": "cifar_ray.machine",
    "hardware": HARDWARE_TAG,
    "command": "cifar_ray.command",
}
"""Tags that say where a run's figures come from, by short names."""

HARDWARE = "hardware"
"""Name under which compared runs differ in their hardware; a tag, not a parameter."""

PLACED = ("model", "dataset", "topology", "batch_size", "global_batch_size")
"""Parameters that have a place in a table of their own."""

RUN = "run"
"""Name under which compared runs differ that are alike in everything, even the seed."""

_TOLD = {*PLACED, "seed", "device"}
# Of compared runs, these say where and how a run is kept, or follow from others; no figure depends on them.
_ASIDE = {
    *_TOLD,
    *runfile.UPKEEP,  # older runs have it as parameters
    *("world_size", "nodes", "workers_per_node", "local_nodes", "oversubscribe", "log_every", "per_rank_test"),
    *("keep_checkpoints", "max_failures", "log_models"),
}
OPTIONAL = {runfile.parameter(name) for name, field in schema.flat_fields(TrainConfig) if field.default is None}
"""Parameters that are not recorded where they are not set."""

_STEP = 0.05
_ROUNDING = 1e-6  # a store may keep 0.6 as the nearest number of 32 bits
_ID_SHOWN = 8


@dataclass(frozen=True)
class Statistic:
    """A figure of one configuration over its seeds: mean, sample standard deviation (None for one run), count."""

    mean: float
    std: float | None
    n: int
    run_ids: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[float], run_ids: tuple[str, ...] = ()) -> Statistic:
        """Of one value or more."""
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), std, len(values), run_ids)


@dataclass(frozen=True)
class Configuration:
    """Everything but the seed, and the runs that have it.

    Attributes:
        model: architecture.
        dataset: data set.
        device: ``cpu`` or ``cuda``; empty when no run of it came so far as to tell.
        topology: NODESxWORKERS.
        batch_size: images per worker.
        global_batch_size: images per optimizer step.
        others: name and value of whatever else varies in the study.
        trials: its runs, one for every seed, whatever became of them.
    """

    model: str
    dataset: str
    device: str
    topology: str
    batch_size: int
    global_batch_size: int
    others: tuple[tuple[str, str], ...]
    trials: tuple[Trial, ...]

    @property
    def finished(self) -> tuple[Trial, ...]:
        """The runs whose figures count."""
        return tuple(trial for trial in self.trials if trial.finished)

    @property
    def counts(self) -> Collection[int]:
        """How many finished runs there are of each kind that was made for figures of its own."""
        return Counter(trial.measure for trial in self.finished).values()

    @property
    def nodes(self) -> int:
        """Machines."""
        return self.trials[0].nodes

    @property
    def world_size(self) -> int:
        """Workers in all."""
        return self.trials[0].world_size

    @property
    def devices(self) -> int:
        """GPUs in all, of which a worker may drive several; without GPUs, workers."""
        return self.world_size * (self.trials[0].gpus_per_worker if self.device == "cuda" else 1)

    @property
    def strategy(self) -> str:
        """Its strategy; empty for a run that did not live to record it."""
        return self.trials[0].strategy

    def statistic(self, measure: Measure) -> Statistic | None:
        """A figure over the finished runs that have it; None when none has."""
        found = [(value, trial.run_id) for trial in self.finished if (value := measure(trial)) is not None]
        return Statistic.of([value for value, _ in found], tuple(run_id for _, run_id in found)) if found else None


def metric(name: str, scale: float = 1.0) -> Measure:
    """The last recorded value of a metric, times ``scale``."""

    def read(trial: Trial) -> float | None:
        value = trial.metrics.get(name)
        # In decimal: 0.57 is 57 %, and 0.57 * 100 is 56.99999999999999.
        return None if value is None else float(Decimal(str(value)) * Decimal(str(scale)))

    return read


def configurations(study: Study) -> list[Configuration]:
    """The study's runs grouped by everything but the seed, in the order of their first runs.

    Runs that were asked for one by one, and differ in nothing at all, each stay on their own.
    """
    sections = _by_section(study)
    varied = {section: _varied(study, trials) for section, trials in sections.items()}
    devices = {section: _device(trials) for section, trials in sections.items()}
    groups: dict[Configuration, list[Trial]] = {}
    for trial in study.trials:
        section = (trial.model, trial.dataset)
        without_runs = Configuration(
            *section,
            device=_known_device(trial) or devices[section],
            topology=trial.topology,
            batch_size=trial.batch_size,
            global_batch_size=trial.global_batch_size,
            others=tuple((name, value) for name in varied[section] if (value := _value(trial, name))),
            trials=(),
        )
        groups.setdefault(without_runs, []).append(trial)
    found = [dataclasses.replace(one, trials=tuple(trials)) for one, trials in groups.items()]
    return found if study.axes else [part for one in found for part in _apart(one)]


def _apart(one: Configuration) -> list[Configuration]:
    """A configuration for each run where two have the same seed."""
    if len({trial.seed for trial in one.trials}) == len(one.trials):
        return [one]
    names = [trial.name for trial in one.trials]
    labels = [
        name if names.count(name) == 1 else f"{name} {t.run_id[:_ID_SHOWN]}" for name, t in zip(names, one.trials)
    ]
    return [
        dataclasses.replace(one, others=(*one.others, (RUN, label)), trials=(trial,))
        for label, trial in zip(labels, one.trials)
    ]


def _by_section(study: Study) -> dict[tuple[str, str], list[Trial]]:
    found: dict[tuple[str, str], list[Trial]] = {}
    for trial in study.trials:
        found.setdefault((trial.model, trial.dataset), []).append(trial)
    return found


def _varied(study: Study, trials: Sequence[Trial]) -> list[str]:
    """What else tells runs of one model apart: a sweep's other axes, or whatever compared runs differ in."""
    names = [*sorted({name for trial in trials for name in trial.params} - _ASIDE), HARDWARE]
    differing = []
    for name in names:
        values = {"" if (value := _value(trial, name)) == "None" else value for trial in trials}
        if len(values if name in OPTIONAL else values - {""}) > 1:
            differing.append(name)
    if not study.axes:
        return differing
    axes = [name for name in study.axes if name not in _TOLD]
    # With other options a model is another one, even if each of a sweep's batch sizes has options of its own.
    return [*axes, *(name for name in differing if name not in axes and name.startswith(f"{trials[0].model}."))]


def values(study: Study) -> dict[tuple[str, str], dict[str, set[str]]]:
    """Model and data set -> name -> the values that its runs have of what may tell configurations apart."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for section, trials in _by_section(study).items():
        names = {name for trial in trials for name in trial.params} - _ASIDE | {HARDWARE}
        found[section] = {name: {value for t in trials if (value := _value(t, name))} for name in names}
    return found


def _value(trial: Trial, name: str) -> str:
    if trial.measure == "accuracy" and name in (HARDWARE, "cpus_per_worker"):  # it does not depend on them
        return ""
    return trial.tags.get(ORIGIN[HARDWARE], "") if name == HARDWARE else trial.params.get(name, "")


def _known_device(trial: Trial) -> str:
    device = trial.params.get("device", "")
    return device if device in ("cpu", "cuda") else ""


def _device(trials: Sequence[Trial]) -> str:
    """What the runs that came so far were computed on, if that is one kind of device."""
    known = {device for trial in trials if (device := _known_device(trial))}
    return known.pop() if len(known) == 1 else ""


def column(study: Study, configuration: Configuration) -> int:
    """The batch size that stays the same along a column: the global one, or the one per worker."""
    return configuration.global_batch_size if study.hold == "global_batch" else configuration.batch_size


def best_accuracy(trial: Trial) -> float | None:
    """Highest test accuracy of any epoch, 0 to 1."""
    values = [point.value for point in trial.history.get("test/accuracy", ())]
    values += [trial.metrics[name] for name in ("best/accuracy", "test/accuracy") if name in trial.metrics]
    return max(values, default=None)


def default_target(configurations: Sequence[Configuration]) -> float | None:
    """The largest multiple of 5 % that the best epoch of every finished run reaches; None below 5 %."""
    bests = [best_accuracy(trial) for configuration in configurations for trial in configuration.finished]
    known = [best for best in bests if best is not None and math.isfinite(best)]
    if not known:
        return None
    steps = math.floor((min(known) + _ROUNDING) / _STEP)
    return round(steps * _STEP, 2) if steps else None


def reaches(accuracy: float, target: float) -> bool:
    """Whether an accuracy is at least the target, but for rounding."""
    return accuracy >= target - _ROUNDING


def epochs_to(target: float) -> Measure:
    """Epochs until the test accuracy is at least ``target``; None when it never was."""

    def read(trial: Trial) -> float | None:
        reached = [step for step, value in by_step(trial, "test/accuracy").items() if reaches(value, target)]
        return float(min(reached)) if reached else None

    return read


def seconds_to(target: float) -> Measure:
    """Seconds of training until the test accuracy is at least ``target``, without evaluation and start-up."""

    def read(trial: Trial) -> float | None:
        epochs = epochs_to(target)(trial)
        spent = by_step(trial, "epoch_s")
        if epochs is None or any(epoch not in spent for epoch in range(1, int(epochs) + 1)):
            return None
        return sum(spent[epoch] for epoch in range(1, int(epochs) + 1))

    return read


def images_to(target: float) -> Measure:
    """Images trained on until the test accuracy is at least ``target``."""

    def read(trial: Trial) -> float | None:
        epochs, images = epochs_to(target)(trial), images_per_epoch(trial)
        return None if epochs is None or images is None else epochs * images

    return read


def images_trained(trial: Trial) -> float | None:
    """Images in all the steps of a run, each as often as it was trained on; None when that was not recorded."""
    recorded = {**by_step(trial, "epoch_s"), **by_step(trial, "test/accuracy")}
    epochs, images = max(recorded, default=0), images_per_epoch(trial)
    return epochs * images if epochs and images is not None else None


def images_per_epoch(trial: Trial) -> float | None:
    """Images in the steps of one epoch."""
    rate, last = trial.metrics.get("epoch_images_per_s"), trial.metrics.get("epoch_s")
    return None if rate is None or last is None else round(rate * last)


def by_step(trial: Trial, name: str) -> dict[int, float]:
    """A history with one value per step; a continued run may have recorded an epoch twice."""
    return {point.step: point.value for point in trial.history.get(name, ())}


def phases(trial: Trial) -> Mapping[str, float]:
    """Seconds by phase, of those that were recorded."""
    names = ("startup", "data", "training", "evaluation", "checkpoint")
    return {name: trial.metrics[f"time/{name}_s"] for name in names if f"time/{name}_s" in trial.metrics}


def total_seconds(trial: Trial) -> float | None:
    """Wall time of a run; where it was not recorded, seconds of all phases together; None unless all were recorded."""
    found = phases(trial)
    return trial.metrics.get("time/wall_s", sum(found.values()) if len(found) == 5 else None)


def utilisation(device: str) -> Measure:
    """Mean load in percent of the nodes' CPUs (``cpu``) or of all GPUs (``gpu``) while the run trained.

    Only samples between the first and the last record of the training count; None when there is none.
    """
    pattern = re.compile(rf"system/[^/]+/{device}(_\d+)?_utilization_percentage")

    def read(trial: Trial) -> float | None:
        times = [p.timestamp_ms for name in ("train/loss", "epoch_s") for p in trial.history.get(name, ())]
        if not times:
            return None
        samples: list[Point] = [p for name, ps in trial.history.items() if pattern.fullmatch(name) for p in ps]
        loads = [p.value for p in samples if min(times) <= p.timestamp_ms <= max(times)]
        return statistics.fmean(loads) if loads else None

    return read
