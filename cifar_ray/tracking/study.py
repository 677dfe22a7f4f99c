"""A run and a sweep as plain values: what is found, listed and reported. No MLflow here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, get_args

from cifar_ray import tasks
from cifar_ray.config import schema
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sections import Measure
from cifar_ray.tasks import Subset, TaskSpec

# Tags of runs and sweeps in MLflow.
KEY_TAG = "cifar_ray.key"  # identifies a run of this program, chosen before MLflow gives it an id
SWEEP_TAG = "cifar_ray.sweep"  # of a sweep and of each of its runs: the sweep's name
FOLDER_TAG = "cifar_ray.folder"  # address of a folder, with its config and checkpoints; empty when that was removed
FAILURE_TAG = "cifar_ray.failure"  # why a run is not FINISHED
CHECKPOINT_TAG = "cifar_ray.checkpoint"  # address of the last one, once a run has a result or a limit has stopped it
PLANNED_TAG = "cifar_ray.runs"  # how many runs a sweep is to have
WITHOUT_RUN_TAG = "cifar_ray.failed_without_run"  # how many of them have failed before MLflow had them
TASK_TAG = "cifar_ray.task"  # facts of a task other than image classification, as JSON
STOPPED_BY_TAG = "cifar_ray.stopped_by"
"""Tag of a FINISHED run that was stopped by a limit, such as ``max_time``: it is not whole, and can go on. One that was
stopped by ``patience`` can go on as well, and has all that a whole run has."""
STOPPED_TAG = "cifar_ray.stopped"  # of a run that the sweep's scheduler has stopped; it is not to go on
MEASURE_TAG = "cifar_ray.measure"  # what a run was made for, as a sweep's ``--measure`` has it
CHOSEN_BY_TAG = "cifar_ray.chosen_by"  # whose figure chose a run's best checkpoint: ``val``, or ``nothing``
TOPOLOGY_TAG, HARDWARE_TAG, THREADS_TAG = "cifar_ray.topology", "cifar_ray.hardware", "cifar_ray.threads"
BOUND_TAG, BOUND_SHARE = "cifar_ray.bound", "bound/share"
"""Tag of what bounds a run, a kind and a sentence after a colon; and the share of its training that this costs."""
EARLIER = "cifar_ray.earlier."  # prefix of a tag with the earlier values of the tag named after it

STEP_TIMES = "step_times.json"  # artifact of a finished run: the times of its steps on every rank

MEASURED = "measured/"
"""Prefix of a metric of every run: its primary figure after every epoch, on validation images, or where it has none,
on the test. MLflow sorts by one metric."""

LOAD = re.compile(r"system/[^/]+/(cpu|gpu)(?:_\d+)?_utilization_percentage")
"""Metrics of the load of a node's CPUs, or of one of its GPUs; the group is the device."""

_STATES = {"KILLED": "stopped", "STOPPED": "stopped", "PENDING": "waiting"}
_ALL, _LEARNED_ALONE, _TIMES_ALONE = get_args(Measure)
_LEARNED = (MEASURED, "test/", "val/", "best/", "chosen/", "train/")
"""How figures begin that tell what a run has learned."""


def placement(topology: str) -> tuple[int, int] | None:
    """Nodes and workers on each; None when it is no NODESxWORKERS, as a cell's that was skipped for it."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", topology)
    return (int(match[1]), int(match[2])) if match else None


def task_of(tags: Mapping[str, str]) -> TaskSpec:
    """What a run with these tags learns."""
    return _recorded(tags[TASK_TAG]) if TASK_TAG in tags else tasks.USUAL


@cache
def _recorded(text: str) -> TaskSpec:
    return schema.build(TaskSpec, json.loads(text))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Point:
    """One recorded value: ``step`` counts what the metric counts, epochs or optimizer steps."""

    step: int
    timestamp_ms: int
    value: float


@dataclass(frozen=True)
class Run:
    """One run as recorded in the tracking store, or a cell of a sweep that has none.

    Attributes:
        name: such as ``bs16 2x2 seed1``.
        run_id: its id in the store; empty where the store does not have it.
        status: FINISHED, STOPPED (by a limit), FAILED, KILLED, RUNNING, PENDING (not begun) or SKIPPED.
        reason: why it is STOPPED, FAILED or SKIPPED, else empty.
        page: address of its page in MLflow, when the store is a server.
        metrics: metric name -> last value. What was not measured is not there.
        history: metric name -> its values in order of step; of some metrics, and as the next three, for reports alone.
        confusion: test images by true class (row) and predicted class (column); None when not recorded.
        class_names: in the order of ``confusion``.
        mistakes: test images that it got wrong with the highest probabilities, the worst first.
        repeats: name of the best run of a search, if it is that one with another seed.
        started: ISO 8601 in UTC.
    """

    name: str
    run_id: str
    status: str
    reason: str = ""
    page: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    history: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    confusion: Sequence[Sequence[int]] | None = None
    class_names: Sequence[str] = ()
    mistakes: Sequence[Mapping[str, Any]] = ()
    repeats: str = ""
    started: str = ""

    @property
    def key(self) -> str:
        """What its folder and its record have in common."""
        return self.tags.get(KEY_TAG, "")

    @property
    def folder(self) -> str:
        """Address of its folder; empty when that was removed."""
        return self.tags.get(FOLDER_TAG, "")

    @property
    def stopped_by(self) -> str:
        """The limit that has stopped it, or ``patience``; else empty."""
        return self.tags.get(STOPPED_BY_TAG, "")

    @property
    def finished(self) -> bool:
        """Whether the run has finished, so that its figures are final."""
        return self.status == "FINISHED"

    @property
    def state(self) -> str:
        """``finished``, ``failed``, ``stopped`` (by a person, a limit or a scheduler), ``running`` or ``waiting``."""
        return "stopped" if self.finished and self.stopped_by else _STATES.get(self.status, self.status.lower())

    @property
    def score(self) -> float | None:
        """The task's primary figure on the test, of the chosen checkpoint or after the last epoch recorded."""
        return self.metrics.get(self.task.primary.result(self.metrics))

    @property
    def task(self) -> TaskSpec:
        """What it learns."""
        return task_of(self.tags)

    @property
    def measured_on(self) -> Subset:
        """The images that it is measured on after every epoch."""
        return tasks.measured_on(self.metrics)

    @property
    def measure(self) -> str:
        """What it was made for, as ``--measure`` has it."""
        return self.tags.get(MEASURE_TAG, _ALL)

    @property
    def learned(self) -> bool:
        """Whether what it has learned counts: it was not made for its times alone."""
        return self.measure != _TIMES_ALONE

    @property
    def timed(self) -> bool:
        """Whether its times count: it was not made for what it learns alone."""
        return self.measure != _LEARNED_ALONE

    @property
    def changed(self) -> list[str]:
        """What changed while it trained, so that its times mix two."""
        tags = {"topology": TOPOLOGY_TAG, "hardware": HARDWARE_TAG, "number of threads": THREADS_TAG}
        return [what for what, tag in tags.items() if f"{EARLIER}{tag}" in self.tags]

    @property
    def meant(self) -> Run:
        """Itself with the figures alone that it was made for; after a change, with what it has learned alone."""
        learned, timed = self.learned, self.timed and not self.changed
        if learned and timed:
            return self

        def counts(name: str) -> bool:
            return learned if name.startswith(_LEARNED) else timed

        work = ("epoch_s", self.task.epoch_throughput)  # together they tell how much it trained on
        return replace(
            self,
            metrics={name: value for name, value in self.metrics.items() if counts(name) or name in work},
            history={name: points for name, points in self.history.items() if counts(name)},
            confusion=self.confusion if learned else None,
            mistakes=self.mistakes if learned else (),
        )

    @property
    def model(self) -> str:
        return self.params["model"]

    @property
    def dataset(self) -> str:
        return self.params["dataset"]

    @property
    def topology(self) -> str:
        """NODESxWORKERS; of a skipped cell, what was asked for."""
        return self.params["topology"]

    @property
    def nodes(self) -> int:
        """Machines; 1 when the topology is none."""
        return (placement(self.topology) or (1, 1))[0]

    @property
    def world_size(self) -> int:
        """Workers in all; 1 when the topology is none."""
        nodes, workers = placement(self.topology) or (1, 1)
        return nodes * workers

    @property
    def batch_size(self) -> int:
        """Images per worker and micro-batch."""
        return int(self.params["batch_size"])

    @property
    def global_batch_size(self) -> int:
        """Images per optimizer step over all workers."""
        return int(self.params["global_batch_size"])

    @property
    def strategy(self) -> str:
        """Its strategy; empty when the run ended before logging it."""
        return self.params.get("strategy", "")

    @property
    def gpus_per_worker(self) -> float:
        """GPUs that each worker has, where it has any."""
        return float(self.params.get("gpus_per_worker", "1"))

    @property
    def seed(self) -> int:
        """Start of the run's random choices."""
        return int(self.params.get("seed", "0"))


@dataclass(frozen=True)
class Sweep:
    """A sweep as recorded in the tracking store, or runs named one by one: the study that a report is about.

    Attributes:
        name: of the sweep, or made of the compared runs' names.
        trials: every cell of the grid in the grid's order, seed by seed, whatever became of it; or its runs, the oldest
            first. None where the sweep was only looked for.
        store: the tracking store that the figures come from.
        command: what makes these runs again.
        hold: ``batch`` when the batch per worker stays and the global batch grows with the workers,
            ``global_batch`` when the global batch stays; empty when runs compared one by one show neither.
        axes: names of the ``TrainConfig`` fields that vary.
        run_id: id of the sweep's own run, the parent of the trials; empty for runs compared one by one.
        page: address of that run's page, when the store is a server.
        status: FINISHED, FAILED, KILLED or RUNNING.
        metrics: the sweep's own figures: ``sweep/wall_s`` and seconds by phase, summed over the trials.
        cautions: sentences on parts that could not be read.
        search: ``random``, ``optuna``, or ``grid`` for every combination of a search; None of a plain grid.
        scheduler: what stopped runs of a search early, or ``none``.
        objective: ``NAME:max`` or ``NAME:min``, what a search went by; None for the figure that chooses.
        ranges: axis -> the kind of range that its values were drawn from, such as ``loguniform``; others have lists.
        started: ISO 8601 in UTC.
    """

    name: str
    trials: Sequence[Run]
    store: str
    command: str
    hold: str = ""
    axes: Sequence[str] = ()
    run_id: str = ""
    page: str | None = None
    status: str = "FINISHED"
    metrics: Mapping[str, float] = field(default_factory=dict)
    cautions: Sequence[str] = ()
    search: str | None = None
    scheduler: str = "none"
    objective: str | None = None
    ranges: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    started: str = ""

    @property
    def folder(self) -> str:
        """Address of its folder, with its config and the runs' folders."""
        return self.tags.get(FOLDER_TAG, "")

    @property
    def planned(self) -> int:
        """How many runs it is to have."""
        return int(self.tags.get(PLANNED_TAG, len(self.trials)))

    @property
    def failed(self) -> int:
        """How many of its runs have failed, also before MLflow had them."""
        return sum(run.status == "FAILED" for run in self.trials) + int(self.tags.get(WITHOUT_RUN_TAG, 0))

    @property
    def state(self) -> str:
        """As :attr:`Run.state`; one that has ended with failed runs is ``failed``."""
        return "failed" if self.status == "FINISHED" and self.failed else _STATES.get(self.status, self.status.lower())

    @property
    def task(self) -> TaskSpec:
        """What its runs learn, as those that have begun know.

        Raises:
            ConfigError: when it is not the same for all.
        """
        begun = {trial.task for trial in self.trials if trial.run_id}
        if len(begun) > 1:
            names = sorted(f"{task.name} ({task.primary.noun})" for task in begun)
            raise ConfigError("", f"runs of different tasks cannot be compared: {', '.join(names)}")
        return next(iter(begun), task_of({}))

    @property
    def by_task(self) -> list[Sweep]:
        """Its runs by what they learn, in the order of the first ones; those that have not begun, by their data set."""
        of_data = {trial.dataset: trial.task for trial in reversed(self.trials) if trial.run_id}
        usual = next(iter(reversed(of_data.values())), task_of({}))
        groups: dict[TaskSpec, list[Run]] = {}
        for trial in self.trials:
            task = trial.task if trial.run_id else of_data.get(trial.dataset, usual)
            groups.setdefault(task, []).append(trial)
        return [replace(self, trials=trials) for trials in groups.values()] or [self]

    @property
    def measure(self) -> str:
        """What its runs were made for, as ``--measure`` has it; runs that have not begun do not know."""
        return next((trial.measure for trial in self.trials if trial.measure != _ALL), _ALL)

    @property
    def meant(self) -> Sweep:
        """Itself with the figures of its runs that they were made for."""
        return replace(self, trials=[trial.meant for trial in self.trials])
