"""Commands on what MLflow has: ``cifar-ray runs``, ``explain``, ``register``, ``delete`` and ``ui``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from cifar_ray.cli import output
from cifar_ray.config import flags, option
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.flags import AsJson, Port, RunName
from cifar_ray.config.limits import dollars
from cifar_ray.display.run import Console
from cifar_ray.tasks import USUAL
from cifar_ray.tracking import uri as stores
from cifar_ray.tracking.study import Run, Sweep
from cifar_ray.training import bottleneck
from cifar_ray.training.bottleneck import Verdict
from cifar_ray.training.rank_times import PARTS, StepTimes


def runs(sweep: str | None = None, *, tracking_uri: str | None = None, json: AsJson = False) -> None:
    """List sweeps, and runs that belong to none, newest first.

    Args:
        sweep: Sweep whose runs to list. Default: all sweeps and single runs.
    """
    with output.progress(json), output.loading("loading MLflow"):
        from cifar_ray.tracking import reading, store

    uri = stores.resolve_uri(tracking_uri)
    listed = reading.everything(uri) if sweep is None else reading.trials(*reading.open_sweep(uri, sweep))[::-1]
    rows = [row(run) for run in listed]
    output.show(rows, json, lambda: _print_runs(rows, store.shown(uri)))


def row(run: Run | Sweep) -> dict[str, Any]:
    """What ``cifar-ray runs`` says of a run, or of a sweep, which has the values of all of its runs.

    ``runs``, ``planned`` and ``failed`` count the runs of a sweep: those so far, all, and those that have failed.
    """
    sweep = run if isinstance(run, Sweep) else None
    members = run.trials if isinstance(run, Sweep) else [run]
    task = members[-1].task if members else USUAL
    values = {
        name: ", ".join(dict.fromkeys(member.params[name] for member in members if name in member.params))
        for name in ("dataset", "model", "topology")
    }
    return {
        **{"name": run.name, "run_id": run.run_id, "kind": "sweep" if sweep else "run", "state": run.state},
        **values,
        "score": run.score if isinstance(run, Run) else None,
        "images_per_s": None if sweep else run.metrics.get(task.throughput),
        "started": run.started,
        "runs": len(members) if sweep else None,
        "planned": sweep.planned if sweep else None,
        "failed": sweep.failed if sweep else None,
        "task": task,
        "cost_usd": run.metrics.get("cost/usd"),
    }


def _print_runs(listed: Sequence[dict[str, Any]], store: str) -> None:
    """Print a line for each run and sweep; its name comes last, whole and ready to be copied."""
    if not listed:
        print(f"no runs in {store}")
        return
    rows = []
    for run in listed:
        name, state, planned, task = run["name"], run["state"], run["planned"], run["task"]
        if planned is not None:
            begun = "" if run["runs"] == planned else f"{run['runs']} of "
            name = f"{name} (sweep of {begun}{counted(planned, 'run')})"
            state = f"{run['failed']} of {planned} failed" if run["failed"] and state == "failed" else state
        started = f"{datetime.fromisoformat(run['started']).astimezone():%Y-%m-%d %H:%M}"
        dataset = ", ".join(map(option.short, run["dataset"].split(", ")))
        figures = [(run["score"], task.primary.named), (run["images_per_s"], task.speed), (run["cost_usd"], dollars)]
        shown = ["" if figure is None else in_words(figure) for figure, in_words in figures]
        rows.append((started, state, dataset, run["model"], run["topology"], *shown, name))
    header = ("started", "state", "data set", "model", "topology", "test result", "throughput", "cost", "name")
    Console().columns(header, rows)


def explain(run: RunName, *, tracking_uri: str | None = None, json: AsJson = False) -> None:
    """Say what bounds a run, with the times of a step on every rank and what to try.

    That is a slow rank, slow data, a slow link, too few CPUs, overhead, or nothing that stands out (balanced).
    """
    with output.progress(json):
        with output.loading("loading MLflow"):
            from cifar_ray.tracking import reading

        name, times = reading.step_times(stores.resolve_uri(tracking_uri), run)
    verdict = bottleneck.explain(times)
    document = {"run": name, "verdict": verdict, "times": times}
    output.show(document, json, lambda: _print_verdict(name, verdict, times))


def _print_verdict(name: str, verdict: Verdict, times: StepTimes) -> None:
    console = Console()
    console.line(f"run {name}: {verdict.kind}: {verdict.sentence}")
    for advice in verdict.advice:
        console.line(f"  try: {advice}")
    if not times.ranks:
        return
    parts = [part for part in PARTS if any(part in rank.parts for rank in times.ranks)]
    rows = []
    for rank in times.ranks:
        node = f"{rank.node} ({rank.host})" if rank.host else str(rank.node)
        spent = [rank.iteration, *map(rank.parts.get, parts)]
        cells = [f"{1e3 * of.mean:.1f} {1e3 * of.median:.1f} {1e3 * of.p95:.1f}" if of else "" for of in spent]
        rows.append((str(rank.rank), node, f"{rank.steps:,}", *cells))
    console.line("")
    console.columns(("rank", "node", "steps", "iteration", *parts), rows)
    console.line("milliseconds of a step: mean, median and 95th percentile")


def register(run: RunName, *, name: str, alias: str | None = None, tracking_uri: str | None = None) -> None:
    """Register a finished run's model in MLflow's model registry.

    Args:
        name: Name of the registered model; created if it is new.
        alias: Alias for this version, such as champion; it moves here from the version that had it.
        tracking_uri: MLflow tracking store that has the run, and the registry (MLFLOW_TRACKING_URI, else
            ~/.cifar_ray/mlflow.db).
    """
    with output.loading("loading MLflow"):
        from cifar_ray.tracking import registry

    version = registry.register(run, name, alias, tracking_uri)
    state = "is" if version.fresh else "is already"
    uri = f"models:/{version.name}/{version.version}"
    print(f"the model of run {version.run} {state} version {version.version} of {version.name}: {uri}")


def delete(name: str, *, yes: bool = False, tracking_uri: str | None = None) -> int:
    """Delete a run, or a sweep with all of its runs: from MLflow, and its folder with all checkpoints.

    A run that is being trained, or whose model is registered, is refused.

    Args:
        name: Name or MLflow id of the run or sweep.
        yes: Delete without asking; needed where there is no terminal.
    """
    with output.loading("loading PyTorch and MLflow"):
        from cifar_ray.runs import removal

    with contextlib.ExitStack() as stack:
        doomed = removal.prepare(name, tracking_uri, stack, flags.note)
        what = f"{doomed.title}: {doomed.contents}"
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError("yes", "must be given where there is no terminal to ask on")
            print(f"delete {what}? [y/N] ", end="", flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                print("nothing is deleted")
                return 1
        doomed.execute()
    print(f"deleted {what}")
    return 0


def ui(*, tracking_uri: str | None = None, port: Port = 5000, open: bool = False) -> None:
    """Open MLflow's pages of the tracking store, on this machine only.

    Args:
        port: Port on the loopback interface.
        open: Also open the runs in a browser.
    """
    uri = stores.resolve_uri(tracking_uri)
    if not stores.is_server(uri):
        output.listen("127.0.0.1", port).close()  # refused before MLflow is loaded
    with output.loading("loading MLflow"):
        from cifar_ray.tracking import pages

    pages.serve(uri, port, open)
