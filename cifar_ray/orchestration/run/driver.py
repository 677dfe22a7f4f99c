"""Train and resume a run: from a config to a recorded result."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from cifar_ray.display.terminal import Display, View
from cifar_ray.orchestration.cluster import allocation, preflight
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.run import events, limits
from cifar_ray.orchestration.run.events import Mailbox
from cifar_ray.orchestration.run.interrupts import connected, signals
from cifar_ray.orchestration.run.limits import Limit, Meter
from cifar_ray.orchestration.run.listeners import Callback, checked
from cifar_ray.orchestration.run.restarts import Halt, Run
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.orchestration.run.train_result import TrainResult
from cifar_ray.runs import checkpoints, use
from cifar_ray.runs.folder import RunFolder, check_free, discard
from cifar_ray.runs.weights import find_weights
from cifar_ray.tracking import store
from cifar_ray.tracking import uri as stores
from cifar_ray.tracking.run import RunRecord
from cifar_ray.tracking.study import FOLDER_TAG
from cifar_ray.training import bottleneck, checkpoint, recipe
from cifar_ray.training.observer import Launch, Outcome, SavedCheckpoint

__all__ = ["InterruptedRunError", "RunFailedError", "TrainResult", "resume", "train"]


@dataclass(frozen=True)
class Start:
    """What a run starts from, in the process of its command or in that of a trial.

    Attributes:
        config: resolved.
        decided: what is known before it has nodes, the facts of its data among it.
        folder: its own, which the caller has locked.
        store: the tracking URI.
        name: in MLflow; the folder's when empty.
        is_new: whether nothing of it is to stay if it fails at once.
        kept: checkpoints of earlier drivers, which the store may not know.
        tags: beside its own in MLflow, such as those that make it a sweep's.
        experiment: id of its sweep's experiment; None of a run without a sweep.
    """

    config: ResolvedConfig
    decided: Decided
    folder: RunFolder
    store: str
    name: str = ""
    is_new: bool = False
    kept: Sequence[SavedCheckpoint] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    experiment: str | None = None


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
    uri = stores.resolve_uri(config.tracking_uri)  # a module of the user's may set another one when it is imported
    notes: Sequence[str] = ()
    if not isinstance(config, ResolvedConfig):
        asked, path = config, None if model is None else imports.path_of(model)
        config = recipe.resolve(asked, model=path)
        notes = [*recipe.notes(config, asked)]
    with signals(), Console() as console:
        for note in notes:
            console.line(note)
        decided, weights, encoding = Decided.asked(config), None, ""
        if config.weights is not None:
            check_free(config)
            console.doing(f"reading the weights {config.weights}")
            weights, digest, encoding = find_weights(config, uri, console.line)
            decided = replace(decided, weights_digest=digest)
        tracking.quieten(config.verbose)
        console.doing("opening the tracking store")
        store.active_experiment(store.connect(uri), store.experiment_name([config.dataset]))
        folder, held = RunFolder.create(config, decided)
        training: Training | None = None
        try:
            with held:
                if weights is not None:
                    checkpoints.keep_initial(folder.folder, str(decided.weights_digest), weights)
                decided, dataset, data_s = _read(config, decided, console, encoding)
                start = Start(config, decided, folder, uri, is_new=True)
                training = Training(start, console, dataset, Launch(begun, data_s))
                return _run_here(training, console, listeners)
        finally:
            if training is None or training.is_void:  # nothing was trained, so the name is free again
                discard(folder.folder)


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
    known, uri = use.find_run(run, given, notes.append)
    if known.status == "FINISHED" and not known.stopped_by:
        return None
    store.connect(uri)
    folder = RunFolder.at(known.folder, known.key)
    with signals(), folder.lock(), Console() as console:
        for note in notes:
            console.line(note)
        config, before = _moved(folder, changes)
        with checkpoints.reading(folder.folder) as path:
            found = checkpoint.latest(path, config, before)
            kept, newest = checkpoint.existing(path), found[1] if found else None
        limits.refuse_reached(config, folder.folder)
        if known.stopped_by == PATIENCE:
            limits.refuse_exhausted(config, newest.history if newest else (), folder.name)
        encoding = newest.encoding if newest else ""
        if newest is None and config.weights is not None and data.facts(config).vocabulary:
            _, digest, encoding = find_weights(config, uri, console.line)
            if before is not None and before.weights_digest not in (None, digest):
                rule = "must be those that the run began with"
                raise ConfigError("weights", f"{rule}, and {config.weights} has others now; undo that, or train anew")
        decided, dataset, data_s = _read(config, Decided.asked(config, before), console, encoding)
        start = Start(config, decided, folder, uri, kept=kept)
        training = Training(start, console, dataset, Launch(begun, data_s))
        return _run_here(training, console, listeners, is_resumed=True)


class Training:
    """A run between its start and its recorded end, in the process of its command or in that of a trial.

    Attributes:
        start: what it starts from.
        launch: when it began, and what reading the data took.
        session: displays and records it; None before it has nodes.
    """

    def __init__(
        self, start: Start, view: View, dataset: Dataset, launch: Launch, shared: ray.ObjectRef | None = None
    ) -> None:
        """Train on this data set, which is ``shared`` in Ray's object store, or still to be put there."""
        self.start, self.launch = start, launch
        self._view, self._dataset, self._shared = view, dataset, shared
        self.session: RunSession | None = None

    @property
    def is_void(self) -> bool:
        """Whether there is nothing to go on with: it had no nodes, or failed at once with an error that stays."""
        return self.session is None or (self.session.is_void and self.start.is_new)

    def run(
        self,
        check: Callable[..., bool],
        callbacks: Sequence[Callback] = (),
        limit: Limit | None = None,
        mailbox: Mailbox | None = None,
        ended: Callable[[Outcome | Halt], object] = str,
        interrupted: Callable[[RunSession], str] = lambda _: "",
    ) -> Outcome | Halt:
        """Choose nodes on the connected cluster, train to the end or to a limit, and record the true end.

        Args:
            check: as :func:`cifar_ray.orchestration.run.interrupts.connected` yields it.
            callbacks: called with its events.
            limit: in place of the config's own limits.
            mailbox: one that has served another run; a new one when None.
            ended: called with the outcome, before the last of it is recorded.
            interrupted: called after an interruption; why the run has ended, where that is to be recorded.

        Raises:
            ConfigError: when the cluster has no room for it; nothing is recorded then.
            RunFailedError: when training fails, or no nodes come in time.
            InterruptedRunError: when ``check`` has raised it.
        """
        start, view = self.start, self._view
        config = start.config
        with NodeAllocator(view.waiting, check) as allocator:
            meter = Meter(start.folder.folder)  # which counts the wait for nodes
            chosen = allocator.allocate(config, start.decided)
            if start.experiment is None:  # a sweep has checked it for all
                preflight.check_storage(start.folder.folder, config)
            session = self.session = self._open(chosen, callbacks)
            status, reason = "FAILED", ""
            try:
                session.announce()
                sharing = time.perf_counter()
                shared = self._shared or ray.put(self._dataset)
                launch = replace(self.launch, data_s=self.launch.data_s + time.perf_counter() - sharing)
                cpus = start.decided.cpus_per_worker
                place = (check, allocator, mailbox or events.open_mailbox())
                spent = (meter, limit or limits.of_run(config))
                run = Run(config, cpus, start.folder.folder, shared, session.handle, *place, *spent)
                outcome = run.train(chosen, launch)
                ended(outcome)
                view.doing("recording the result")
                if isinstance(outcome, Halt):
                    session.halt(outcome.by)
                else:
                    session.finish(outcome)
                status = "FINISHED"
                return outcome
            except (InterruptedRunError, KeyboardInterrupt) as error:
                status, reason = "KILLED", interrupted(session)
                signum = getattr(error, "signum", signal.SIGINT)
                raise InterruptedRunError(signum, session.interrupted) from None
            except RunFailedError as error:
                reason = str(error)
                if self.is_void:  # its folder is removed
                    session.record.tags({FOLDER_TAG: ""})
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {errors.first_line(error)}"
                raise
            finally:
                session.end(status, reason)
                checkpoints.remove_copies(start.folder.folder)

    def _open(self, chosen: allocation.Allocation, callbacks: Sequence[Callback]) -> RunSession:
        start, folder = self.start, self.start.folder
        record = RunRecord(
            store.Client(tracking_uri=start.store),
            start.config,
            chosen.decided,
            name=start.name or folder.name,
            key=folder.key,
            folder=folder.address,
            dataset=self._dataset,
            begun=self.launch.begun,
            tags=start.tags,
            experiment=start.experiment,
        )
        for saved in start.kept:
            record.checkpoint(saved)
        of_run = (start.config, chosen.decided, self._dataset, folder)
        return RunSession(*of_run, record, self._view, chosen.unused_gpus, callbacks)


def _run_here(
    training: Training, console: Console, listeners: Sequence[Callback], is_resumed: bool = False
) -> TrainResult:
    """Join or start Ray, train, and display the result."""
    config = training.start.config
    with connected(config, console, imports.functions(config)) as check:
        outcome = training.run(check, listeners)
        session = training.session
        assert session is not None
        if isinstance(outcome, Halt):
            result = session.result(None, outcome.by)
            console.table(session.locations(result))
            console.line(session.halted(outcome.by))
            return result
        result = session.result(outcome, outcome.stopped_by)
        attempt_s = outcome.ended - training.launch.begun if is_resumed else None
        console.summary(result.metrics, result.times, session.locations(result), attempt_s)
        if outcome.stopped_by:
            console.line(session.exhausted(outcome))
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
    """Read the data set; what is decided with its facts, the data set, and the seconds it took."""
    begin = time.perf_counter()
    dataset = read_data(config, console, encoding)
    return recipe.settle(config, decided, dataset), dataset, time.perf_counter() - begin


def read_data(config: ResolvedConfig, display: Display, encoding: str = "") -> Dataset:
    """Read the data set, which is downloaded if it is not there, and display what is in it.

    ``encoding``: the one that the run goes on with, or begins with (:class:`cifar_ray.data.Dataset`).
    """
    if is_own(config.dataset) or data.present(config.dataset, config.data_dir):
        display.doing(f"reading {config.dataset}")
        dataset = data.read(config, partial(display.decoding, config.dataset), encoding)
    else:
        with display.aside(f"downloading {config.dataset} to {data.folder(config.data_dir)}"):
            dataset = data.read(config)
    for line in dataset_lines(dataset, tasks.spec(config, dataset.spec)):
        display.line(f"{config.dataset_name}: {line}")
    return dataset


def _moved(folder: RunFolder, changes: Mapping[str, Any]) -> tuple[ResolvedConfig, Decided | None]:
    """The config of a run that continues elsewhere: its global batch stays; a topology given now is fixed.

    With it, what was decided before.
    """
    fixed = {"elastic": None} if "topology" in changes else {}
    asked, before = folder.asked({**changes, **fixed})
    config = recipe.resolve(asked)
    if "patience" in changes and not data.facts(config).val_size:
        raise ConfigError("patience", "needs validation images (--val-share), and the run was trained without them")
    return config, before
