"""A job's name, why it has not started, and its log through a connection that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from ray.job_submission import JobDetails, JobStatus, JobType

from cifar_ray.config import command_line
from cifar_ray.config.errors import ConfigError
from cifar_ray.orchestration.jobs import client, submission
from cifar_ray.tracking import origin

LOG = ["first line\n", "second ", "line\nthird line\n", "last line\n"]


class Breaking:
    """What Ray's client does: every connection begins at the beginning, and may end anywhere."""

    def __init__(self, *ends: int) -> None:
        self._ends = list(ends)

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        end = self._ends.pop(0)
        for at, text in enumerate(LOG):
            if at == end:
                raise RuntimeError("WebSocket connection closed unexpectedly")
            yield text


def test_each_piece_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    breaking, shown = Breaking(2, 0, 3, 1, 4), 0
    for pieces in (2, 2, 3, 3, 4):
        shown = asyncio.run(client._print_new(breaking, "any", shown))  # type: ignore[arg-type]
        assert shown == len("".join(LOG[:pieces]))
    assert capsys.readouterr().out == "".join(LOG)


def test_why_a_job_has_not_started() -> None:
    lacking = "/bin/sh: 1: exec: python: not found"
    assert client._complaint("Running entrypoint\nerror: the cluster has ray 1\n\n") == "the cluster has ray 1"
    assert client._complaint(f"{lacking}\n").startswith(f"{lacking} (`python` on the cluster's PATH must be the one")


def test_a_continuation_has_the_name_of_the_same_job_that_runs_or_the_next_number() -> None:
    asked = submission.read(["resume", "a"], None)

    def job(status: JobStatus, identity: str) -> JobDetails:
        metadata = {"cifar_ray.identity": identity}
        return JobDetails(type=JobType.SUBMISSION, entrypoint="", status=status, metadata=metadata)

    ended, other = job(JobStatus.STOPPED, asked.identity), job(JobStatus.RUNNING, "another")
    running = job(JobStatus.RUNNING, asked.identity)
    assert client._name(asked, {}) == "resume-a-1"
    assert client._name(asked, {"resume-a-1": ended, "resume-a-2": other}) == "resume-a-3"
    assert client._name(asked, {"resume-a-1": ended, "mine": running}) == "mine"
    assert client._name(submission.read(["resume", "a"], "b"), {"resume-a-1": running}) == "b"


@pytest.mark.parametrize(
    ("uri", "reachable"),
    [
        ("http://mlflow:5000", True),
        ("https://mlflow.example.org/team", True),
        ("http://10.1.2.3:5000", True),
        ("http://[2001:db8::1]:5000", True),
        ("http://127.0.0.1:5000", False),
        ("http://127.1.2.3", False),
        ("http://localhost:5000/", False),
        ("http://[::1]:5000", False),
        ("http://0.0.0.0:5000", False),
        ("sqlite:////home/me/mlflow.db", False),
        ("postgresql://me@db/mlflow", False),
    ],
)
def test_a_job_takes_the_store_of_this_shell_where_other_machines_reach_it(
    uri: str, reachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    variables, words = client._store(None)
    assert variables == ({"MLFLOW_TRACKING_URI": uri} if reachable else {})
    assert (
        words == f"{uri} (MLFLOW_TRACKING_URI)"
        if reachable
        else f"because {uri} is an address on this machine" in words
    )
    assert client._store("http://other:1") == ({}, "http://other:1 (--tracking-uri)")


def test_a_job_without_a_store_of_its_own_is_told_which_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    theirs = "the cluster's own store (MLFLOW_TRACKING_URI there, else ~/.cifar_ray/mlflow.db)"
    assert client._store(None) == ({}, theirs)


@pytest.mark.parametrize("uri", ["https://me:hunter2@mlflow", "https://hunter2@mlflow", "http://mlflow?token=hunter2"])
def test_a_store_with_a_secret_in_its_address_is_refused_and_not_shown(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        client._store(None)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--dataset", "digits", "--model", "simple_cnn"],
        ["resume", "mine"],
        ["sweep", "--resume", "grid"],
        ["sweep", "--grid", "batch_size=16,32", "--dataset", "digits", "--model", "simple_cnn"],
    ],
)
def test_the_store_that_a_command_names_is_known(words: list[str]) -> None:
    assert submission.read(words, None).tracking_uri is None
    assert submission.read([*words, "--tracking-uri", "http://mlflow"], None).tracking_uri == "http://mlflow"


def test_a_jobs_runs_are_those_of_the_person_who_submitted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert client._user() == "ada"
    monkeypatch.setenv(command_line.SUBMITTED_BY, "ada")
    monkeypatch.setenv("LOGNAME", "root")
    assert origin.origin_tags()["mlflow.user"] == "ada"
