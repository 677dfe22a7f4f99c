"""Training and resuming a run: the driver's side, from a config to a recorded result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray

from cifar_ray import data, tracking
from cifar_ray.config import train as configs
from cifar_ray.config.errors import InterruptedRunError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import allocation, connection, preflight
from cifar_ray.orchestration.cluster.allocation import Sizing
from cifar_ray.orchestration.run import attempt, checkpoints, results, segments
from cifar_ray.orchestration.run import folder as runs
from cifar_ray.orchestration.run.attempt import RunFailedError
from cifar_ray.orchestration.run.folder import RunFolder
from cifar_ray.orchestration.run.interrupts import session, signals
from cifar_ray.orchestration.run.session import TrainResult, Work
from cifar_ray.tracking import store
from cifar_ray.tracking.run import RunRecord
from cifar_ray.training import checkpoint, recipe
from cifar_ray.training.observer import Launch, SavedCheckpoint

__all__ = ["InterruptedRunError", "RunFailedError", "TrainResult", "resume", "train"]


def train(config: TrainConfig, begun: float | None = None) -> TrainResult:
    """Train as ``config`` says, and record it.

    Args:
        config: what to do.
        begun: ``time.time()`` from which start-up is counted; now when None.

    Raises:
        ConfigError: on a user's mistake, before anything is started or recorded.
        RunFailedError: when training fails; the run is FAILED in MLflow and can be resumed.
        InterruptedRunError: on SIGINT or SIGTERM; a run that has begun is KILLED in MLflow and can be resumed.
    """
    begun = begun or time.time()
    config = recipe.resolve(allocation.begin(config))
    with signals(), Console() as console:
        tracking.quieten(config.verbose)
        client = store.connect(store.resolve_uri(config.tracking_uri))
        folder, held = runs.create(config)
        record = None
        try:
            with held:
                dataset, data_s = _read(config, console)
                console.doing(connection.note(config))
                with session(config, console.line, [held]) as check, allocation.sizing(console.doing, check) as places:
                    asked = config
                    config, placement = places.place(asked)
                    preflight.check_storage(folder.folder, config)
                    record = RunRecord.create(client, config, folder.name, folder.key, folder.address, dataset, begun)
                    unused_gpus = attempt.unused_gpus(asked, config)
                    work = Work(config, dataset, folder, record, console, unused_gpus)
                    return _run(work, placement, console, check, Launch(begun, data_s), places)
        finally:
            if record is None:  # nothing has begun, and the name is free again
                runs.discard(folder.folder)


def resume(run: str, changes: Mapping[str, Any] | None = None, begun: float | None = None) -> TrainResult | None:
    """Continue a run at the step after its newest usable checkpoint, in the same MLflow run.

    One that MLflow has lost is recorded in a new MLflow run, with all figures that its checkpoints have.

    Args:
        run: its name, MLflow id or folder.
        changes: ``TrainConfig`` fields that say where it runs and is found; all others stay as they were.
        begun: as for :func:`train`.

    Returns:
        None when it was finished already.

    Raises:
        CheckpointError: when the run has checkpoints and none can be used.
        ConfigError: when there is no such run, its folder is gone, or the changes do not fit it.
        RunFailedError: as for :func:`train`.
        InterruptedRunError: as for :func:`train`.
    """
    begun = begun or time.time()
    changes = dict(changes or {})
    tracking.quieten(changes.get("verbose", False))
    notes: list[str] = []
    known = results.find_run(run, changes.get("tracking_uri"), notes.append)
    given = changes.get("tracking_uri")
    if not known.run_id:  # it may be in the store that it was begun with, or in this one, which did not answer just now
        given = given or runs.open_existing(known.folder, known.key).config().tracking_uri
        known = store.with_key(store.resolve_uri(given), known.key) or known
    uri = store.resolve_uri(given)
    if known.status == "FINISHED":
        return None
    client = store.connect(uri)
    folder = runs.open_existing(known.folder, known.key)
    with signals(), folder.lock() as held, Console() as console:
        for note in notes:
            console.line(note)
        before, kept = _look(folder)
        config = _moved(before, changes)
        dataset, data_s = _read(config, console)
        console.doing(connection.note(config))
        with session(config, console.line, [held]) as check, allocation.sizing(console.doing, check) as places:
            asked = config
            config, placement = places.place(config)
            preflight.check_storage(folder.folder, config)
            if known.run_id:
                record = RunRecord.reopen(client, config, known.run_id)
            else:  # the store was lost
                record = RunRecord.create(client, config, folder.name, folder.key, folder.address, dataset, begun)
            for saved in kept:  # the store may have been away when they were made
                record.checkpoint(saved)
            work = Work(config, dataset, folder, record, console, attempt.unused_gpus(asked, config))
            return _run(work, placement, console, check, Launch(begun, data_s), places)


def _run(
    work: Work, placement: list[str], console: Console, check: Callable[[], None], launch: Launch, places: Sizing
) -> TrainResult:
    """Train to the end, and end the run truthfully whatever happens."""
    status, reason = "FAILED", ""
    try:
        work.announce()
        sharing = time.perf_counter()
        reference = ray.put(work.dataset)
        launch = replace(launch, data_s=launch.data_s + time.perf_counter() - sharing)
        outcome = segments.train(work, placement, reference, launch, check, places)
        console.doing("recording the result")
        work.finish(outcome)
        status = "FINISHED"
    except (InterruptedRunError, KeyboardInterrupt):
        status = "KILLED"
        raise
    except RunFailedError as error:
        reason = str(error)
        raise
    finally:
        work.end(status, reason)
        checkpoints.remove_copies(work.folder.folder)
    result = work.result(outcome)
    console.summary(result.metrics, result.times, work.places(result))
    return result


def _read(config: TrainConfig, console: Console) -> tuple[Dataset, float]:
    """The data set, and the seconds that it took."""
    begin = time.perf_counter()
    if data.present(config.dataset, config.data_dir):
        console.doing(f"reading {config.dataset}")
        dataset = data.load(config.dataset, config.data_dir)
    else:
        with console.aside(f"downloading {config.dataset} to {data.folder(config.data_dir)}"):
            dataset = data.load(config.dataset, config.data_dir)
    return dataset, time.perf_counter() - begin


def _look(folder: RunFolder) -> tuple[TrainConfig, list[SavedCheckpoint]]:
    """The config of a run made earlier, and its checkpoints.

    Raises:
        CheckpointError: when the run has checkpoints and none can be used.
        ConfigError: when its folder cannot be read.
    """
    config = folder.config()
    with folder.checkpoints(config) as there:
        checkpoint.latest(there, config)
        return config, checkpoint.existing(there)


def _moved(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """The config of a run that goes on elsewhere; the global batch stays what it was, and a topology once named."""
    images = config.images_per_step
    named = {"global_batch_size": images, "elastic": None} if "topology" in changes else {}
    return recipe.resolve(configs.merge(config, {**changes, **named}))
