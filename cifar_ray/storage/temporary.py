"""Temporary folders that do not outlive their process for long, even when it is killed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

_PREFIX, _LOCK = "cifar_ray-", ".lock"
_SETTLED_S = 10.0  # between making a lock and taking it


@contextmanager
def scratch(above: str | None = None) -> Iterator[Path]:
    """Context manager: a temporary folder of this process in ``above`` or the system's, removed at the end.

    First removes what killed processes have left: the lock on such a folder is free.
    """
    home = Path(above or tempfile.gettempdir())
    home.mkdir(parents=True, exist_ok=True)
    _clear(home)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
    with FileLock(folder / _LOCK, thread_local=False):
        try:
            yield folder
        finally:
            with suppress(OSError):  # somebody has removed it already
                _empty(folder)


def _clear(above: Path) -> None:
    """Remove this user's scratch folders that no process holds. Those without a lock may be in use; they stay."""
    for folder in above.glob(f"{_PREFIX}*"):
        lock = folder / _LOCK
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if time.time() - lock.stat().st_mtime < _SETTLED_S:
                continue
            with FileLock(lock, timeout=0):
                _empty(folder)


def _empty(folder: Path) -> None:
    """Remove a folder, its lock last: while a process that is about to end still writes there, the lock stays."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _LOCK:
            path.unlink(missing_ok=True)
    lock = folder / _LOCK
    lock.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        lock.touch()  # without it, no later process would remove the rest
