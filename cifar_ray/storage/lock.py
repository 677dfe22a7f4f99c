"""One driver at a time works on a run or a sweep: a lock on a file, free again once its process ends.

A bucket has no locks: there the file is on this machine's disk, and drivers of other machines are not kept away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from filelock import FileLock, Timeout

from cifar_ray.storage.folder import Folder

FILE = ".driver.lock"


class Lock:
    """A folder that belongs to this process until it ends or releases it; ``refusal`` is raised if another has it."""

    def __init__(self, folder: Folder, refusal: Exception) -> None:
        self._file = FileLock(folder.disk / FILE, thread_local=False)  # any thread may release it
        try:
            self._file.acquire(timeout=0)
        except Timeout:
            raise refusal from None

    def release(self) -> None:
        self._file.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def claim(folder: Folder, contents: Mapping[str, str], taken: Callable[[], Exception], refusal: Exception) -> Lock:
    """Make a new folder with these text files, and lock it.

    Raises:
        OSError: when the folder cannot be written.
        Exception: that of ``taken``, when it exists; ``refusal``, when another driver is making it just now. Nothing
            of the other's is changed.
    """
    if folder.exists():
        raise taken()
    folder.make()
    with ExitStack() as stack:
        lock = stack.enter_context(Lock(folder, refusal))
        if set(folder.names()) - {FILE}:  # another driver has made it since
            raise taken()
        for name, text in contents.items():
            folder.write(name, text)
        stack.pop_all()  # it stays locked
    return lock
