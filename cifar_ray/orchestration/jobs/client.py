"""Submit commands to a Ray cluster as jobs, list and follow them, and stop them, through Ray's own client."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import ipaddress
import itertools
import logging
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import ray
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient, JobType

from cifar_ray import __version__
from cifar_ray.config import addresses, command_line, servers
from cifar_ray.config.cluster_commands import JobsCommand, LogsCommand, StopCommand, SubmitCommand
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.display.run import Console, duration
from cifar_ray.orchestration.cluster import connection, ray_internals
from cifar_ray.orchestration.jobs import packing, submission

_COMMAND, _IDENTITY, _USER = "cifar_ray.command", "cifar_ray.identity", "cifar_ray.user"
_STORE = "MLFLOW_TRACKING_URI"
_STOP_WAIT, _STOP_WAIT_S = "RAY_JOB_STOP_WAIT_TIME_S", "60"  # Ray's 3 s are too short to record an interrupted run
_CONNECT_S = 20.0
_REQUEST_S = 120.0  # a request may upload a package
_POLL_S = 0.5
_SILENCE_S = 60.0
_RECONNECT_S = 120.0
_DELETE_S = 3.0


class JobServerError(CommandFailedError):
    """The job server refuses a request or no longer answers."""


class JobServer(JobSubmissionClient):
    """Ray's client with a timeout for each request, and with one sentence for each error.

    Args:
        address: ``http://HOST:PORT``; ``RAY_API_SERVER_ADDRESS``, else port 8265 of this machine, when None.

    Raises:
        ConfigError: no job server answers there, or it refuses the token.
    """

    def __init__(self, address: str | None) -> None:
        self.url = servers.job_server(address)
        self._flags = [] if self.url == servers.job_server(None) else ["--address", self.url]
        for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
            logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)  # each is set to INFO by Ray
        self._timeout_s = _CONNECT_S
        try:
            with (
                connection.token(),
                ray_internals.environment({servers.JOB_SERVER_VARIABLE: self.url}),
            ):  # goes before the argument
                super().__init__(self.url)
        except AuthenticationError:
            raise ConfigError("", connection.wrong_token(self.url)) from None
        except Exception as error:  # another server may answer anything
            raise servers.no_job_server(address, self.url, _reason(error)) from None
        self._timeout_s = _REQUEST_S

    def _do_request(self, *words: Any, **named: Any) -> requests.Response:
        try:
            return super()._do_request(*words, **named, timeout=self._timeout_s)
        except requests.RequestException as error:  # without a timeout, a stalled tunnel would block forever
            raise JobServerError(f"the job server at {self.url} does not answer ({_reason(error)})") from None

    def _raise_error(self, r: requests.Response) -> None:
        raise JobServerError(f"the job server at {self.url} refuses: {' '.join(r.text.split())[:300]}")

    def check_versions(self) -> None:
        """Raise ConfigError when the cluster has another Ray or Python than this machine."""
        there = self._do_request("GET", "/api/v0/cluster_metadata").json()["data"]
        if there["rayVersion"] != ray.__version__:
            raise ConfigError("", connection.other_version(self.url, "Ray", there["rayVersion"], ray.__version__))
        python = platform.python_version()
        if there["pythonVersion"].split(".")[:2] != python.split(".")[:2]:
            raise ConfigError("", connection.other_version(self.url, "Python", there["pythonVersion"], python))

    def jobs(self) -> dict[str, JobDetails]:
        """Submitted jobs by name, the oldest first."""
        found = [job for job in self.list_jobs() if job.type == JobType.SUBMISSION]
        return {str(job.submission_id): job for job in sorted(found, key=lambda job: job.start_time or 0)}

    def job(self, name: str) -> JobDetails:
        """Return the job of that name, or raise ConfigError."""
        job = self.jobs().get(name)
        if job is None:
            raise ConfigError("", f"there is no job {name!r} at {self.url}; `{self.command('jobs')}` lists them")
        return job

    def command(self, *words: str) -> str:
        """Return the cifar-ray command that reaches this server."""
        return " ".join(["cifar-ray", *words, *self._flags])


def submit(asked: submission.Submission, command: SubmitCommand) -> int:
    """Run ``train``, ``resume`` or ``sweep`` on the cluster as a job; do nothing when the same job already runs.

    Args:
        asked: what the job runs.
        command: the options of ``cifar-ray submit``.

    Returns:
        Exit status: 0; with ``--wait``, 1 when the job failed and 130 on Ctrl-C.

    Raises:
        ConfigError: the command is wrong, no server answers, versions differ, the name is taken,
            MLFLOW_TRACKING_URI has a secret in it, or the job could not start; nothing is left on the cluster.
        JobServerError: the server has gone.
    """
    root = packing.root(Path(command.working_dir or "."))
    entrypoint = asked.entrypoint(root)
    passed_on, store = _store(asked.tracking_uri)
    server = JobServer(command.address)
    server.check_versions()
    jobs = server.jobs()
    name = _name(asked, jobs)
    running = name in jobs
    console = Console()
    if running:
        _check_same(server, name, jobs[name], asked)
        console.line(f"job {name} is already running; nothing was submitted")
    else:
        user = _user()
        variables = {
            command_line.SUBMITTED_WITH: __version__,
            command_line.SUBMITTED_BY: user,
            _STOP_WAIT: os.environ.get(_STOP_WAIT, _STOP_WAIT_S),
            **passed_on,
        }
        with packing.packed(root, asked.file, console.line) as environment:
            server.submit_job(
                submission_id=name,
                entrypoint=entrypoint,
                runtime_env={"env_vars": variables, **environment},
                metadata={_COMMAND: asked.command, _IDENTITY: asked.identity, _USER: user},
            )
        console.line(f"job {name} submitted to {server.url}: {asked.command}")
        console.line(f"  records go to {store}")
    console.line(f"  follow it: {server.command('logs', name, '--follow')}")
    console.line(f"  stop it:   {server.command('stop', name)}")
    try:
        if not running:  # a running one may have another version of cifar_ray, with another first line
            _wait_for_start(server, name)
        return _follow(server, name) if command.wait else 0
    except KeyboardInterrupt:
        return _detach(server, name)


def show_jobs(command: JobsCommand) -> None:
    """Print name, status, local start time, duration and command of every job; errors as :func:`submit`."""
    rows: list[tuple[str, ...]] = []
    for name, job in JobServer(command.address).jobs().items():
        start, end = (job.start_time or 0) / 1000, (job.end_time or 0) / 1000
        begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start))
        rows.append((name, job.status.value, begun, duration((end or time.time()) - start), _command(job)))
    Console().columns(("job", "status", "started", "duration", "command"), rows)


def logs(command: LogsCommand) -> int:
    """Print a job's output, with ``--follow`` until the job ends; exit status and errors as :func:`submit`."""
    server = JobServer(command.address)
    server.job(command.job)
    try:
        if command.follow:
            return _follow(server, command.job)
        print(server.get_job_logs(command.job), end="", flush=True)
        return 0
    except KeyboardInterrupt:
        return _detach(server, command.job)


def stop(command: StopCommand) -> None:
    """Interrupt a job, so that its run is recorded as KILLED, and wait for its end; errors as :func:`submit`."""
    server, name = JobServer(command.address), command.job
    job = server.job(name)
    if job.status.is_terminal():
        Console().line(f"job {name} has already ended: {job.status.value}")
        return
    begin = time.monotonic()
    server.stop_job(name)
    with Console() as console:
        console.doing(f"stopping job {name} and recording its run")
        while not (job := server.job(name)).status.is_terminal():
            time.sleep(_POLL_S)
        console.line(f"job {name} ended after {duration(time.monotonic() - begin)}: {job.status.value}")


def _store(named: str | None) -> tuple[dict[str, str], str]:
    """Choose the MLflow store of a job.

    Args:
        named: the store that the command itself names.

    Returns:
        The variables that tell the job, and the store in words.

    Raises:
        ConfigError: when MLFLOW_TRACKING_URI has a secret in it.
    """
    if named is not None:
        return {}, f"{named} (--tracking-uri)"
    clusters = f"the cluster's own store ({_STORE} there, else ~/.cifar_ray/mlflow.db)"
    here = os.environ.get(_STORE)
    if not here:
        return {}, clusters
    addresses.check("tracking_uri", here)
    if _is_reachable(here):
        return {_STORE: here}, f"{here} ({_STORE})"
    return {}, f"{clusters}, because {here} is an address on this machine; --tracking-uri after `--` names another"


def _is_reachable(uri: str) -> bool:
    """Whether other machines may reach a store: a server whose host is not this machine's loopback."""
    host = re.match(r"https?://(?:\[([^]]*)\]|([^/:]*))", uri)
    if host is None:
        return False
    name = host[1] or host[2]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name != "localhost" and not name.endswith(".localhost")
    return not (address.is_loopback or address.is_unspecified)


def _user() -> str:
    """The name of the person who submits; in a container, a person may have a number only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _name(asked: submission.Submission, jobs: Mapping[str, JobDetails]) -> str:
    """Return the job's name; a numbered one is that of the same job if it runs, else the first that is free."""
    if not asked.numbered:
        return asked.name
    for name, job in jobs.items():
        if _identity(job) == asked.identity and not job.status.is_terminal():
            return name
    return next(name for number in itertools.count(1) if (name := f"{asked.name}-{number}") not in jobs)


def _check_same(server: JobServer, name: str, job: JobDetails, asked: submission.Submission) -> None:
    """Raise ConfigError unless a job runs, and runs the command that is asked for."""
    if _identity(job) != asked.identity:
        raise ConfigError("name", f"must be new; {name!r} is another job at {server.url}: {_command(job)}")
    if job.status.is_terminal():
        on = "" if job.status == JobStatus.SUCCEEDED else f"; `cifar-ray submit -- {asked.continued_by}` continues it"
        raise ConfigError("name", f"must be new; job {name!r} has ended at {server.url} ({job.status.value}){on}")


def _wait_for_start(server: JobServer, name: str) -> None:
    """Wait for the command's first line; if the job ends without it, delete the job and raise ConfigError."""
    Console().line(f"waiting for job {name} to start")
    while True:
        ended = (job := server.job(name)).status.is_terminal()  # before its log, so that the log is complete
        log = server.get_job_logs(name)
        if command_line.greeting() in log:
            return
        if ended:
            break
        time.sleep(_POLL_S)
    give_up = time.monotonic() + _RECONNECT_S
    while name in server.jobs() and time.monotonic() < give_up:
        server.delete_job(name)
        time.sleep(_DELETE_S)  # Ray's supervisor of the job may write it down once more
    raise ConfigError("", f"the cluster cannot start job {name}: {_complaint(log or job.message or '')}")


def _complaint(log: str) -> str:
    """Return why a command has not started: its own error, or the last line of the cluster's shell or Python."""
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it printed nothing")
    if last.startswith("error: "):
        return last.removeprefix("error: ")
    return f"{last} (`python` on the cluster's PATH must be the one that has cifar_ray)"


def _follow(server: JobServer, name: str) -> int:
    """Print a job's output until it ends, through interruptions of the connection; return the exit status."""
    shown, answered = 0, time.monotonic()
    while True:
        more = asyncio.run(_print_new(server, name, shown))
        if more > shown:
            shown, answered = more, time.monotonic()
        try:
            job = server.job(name)
            answered = time.monotonic()
            if job.status.is_terminal():
                print(server.get_job_logs(name)[shown:], end="", flush=True)
                print(f"job {name} ended: {job.status.value}", file=sys.stderr)
                return 0 if job.status == JobStatus.SUCCEEDED else 1
        except JobServerError:
            if time.monotonic() - answered > _RECONNECT_S:
                raise
        time.sleep(_POLL_S)


async def _print_new(client: JobSubmissionClient, name: str, shown: int) -> int:
    """Print a job's output beyond the first ``shown`` characters, until it ends, or the connection does or is silent.

    Returns:
        How many characters have been shown now. The server sends the log from its beginning each time.
    """
    position = 0
    pieces = aiter(client.tail_job_logs(name))
    with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError, RuntimeError, StopAsyncIteration):
        while True:
            piece = await asyncio.wait_for(anext(pieces), _SILENCE_S)
            print(piece[max(shown - position, 0) :], end="", flush=True)
            position += len(piece)
            shown = max(shown, position)
    return shown


def _detach(server: JobServer, name: str) -> int:
    """Say how to reach a job that continues; return the exit status of Ctrl-C."""
    ways = f"`{server.command('logs', name, '--follow')}` follows it, `{server.command('stop', name)}` stops it"
    print(f"job {name} continues; {ways}", file=sys.stderr)
    return 130


def _identity(job: JobDetails) -> str | None:
    return (job.metadata or {}).get(_IDENTITY)


def _command(job: JobDetails) -> str:
    return (job.metadata or {}).get(_COMMAND) or job.entrypoint


def _reason(error: Exception) -> str:
    known = (words for words in ("timed out", "refused", "closed", "reset") if words in str(error))
    return next(known, type(error).__name__)
