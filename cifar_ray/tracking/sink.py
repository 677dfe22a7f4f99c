"""Write to MLflow from a background thread that never raises and that training never waits for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from cifar_ray.tracking import store

_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 30.0
_TRIES = 3  # of a write that fails though the store takes others
_LONGEST_S, _LOOK_S = 300.0, 0.5
_TRY_AGAIN = (429, 499)  # too many requests, cancelled; to MLflow, a time-out is a 500
_RETRIED_TAG = "cifar_ray.retried_ms"
_AT_ONCE = 1000  # points that MLflow's client sends in one request, which is taken whole or not at all

Write = Callable[[MlflowClient, str], None]


class Sink:
    """Writes everything recorded of one run, in order.

    A store that takes nothing, because it is away, locked or read-only, is tried again until :meth:`close`; what
    could not be written by then is lost to MLflow but not to the run, whose checkpoints hold every row. What fails
    though the store takes other things, such as an artifact for which it has no room, is given up after a few tries
    and does not hold up the rest.

    Attributes:
        trouble: why the store cannot be written to just now; empty when it can.
        refused: why something was given up.
    """

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._writes: queue.Queue[Write | None] = queue.Queue()
        self._metrics: list[Metric] = []
        self._closing, self._given_up = threading.Event(), threading.Event()
        self._deadline = float("inf")
        self._written: set[tuple[str, int]] | None = None  # names and steps, once they have been read
        self._doubtful = False  # the last try has failed, and the store has not taken anything since
        self.trouble = ""
        self.refused: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True, name="mlflow-sink")
        self._thread.start()

    def metrics(self, step: int, timestamp_ms: int, values: dict[str, float]) -> None:
        """Record the metrics of one step.

        One that is written already under this step is left alone; of several that wait, the last is written.
        """
        self._metrics.extend([Metric(name, value, timestamp_ms, step) for name, value in values.items()])
        self._writes.put(self._flush)

    def params(self, values: dict[str, str]) -> None:
        """Record parameters; MLflow refuses to change one, so a changed one is left as it was."""

        def write(client: MlflowClient, run_id: str) -> None:
            known = client.get_run(run_id).data.params
            fresh = [Param(name, value) for name, value in values.items() if name not in known]
            client.log_batch(run_id, params=fresh)

        self._writes.put(write)

    def tags(self, values: Mapping[str, str]) -> None:
        tags = [RunTag(name, value[:8000]) for name, value in values.items()]
        self._writes.put(lambda client, run_id: client.log_batch(run_id, tags=tags))

    def call(self, write: Write) -> None:
        """Run ``write(client, run_id)`` in its turn. It may be repeated."""
        self._writes.put(write)

    def close(self, status: str, patience_s: float, ended: float | None = None) -> bool:
        """Write what is left and end the run with ``status``.

        A store that is slow but takes everything is waited for, up to five minutes in all.

        Args:
            status: FINISHED, FAILED or KILLED.
            patience_s: seconds, for all that is left together, after which a store that takes nothing is given up.
            ended: ``time.time()`` at which the run ended; when this is written, if None.

        Returns:
            Whether the status was written; ``refused`` tells whether all the rest was.
        """
        written = threading.Event()
        end_ms = None if ended is None else round(1000 * ended)

        def end(client: MlflowClient, run_id: str) -> None:
            client.set_terminated(run_id, status, end_ms)
            written.set()

        self.call(end)
        self._writes.put(None)
        now = time.monotonic()
        self._deadline = now + patience_s
        self._closing.set()
        self._thread.join(patience_s)
        # One request to a locked database or a silent server may take longer than there is patience.
        while self._thread.is_alive() and not self._doubtful and time.monotonic() < now + _LONGEST_S:
            self._thread.join(_LOOK_S)
        self._given_up.set()
        return written.is_set()

    def _run(self) -> None:
        while (write := self._writes.get()) is not None:
            if self._given_up.is_set() or not self._insist(write):
                return

    def _insist(self, write: Write) -> bool:
        """Do one write, retrying while the store takes nothing; return False when the time to close is over."""
        pause, failed_while_there = _FIRST_RETRY_S, 0
        while True:
            try:
                write(self._client, self._run_id)
                self.trouble, self._doubtful = "", False
                return True
            except Exception as error:  # tracking must not end a run, whatever happens to it
                self._doubtful = True
                reason, refused = store.reason(error), _is_refusal(error)
                writable = self._takes_writes()
            late = time.monotonic() + pause > self._deadline
            failed_while_there += writable
            if refused or (writable and (late or failed_while_there >= _TRIES)):
                self.refused.append(reason)
                self._doubtful = False
                return True
            self.trouble, self._doubtful = "" if writable else reason, not writable
            if late:
                return False
            self._closing.wait(pause) if not self._closing.is_set() else time.sleep(pause)
            pause = _FIRST_RETRY_S if self._closing.is_set() else min(2 * pause, _LAST_RETRY_S)

    def _takes_writes(self) -> bool:
        """Whether the store takes a write now: a locked or deleted database still answers reads."""
        try:  # with another value each time: MLflow does not write one that is there already
            self._client.set_tag(self._run_id, _RETRIED_TAG, str(time.time_ns() // 1_000_000))
        except Exception:  # whatever keeps it from that
            return False
        return True

    def _flush(self, client: MlflowClient, run_id: str) -> None:
        """Write the last point of each step that has no value yet: a resumed run repeats rows written before."""
        points = self._metrics[:]
        last = {(point.key, point.step): point for point in points}
        if self._written is None:
            names = client.get_run(run_id).data.metrics
            histories = [client.get_metric_history(run_id, name) for name in names]
            self._written = {(point.key, point.step) for history in histories for point in history}
        fresh = [last[key] for key in last if key not in self._written]
        try:
            if fresh:
                client.log_batch(run_id, metrics=fresh)
            self._written.update(last)
        except Exception as error:
            refused = _is_refusal(error)
            if refused:
                del self._metrics[: len(points)]  # or they would be refused again with all that comes
            if not refused or len(fresh) > _AT_ONCE:
                self._written = None  # a part may be there
            raise
        del self._metrics[: len(points)]


def _is_refusal(error: Exception) -> bool:
    """Whether the store refused the write, so that retrying would not help."""
    if not isinstance(error, MlflowException):
        return False
    status = error.get_http_status_code()
    return 400 <= status < 500 and status not in _TRY_AGAIN
