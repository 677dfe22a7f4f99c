"""``cifar-ray sweep``, and with ``--dry-run`` what it would train."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from cifar_ray import IMPORTED_AT
from cifar_ray.cli import early, output
from cifar_ray.cli.train import LIBRARIES
from cifar_ray.config import addresses, command_line, flags, schema
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.keywords import passes_to
from cifar_ray.config.limits import dollars, duration
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import servers
from cifar_ray.reporting import cost
from cifar_ray.tracking import uri as stores

if TYPE_CHECKING:  # imports torch, Ray and MLflow
    from cifar_ray.orchestration.sweep.driver import SweepResult
    from cifar_ray.orchestration.sweep.dry_run import DryRun

_NEW_LIMITS = ("max_time", "max_cost")  # options that a sweep may have anew when it goes on


@flags.usual("file", "grid", "seeds", "search", "name", "resume", "dataset", "model", "epochs", "topology")
@passes_to(command_line.sweep)
def sweep(
    *,
    resume: str | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    json: bool = False,
    **new: Any,
) -> int:
    """Train every combination of values, and record all runs in MLflow under one parent.

    A YAML file names the grids. These options override the file; those of a run apply to all runs.

    Examples:
        cifar-ray sweep --dataset digits --grid batch_size=16,64 topology=1x1,1x2
        cifar-ray sweep sweep.yaml --epochs 5
        cifar-ray sweep --resume NAME

    Args:
        resume: Name of a sweep to continue: finished runs stay, the rest is trained under the same parent. Only
            --max-time and --max-cost may be given anew.
        retry_failed: With --resume: runs that have failed go on, too, from their newest checkpoints.
        dry_run: Train and write nothing: print the runs, and those that are skipped.
        json: With --dry-run: print it as one JSON document on standard output.
    """
    if json and not dry_run:
        raise ConfigError("json", "is for --dry-run, which shows the sweep and trains nothing")
    config = None
    if resume is not None:
        name, uri, changed = resume, new["options"].get("tracking_uri"), new_limits(**new)
        base = early.known_config(name)
    else:
        if retry_failed:
            raise ConfigError("retry_failed", "needs --resume NAME, the sweep whose failed runs are to go on")
        config = command_line.sweep(**new)
        name, base, uri, changed = config.name, config.base, config.base.tracking_uri, {}
        cost.checked(base.price)
        servers.reach_chosen(base.address)
    with output.progress(json):
        with early.loading(f"sweep {name}: {LIBRARIES}", always=not dry_run), servers.before_ray(base):
            from cifar_ray.orchestration.sweep import driver
            from cifar_ray.orchestration.sweep import dry_run as dry

        if dry_run:
            found = dry.of_begun(name, uri, retry_failed, changed) if config is None else dry.of_new(config)
        elif config is None:
            result = driver.resume(name, uri, IMPORTED_AT, retry_failed, changed)
        else:
            result = driver.sweep(config, output.typed(), begun=IMPORTED_AT)
    if dry_run:
        output.show(found, json, lambda: _print(found))
        return 0
    if result is None:
        print(f"sweep {name} is finished; there is nothing to resume")
        return 0
    _print_result(result)
    return 1 if result.failed else 0


def new_limits(file: str | None = None, grid: tuple[str, ...] = (), *, options: flags.Given) -> dict[str, Any]:
    """Return the limits that a sweep goes on with; all else stays as it was begun.

    Raises:
        ConfigError: when something else is given.
    """
    known = ("tracking_uri", *_NEW_LIMITS)
    others = [*["file"] * bool(file), *["grid"] * bool(grid), *(k for k in schema.flatten(options) if k not in known)]
    if others:
        raise ConfigError("resume", f"goes on as the sweep was begun, and takes no {others[0]} beside it")
    addresses.check("tracking_uri", options.get("tracking_uri"))
    return {key: schema.field(SweepConfig, key, options[key]) for key in _NEW_LIMITS if key in options}


def _print_result(result: SweepResult) -> None:
    """Print a sweep's runs by state, where its time went, and the way to its page in MLflow."""
    from cifar_ray.tracking import pages

    figures, store_flag, best = result.figures, stores.flag(result.tracking_uri), result.winner
    counts = Counter(result.states.values())
    rows = [("runs", ", ".join(f"{count} {state}" for state, count in counts.items()))]
    rows.append(("wall time", duration(figures["sweep/wall_s"])))
    if "cost/usd" in figures:
        rows.append(("cost, all runs", dollars(figures["cost/usd"])))
    rows.append(("outside training", f"{figures['sweep/share_outside_training']:.0%} of the wall time"))
    rows += [
        ("failed", f"{run}; `cifar-ray resume {shlex.quote(run)}{store_flag}` tries it again") for run in result.failed
    ]
    if len(result.failed) > 1:
        rows.append(("try all again", f"cifar-ray sweep --resume {result.name} --retry-failed{store_flag}"))
    rows.append(("report", f"cifar-ray report {result.name}{store_flag}"))
    rows.append(("open in MLflow", pages.way(result.tracking_uri, result.page)))
    if best:
        rows += [("best run", best.sentence), ("train it longer", best.command)]
    Console().table(rows)


def _print(found: DryRun) -> None:
    console = Console()
    console.columns(("run", "state", "note"), [tuple(row.values()) for row in found.rows])
    for note in found.notes:
        console.line(note)
    states = Counter(row["state"] for row in found.rows)
    counts = [counted(states.pop("waiting", 0), "run"), *(f"{number} {state}" for state, number in states.items())]
    counts += [f"{found.at_once} at once"] if found.at_once else []
    console.line(f"sweep {found.name}: {', '.join(counts)}")
