"""One run of a sweep as its driver knows it: its config, how far it is, and what is recorded of it."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cifar_ray import data, models, tasks
from cifar_ray.config import limits, runfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import Cell, SweepConfig
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.run import run_folder
from cifar_ray.orchestration.run.limits import Spent, recorded
from cifar_ray.orchestration.run.run_folder import RunFolder
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.storage import Folder
from cifar_ray.tasks import TaskSpec
from cifar_ray.tracking import parent
from cifar_ray.tracking.run import RunRecord
from cifar_ray.tracking.study import CHECKPOINT_TAG, STOPPED_TAG, Run, placement
from cifar_ray.training.observer import Outcome, step_of

_LONGEST_SLUG = 100


@dataclass
class PlannedTrial:
    """One run of the sweep.

    Attributes:
        config: the resolved config; None when it cannot run.
        decided: what it leaves open, as far as that is decided.
        state: as the display names it.
        reason: why it is skipped, was stopped, or has failed.
        run_id: its MLflow run, if an earlier driver has made it.
        unused_gpus: why it runs on CPUs although the cluster has GPUs; empty otherwise.
        opening: makes or opens its MLflow run, until that is there.
        held: its events meanwhile.
        times: seconds by phase, and the throughput, once it has ended.
        score: its task's primary figure after the last epoch, if it had finished under an earlier driver.
        epoch: the last one of this driver; of a run that had finished before, the last one.
        figures: its latest figures; once it has finished, also those of its end.
        is_open: whether its values are still to be proposed.
        proposal: the values that were proposed, by axis.
        repeats: name of the best run, if it is that one with another seed.
        spent: what it has used so far, over all drivers.
        admitted: whether the limits of the sweep let it start.
        reported: whether it has ended; its state and its record may follow.
        completed: whether it has trained to its end, so that its time tells what others take.
    """

    index: int
    cell: Cell
    config: ResolvedConfig | None
    state: str = boards.WAITING
    reason: str = ""
    decided: Decided = field(default_factory=lambda: Decided("1x1"))
    run_id: str = ""
    unused_gpus: str = ""
    folder: RunFolder | None = None
    session: RunSession | None = None
    outcome: Outcome | None = None
    opening: Future[RunRecord | None] | None = None
    held: list[Any] = field(default_factory=list)
    recording: threading.Thread | None = None
    times: Mapping[str, float] = field(default_factory=dict)
    score: float | None = None
    epoch: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
    is_open: bool = False
    proposal: Mapping[str, Any] | None = None
    repeats: str = ""
    spent: Spent = field(default_factory=Spent)
    admitted: bool = False
    reported: bool = False
    completed: bool = False

    @property
    def slug(self) -> str:
        """The name of its folder, with a hash where letters of the cell's name are lost."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.cell.name)
        if len(plain) <= _LONGEST_SLUG and plain == self.cell.name.replace(" ", "-"):
            return plain
        return f"{plain[:_LONGEST_SLUG]}-{hashlib.sha256(self.cell.name.encode()).hexdigest()[:8]}"

    @property
    def task(self) -> TaskSpec:
        """What it learns; it can run."""
        assert self.config is not None
        return tasks.spec(self.config, data.facts(self.config))

    def result(self, score: float) -> str:
        """Its result in words, once it has finished with that primary figure."""
        return boards.result(self.task, score, self.times)

    def described(self, sweep: SweepConfig) -> dict[str, Any]:
        """The cell as it is to run, or why it is skipped, for JSON: the sweep's folder and its MLflow run have it."""
        is_skipped = self.state == boards.SKIPPED
        return {
            "name": self.cell.name,
            "values": self.cell.values,
            "config": runfile.to_mapping(self.config) if self.config else None,
            "decided": self.decided.to_mapping(),
            "params": runfile.params(self.config, self.decided) if self.config else self._wished(sweep),
            "state": "SKIPPED" if is_skipped else parent.OPEN if self.is_open else "RUN",
            "reason": self.reason if is_skipped else "",
            **({} if self.proposal is None else {"proposal": self.proposal}),
            **({"repeats": self.repeats} if self.repeats else {}),
        }

    def _wished(self, sweep: SweepConfig) -> dict[str, str]:
        """The parameters of a cell that cannot run, as far as its values say; the batch is rounded down."""
        usual = {"model": TrainConfig.model, "dataset": TrainConfig.dataset, "topology": TrainConfig.topology}
        merged = {**usual, **sweeps.merged(sweep, self.cell.values)}
        values = {name: value for name, value in merged.items() if value is not None and name not in sweeps.OWN}
        nodes, workers = placement(values["topology"]) or (1, 1)
        per_step = nodes * workers * values.get("accumulate", 1)
        if "batch_size" not in values:
            values.setdefault("global_batch_size", models.of(values["model"]).recipes[0].base_batch)
            values["batch_size"] = max(values["global_batch_size"] // per_step, 1)
        values.setdefault("global_batch_size", values["batch_size"] * per_step)
        return {name: str(value) for name, value in values.items()}

    def find_again(self, folder: Folder, earlier: Mapping[str, Run], read_only: bool = False) -> None:
        """Read from its folder and from MLflow, which knows runs by their keys, what an earlier driver has done.

        A folder that was left half-made stays only if ``read_only``.

        Raises:
            ConfigError: when its folder is damaged, cannot be read, or is gone although MLflow has the run; nothing
                of it is removed.
        """
        if self.state == boards.SKIPPED or self.is_open:
            return
        home = folder.below(self.slug)
        if run_folder.is_half_made(home):  # its driver was killed before the run was recorded anywhere else
            if any(known.name == self.cell.name for known in earlier.values()):
                problem = "which is gone: start another sweep"
                raise ConfigError("resume", f"needs the folder of the run {self.cell.name}, {home.address}, {problem}")
            if not read_only:
                home.remove()
            return
        self.folder, self.spent = run_folder.reopen(home), recorded(home)
        known = earlier.get(self.folder.key)
        if known is None:
            return
        self.run_id, self.times, self.reason = known.run_id, known.times, known.reason
        self.figures, kept = known.metrics, known.tags.get(CHECKPOINT_TAG, "").rpartition("/")[2]
        ended = {"FINISHED": boards.FINISHED, "FAILED": boards.FAILED}.get(known.status, boards.WAITING)
        halted = known.status == "STOPPED" and not limits.is_of_sweep(known.stopped_by)
        self.state = boards.STOPPED if STOPPED_TAG in known.tags or halted else ended
        self.completed = self.state == boards.FINISHED
        if self.completed and self.config is not None:
            self.score, self.epoch = known.score, max(step_of(kept), 0) // data.steps_per_epoch(self.config)
