"""A study's runs as one frame, and their figures by configuration: whatever runs share but the seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from cifar_ray import tasks
from cifar_ray.config.train import TrainConfig
from cifar_ray.reporting.figures import Figure, Statistic
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking.study import HARDWARE_TAG, Run, Sweep

ORIGIN = {
    **{"commit": "mlflow.source.git.commit", "machine": "cifar_ray.machine"},
    **{"hardware": HARDWARE_TAG, "command": "cifar_ray.command"},
}
"""Tags that say where a run's figures come from, by short names."""

PLACED = ("model", "dataset", "topology", "batch_size", "global_batch_size")
"""Parameters that have a place in a table of their own."""

HARDWARE, RUN = "hardware", "run"
"""Names under which runs differ in no parameter: in their hardware, or in nothing at all, not even the seed."""

OPTIONAL = {each.name for each in fields(TrainConfig) if each.default in (None, ())}
"""Parameters that are not recorded where they are not set."""

_SECTION, _DEVICES = ["model", "dataset"], ("cpu", "cuda")
_TOLD = {*PLACED, "seed", "device"}
# Of compared runs, these say where and how a run is kept, or follow from others; no figure depends on them.
_ASIDE = {
    *_TOLD,
    *("world_size", "nodes", "workers_per_node", "local_nodes", "oversubscribe", "log_every", "per_rank_test"),
    *("keep_checkpoints", "max_failures", "log_models", "convolutions"),
}
_OF_FIRST = (*PLACED, "nodes", "world_size", "strategy")


@dataclass(frozen=True, eq=False)
class Configuration:
    """Everything but the seed, and the runs that have it, in the frame those of ``rows``.

    ``others`` are names and values of whatever else varies in the study; ``device`` is ``cpu`` or ``cuda``, or empty
    where no run tells. The fields after ``rows`` are the first run's.
    """

    runs: Runs
    number: int
    device: str
    others: tuple[tuple[str, str], ...]
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
    def trials(self) -> list[Run]:
        return [self.runs.study.trials[at] for at in self.rows]

    @cached_property
    def finished(self) -> list[Run]:
        """The runs whose figures count."""
        return [trial for trial in self.trials if trial.finished]

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
        every = zip(self.trials, self.runs.values(figure)[self.rows].tolist())
        return [(trial, value) for trial, value in every if trial.finished and not math.isnan(value)]

    def statistic(self, figure: Figure) -> Statistic | None:
        """A figure over the finished runs that have it; None when none has."""
        return self.runs.means(figure).get(self.number)

    def by_seed(self, figure: Figure) -> dict[int, float]:
        """A figure with every seed that has it; sweeps together may have several runs with one."""
        seeds: dict[int, list[float]] = {}
        for trial, value in self.measured(figure):
            seeds.setdefault(trial.seed, []).append(value)
        return {seed: fmean(seeds[seed]) for seed in sorted(seeds)}


class Runs:
    """The runs of a study.

    The frame has a row for each run: what identifies it, and the number of its configuration; configurations stand in
    the order of their first runs. What tables, charts and sentences say of a figure is its :meth:`means`.
    """

    def __init__(self, study: Sweep) -> None:
        self.study = study
        self._values: dict[str, Any] = {}
        self._means: dict[str, Mapping[int, Statistic]] = {}
        trials, columns = study.trials, ("run_id", "name", "finished", "seed", *PLACED)
        self.frame = frame = pd.DataFrame({name: [getattr(trial, name) for trial in trials] for name in columns})
        frame["device"] = [trial.params.get("device") for trial in trials]
        frame["device"] = frame.device.where(frame.device.isin(_DEVICES))
        known = frame.groupby(_SECTION).device.transform(lambda of: of.dropna().iloc[0] if of.nunique() == 1 else "")
        frame["device"] = frame.device.fillna(known)
        frame["others"] = [
            tuple((name, value) for name in self.varied[trial.model, trial.dataset] if (value := setting(trial, name)))
            for trial in trials
        ]
        identity = [*_SECTION, "device", *PLACED[2:], "others"]
        if not study.axes:
            same_name, is_twin = (frame.duplicated(by, keep=False) for by in ("name", [*identity, "seed"]))
            for at in frame.index[is_twin]:
                label = f"{trials[at].name} {trials[at].run_id[:8]}" if same_name[at] else trials[at].name
                frame.at[at, "others"] = (*frame.others[at], (RUN, label))
        groups = frame.groupby(identity, sort=False)
        frame["configuration"] = groups.ngroup()
        self.configurations = [
            Configuration(
                *(self, number, device, others, rows.index),
                *(getattr(trials[rows.index[0]], name) for name in _OF_FIRST),
            )
            for number, ((_, _, device, *_, others), rows) in enumerate(groups)
        ]

    def values(self, figure: Figure) -> Any:
        """A figure of every run, in the order of the frame; NaN where it was not measured."""
        if figure.key not in self._values:
            self._values[figure.key] = np.array(list(map(figure.known, self.study.trials)), dtype=float)
        return self._values[figure.key]

    def means(self, figure: Figure) -> Mapping[int, Statistic]:
        """A figure over the finished runs that have it, by the number of their configuration."""
        if figure.key not in self._means:
            measured = ((config.number, config.measured(figure)) for config in self.configurations)
            self._means[figure.key] = {
                number: Statistic.of([value for _, value in known], tuple(trial.run_id for trial, _ in known))
                for number, known in measured
                if known
            }
        return self._means[figure.key]

    @cached_property
    def task(self) -> TaskFigures:
        """The figures of what the runs learn; a ConfigError when it is not the same for all."""
        return TaskFigures(self.study.task)

    @property
    def measured_on(self) -> str:
        """The images on which the finished runs are measured after every epoch: ``test``, ``validation`` or both."""
        known = {tasks.SUBSETS[trial.measured_on] for trial in self.study.trials if trial.finished}
        return " or ".join(sorted(known)) or "test"

    @cached_property
    def sections(self) -> dict[tuple[str, str], list[Run]]:
        """The runs by model and data set."""
        sections: dict[tuple[str, str], list[Run]] = {}
        for trial in self.study.trials:
            sections.setdefault((trial.model, trial.dataset), []).append(trial)
        return sections

    @cached_property
    def varied(self) -> dict[tuple[str, str], list[str]]:
        """By model and data set, what else tells runs apart: a sweep's other axes, or all that differs."""
        varied, axes = {}, [name for name in self.study.axes if name not in _TOLD]
        for section, values in self.settings.items():
            differing = [name for name, of in values.items() if len(of if name in OPTIONAL else of - {""}) > 1]
            # With other options a model is another one, even if each of a sweep's batch sizes has options of its own.
            options = [name for name in differing if name not in axes and name.startswith("model_options.")]
            varied[section] = [*axes, *options] if self.study.axes else differing
        return varied

    @cached_property
    def settings(self) -> dict[tuple[str, str], dict[str, set[str]]]:
        """Model and data set -> what may tell configurations apart -> the values of its runs, empty where not set."""
        settings = {}
        for section, trials in self.sections.items():
            names = [*sorted({name for trial in trials for name in trial.params} - _ASIDE), HARDWARE]
            known = {name: [setting(trial, name) for trial in trials] for name in names}
            settings[section] = {name: {"" if value == "None" else value for value in known[name]} for name in names}
        return settings

    @property
    def finished(self) -> list[Configuration]:
        """The configurations with a finished run."""
        return [config for config in self.configurations if config.finished]


def short_commit(commit: str) -> str:
    """The first 12 of its 40 digits, and ``-dirty`` where it has that."""
    return commit[:12] + commit[40:]


def setting(trial: Run, name: str) -> str:
    """What may tell configurations apart: a parameter, or the hardware, which matters to times alone."""
    if not trial.timed and name in (HARDWARE, "cpus_per_worker", "gpus_per_worker"):
        return ""
    return trial.tags.get(HARDWARE_TAG, "") if name == HARDWARE else trial.params.get(name, "")
