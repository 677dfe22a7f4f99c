"""Marks a run KILLED when its driver vanishes without a word, even by ``kill -9``.

A small process beside the driver waits on a pipe. The driver writes a word into it at its end; a pipe
that closes without the word means that the driver is gone.
"""

from __future__ import annotations

import subprocess
import sys
from typing import IO

_WORD = b"done"


class Guard:
    """The guard of one run, for as long as the driver works on it."""

    def __init__(self, uri: str, run_id: str, session: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cifar_ray.tracking.guard", uri, run_id, session],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is for the driver
        )

    def dismiss(self) -> None:
        """The driver has ended the run itself."""
        pipe: IO[bytes] = self._process.stdin  # type: ignore[assignment]
        try:
            pipe.write(_WORD)
            pipe.close()
            self._process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()


def main(uri: str, run_id: str, session: str) -> None:
    """Wait for the driver's word or its end."""
    if sys.stdin.buffer.read() == _WORD:
        return
    from mlflow import MlflowClient  # a second and 100 MB, spent only now

    from cifar_ray.tracking.store import SESSION_TAG

    client = MlflowClient(tracking_uri=uri)
    run = client.get_run(run_id)
    # A later driver may have taken the run over already.
    if run.info.status == "RUNNING" and run.data.tags.get(SESSION_TAG) == session:
        client.set_terminated(run_id, "KILLED")


if __name__ == "__main__":
    main(*sys.argv[1:4])
