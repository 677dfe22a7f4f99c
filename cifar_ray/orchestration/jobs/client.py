"""Jobs: commands that a cluster runs by itself, whatever becomes of the terminal they were submitted from."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from cifar_ray import __version__
from cifar_ray.config import runtext
from cifar_ray.config.errors import ConfigError
from cifar_ray.display.run import Console, duration
from cifar_ray.orchestration.jobs import server as jobserver
from cifar_ray.orchestration.jobs.server import JobServer, JobServerError

if TYPE_CHECKING:
    from cifar_ray.orchestration.jobs.submission import Submission

_COMMAND, _IDENTITY = "cifar_ray.command", "cifar_ray.identity"
_STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
_STOP_WAIT_S = "60"
"""From SIGTERM to SIGKILL, in place of Ray's 3 s: an interrupted run waits up to 30 s for its store."""

_POLL_S = 0.5
_PROGRESS_S = 10.0
_PATIENCE_S = 120.0
_FORGOTTEN_S = 3.0
_SILENCE_S = 60.0


def submit(words: Sequence[str], address: str | None, name: str | None, working_dir: str | None, wait: bool) -> int:
    """Have the cluster run a command of cifar-ray as a job; one that is under way already is left to it.

    Args:
        words: ``train``, ``resume`` or ``sweep`` with its options.
        address: of the job server; see :func:`jobserver.connect`.
        name: of the job; by default the run's or the sweep's, or made from what is asked for.
        working_dir: folder of which a copy goes with it; the current one when None.
        wait: show what it prints until it ends.

    Returns:
        0; when waited for, 1 if the job has not succeeded, and 130 if the waiting was interrupted.

    Raises:
        ConfigError: with nothing left on the cluster: on what the command would refuse, a server that does not
            answer, another version there, a job of that name that has ended or is of another command.
        JobServerError: when the server has gone.
    """
    # These load torch; the other commands do without.
    from cifar_ray.orchestration.jobs import packing, submission

    asked = submission.read(words, name)
    package = packing.look(Path(working_dir or "."), asked.file)
    server = jobserver.connect(address)
    jobserver.check_versions(server)
    known = {str(job.submission_id): job for job in server.jobs()}
    if asked.numbered:
        same = (label for label, job in known.items() if _identity(job) == asked.identity and not _has_ended(job))
        asked = asked.called(next(same, None), known)
    console = Console()
    adopted = asked.name in known
    if adopted:
        _adopt(server, known[asked.name], asked)
        console.line(f"job {asked.name} is under way already; nothing was submitted")
    else:
        for line in package.in_words():
            console.line(line)
        with tempfile.TemporaryDirectory() as copy:
            package.copy(Path(copy))
            server.call(
                server.client.submit_job,
                submission_id=asked.name,
                entrypoint=asked.entrypoint(package.root),
                runtime_env=_environment(copy if package.files else None),
                metadata={_COMMAND: asked.command, _IDENTITY: asked.identity},
            )
        console.line(f"job {asked.name} submitted to {server.address}: {asked.command}")
    console.line(f"  follow it: {server.command('logs', asked.name, '--follow')}")
    console.line(f"  stop it:   {server.command('stop', asked.name)}")
    try:
        if not adopted:  # whatever version of cifar_ray that was submitted with; it may not speak as this one does
            _await_beginning(server, asked.name)
        return _followed(server, asked.name) if wait else 0
    except KeyboardInterrupt:
        return _left(server, asked.name)


def table(address: str | None) -> list[tuple[str, ...]]:
    """Every job that was submitted to a server: name, status, command, start in local time, and duration."""
    rows: list[tuple[str, ...]] = []
    for job in jobserver.connect(address).jobs():
        begun, ended = (job.start_time or 0) / 1000, (job.end_time or 0) / 1000
        lasted = (ended or time.time()) - begun
        start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun))
        command = (job.metadata or {}).get(_COMMAND, job.entrypoint)
        rows.append((str(job.submission_id), job.status.value, start, duration(lasted), command))
    return rows


def logs(name: str, address: str | None, follow: bool) -> int:
    """Show what a job has printed.

    Args:
        name: the job's.
        address: of the job server.
        follow: go on until the job ends.

    Returns:
        0; when followed, as for :func:`submit`.

    Raises:
        ConfigError: when there is no such job, or no server.
        JobServerError: when the server has gone.
    """
    server = jobserver.connect(address)
    server.job(name)
    try:
        if follow:
            return _followed(server, name)
        _show(server.log(name))
        return 0
    except KeyboardInterrupt:
        return _left(server, name)


def stop(name: str, address: str | None) -> None:
    """End a job as an interrupted command ends, with its run recorded as KILLED, and wait for that.

    Raises:
        ConfigError: when there is no such job, or no server.
        JobServerError: when the server has gone.
    """
    server = jobserver.connect(address)
    job = server.job(name)
    if _has_ended(job):
        Console().line(f"job {name} has ended already ({job.status.value})")
        return
    begin = told = time.monotonic()
    server.call(server.client.stop_job, name)
    with Console() as console:
        console.doing(f"stopping job {name}; its run is being recorded")
        while not _has_ended(job := server.job(name)):
            time.sleep(_POLL_S)
            if time.monotonic() - told > _PROGRESS_S:
                told = time.monotonic()
                console.doing(f"stopping job {name} for {duration(told - begin)}")
        console.line(f"job {name} has ended ({job.status.value}) after {duration(time.monotonic() - begin)}")


def _environment(copy: str | None) -> dict[str, Any]:
    """Ray's runtime environment of a job: its working folder, and what its processes are told."""
    variables = {
        runtext.SUBMITTED_WITH: __version__,
        _STOP_WAIT: os.environ.get(_STOP_WAIT, _STOP_WAIT_S),  # read by the job's supervisor
    }
    return {"env_vars": variables, **({"working_dir": copy} if copy else {})}


def _identity(job: JobDetails) -> str | None:
    return (job.metadata or {}).get(_IDENTITY)


def _has_ended(job: JobDetails) -> bool:
    return bool(job.status.is_terminal())


def _adopt(server: JobServer, job: JobDetails, asked: Submission) -> None:
    """Make sure that a job which is there is the one that is asked for, and goes on.

    Raises:
        ConfigError: when it is not, or does not.
    """
    taken = f"must be new at {server.address}, and {asked.name!r}"
    if _identity(job) != asked.identity:
        command = (job.metadata or {}).get(_COMMAND, job.entrypoint)
        raise ConfigError("name", f"{taken} is another job there: {command}")
    if _has_ended(job):
        on = "" if job.status == JobStatus.SUCCEEDED else f"; `cifar-ray submit -- {asked.continued_by}` continues it"
        raise ConfigError("name", f"{taken} has ended there ({job.status.value}){on}")


def _followed(server: JobServer, name: str) -> int:
    """The exit status of a job, with all that it prints shown until then."""
    status = _follow(server, name)
    print(f"job {name} has ended ({status.value})", file=sys.stderr)
    return 0 if status == JobStatus.SUCCEEDED else 1


def _left(server: JobServer, name: str) -> int:
    """The exit status of whoever has waited for a job and was interrupted."""
    ways = f"`{server.command('logs', name, '--follow')}` follows it, `{server.command('stop', name)}` stops it"
    print(f"job {name} goes on; {ways}", file=sys.stderr)
    return 130


def _await_beginning(server: JobServer, name: str) -> None:
    """Wait until the command itself has said something.

    Raises:
        ConfigError: when the cluster could not begin it, with the job taken away again.
    """
    told = time.monotonic()
    while runtext.greeting() not in (log := server.log(name)):
        job = server.job(name)
        if _has_ended(job) and runtext.greeting() not in (log := server.log(name)):
            _take_away(server, name)
            raise ConfigError("", f"the cluster cannot begin job {name}: {_reason(log or job.message or '')}")
        time.sleep(_POLL_S)
        if time.monotonic() - told > _PROGRESS_S:
            told = time.monotonic()
            Console().line(f"waiting for the cluster to begin job {name} ({job.status.value})")


def _take_away(server: JobServer, name: str) -> None:
    """Have the server forget a job that has ended."""
    end = time.monotonic() + _PATIENCE_S
    while server.find(name) is not None and time.monotonic() < end:
        server.call(server.client.delete_job, name)
        # Who watches over it there looks every second, and may write it down once more, as one that has died.
        time.sleep(_FORGOTTEN_S)


def _reason(log: str) -> str:
    """Why a command has not come to speak: it says so itself, or the cluster's shell or Python does."""
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it says nothing")
    if last.startswith("error: "):
        return last.removeprefix("error: ")
    return f"{last} (Ray must be started there with cifar_ray's own `python` first in PATH)"


def _follow(server: JobServer, name: str) -> JobStatus:
    """Show what a job prints until it ends, through interruptions of the connection."""
    tail = _Tail(server.client, name)
    heard = time.monotonic()
    while True:
        # The connection has gone, or nothing has come for a while: it is asked for again.
        with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError, OSError, RuntimeError):
            asyncio.run(tail.show())
        try:
            job = server.job(name)
            heard = time.monotonic()
            if _has_ended(job):
                tail.show_rest(server.log(name))
                return job.status
        except JobServerError:
            if time.monotonic() - heard > _PATIENCE_S:
                raise
        time.sleep(_POLL_S)


@dataclass
class _Tail:
    """What a job prints, each piece once."""

    client: JobSubmissionClient
    name: str
    _shown: int = field(default=0)

    async def show(self) -> None:
        """Show what is new until the job ends or the connection does; the server begins at the beginning.

        Raises:
            asyncio.TimeoutError: after a silence, which may be the job's or that of a tunnel that has stalled.
        """
        position = 0
        pieces = aiter(self.client.tail_job_logs(self.name))
        while True:
            try:
                text = await asyncio.wait_for(anext(pieces), _SILENCE_S)
            except StopAsyncIteration:
                return
            new = text[max(self._shown - position, 0) :]
            position += len(text)
            self._shown += len(new)
            _show(new)

    def show_rest(self, log: str) -> None:
        """Show what is left of the whole log."""
        _show(log[self._shown :])
        self._shown = len(log)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
