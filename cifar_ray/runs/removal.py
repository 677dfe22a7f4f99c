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


@dataclass(frozen=True)
class Removal:
    """What is to be deleted.

    Attributes:
        title: ``run NAME`` or ``sweep NAME``.
        runs: its MLflow runs, a sweep's own last; none if MLflow has lost the run.
        folder: None when there is none here, and so is the lock on it.
        contents: what all of this is, in words.
    """

    title: str
    client: Client
    runs: Sequence[Run | Sweep]
    folder: Folder | None
    lock: Lock | None
    contents: str

    def execute(self) -> None:
        """Delete it, the MLflow runs last, so that a deletion that fails can be repeated.

        Raises:
            ConfigError: when the storage or the store refuses.
        """
        if self.folder is not None and self.lock is not None:
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
    tracking.quieten(verbose=False)
    uri = store.resolve_uri(tracking_uri)
    if store.exists(uri):
        store.connect(uri)  # a run that only seems lost would keep its MLflow run
    try:
        known, uri = use.find_run(name, tracking_uri, note)
    except reading.AmbiguousRunError:
        raise
    except ConfigError:
        client = store.connect(uri) if store.exists(uri) else None
        sweep = reading.find_sweep(client, name) if client else None
        if client is None or sweep is None:
            raise
        return _sweep(client, sweep, stack)
    client = store.connect(uri)
    if known.run_id and (sweep := reading.find_sweep(client, name)):
        ids = f"{known.run_id} (run), {sweep.run_id} (sweep)"
        raise ConfigError("", f"there are a run and a sweep named {name!r}; take one of their ids: {ids}")
    parents = [known] if known.run_id else []
    registry.refuse_registered(client, parents)
    folder = RunFolder.at(known.folder) if _exists(known.folder) else None
    if folder is None or folder.key != known.key:  # there may be another run's of the same name
        folder = None
    if folder is None or not folder.folder.local:
        _refuse_running(parents, known.folder)
    lock = stack.enter_context(folder.lock()) if folder else None
    return _removal(f"run {known.name}", client, parents, folder.folder if folder else None, lock, known.folder)


def _sweep(client: Client, own: Sweep, stack: ExitStack) -> Removal:
    members = reading.trials(client, own)
    registry.refuse_registered(client, members)
    address, name = own.folder, own.name
    folder = storage.at(address) if _exists(address) else None
    lock = None
    if folder is None or not folder.local:
        _refuse_running([*members, own], address)
    if folder is not None:
        with storage.refusing(folder):
            lock = stack.enter_context(Lock(folder, _busy(name)))
        members_here = [RunFolder.at(run.folder, run.key) for run in members if _exists(run.folder)]
        for run in members_here:  # which may have been resumed by itself
            run.lock().release()
    return _removal(f"sweep {name}", client, [*members, own], folder, lock, address)


def _removal(
    title: str, client: Client, doomed: Sequence[Run | Sweep], folder: Folder | None, lock: Lock | None, address: str
) -> Removal:
    parts = []
    if len(doomed) == 1:
        parts.append(f"MLflow run {doomed[0].run_id}")
    elif doomed:
        parts.append(counted(len(doomed), "MLflow run"))
    if folder is not None:
        with storage.refusing(folder):
            parts.append(f"folder {tilde(folder.address)} ({decimal(folder.size())})")
    elif address:
        parts.append(f"not {tilde(address)}, which is not here or another run's")
    return Removal(title, client, doomed, folder, lock, ", ".join(parts))


def _exists(address: str) -> bool:
    """Whether there is a folder at a recorded address, which may be empty."""
    folder = storage.at(address)
    with storage.refusing(folder):
        return bool(address) and folder.exists()


def _refuse_running(doomed: Sequence[Run | Sweep], address: str) -> None:
    """Refuse RUNNING runs whose folder is not here: whether a process trains them cannot be seen."""
    running = [run.name for run in doomed if run.status == "RUNNING"]
    if running:
        raise ConfigError(
            "", f"{running[0]!r} is RUNNING, and its folder {address} is not on this machine; delete it where that is"
        )


def _busy(name: str) -> ConfigError:
    return ConfigError("", f"sweep {name!r} is being trained by another process")
