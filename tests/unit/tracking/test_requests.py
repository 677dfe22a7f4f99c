"""What recording a run asks of MLflow: each row is sent once, also by two drivers, and nothing is read back."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from cifar_ray.data import Dataset
from cifar_ray.tracking.run import RunRecord
from cifar_ray.training.observer import Outcome, Row, SavedCheckpoint, Started
from tests.support.mlflow_store import points
from tests.unit.tracking.test_run_record import CONFIG, DECIDED, unguarded  # noqa: F401

EVERY, LAST = 10, 100  # steps of an epoch, and of the run


class Counting(MlflowClient):
    """A client that counts its calls, and the points that it sends."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.calls, self.points = Counter[str](), Counter[tuple[str, int]]()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith(("log_", "get_", "set_", "search_", "create_", "update_", "delete_", "list_", "download_")):
            self.calls[name] += 1
        return found

    def log_batch(self, run_id: str, metrics: Any = (), **others: Any) -> None:
        self.points.update((metric.key, metric.step) for metric in metrics)
        super().log_batch(run_id, metrics=metrics, **others)


def at(kind: str, step: int) -> Row:
    return Row(kind, step, 1000 * step, {f"{kind}/loss": 1 / step})


ITERATIONS = [at("iteration", step) for step in range(1, LAST + 1)]
EPOCHS = [at("epoch", step // EVERY) for step in range(EVERY, LAST + 1, EVERY)]
HISTORY = sorted([*ITERATIONS, *EPOCHS], key=lambda row: row.step * (1 if row.kind == "iteration" else EVERY))
"""All rows of the run, in their order."""


def opened(client: MlflowClient, digits: Dataset) -> RunRecord:
    named = {"name": "mine", "key": "key", "folder": "/there"}
    return RunRecord(client, CONFIG, DECIDED, **named, dataset=digits, begun=0.0)


def trained(record: RunRecord, after: int, until: int, lost: int | None = None) -> None:
    """Record steps as a driver does, with a checkpoint after each epoch; the row of one step is ``lost`` on its way."""
    kept = [row for row in HISTORY if row.step * (1 if row.kind == "iteration" else EVERY) <= after]
    record.started(Started(DECIDED, after, EVERY, history=tuple(kept)))
    for row in HISTORY[len(kept) :]:
        if row.kind == "iteration" and row.step > until:
            break
        if (row.kind, row.step) != ("iteration", lost):
            record.row(row)
        if row.kind == "epoch":
            record.checkpoint(SavedCheckpoint(Path(f"/c/step-{row.step:08d}"), row.step * EVERY, row.step, "hash"))
        time.sleep(0.001)  # so that it is not all sent at once


OUTCOME = Outcome(
    LAST // EVERY, {"epoch/loss": 1.0}, {"time/wall_s": 9.0}, 0.0, "hash", "/c/step-00000010", {}, [], tuple(HISTORY)
)


@pytest.mark.parametrize("kills", [(), (35, 65)], ids=["one driver", "three drivers"])
def test_every_row_of_a_run_is_sent_once(kills: tuple[int, ...], client: MlflowClient, digits: Dataset) -> None:
    counting, begun = Counting(client.tracking_uri), 0
    for killed in kills:
        record = opened(counting, digits)
        trained(record, begun, killed)
        record.end("KILLED")
        begun = killed // EVERY * EVERY
    before = counting.calls.copy()
    record = opened(counting, digits)
    trained(record, begun, LAST, lost=95)
    record.result(OUTCOME, digits)
    assert record.end("FINISHED")
    sent = {(f"{row.kind}/loss", row.step): 1 for row in HISTORY} | {("time/wall_s", LAST // EVERY): 1}
    assert counting.points == sent
    assert {(name, step) for name, step, _, _ in points(client, record.run_id)} == sent.keys()
    calls = counting.calls - before
    assert calls["get_metric_history"] == calls["get_run"] == 0
    assert calls["search_runs"] == 1
    # Ten checkpoints, each with its rows; parameters, tags and the result are some more.
    assert calls["log_batch"] <= 2 * LAST // EVERY + 10


def test_rows_come_again_where_it_is_not_known_how_far_they_were_sent(client: MlflowClient, digits: Dataset) -> None:
    """MLflow drops what it has, since the time of a row is its own."""
    first = opened(client, digits)
    trained(first, 0, 50)
    first.end("KILLED")
    client.set_tag(first.run_id, "cifar_ray.sent", "changed by somebody")
    counting = Counting(client.tracking_uri)
    second = opened(counting, digits)
    trained(second, 50, LAST)
    second.end("KILLED")
    assert counting.points["iteration/loss", 7] == 1
    found = Counter((name, step) for name, step, _, _ in points(client, second.run_id))
    assert found == {(f"{row.kind}/loss", row.step): 1 for row in HISTORY}
