"""Train and resume a run: from a config to a recorded result."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray

from cifar_ray import data, tasks, tracking
from cifar_ray.config import errors, imports
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, InterruptedRunError, RunFailedError
from cifar_ray.config.limits import PATIENCE
from cifar_ray.config.option import is_own
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.display.dataset import lines as dataset_lines
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import allocation, preflight
from cifar_ray.orchestration.cluster.allocation import Allocation, NodeAllocator
from cifar_ray.orchestration.run import checkpoints, events, given_weights, limits, results, run_folder, run_names
from cifar_ray.orchestration.run.interrupts import connected, signals
from cifar_ray.orchestration.run.limits import Meter
from cifar_ray.orchestration.run.listeners import Callback, checked
from cifar_ray.orchestration.run.restarts import Halt, Run
from cifar_ray.orchestration.run.run_folder import RunFolder
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.orchestration.run.train_result import TrainResult
from cifar_ray.reporting import cost
from cifar_ray.tracking import reading, store
from cifar_ray.tracking import uri as stores
from cifar_ray.tracking.run import RunRecord
from cifar_ray.training import bottleneck, checkpoint, recipe
from cifar_ray.training.observer import Launch, Outcome


@dataclass(frozen=True)
class _Ready:
    """What a run needs of the cluster: its nodes, the check for what ends it, and who counts its time."""

    chosen: Allocation
    check: Callable[..., bool]
    allocator: NodeAllocator
    meter: Meter


__all__ = ["InterruptedRunError", "RunFailedError", "TrainResult", "resume", "train"]


@tracking.unchanged()
def train(
    config: TrainConfig,
    begun: float | None = None,
    callbacks: Sequence[Callback] = (),
    model: Callable[..., Any] | None = None,
) -> TrainResult:
    """Train as ``config`` says, and record it.

    Args:
        config: what to do.
        begun: ``time.time()`` from which start-up is counted; now when None.
        callbacks: called with the run's events, in this process.
        model: in place of ``config.model``, a function that builds one; workers import it from its file.

    Raises:
        ConfigError: on a user's mistake, before anything is started or recorded.
        RunFailedError: when training fails; the run is FAILED in MLflow and can be resumed.
        InterruptedRunError: on SIGINT or SIGTERM; a run that has begun is KILLED in MLflow and can be resumed.
    """
    begun = begun or time.time()
    listeners = checked(callbacks)
    imports.refuse_while_importing()
    uri = store.resolve_uri(config.tracking_uri)  # a module of the user's may set another one when it is imported
    allocation.check_elastic(config)
    notes: Sequence[str] = ()
    if not isinstance(config, ResolvedConfig):
        asked, path = config, None if model is None else imports.path_of(model)
        config = recipe.resolve(asked, price=cost.word(asked.price), model=path)
        notes = [*recipe.notes(config, asked)]
    with signals(), Console() as console:
        for note in notes:
            console.line(note)
        decided, weights, encoding = Decided.asked(config), None, ""
        if config.weights is not None:
            run_names.check_free(config, uri)
            console.doing(f"reading the weights {config.weights}")
            weights, digest, encoding = given_weights.find(config, uri, console.line)
            decided = replace(decided, weights_digest=digest)
        tracking.quieten(config.verbose)
        console.doing("opening the tracking store")
        client = store.connect(uri)
        store.active_experiment(client, store.experiment_name([config.dataset]))
        folder, held = run_folder.create(config, decided, uri)
        session = None
        try:
            with held:
                if weights is not None:
                    checkpoints.keep_initial(folder.folder, str(decided.weights_digest), weights)
                decided, dataset, data_s = _read(config, decided, console, encoding)
                with _allocated(config, decided, folder, console) as ready:
                    session = _begin(client, config, ready, dataset, folder, console, listeners, begun)
                    return _run(session, ready, Launch(begun, data_s), console)
        except RunFailedError:
            if session is not None and session.is_void:
                session = None
            raise
        finally:
            if session is None:  # nothing was trained, so the name is free again
                run_folder.discard(folder.folder)


@tracking.unchanged()
def resume(
    run: str,
    changes: Mapping[str, Any] | None = None,
    begun: float | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainResult | None:
    """Continue a run after its newest usable checkpoint, in the same MLflow run.

    A run that MLflow has lost is recorded in a new MLflow run, with all figures that its checkpoints have.

    Args:
        run: its name, MLflow id or folder.
        changes: ``TrainConfig`` fields that say where it runs and is stored; all others stay as they were.
        begun: as for :func:`train`.
        callbacks: as for :func:`train`.

    Returns:
        None when it was finished already, and was stopped neither by a limit nor by its patience.

    Raises:
        CheckpointError: when the run has checkpoints and none can be used.
        ConfigError: when there is no such run, its folder is gone, it has reached its limits or its patience, or
            the changes do not fit it.
        RunFailedError: as for :func:`train`.
        InterruptedRunError: as for :func:`train`.
    """
    begun = begun or time.time()
    listeners = checked(callbacks)
    imports.refuse_while_importing()
    changes = dict(changes or {})
    tracking.quieten(changes.get("verbose", False))
    notes: list[str] = []
    given = changes.get("tracking_uri")
    uri = store.resolve_uri(given)  # a module of the user's may set another one when it is imported
    known = results.find_run(run, given, notes.append)
    if not known.run_id:  # it may be in its first store, or in this one, which did not answer just now
        uri = given or run_folder.open_existing(known.folder, known.key).asked()[0].tracking_uri or uri
        known = reading.with_key(uri, known.key) or known
    if known.status == "FINISHED" and not known.stopped_by:
        return None
    client = store.connect(uri)
    folder = run_folder.open_existing(known.folder, known.key)
    with signals(), folder.lock(), Console() as console:
        for note in notes:
            console.line(note)
        config, before = _moved(folder, changes)
        with folder.checkpoints(config, before) as path:
            found = checkpoint.latest(path, config, before)
            kept, newest = checkpoint.existing(path), found[1] if found else None
        limits.refuse_reached(config, folder.folder)
        if known.stopped_by == PATIENCE:
            limits.refuse_exhausted(config, newest.history if newest else (), folder.name)
        encoding = newest.encoding if newest else ""
        if newest is None and config.weights is not None and data.facts(config).vocabulary:
            _, digest, encoding = given_weights.find(config, uri, console.line)
            if before is not None and before.weights_digest not in (None, digest):
                rule = "must be those that the run began with"
                raise ConfigError("weights", f"{rule}, and {config.weights} has others now; undo that, or train anew")
        decided, dataset, data_s = _read(config, Decided.asked(config, before), console, encoding)
        with _allocated(config, decided, folder, console) as ready:
            session = _begin(client, config, ready, dataset, folder, console, listeners, begun)
            for saved in kept:  # the store may have been away when they were made
                session.record.checkpoint(saved)
            return _run(session, ready, Launch(begun, data_s), console, is_resumed=True)


@contextmanager
def _allocated(config: ResolvedConfig, decided: Decided, folder: RunFolder, console: Console) -> Iterator[_Ready]:
    """Context manager: connect to Ray, choose nodes for the run, and check its storage from all of them."""
    with (
        connected(config, console, imports.functions(config)) as check,
        NodeAllocator(console.waiting, check, console.line) as allocator,
    ):
        meter = Meter(folder.folder)  # which counts the wait for nodes
        chosen = allocator.allocate(config, decided)
        cost.check_device(cost.checked(config.price), chosen.decided.device)
        preflight.check_storage(folder.folder, config)
        yield _Ready(chosen, check, allocator, meter)


def _begin(
    client: store.Client,
    config: ResolvedConfig,
    ready: _Ready,
    dataset: Dataset,
    folder: RunFolder,
    console: Console,
    listeners: Sequence[Callback],
    begun: float,
) -> RunSession:
    """What displays and records the run: in its MLflow run, or in a new one where the store has none."""
    decided = ready.chosen.decided
    record = RunRecord.open(
        client,
        config,
        decided,
        name=folder.name,
        key=folder.key,
        folder=folder.address,
        dataset=dataset,
        begun=begun,
    )
    return RunSession(config, decided, dataset, folder, record, console, ready.chosen.unused_gpus, listeners)


def _run(session: RunSession, ready: _Ready, launch: Launch, console: Console, is_resumed: bool = False) -> TrainResult:
    """Train to the end or to a limit, set the run's final status whatever happens, and display the result."""
    status, reason = "FAILED", ""
    try:
        session.announce()
        sharing = time.perf_counter()
        dataset = ray.put(session.dataset)
        launch = replace(launch, data_s=launch.data_s + time.perf_counter() - sharing)
        run = Run(
            session.config,
            session.config.cpus_per_worker,
            session.folder.folder,
            dataset,
            session.handle,
            ready.check,
            ready.allocator,
            events.open_mailbox(),
            ready.meter,
            limits.of_run(session.config),
        )
        outcome = run.train(ready.chosen, launch)
        session.view.doing("recording the result")
        if isinstance(outcome, Halt):
            session.halt(outcome.by)
        else:
            session.finish(outcome)
        status = "FINISHED"
    except (InterruptedRunError, KeyboardInterrupt) as error:
        status = "KILLED"
        raise InterruptedRunError(getattr(error, "signum", signal.SIGINT), session.last_lines.interrupted) from None
    except RunFailedError as error:
        reason = str(error)
        if session.is_void and not is_resumed:  # its folder is removed
            session.record.tags({store.FOLDER_TAG: ""})
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {errors.first_line(error)}"
        raise
    finally:
        session.end(status, reason)
        checkpoints.remove_copies(session.folder.folder)
    if isinstance(outcome, Halt):
        result = session.result(None, outcome.by)
        console.table(session.locations(result))
        console.line(session.last_lines.halted(outcome.by))
        return result
    result = session.result(outcome, outcome.stopped_by)
    attempt_s = outcome.ended - launch.begun if is_resumed else None
    console.summary(result.metrics, result.times, session.locations(result), attempt_s)
    if outcome.stopped_by:
        console.line(session.last_lines.exhausted(outcome))
    if line := bound_line(outcome, result.name, session.record.uri):
        console.line(line)
    return result


def bound_line(outcome: Outcome, name: str, store_uri: str) -> str:
    """What bounds a finished run, in a sentence; empty where nothing can be named."""
    verdict = bottleneck.explain(outcome.steps) if outcome.steps is not None else None
    if verdict is None or verdict.share is None:
        return ""
    more = f"cifar-ray explain {shlex.quote(name)}{stores.flag(store_uri)}"
    return f"{verdict.kind}: {verdict.sentence}; `{more}` says what to try"


def _read(
    config: ResolvedConfig, decided: Decided, console: Console, encoding: str = ""
) -> tuple[Decided, Dataset, float]:
    """Read the data set; what is decided with its facts, the data set, and the seconds it took.

    ``encoding``: the one that the run goes on with, or begins with (:class:`cifar_ray.data.Dataset`).
    """
    begin = time.perf_counter()
    if is_own(config.dataset) or data.present(config.dataset, config.data_dir):
        console.doing(f"reading {config.dataset}")
        dataset = data.read(config, partial(console.decoding, config.dataset), encoding)
    else:
        with console.aside(f"downloading {config.dataset} to {data.folder(config.data_dir)}"):
            dataset = data.read(config)
    for line in dataset_lines(dataset, tasks.spec(config, dataset.spec)):
        console.line(line)
    return recipe.settle(config, decided, dataset), dataset, time.perf_counter() - begin


def _moved(folder: RunFolder, changes: Mapping[str, Any]) -> tuple[ResolvedConfig, Decided | None]:
    """The config of a run that continues elsewhere: its global batch stays; a topology given now is fixed.

    With it, what was decided before.
    """
    fixed = {"elastic": None} if "topology" in changes else {}
    price = {"price": cost.word(changes["price"])} if "price" in changes else {}
    asked, before = folder.asked({**changes, **fixed, **price})
    config = recipe.resolve(asked)
    if "patience" in changes and not data.facts(config).val_size:
        raise ConfigError("patience", "needs validation images (--val-share), and the run was trained without them")
    return config, before
