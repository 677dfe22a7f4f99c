"""Delete a run, or a sweep with all of its runs: in MLflow, and their folders with all checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rich.filesize import decimal

from cifar_ray import storage, tracking
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.display.terminal import tilde
from cifar_ray.runs import checkpoints, use
from cifar_ray.runs.folder import RunFolder
from cifar_ray.runs.given import Note
from cifar_ray.storage import Folder, Lock
from cifar_ray.tracking import reading, registry, store
from cifar_ray.tracking.store import Client
from cifar_ray.tracking.study import Run, Sweep
from cifar_ray.tracking.uri import exists, resolve_uri


@dataclass(frozen=True)
class Removal:
    """What is to be deleted.

    Attributes:
        title: ``run NAME`` or ``sweep NAME``.
        client: of the store.
        runs: its MLflow runs, a sweep's own last; none if MLflow has lost the run.
        folder: where its files are.
        lock: on the folder; None when it is not here.
        contents: what all of this is, in words.
    """

    title: str
    client: Client
    runs: Sequence[Run | Sweep]
    folder: Folder
    lock: Lock | None
    contents: str

    def execute(self) -> None:
        """Delete it, the MLflow runs last, so that a deletion that fails can be repeated.

        Raises:
            ConfigError: when the storage or the store refuses.
        """
        if self.lock is not None:
            self.lock.release()  # on NFS, a folder with an open file cannot be removed
            with storage.refusing(self.folder):
                self.folder.remove()
            checkpoints.remove_copies(self.folder)
        with store.refusing(self.client.tracking_uri):
            for run in self.runs:
                experiment = self.client.get_run(run.run_id).info.experiment_id
                for model in self.client.search_logged_models([experiment], f"source_run_id = '{run.run_id}'"):
                    self.client.delete_logged_model(model.model_id)
                self.client.delete_run(run.run_id)


def prepare(name: str, tracking_uri: str | None, stack: ExitStack, note: Note) -> Removal:
    """Find what ``name`` means, and refuse what must stay.

    It is the name or MLflow id of a run or a sweep, or the folder of a run that MLflow has lost. ``stack`` holds the
    lock on its folder.

    Raises:
        ConfigError: when there is none of that name or several, a process trains it, or its model is registered.
    """
    client, known, members = _find(name, tracking_uri, note)
    registry.refuse_registered(client, members)
    kind = "run" if isinstance(known, Run) else "sweep"
    doomed: list[Run | Sweep] = [*members, *([known] if isinstance(known, Sweep) else [])]
    folder, is_here, lock = storage.at(known.folder), _exists(known.folder), None
    if is_here and isinstance(known, Run):  # or there is another run of the same name
        is_here = RunFolder.at(known.folder).key == known.key
    running = [run.name for run in doomed if run.status == "RUNNING"]
    if running and not (is_here and folder.local):  # whether a process trains it cannot be seen
        where = f"its folder {known.folder} is not on this machine"
        raise ConfigError("", f"{running[0]!r} is RUNNING, and {where}; delete it where that is")
    many = f"MLflow run {doomed[0].run_id}" if len(doomed) == 1 else counted(len(doomed), "MLflow run")
    parts = [many] * bool(doomed)
    if is_here:
        with storage.refusing(folder):
            busy = ConfigError("", f"{kind} {known.name!r} is being trained by another process")
            lock = stack.enter_context(Lock(folder, busy))
            parts.append(f"folder {tilde(folder.address)} ({decimal(folder.size())})")
        for run in members:
            if run is not known and _exists(run.folder):  # it may have been resumed by itself
                RunFolder.at(run.folder, run.key).lock().release()
    elif known.folder:
        parts.append(f"not {tilde(known.folder)}, which is not here or another run's")
    return Removal(f"{kind} {known.name}", client, doomed, folder, lock, ", ".join(parts))


def _find(name: str, tracking_uri: str | None, note: Note) -> tuple[Client, Run | Sweep, list[Run]]:
    """The store, the run or the sweep, and the MLflow runs of its trainings."""
    tracking.quieten(verbose=False)
    uri = resolve_uri(tracking_uri)
    client = store.connect(uri) if exists(uri) else None  # a run that only seems lost would keep its MLflow run
    sweep = reading.find_sweep(client, name) if client else None
    try:
        known, uri = use.find_run(name, tracking_uri, note)
    except reading.AmbiguousRunError:
        raise
    except ConfigError:
        if client is None or sweep is None:
            raise
        return client, sweep, reading.trials(client, sweep)
    if known.run_id and sweep:
        ids = f"{known.run_id} (run), {sweep.run_id} (sweep)"
        raise ConfigError("", f"there are a run and a sweep named {name!r}; take one of their ids: {ids}")
    return store.connect(uri), known, [known] if known.run_id else []


def _exists(address: str) -> bool:
    """Whether there is a folder at a recorded address, which may be empty."""
    folder = storage.at(address)
    with storage.refusing(folder):
        return bool(address) and folder.exists()
