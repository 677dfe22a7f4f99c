"""Temporary folders."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_PREFIX = "cifar_ray-"
_MARK = ".locked"  # in a folder that the process which made it has locked, until that ends


@contextmanager
def scratch(above: str | None = None) -> Iterator[Path]:
    """Context manager: a temporary folder in ``above`` or the system's, removed at the end.

    What other processes still write there then is left. Folders of processes that were killed are removed by the next
    call; a lock tells, and not a process id, since containers may share the folder above.
    """
    if above is not None:
        Path(above).mkdir(parents=True, exist_ok=True)
    for mark in Path(above or tempfile.gettempdir()).glob(f"{_PREFIX}*/{_MARK}"):
        with suppress(OSError), _locked(mark.parent):  # in use, or somebody else's, it stays
            shutil.rmtree(mark.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=above, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with ExitStack() as stack:
            with suppress(OSError):  # where a file system has no locks, nothing is removed later
                stack.enter_context(_locked(folder))
                (folder / _MARK).touch()
            yield folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Context manager: a lock on a folder; raises BlockingIOError when another process has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
