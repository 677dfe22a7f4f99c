"""``cifar-ray train``, ``resume`` and ``sweep``."""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from cifar_ray import IMPORTED_AT, storage, tracking
from cifar_ray.cli import output
from cifar_ray.config import command_line, files, flags, runfile, schema
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.flags import AsJson, Given, Of, RunName
from cifar_ray.config.limits import dollars, duration
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import servers
from cifar_ray.runs.folder import CONFIG, SWEEP, check_free
from cifar_ray.tracking import uri as stores
from cifar_ray.training.rank_times import PHASES

if TYPE_CHECKING:  # imports torch, Ray and MLflow
    from cifar_ray.orchestration.sweep.driver import SweepResult
    from cifar_ray.orchestration.sweep.dry_run import DryRun

_LIBRARIES = "loading PyTorch and Ray"
_ANEW = (
    *("topology", "data_dir", "address", "local_nodes", "price", "max_time", "max_cost", "patience", "max_failures"),
    *("hang_timeout_s", "tracking_uri", "verbose"),
)
_NEW_LIMITS = ("max_time", "max_cost")  # options that a sweep may have anew when it goes on


@flags.usual(
    *("dataset", "model", "epochs", "seed", "lr"),
    *("global_batch_size", "topology", "strategy", "run_name", "config"),
)
def train(*, json: AsJson = False, config: str | None = None, options: Annotated[Given, Of(TrainConfig)]) -> None:
    """Train one model on one topology, and record it in MLflow.

    Examples:
        cifar-ray train --dataset digits --epochs 3
        cifar-ray train --model vit --model-options.depth 4 --topology 1x2
        cifar-ray train --config run.yaml --seed 1

    Args:
        config: YAML file with any of these options; flags override it.
    """
    asked = runfile.load(config, options)
    servers.reach_chosen(asked.address)
    stores.resolve_uri(asked.tracking_uri)
    check_free(asked)
    named = f"run {asked.run_name}: " if asked.run_name else ""
    what = f"{asked.model} on {asked.dataset}, {asked.elastic or asked.topology}, {asked.strategy}"
    with output.progress(json):
        with output.loading(f"{named}{what}: {_LIBRARIES}", always=True), servers.before_ray(asked):
            from cifar_ray.training import recipe

            with tracking.unchanged():  # a module of the user's may set MLflow's address when it is imported
                resolved = recipe.resolve(asked)  # what is refused here need not wait for Ray and MLflow
            from cifar_ray.orchestration.run import driver

        for note in recipe.notes(resolved, asked):
            Console().line(note)
        result = driver.train(resolved, begun=IMPORTED_AT)
    output.show(result, json)


def resume(run: RunName, *, options: Annotated[Given, Of(TrainConfig, only=_ANEW)]) -> None:
    """Continue a run after its newest usable checkpoint, in the same MLflow run.

    The training stays as it was, with its global batch; these options say where it continues. What has stopped the run,
    a limit or its patience, must be larger.
    """
    given = {name: schema.field(TrainConfig, name, value) for name, value in options.items()}
    servers.reach_chosen(given.get("address"))
    before = known_config(run)
    with output.loading(f"run {run}: {_LIBRARIES}", always=True), servers.before_ray(before, given):
        from cifar_ray.orchestration.run import driver

    if driver.resume(run, given, begun=IMPORTED_AT) is None:
        words = shlex.quote(run) + stores.flag(stores.resolve_uri(given.get("tracking_uri")))
        print(f"run {run} is finished; `cifar-ray train --weights {words}` starts another from its weights")


@flags.usual("file", "grid", "seeds", "search", "name", "resume", "dataset", "model", "epochs", "topology")
def sweep(
    file: str | None = None,
    *,
    resume: str | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    json: bool = False,
    options: Annotated[Given, Of(SweepConfig, without=("train",)), Of(TrainConfig, without=("run_name", "elastic"))],
) -> int:
    """Train every combination of values, and record all runs in MLflow under one parent.

    A YAML file names the grids. These options override the file; those of a run apply to all runs.

    Examples:
        cifar-ray sweep --dataset digits --grid batch_size=16,64 topology=1x1,1x2
        cifar-ray sweep sweep.yaml --epochs 5
        cifar-ray sweep --resume NAME

    Args:
        file: YAML file with the sweep.
        resume: Name of a sweep to continue: finished runs stay, the rest is trained under the same parent. Only
            --max-time and --max-cost may be given anew.
        retry_failed: With --resume: runs that have failed go on, too, from their newest checkpoints.
        dry_run: Train and write nothing: print the runs, and those that are skipped.
        json: With --dry-run: print it as one JSON document on standard output.
    """
    if json and not dry_run:
        raise ConfigError("json", "is for --dry-run, which shows the sweep and trains nothing")
    name, config = resume or "", None
    if resume is not None:
        changed, uri = new_limits(file, options), options.get("tracking_uri")
        base = known_config(resume)
    else:
        if retry_failed:
            raise ConfigError("retry_failed", "needs --resume NAME, the sweep whose failed runs are to go on")
        config = command_line.sweep(file, options)
        name, base = config.name, config.base
        servers.reach_chosen(base.address)
    with output.progress(json):
        starting = servers.before_ray(None if dry_run else base)
        with output.loading(f"sweep {name}: {_LIBRARIES}", always=not dry_run), starting:
            from cifar_ray.orchestration.sweep import driver
            from cifar_ray.orchestration.sweep import dry_run as dry

        if dry_run:
            found = dry.of_new(config) if config else dry.of_begun(name, uri, retry_failed, changed)
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


def new_limits(file: str | None, options: Given) -> dict[str, Any]:
    """Return the limits that a sweep goes on with; all else stays as it was begun.

    Raises:
        ConfigError: when something else is given.
    """
    given = [*["file"] * bool(file), *schema.flatten(options)]
    if other := next((name for name in given if name not in ("tracking_uri", *_NEW_LIMITS)), None):
        raise ConfigError("resume", f"goes on as the sweep was begun, and takes no {other} beside it")
    files.check_address("tracking_uri", options.get("tracking_uri"))
    return {key: schema.field(SweepConfig, key, options[key]) for key in _NEW_LIMITS if key in options}


def known_config(name: str) -> TrainConfig | None:
    """The config of a run, or what all runs of a sweep share, from its folder; None where only the store knows that."""
    folder = storage.at(name) if "/" in name else storage.at(None).below(name)
    with suppress(ConfigError, OSError):
        path = folder.disk / CONFIG
        return runfile.load(path) if path.is_file() else sweeps.from_mapping(runfile.read(folder.disk / SWEEP)).base
    return None


def _print_result(result: SweepResult) -> None:
    """Print a sweep's runs by state, where its time went, and the way to its page in MLflow."""
    from cifar_ray.tracking import pages

    figures, store_flag, best = result.figures, stores.flag(result.tracking_uri), result.winner
    counts = Counter(result.states.values())
    rows = [("runs", ", ".join(f"{count} {state}" for state, count in counts.items()))]
    rows.append(("wall time", duration(figures["sweep/wall_s"])))
    if "cost/usd" in figures:
        rows.append(("cost, all runs", dollars(figures["cost/usd"])))
    phases = ", ".join(f"{phase} {duration(figures[f'sweep/{phase}_s'])}" for phase in PHASES)
    rows.append(("of all runs", phases))
    rows.append(("outside training", f"{figures['sweep/share_outside_training']:.0%} of the wall time ran no epoch"))
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
