"""One driver at a time on a prefix in an object store, which has no locks.

An object names the driver and is written again every few seconds. Who finds one of another machine watches it:
a driver that lives is seen to write; one that has not for a minute is gone. On the same machine a file's lock
tells at once. A driver that finds another's name when it writes again has lost the prefix. Two drivers that begin
on two machines within the same second may both see themselves; the object is read again after it was written, to
make that improbable.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cifar_ray.config import files
from cifar_ray.storage.folder import LOCK

if TYPE_CHECKING:
    from cifar_ray.storage.objects import ObjectFolder

NAME = ".driver.json"
RENEW_S = 10.0
EXPIRE_S = 60.0
_LOOK_S = 2.0
_LAST_WRITE_S = 30.0


class Lease:
    """A prefix, kept by this process until it ends or releases it.

    Attributes:
        folder: the prefix.
        lost: whether a driver of another machine was seen to have taken it, as this one could not write for a while.
    """

    def __init__(self, folder: ObjectFolder, refusal: Exception) -> None:
        self.folder = folder
        self.lost = False
        folder.here.mkdir(parents=True, exist_ok=True)
        self._local = files.hold(folder.here / LOCK, refusal)
        self._mine = {"machine": _machine(), "session": uuid.uuid4().hex}
        self._released = threading.Event()
        try:
            self._wait(refusal)
            self._write()
            if (self._read() or {}).get("session") != self._mine["session"]:
                raise refusal
        except BaseException:
            self._local.release()
            raise
        self._renewing = threading.Thread(target=self._renew, daemon=True, name="storage-lease")
        self._renewing.start()

    def release(self, force: bool = False) -> None:
        """Let others have the prefix."""
        self._released.set()
        self._renewing.join(_LAST_WRITE_S)  # else what it is just writing would come after the removal
        with contextlib.suppress(OSError):
            if (self._read() or {}).get("session") == self._mine["session"]:
                self.folder.delete(NAME)
        self._local.release(force)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _wait(self, refusal: Exception) -> None:
        """Until the prefix is free, or its driver is seen to live."""
        first = self._read()
        end = time.monotonic() + EXPIRE_S
        # With this machine's lock held, what another process of it has written is of one that is gone.
        while first is not None and first.get("machine") != self._mine["machine"] and time.monotonic() < end:
            time.sleep(_LOOK_S)
            now = self._read()
            if now is None:
                return
            if now != first:
                raise refusal

    def _renew(self) -> None:
        while not self._released.wait(RENEW_S):
            with contextlib.suppress(OSError):  # the next one may arrive
                if (self._read() or self._mine).get("session") != self._mine["session"]:
                    self.lost = True
                    return
                self._write()

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self.folder.read(NAME))
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _write(self) -> None:
        self.folder.write(NAME, json.dumps({**self._mine, "written": time.time()}))


def _machine() -> str:
    """A name of this machine, or rather of this home folder, which has the file's lock."""
    path = Path.home() / ".cifar_ray" / "machine"
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    files.write_whole(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8")
