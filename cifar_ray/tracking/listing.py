"""The runs and sweeps of a tracking store, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from mlflow.entities import Run

from cifar_ray import tasks, tracking
from cifar_ray.tasks import TaskSpec
from cifar_ray.tracking import parent, reading, store
from cifar_ray.tracking.study import STOPPED_BY_TAG, task_of

_OURS = (store.KEY_TAG, parent.KIND_TAG)
"""Tags, one of which a run or a sweep of this program has; others' runs in the store are not even asked for."""

_STATES = {"KILLED": "stopped", "SCHEDULED": "waiting"}


@dataclass(frozen=True)
class Listed:
    """A run or a sweep.

    Attributes:
        name: its name.
        run_id: MLflow's id of it.
        kind: ``run`` or ``sweep``.
        state: ``finished``, ``failed``, ``stopped`` (interrupted, by a limit, or by a sweep's scheduler), ``running``
            or ``waiting``. A sweep that has ended with failed runs is ``failed``.
        dataset: data set; those of all runs, in a sweep.
        model: architecture; those of all runs, in a sweep.
        topology: NODESxWORKERS; those of all runs, in a sweep.
        score: the task's primary figure on the test, of the chosen checkpoint if there is one, else after the last
            epoch; None in a sweep, and where it was not measured.
        images_per_s: throughput in steady state, of what the task counts; None likewise.
        started: moment of its start, ISO 8601 in UTC.
        runs: runs of a sweep so far; None for a run.
        planned: runs that the sweep is to have; None for a run.
        failed: runs of the sweep that have failed; None for a run.
        task: what it learns, of a sweep what its newest run does.
        cost_usd: what it has cost so far, in a sweep all runs together; None without a price.
    """

    name: str
    run_id: str
    kind: str
    state: str
    dataset: str
    model: str
    topology: str
    score: float | None
    images_per_s: float | None
    started: str
    runs: int | None = None
    planned: int | None = None
    failed: int | None = None
    task: TaskSpec = tasks.USUAL
    cost_usd: float | None = None


def everything(uri: str) -> list[Listed]:
    """All sweeps, and all runs that belong to none, newest first.

    Raises:
        ConfigError: when the store does not answer.
    """
    tracking.quieten(verbose=False)
    if not store.exists(uri):
        return []
    client = store.connect(uri)
    with store.refusing(uri):
        experiments = store.all_experiments(client)
        runs = [run for tag in _OURS for run in store.search(client, experiments, f"tags.`{tag}` LIKE '%'")]
    children: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: -run.info.start_time):
        children.setdefault(run.data.tags.get(parent.PARENT_TAG, ""), []).append(run)
    return [_listed(run, children.get(run.info.run_id, ())) for run in children.get("", ())]


def of_sweep(uri: str, name: str) -> list[Listed]:
    """The runs of the newest sweep of that name, newest first.

    Raises:
        ConfigError: when there is none, or the store does not answer.
    """
    client, sweep = reading.sweep(uri, name)
    with store.refusing(uri):
        return [_listed(run, ()) for run in reversed(parent.children(client, sweep))]


def _listed(run: Run, children: Sequence[Run]) -> Listed:
    is_sweep = parent.KIND_TAG in run.data.tags
    members = children if is_sweep else [run]
    tags, state = run.data.tags, _STATES.get(run.info.status, run.info.status.lower())
    state = "stopped" if STOPPED_BY_TAG in tags and state == "finished" else state
    task = task_of(members[0].data.tags if members else {})
    failed = sum(run.info.status == "FAILED" for run in children) + int(tags.get(parent.WITHOUT_RUN_TAG, 0))
    return Listed(
        name=run.info.run_name,
        run_id=run.info.run_id,
        kind="sweep" if is_sweep else "run",
        state="failed" if is_sweep and failed and state == "finished" else state,
        dataset=_values(members, "dataset"),
        model=_values(members, "model"),
        topology=_values(members, "topology"),
        score=None if is_sweep else run.data.metrics.get(task.primary.result(run.data.metrics)),
        images_per_s=None if is_sweep else run.data.metrics.get(task.throughput),
        started=datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc).isoformat(timespec="seconds"),
        runs=len(children) if is_sweep else None,
        planned=int(tags.get(parent.PLANNED_TAG, len(children))) if is_sweep else None,
        failed=failed if is_sweep else None,
        task=task,
        cost_usd=run.data.metrics.get("cost/usd"),
    )


def _values(runs: Sequence[Run], param: str) -> str:
    """Every value of a parameter, the oldest run's first."""
    return ", ".join(dict.fromkeys(run.data.params[param] for run in reversed(runs) if param in run.data.params))
