"""Small things about files."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from cifar_ray.config.errors import ConfigError

_SCRATCH, _SCRATCH_LOCK = "cifar_ray-", ".lock"
_SETTLED_S = 10.0  # between making a lock and taking it


def absolute(key: str, path: str) -> Path:
    """A path that a person has given, without ``~`` and independent of the working folder.

    Raises:
        ConfigError: naming ``key`` when ``~`` stands for nobody's home folder.
    """
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(key, f"must begin with the home folder of somebody who has one, got {path!r}") from None


def storage(given: str | None) -> Path:
    """The folder of all runs: the one given, or one in the home folder.

    Raises:
        ConfigError: when it is the address of something else than a folder.
    """
    if given is not None and "://" in given:
        raise ConfigError("storage", f"must be a folder here, on this machine or mounted, got {given!r}")
    return absolute("storage", given or "~/.cifar_ray/runs")


def write_whole(path: Path, text: str) -> None:
    """Write a text file that is never seen half written.

    Raises:
        OSError: when it cannot be written; what was there before is untouched.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def hold(path: Path, refusal: Exception, wait_s: float = 0.0) -> FileLock:
    """Lock a file for this process, until it ends or releases the lock.

    Args:
        path: the lock's file, in a folder that is there.
        refusal: what is raised when another process keeps the lock.
        wait_s: seconds for the other to let go.

    Raises:
        OSError: when the file cannot be made.
    """
    held = FileLock(path, thread_local=False)  # whichever thread has locked it, any may release it
    try:
        held.acquire(timeout=wait_s)
    except Timeout:
        raise refusal from None
    return held


@contextmanager
def scratch(above: str | None = None) -> Iterator[Path]:
    """Context manager: a temporary folder of this process, removed at the end.

    Removes first what processes that were killed have left: the lock on such a folder is free.

    Args:
        above: the folder to make it in; the usual one for temporary files by default.
    """
    above = above or tempfile.gettempdir()
    Path(above).mkdir(parents=True, exist_ok=True)
    _clear(Path(above))
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=above))
    with hold(folder / _SCRATCH_LOCK, BlockingIOError(f"{folder} is in use")):
        try:
            yield folder
        finally:
            with suppress(OSError):  # somebody has removed it already
                _empty(folder)


def _clear(above: Path) -> None:
    """Remove this user's scratch folders that no process holds. Those without a lock may be in use; they stay."""
    for folder in above.glob(f"{_SCRATCH}*"):
        lock = folder / _SCRATCH_LOCK
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if time.time() - lock.stat().st_mtime < _SETTLED_S:
                continue
            with hold(lock, BlockingIOError(f"{folder} is in use")):
                _empty(folder)
        except OSError:
            continue


def _empty(folder: Path) -> None:
    """Remove a folder, its lock last: while a process that is about to end still writes there, the lock stays."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _SCRATCH_LOCK:
            path.unlink(missing_ok=True)
    lock = folder / _SCRATCH_LOCK
    lock.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        lock.touch()  # without it, no later process would remove the rest


def digest(path: Path, algorithm: str) -> str:
    """A file's hash in hex, read piece by piece.

    Args:
        path: the file.
        algorithm: a name that ``hashlib`` knows; it guards against accidents here, not against attackers.

    Raises:
        OSError: when the file cannot be read.
    """
    state = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            state.update(chunk)
    return state.hexdigest()
