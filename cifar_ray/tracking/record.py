"""The record of a run, a sweep or a job: a background thread writes it to MLflow, and a guard ends it.

The thread never raises, and training never waits for it.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from cifar_ray.tracking import pages, store
from cifar_ray.tracking.guard import Guard
from cifar_ray.tracking.study import FAILURE_TAG
from cifar_ray.training.observer import Row

SENT_TAG = "cifar_ray.sent"  # how far the rows of a run have been sent: kind -> step, as JSON
CLOCK = "clock"  # kind of a row whose step is the second since the run began, whatever its own

_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 5.0
_TRIES = 3  # of a write that fails though the store takes others
_LONGEST_S, _LOOK_S = 300.0, 0.5
_TRY_AGAIN = (429, 499)  # too many requests, cancelled; to MLflow, a time-out is a 500
_RETRIED_TAG = "cifar_ray.retried_ms"
_AT_ONCE = 999  # metrics that MLflow takes in one request beside a tag; a request is taken whole or not at all

Write = Callable[[MlflowClient, str], None]


class Record:
    """Writes one driver's record of an MLflow run, in order. Only its end waits, and its beginning if it ``waits``.

    A store that takes nothing, because it is away, locked or read-only, is tried again until :meth:`end`; what
    could not be written by then is lost to MLflow but not to the run, whose checkpoints hold every row. What fails
    though the store takes other things, such as an artifact for which it has no room, is given up after a few tries
    and does not hold up the rest.

    Attributes:
        uri: the tracking store.
        run: the run as it was when this driver took it up; None until MLflow has it.
        known_tags: its tags now, as far as this driver knows.
        ended: when the run ended, a ``time.time()``; None for when its end is written.
        sent: how far its rows have been sent: kind -> step.
        sent_before: the same of earlier drivers, whose rows are not sent again.
        trouble: why the store cannot be written to just now; empty when it can.
        refused: why something was given up.
    """

    def __init__(
        self, client: MlflowClient, session: str, begin: Callable[[MlflowClient], Run], waits: bool = True
    ) -> None:
        """Make a run with the tag of this session, or take it over, by ``begin``.

        Raises:
            ConfigError: when it ``waits``, and the store refuses it.
        """
        self.uri = client.tracking_uri
        self._client, self._begin = client, begin
        self._writes: queue.Queue[Write | None] = queue.Queue()
        self._rows: list[Row] = []  # that are still to be sent
        self._points: set[tuple[str, int]] = set()  # names and steps of all figures so far
        self._params: set[str] = set()
        self._checkpoints: dict[int, Mapping[str, Any]] = {}
        self._listed: dict[int, Mapping[str, Any]] = {}
        self._deadline = float("inf")
        self._given_up = False
        self.run: Run | None = None
        self.known_tags: dict[str, str] = {}
        self.ended: float | None = None
        self.sent: dict[str, int] = {}
        self.sent_before: dict[str, int] = {}
        self.trouble = ""
        self.refused: list[str] = []
        self._guard = Guard(self.uri, session)  # first, so that no run stays RUNNING whatever happens from now on
        if waits:
            try:
                with store.refusing(self.uri):
                    self._open(client, "")
            except BaseException:
                self._guard.conclude(True, "")
                raise
        else:
            self._writes.put(self._open)
        self._thread = threading.Thread(target=self._work, daemon=True, name="mlflow-record")
        self._thread.start()

    @property
    def run_id(self) -> str:
        """MLflow's id of the run; empty until MLflow has it."""
        return self.run.info.run_id if self.run else ""

    @property
    def page(self) -> str | None:
        """Address of the run's page, when the store is a server that has pages, and has the run."""
        return pages.run(self.uri, self.run) if self.run else None

    def _open(self, client: MlflowClient, _: str) -> None:
        run = self._begin(client)
        self.known_tags, self._params = dict(run.data.tags), {*run.data.params}
        with suppress(ValueError, TypeError):  # of a tag that somebody has changed: MLflow drops rows that it has
            self.sent_before = dict(json.loads(self.known_tags.get(SENT_TAG, "{}")))
        self.sent = dict(self.sent_before)
        self.run = run

    def call(self, write: Write) -> None:
        """Run ``write(client, run_id)`` in its turn. It may be repeated."""
        self._writes.put(write)

    def write_row(self, row: Row) -> None:
        """Record a row of metrics: once, also if it is given again, here or by a driver that takes the run over."""
        if row.kind != CLOCK:
            fresh = {name: value for name, value in row.metrics.items() if (name, row.step) not in self._points}
            self._points |= {(name, row.step) for name in fresh}
            row = replace(row, metrics=fresh)
        self._rows.append(row)
        self._writes.put(self._send)

    def _send(self, client: MlflowClient, run_id: str) -> None:
        """Send the rows that wait. With the last request goes how far they come, so what is lost is sent again."""
        assert self.run is not None
        rows, metrics, sent = self._rows[:], [], dict(self.sent)
        for row in rows:
            step = row.step
            if row.kind == CLOCK:
                step = max((row.timestamp_ms - self.run.info.start_time) // 1000, 0)
            elif step <= self.sent_before.get(row.kind, -1):
                continue
            else:
                sent[row.kind] = max(step, sent.get(row.kind, step))
            metrics += [Metric(name, value, row.timestamp_ms, step) for name, value in row.metrics.items()]
        try:
            for begin in range(0, len(metrics), _AT_ONCE):
                is_last = begin + _AT_ONCE >= len(metrics)
                tags = [RunTag(SENT_TAG, json.dumps(sent))] if is_last and sent != self.sent else []
                client.log_batch(run_id, metrics=metrics[begin : begin + _AT_ONCE], tags=tags)
        except Exception as error:
            if _is_refusal(error):
                del self._rows[: len(rows)]  # or they would be refused again with all that comes
                self._points -= {(name, row.step) for row in rows for name in row.metrics}
            raise
        del self._rows[: len(rows)]
        self.sent = sent

    def params(self, values: Mapping[str, str]) -> None:
        """Record parameters; MLflow refuses to change one, so a changed one is left as it was."""

        def write(client: MlflowClient, run_id: str) -> None:
            fresh = [Param(name, value) for name, value in values.items() if name not in self._params]
            client.log_batch(run_id, params=fresh)
            self._params |= values.keys()

        self.call(write)

    def tags(self, values: Mapping[str, str] | Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Record tags, or what is made of those that the run has by then."""

        def write(client: MlflowClient, run_id: str) -> None:
            now = values(self.known_tags) if callable(values) else values
            client.log_batch(run_id, tags=[RunTag(name, value) for name, value in now.items()])
            self.known_tags |= now

        self.call(write)

    def forget(self, tag: str) -> None:
        """Remove a tag of an earlier attempt, such as the reason of its failure."""

        def write(client: MlflowClient, run_id: str) -> None:
            if tag in self.known_tags:
                client.delete_tag(run_id, tag)
                del self.known_tags[tag]

        self._writes.put(write)

    def text(self, name: str, text: str) -> None:
        """Log a text as an artifact."""
        self.call(lambda client, run_id: client.log_text(run_id, text, name))

    def json(self, name: str, value: Any) -> None:
        """Log plain values as an artifact."""
        self.call(lambda client, run_id: client.log_dict(run_id, value, name))

    def figures(self, metrics: Mapping[str, float]) -> None:
        """Record metrics as they are now."""
        self.write_row(Row.now(CLOCK, 0, metrics))

    def failed(self, reason: str) -> None:
        self.tags({FAILURE_TAG: reason})

    def list_checkpoint(self, entry: Mapping[str, Any]) -> None:
        """Add a checkpoint to ``checkpoints.json``, the list of those that this driver knows, by their ``step``."""
        self._checkpoints = {**self._checkpoints, entry["step"]: entry}
        self.call(self._write_checkpoints)

    def _write_checkpoints(self, client: MlflowClient, run_id: str) -> None:
        """Write what waits at once: checkpoints may come faster than a store takes a file."""
        if (entries := self._checkpoints) is not self._listed:
            listed = {"checkpoints": [entries[step] for step in sorted(entries)]}
            client.log_dict(run_id, listed, "checkpoints.json")
            self._listed = entries

    def end(self, status: str, patience_s: float = 30.0) -> bool:
        """Write everything that waits, then end the run as FINISHED, FAILED or KILLED.

        A store that takes nothing is given up after ``patience_s`` seconds for all that is left together; one that is
        slow but takes everything is waited for, up to five minutes in all.

        Returns:
            Whether the status was written; ``refused`` tells whether all the rest was. If not, the guard goes on trying
            for some minutes, and never with FINISHED, since the record is not complete.
        """
        if status == "FINISHED":
            self.forget(FAILURE_TAG)
        written = threading.Event()
        end_ms = None if self.ended is None else round(1000 * self.ended)

        def end(client: MlflowClient, run_id: str) -> None:
            client.set_terminated(run_id, status, end_ms)
            written.set()

        self.call(end)
        self._writes.put(None)
        now = time.monotonic()
        self._deadline = now + patience_s
        self._thread.join(patience_s)
        # One request to a locked database or a silent server may take longer than there is patience.
        while self._thread.is_alive() and not self.trouble and time.monotonic() < now + _LONGEST_S:
            self._thread.join(_LOOK_S)
        self._given_up = True
        return self._guard.conclude(written.is_set(), status)

    def _work(self) -> None:
        while (write := self._writes.get()) is not None:
            if self._given_up or not self._insist(write):
                return

    def _insist(self, write: Write) -> bool:
        """Do one write, retrying while the store takes nothing; return False when the time to close is over."""
        pause, failed_while_there = _FIRST_RETRY_S, 0
        while True:
            try:
                write(self._client, self.run_id)
                self.trouble = ""
                return True
            except Exception as error:  # tracking must not end a run, whatever happens to it
                reason, refused = store.reason(error), self.run is not None and _is_refusal(error)
            writable = refused or self._takes_writes()
            self.trouble = "" if writable else reason
            failed_while_there += writable
            late = time.monotonic() + pause > self._deadline
            if refused or (writable and (late or failed_while_there >= _TRIES)):
                self.refused.append(reason)
                return True
            if late:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LAST_RETRY_S)

    def _takes_writes(self) -> bool:
        """Whether the store takes a write now: a locked or deleted database still answers reads."""
        try:  # with another value each time: MLflow does not write one that is there already
            self._client.set_tag(self.run_id, _RETRIED_TAG, str(time.time_ns() // 1_000_000))
        except Exception:  # whatever keeps it from that
            return False
        return True


def _is_refusal(error: Exception) -> bool:
    """Whether the store refused the write, so that retrying would not help."""
    if not isinstance(error, MlflowException):
        return False
    status = error.get_http_status_code()
    return 400 <= status < 500 and status not in _TRY_AGAIN
