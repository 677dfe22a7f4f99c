"""End a run in MLflow when its driver cannot, because it was killed or because the store did not answer.

A small process beside the driver waits on a pipe. At its end the driver writes a word into it: that the run has
ended, or the status to set. A pipe that closes without a word means that the driver was killed. The process is not
the driver's child, since Ray kills all descendants of a job's command when it stops the job.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress

from cifar_ray.config import imports

_DONE, _KILLED = "done", "KILLED"
_TRIES_S, _PAUSE_S = 300.0, 5.0


class Guard:
    """Start the guard of one run, and tell it how the run ended."""

    def __init__(self, uri: str, session: str) -> None:
        self._starter = subprocess.Popen(  # forks the guard and ends
            imports.python("cifar_ray.tracking.guard", uri, session),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # open for as long as the guard lives
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is for the driver
            cwd="/",  # that of a cell is Ray's, which may remove it before MLflow is imported
        )

    def conclude(self, written: bool, status: str) -> bool:
        """Tell the guard that the run has ended; return ``written``: whether the driver could write the status.

        If not, the guard goes on trying for some minutes, and never with FINISHED, since the record is not complete.
        """
        word = _DONE if written else _KILLED if status == "FINISHED" else status
        with suppress(subprocess.TimeoutExpired):  # of a guard that goes on
            self._starter.communicate(word.encode(), timeout=10 if written else 1)
        return written


def main(uri: str, session: str) -> None:
    """Wait for the driver's word or its end, in a process detached from the driver."""
    if os.fork():
        os._exit(0)
    word = sys.stdin.buffer.read().decode()
    if word == _DONE:
        return
    end = time.monotonic() + _TRIES_S
    while not _ended(uri, session, word or _KILLED) and time.monotonic() < end:
        time.sleep(_PAUSE_S)


def _ended(uri: str, session: str, status: str) -> bool:
    """Try to end the run of this session; True when there is none to end: it has ended, or is another driver's now."""
    from mlflow import MlflowClient  # a second and 100 MB, spent only now

    from cifar_ray.tracking import store
    from cifar_ray.tracking.uri import exists

    if not exists(uri):  # MLflow would make an empty one
        return False
    try:
        client = MlflowClient(tracking_uri=uri)
        owned = f"tags.`{store.SESSION_TAG}` = '{session}' and attributes.status = 'RUNNING'"
        for run in store.search(client, store.all_experiments(client), owned):
            client.set_terminated(run.info.run_id, status)
    except Exception:  # whatever keeps the store from answering
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:3])
