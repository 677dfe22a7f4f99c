"""What a guard does for a driver that cannot end its run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow import MlflowClient

from cifar_ray.tracking import guard, store
from tests.support import mlflow_store


@pytest.mark.parametrize(
    ("status", "session", "ends"),
    [("RUNNING", "mine", "KILLED"), ("RUNNING", "of a later driver", "RUNNING"), ("FINISHED", "mine", "FINISHED")],
)
def test_a_guard_ends_a_run_of_its_driver(status: str, session: str, ends: str, client: MlflowClient) -> None:
    """It leaves one alone that the driver could end after all."""
    run_id = client.create_run("0", tags={store.SESSION_TAG: session}).info.run_id
    client.update_run(run_id, status)
    assert guard._ended(client.tracking_uri, "mine", "KILLED") is True
    assert client.get_run(run_id).info.status == ends


def test_a_guard_tries_again_when_the_store_raises_or_is_away(client: MlflowClient, tmp_path: Path) -> None:
    mlflow_store.alter(client, "DROP TABLE runs")
    assert guard._ended(client.tracking_uri, "mine", "KILLED") is False
    away = tmp_path / "away.db"
    assert guard._ended(f"sqlite:///{away}", "mine", "KILLED") is False
    assert not away.exists()


@pytest.mark.parametrize(
    ("written", "status", "word"),
    [(True, "FINISHED", b"done"), (False, "FINISHED", b"KILLED"), (False, "FAILED", b"FAILED")],
)
def test_a_run_whose_record_is_not_complete_never_ends_as_finished(written: bool, status: str, word: bytes) -> None:
    made = guard.Guard.__new__(guard.Guard)
    said: list[bytes] = []
    made._starter = SimpleNamespace(communicate=lambda word, timeout: said.append(word))  # type: ignore[assignment]
    assert (made.conclude(written, status), said) == (written, [word])


def after(word: str, answers: Iterator[bool], monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], float]:
    """What a guard that hears this word tries, and for how many seconds, when these are the store's answers."""
    tried: list[Any] = []
    slept: list[float] = []
    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(guard, "_ended", lambda *arguments: tried.append(arguments) or next(answers))
    clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(slept), sleep=slept.append)
    monkeypatch.setattr(guard, "time", clock)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(word.encode())))
    guard.main("uri", "mine")
    return tried, sum(slept)


@pytest.mark.parametrize(("word", "status"), [("FAILED", "FAILED"), ("", "KILLED")])
def test_a_guard_tries_for_five_minutes(word: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word, its driver was killed."""
    call = ("uri", "mine", status)
    assert after(word, iter([False, False, True]), monkeypatch) == ([call] * 3, 10)
    tried, seconds = after(word, repeat(False), monkeypatch)
    assert (set(tried), seconds) == ({call}, 300)
    assert after("done", repeat(False), monkeypatch) == ([], 0)
