"""The table of ``cifar-ray runs``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cifar_ray import tasks
from cifar_ray.config import option
from cifar_ray.config.limits import dollars
from cifar_ray.display.run import Console
from cifar_ray.tracking.listing import Listed


def show(listed: Sequence[Listed], store: str) -> None:
    """Print a line for each run and sweep; its name comes last, whole and ready to be copied."""
    if not listed:
        print(f"no runs in {store}")
        return
    learned = {tasks.recorded(run.task) for run in listed}
    shared = learned.pop() if len(learned) == 1 else None
    figures = (f"test {shared.primary.name}", f"{shared.unit}/s") if shared else ("test result", "throughput")
    costs = ("cost",) if any(run.cost_usd is not None for run in listed) else ()
    header = ("started", "state", "data set", "model", "topology", *figures, *costs, "name")
    Console().columns(header, (_cells(run, shared is None, bool(costs)) for run in listed))


def _cells(run: Listed, is_named: bool, has_cost: bool) -> tuple[str, ...]:
    """A run's cells; its figures are with their names and units where the header has none."""
    cost = (f"{'' if run.cost_usd is None else dollars(run.cost_usd):>10}",) if has_cost else ()
    task = tasks.recorded(run.task)
    local = datetime.fromisoformat(run.started).astimezone()
    named, rate = (task.primary.named, task.speed) if is_named else (task.primary.text, "{:,.0f}".format)
    score = "" if run.score is None else named(run.score)
    speed = "" if run.images_per_s is None else rate(run.images_per_s)
    name, state = run.name, run.state
    if run.planned is not None:
        begun = "" if run.runs == run.planned else f"{run.runs} of "
        name = f"{name} (sweep of {begun}{run.planned} run{'s' * (run.planned != 1)})"
        state = f"{run.failed} of {run.planned} failed" if run.failed and state == "failed" else state
    dataset = ", ".join(map(option.short, run.dataset.split(", ")))
    started = f"{local:%Y-%m-%d %H:%M}"
    return started, state, dataset, run.model, run.topology, f"{score:>8}", f"{speed:>8}", *cost, name
