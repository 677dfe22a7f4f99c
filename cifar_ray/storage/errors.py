"""Errors of a file system or an object store: try again, and say why in a few words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

_LONGEST_REASON = 200
_PAUSES_S = (1.0, 2.0, 4.0)
# What PyArrow and the clouds' clients put around the reason.
_NOISE = re.compile(
    r"^.*Detail: \[errno \d+\] |\(Request ID: [^)]*\)|^When .*?: AWS Error | during \w+ operation|; Details: .*"
    r"|google::cloud::Status\(|Permanent error, with a last message of | error_info=.*"
)


class StorageError(RuntimeError):
    """A store could not be read or written while training, even after several tries; the message says why."""


def persistently(write: Callable[[], None]) -> None:
    """Call ``write``, up to four times with pauses in between.

    Raises:
        OSError: of the last try.
    """
    for pause in _PAUSES_S:
        try:
            write()
            return
        except OSError:
            time.sleep(pause)
    write()


def reason(error: OSError) -> str:
    """Why something failed, in a few words."""
    text = " ".join((error.strerror or str(error)).split())
    return _NOISE.sub("", text).strip()[:_LONGEST_REASON]
