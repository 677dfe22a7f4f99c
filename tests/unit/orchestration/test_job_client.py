"""A job's name, why it has not started, and its log through a connection that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from ray.job_submission import JobDetails, JobStatus, JobType

from cifar_ray.orchestration.jobs import client, submission

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
