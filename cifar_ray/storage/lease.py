"""Who owns a folder: one driver at a time works on a run or a sweep.

A lock on a file keeps other drivers away, and is free again once its process ends. A bucket has no locks. There the
file is on this machine's disk, and against other machines an object names the driver, which writes it again every
few seconds. A driver that finds the object of another machine watches it: written again, the other driver lives;
not written for a minute, it is gone. A driver that finds another's name when it writes again has lost the folder.
Two drivers that start on two machines within the same second may both see themselves; the object is read again
after it was written, to make that improbable.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from filelock import FileLock, Timeout

from cifar_ray.config import files
from cifar_ray.storage.folder import Folder

FILE, OBJECT = ".driver.lock", ".driver.json"
RENEW_S = 10.0
EXPIRE_S = 60.0
_WATCH_S = 2.0
_LAST_WRITE_S = 30.0


class Lock:
    """A folder that belongs to this process until it ends or releases it.

    Attributes:
        folder: the folder.
        lost: whether a driver of another machine has taken a bucket's folder, as this one could not write for a while.
    """

    def __init__(self, folder: Folder, refusal: Exception) -> None:
        """Take the folder.

        Raises:
            OSError: when the folder cannot be written.
            Exception: ``refusal``, when another driver has the folder.
        """
        self.folder = folder
        self.lost = False
        self._session = uuid.uuid4().hex
        self._released = threading.Event()
        self._renewing: threading.Thread | None = None
        self._file = FileLock(folder.disk / FILE, thread_local=False)  # any thread may release it
        try:
            self._file.acquire(timeout=0)
        except Timeout:
            raise refusal from None
        if folder.local:
            return
        try:
            if self._others_live():
                raise refusal
            self._write()
            if not self._is_mine():
                raise refusal
        except BaseException:
            self._file.release()
            raise
        self._renewing = threading.Thread(target=self._renew, daemon=True, name="storage-lease")
        self._renewing.start()

    def release(self) -> None:
        """Let others have the folder."""
        self._released.set()
        if self._renewing is not None:
            self._renewing.join(_LAST_WRITE_S)  # else what it is just writing would come after the removal
            with contextlib.suppress(OSError):
                if self._is_mine():
                    self.folder.delete(OBJECT)
        self._file.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _others_live(self) -> bool:
        """Whether another machine's driver has the folder; one that was killed is waited for until its time is over."""
        first = now = self._read()
        end = time.monotonic() + EXPIRE_S
        # What another process of this machine has written is void: this one has the file's lock.
        while now and now == first and now.get("machine", machine()) != machine() and time.monotonic() < end:
            time.sleep(_WATCH_S)
            now = self._read()
        return bool(now) and now != first

    def _renew(self) -> None:
        while not self._released.wait(RENEW_S):
            with contextlib.suppress(OSError):  # the next one may arrive
                self.lost = self._read().get("session", self._session) != self._session
                if self.lost:
                    return
                self._write()

    def _is_mine(self) -> bool:
        return self._read().get("session") == self._session

    def _read(self) -> dict[str, Any]:
        """What the object says; nothing when there is none, or it cannot be understood."""
        try:
            values = json.loads(self.folder.read(OBJECT))
        except (FileNotFoundError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}

    def _write(self) -> None:
        owner = {"machine": machine(), "session": self._session, "written": time.time()}
        self.folder.write(OBJECT, json.dumps(owner))


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
    lock = Lock(folder, refusal)
    try:
        if not {FILE, OBJECT}.issuperset(folder.names()):  # another driver has made it since
            raise taken()
        for name, text in contents.items():
            folder.write(name, text)
    except BaseException:
        lock.release()
        raise
    return lock


def machine() -> str:
    """A name of this machine, or rather of this home folder, where the locked files are."""
    home = Folder(str(files.home()))
    with contextlib.suppress(FileNotFoundError):
        return home.read("machine")
    home.make()
    home.write("machine", uuid.uuid4().hex)
    return home.read("machine")
