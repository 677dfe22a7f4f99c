"""``cifar-ray sweep --dry-run``: what a sweep would train, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cifar_ray.cli import early, output
from cifar_ray.config.command_line import SweepRequest
from cifar_ray.config.errors import counted
from cifar_ray.config.limits import dollars, duration
from cifar_ray.display.run import Console
from cifar_ray.planning.words import ranged

if TYPE_CHECKING:  # imports torch, Ray and MLflow
    from cifar_ray.orchestration.sweep.dry_run import DryRow, DryRun


def show(asked: SweepRequest) -> int:
    """Print the runs, and what they take; Ray is not started."""
    uri = asked.tracking_uri if asked.config is None else asked.config.base.tracking_uri
    early.check_studies(asked.plan_from, uri)
    with output.progress(asked.json, asked.quiet), early.loading("loading PyTorch and Ray"):
        from cifar_ray.orchestration.sweep import dry_run

        if asked.config is None:
            found = dry_run.of_begun(asked.name, uri, asked.plan_from, asked.retry_failed, asked.limits)
        else:
            found = dry_run.of_new(asked.config, asked.plan_from)
    output.show(found, asked.json, lambda: _print(found, asked.quiet))
    return 0


def _print(found: DryRun, is_brief: bool) -> None:
    console = Console()
    if not is_brief:
        titles = ["run", "state", "time on its nodes", "cost", "note"]
        columns = list(zip(titles, *map(_cells, found.rows)))
        header, *lines = zip(*(column for column in columns if any(column[1:])))
        console.columns(header, lines)
        for note in found.notes:
            console.line(note)
    console.line(f"sweep {found.name}: {_summary(found)}")


def _cells(row: DryRow) -> tuple[str, ...]:
    time = ranged(row.seconds, duration) if row.seconds else ""
    usd = ranged(row.usd, dollars) if row.usd else ""
    return row.name, row.state, time, usd, row.reason


def _summary(found: DryRun) -> str:
    """How many runs there are, and what all whose time is known take."""
    left = [row for row in found.rows if row.state == "waiting"]
    others: dict[str, int] = {}
    for row in found.rows:
        if row.state != "waiting":
            others[row.state] = others.get(row.state, 0) + 1
    counts = [counted(len(left), "run"), *(f"{number} {state}" for state, number in others.items())]
    if found.at_once:
        counts.append(f"{found.at_once} at once")
    if not left:
        return ", ".join(counts)
    known = [row for row in left if row.seconds is not None]
    if found.seconds is None or not known:
        return f"{', '.join(counts)}; time unknown"
    of = "" if len(known) == len(left) else f" for the {counted(len(known), 'run')} whose time is known"
    paid = "" if found.usd is None else f", {ranged(found.usd, dollars)}"
    takes = f"about {ranged(found.seconds, duration)} on their nodes, one after the other{paid}{of}"
    return f"{', '.join(counts)}; {takes}; starting Ray and waiting come on top (unknown)"
