"""A study's runs as one frame, and their figures by configuration: whatever runs share but the seed."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import pandas as pd

from cifar_ray import tasks
from cifar_ray.config.train import TrainConfig
from cifar_ray.reporting import figures
from cifar_ray.reporting.figures import Figure, Statistic
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking.study import HARDWARE_TAG, Run, Sweep

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

OPTIONAL = {each.name for each in fields(TrainConfig) if each.default in (None, ())}
"""Parameters that are not recorded where they are not set."""

_SECTION = ["model", "dataset"]
_TOLD = {*PLACED, "seed", "device"}
# Of compared runs, these say where and how a run is kept, or follow from others; no figure depends on them.
_ASIDE = {
    *_TOLD,
    *("world_size", "nodes", "workers_per_node", "local_nodes", "oversubscribe", "log_every", "per_rank_test"),
    *("keep_checkpoints", "max_failures", "log_models", "convolutions"),
}
_OF_FIRST = (*PLACED, "nodes", "world_size", "strategy")
_ID_SHOWN = 8


@dataclass(frozen=True, eq=False)
class Configuration:
    """Everything but the seed, and the runs that have it.

    ``others`` are names and values of whatever else varies in the study; ``device`` is ``cpu`` or ``cuda``, or empty
    when no run came so far as to tell; ``rows`` are those of its finished runs in the frame. The fields after these are
    the first run's.
    """

    runs: Runs
    number: int
    device: str
    others: tuple[tuple[str, str], ...]
    trials: tuple[Run, ...]
    rows: Sequence[int]
    model: str
    dataset: str
    topology: str
    batch_size: int
    global_batch_size: int
    nodes: int
    world_size: int
    strategy: str

    @cached_property
    def finished(self) -> tuple[Run, ...]:
        """The runs whose figures count."""
        return tuple(trial for trial in self.trials if trial.finished)

    @property
    def counts(self) -> Collection[int]:
        """How many finished runs there are of each kind that was made for figures of its own."""
        return Counter(trial.measure for trial in self.finished).values()

    @property
    def devices(self) -> int:
        """GPUs in all, of which a worker may drive several; without GPUs, workers."""
        return self.world_size * (max(int(self.trials[0].gpus_per_worker), 1) if self.device == "cuda" else 1)

    @property
    def column(self) -> int:
        """The batch size that stays the same along a column: the global one, or the one per worker."""
        return self.global_batch_size if self.runs.study.hold == "global_batch" else self.batch_size

    @property
    def size(self) -> tuple[object, ...]:
        """By this, configurations stand in order from few devices to many."""
        return self.devices, self.nodes, self.topology, self.column

    def measured(self, figure: Figure) -> list[tuple[Run, float]]:
        """The finished runs that have a figure, each with its value."""
        values = self.runs.values(figure)
        return [(trial, values[at]) for trial, at in zip(self.finished, self.rows) if not math.isnan(values[at])]

    def statistic(self, figure: Figure) -> Statistic | None:
        """A figure over the finished runs that have it; None when none has."""
        return self.runs.means(figure).get(self.number)

    def by_seed(self, figure: Figure) -> dict[int, float]:
        """A figure with every seed that has it; sweeps together may have several runs with one."""
        seeds: dict[int, list[float]] = {}
        for trial, value in self.measured(figure):
            seeds.setdefault(trial.seed, []).append(value)
        return {seed: statistics.fmean(seeds[seed]) for seed in sorted(seeds)}

    def trained(self, figure: Figure) -> list[float]:
        """What each run trained on which has a figure; NaN where not recorded."""
        images = {id(trial): count for trial, count in self.measured(figures.TRAINED)}
        return [images.get(id(trial), math.nan) for trial, _ in self.measured(figure)]


class Runs:
    """The runs of a study.

    The frame has a row for each run: what identifies it, and the number of its configuration; configurations stand in
    the order of their first runs. What tables, charts and sentences say of a figure is its :meth:`means`.
    """

    def __init__(self, study: Sweep) -> None:
        self.study = study
        self._values: dict[str, Sequence[float]] = {}
        self._means: dict[str, Mapping[int, Statistic]] = {}
        trials = list(study.trials)
        self.frame = frame = pd.DataFrame({"trial": pd.Series(trials, dtype=object)})
        for name in ("run_id", "name", "finished", "seed", *PLACED):
            frame[name] = [getattr(trial, name) for trial in trials]
        frame["device"] = [trial.params.get("device") for trial in trials]
        frame["device"] = frame.device.where(frame.device.isin(("cpu", "cuda")))
        known = frame.groupby(_SECTION).device.transform(lambda of: of.dropna().iloc[0] if of.nunique() == 1 else "")
        frame["device"] = frame.device.fillna(known)
        frame["others"] = [_others(trial, self.varied[trial.model, trial.dataset]) for trial in trials]
        self._identity = [*_SECTION, "device", *PLACED[2:], "others"]
        if not study.axes:
            frame["others"] = self._told_apart(frame)
        groups = frame.groupby(self._identity, sort=False)
        frame["configuration"] = groups.ngroup()
        self.configurations = [
            Configuration(
                *(self, number, device, others, tuple(rows.trial), list(rows.index[rows.finished])),
                *(getattr(rows.trial.iloc[0], name) for name in _OF_FIRST),
            )
            for number, ((_, _, device, *_, others), rows) in enumerate(groups)
        ]

    def values(self, figure: Figure) -> Sequence[float]:
        """A figure of every run, in the order of the frame; NaN where it was not measured."""
        if figure.key not in self._values:
            known = [figure.known(trial) for trial in self.study.trials]
            self._values[figure.key] = [math.nan if value is None else value for value in known]
        return self._values[figure.key]

    def means(self, figure: Figure) -> Mapping[int, Statistic]:
        """A figure over the finished runs that have it, by the number of their configuration."""
        if figure.key not in self._means:
            frame = self.frame.assign(value=self.values(figure))
            groups = frame[frame.finished & frame.value.notna()].groupby("configuration")
            means = groups.value.agg(["mean", "std", "count"])
            self._means[figure.key] = {
                row.Index: Statistic(row.mean, None if row.n == 1 else row.std, row.n, tuple(run_ids))
                for row, (_, run_ids) in zip(means.rename(columns={"count": "n"}).itertuples(), groups.run_id)
            }
        return self._means[figure.key]

    def _told_apart(self, frame: Any) -> list[tuple[tuple[str, str], ...]]:
        """The others, with a label for each run where two of a configuration have the same seed."""
        twins = frame.groupby(self._identity).seed.transform(lambda seeds: seeds.duplicated().any())
        same_name = frame.duplicated([*self._identity, "name"], keep=False)
        labels = [
            f"{name} {run_id[:_ID_SHOWN]}" if same else name
            for name, run_id, same in zip(frame.name, frame.run_id, same_name)
        ]
        return [(*others, (RUN, label)) if twin else others for others, twin, label in zip(frame.others, twins, labels)]

    @cached_property
    def task(self) -> TaskFigures:
        """The figures of what the runs learn.

        Raises:
            ConfigError: when it is not the same for all.
        """
        return TaskFigures(self.study.task)

    @property
    def measured_on(self) -> str:
        """The images on which the finished runs are measured after every epoch: ``test``, ``validation`` or both."""
        known = {tasks.SUBSETS[trial.measured_on] for trial in self.study.trials if trial.finished}
        return " or ".join(sorted(known)) or "test"

    @cached_property
    def sections(self) -> dict[tuple[str, str], list[Run]]:
        """The runs by model and data set."""
        return {section: list(trials) for section, trials in self.frame.groupby(_SECTION, sort=False).trial}

    @cached_property
    def varied(self) -> dict[tuple[str, str], list[str]]:
        """By model and data set, what else tells runs apart: a sweep's other axes, or all that differs."""
        return {section: self._differing(values) for section, values in self.settings.items()}

    def _differing(self, values: Mapping[str, Collection[str]]) -> list[str]:
        differing = [name for name, of in values.items() if len(of if name in OPTIONAL else {*of} - {""}) > 1]
        if not self.study.axes:
            return differing
        axes = [name for name in self.study.axes if name not in _TOLD]
        # With other options a model is another one, even if each of a sweep's batch sizes has options of its own.
        return [*axes, *(name for name in differing if name not in axes and name.startswith("model_options."))]

    @cached_property
    def settings(self) -> dict[tuple[str, str], dict[str, set[str]]]:
        """Model and data set -> what may tell configurations apart -> the values of its runs, empty where not set."""
        settings = {}
        for section, trials in self.sections.items():
            names = [*sorted({name for trial in trials for name in trial.params} - _ASIDE), HARDWARE]
            known = {name: {setting(trial, name) for trial in trials} for name in names}
            settings[section] = {name: {"" if value == "None" else value for value in known[name]} for name in names}
        return settings

    @property
    def finished(self) -> list[Configuration]:
        """The configurations with a finished run."""
        return [config for config in self.configurations if config.finished]


def setting(trial: Run, name: str) -> str:
    """What may tell configurations apart: a parameter, or the hardware, which matters to times alone."""
    if not trial.timed and name in (HARDWARE, "cpus_per_worker", "gpus_per_worker"):
        return ""
    return trial.tags.get(HARDWARE_TAG, "") if name == HARDWARE else trial.params.get(name, "")


def _others(trial: Run, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name in names if (value := setting(trial, name)))
