"""Submit a command to a Ray cluster as a job, through Ray's own client."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient, JobType

from cifar_ray._version import __version__
from cifar_ray.config import addresses, command_line
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import connection, optional, servers
from cifar_ray.orchestration.jobs.submission import Submission
from cifar_ray.tracking.background import Overdue, within

_COMMAND, _STORE = "cifar_ray.command", "MLFLOW_TRACKING_URI"
_STOP_WAIT, _STOP_WAIT_S = "RAY_JOB_STOP_WAIT_TIME_S", "60"  # Ray's 3 s are too short to record an interrupted run
_HIDDEN = [".?*"]  # may hold secrets; Ray leaves out by itself what .gitignore lists
_REACHABLE = r"https?://(?!localhost\b|127\.|0\.0\.0\.0|\[::1?\])"
_REQUEST_S, _UPLOAD_S = 20.0, 600.0
_POLL_S = 1.0
_RECONNECT_S = 120.0
T = TypeVar("T")


class JobServerError(CommandFailedError):
    """The job server refuses a request or no longer answers."""


class JobServer:
    """Ray's client with a deadline for each request, which Ray's has not, and one sentence for each error.

    Raises:
        ConfigError: no job server answers at the address, or it refuses the token.
    """

    def __init__(self, address: str | None) -> None:
        self.url = servers.job_server(address)
        mode = servers.token_mode()
        self.has_token = bool(mode) or os.environ.get("RAY_AUTH_MODE") == "token"
        variables = mode | {servers.JOB_SERVER_VARIABLE: self.url}  # goes before the argument
        try:
            with optional.environment(variables):
                self.client = within(_REQUEST_S, JobSubmissionClient, self.url)
        except AuthenticationError:
            raise ConfigError("", connection.wrong_token(self.url)) from None
        except Exception as error:  # another server may answer anything
            raise servers.no_job_server(address, self.url, _reason(error)) from None

    def ask(self, request: Callable[..., T], *args: Any, seconds: float | None = None, **options: Any) -> T:
        """Return the answer to a request of ``client``; JobServerError without one."""
        try:
            return within(seconds or _REQUEST_S, request, *args, **options)
        except RuntimeError as error:
            problem = f"refuses: {' '.join(str(error).split())[:300]}"
        except (OSError, Overdue) as error:  # those of requests among them
            problem = f"does not answer ({_reason(error)})"
        raise JobServerError(f"the job server at {self.url} {problem}")

    def jobs(self) -> dict[str, JobDetails]:
        """Submitted jobs by name, the oldest first."""
        jobs = [job for job in self.ask(self.client.list_jobs) if job.type == JobType.SUBMISSION]
        return {str(job.submission_id): job for job in sorted(jobs, key=lambda job: job.start_time or 0)}

    def command(self, *words: str) -> str:
        """Return the command of Ray's that reaches this server; the variables go before its ``--address``."""
        needed = {servers.JOB_SERVER_VARIABLE: self.url, **({"RAY_AUTH_MODE": "token"} if self.has_token else {})}
        return " ".join([*(f"{name}={value}" for name, value in needed.items()), "ray", "job", *words])


def submit(asked: Submission, address: str | None, working_dir: str | None, wait: bool) -> int:
    """Run ``train``, ``resume`` or ``sweep`` on the cluster as a job; return the exit status, with ``wait`` its own.

    Args:
        asked: the command.
        address: of the job server.
        working_dir: the folder to send; the current one when None.
        wait: whether to print the job's output until it ends.

    Raises:
        ConfigError: no server answers, the name is taken, the folder is unfit, or MLFLOW_TRACKING_URI has a secret.
        JobServerError: the server has gone.
    """
    root = Path(working_dir or ".").absolute()
    if not root.is_dir() or root in (Path(os.path.expanduser("~")), Path(root.anchor)):  # noqa: PTH111
        raise ConfigError("working_dir", f"must be the folder of one piece of work, got {str(root)!r}")
    words, (variables, store) = asked.words, _store(asked.tracking_uri)
    if (file := asked.file) is not None:
        whole = Path(file).resolve()
        if not whole.is_relative_to(root.resolve()):
            raise ConfigError("working_dir", f"must be a folder with the file that the command names, {whole}")
        there = str(whole.relative_to(root.resolve()))
        words = [{file: there, f"--config={file}": f"--config={there}"}.get(word, word) for word in words]
    server, console = JobServer(address), Console()
    jobs, name = server.jobs(), asked.name
    if asked.is_numbered:
        ended = [job for other, job in jobs.items() if other.rpartition("-")[0] == name and job.status.is_terminal()]
        name = f"{name}-{len(ended) + 1}"
    follow = server.command("logs", "--follow", name)
    if name in jobs:
        theirs = (jobs[name].metadata or {}).get(_COMMAND) or jobs[name].entrypoint
        state = f"{name!r} is a job at {server.url} ({jobs[name].status.value}): {theirs}"
        raise ConfigError("name", f"must be new; {state}; `{follow}` shows it")
    variables |= {
        command_line.SUBMITTED_WITH: __version__,
        command_line.SUBMITTED_BY: _user(),
        _STOP_WAIT: os.environ.get(_STOP_WAIT, _STOP_WAIT_S),
        **{name: os.environ[name] for name in ("MLFLOW_EXPERIMENT_NAME",) if name in os.environ},
    }
    typed = shlex.join(["cifar-ray", *asked.words])
    server.ask(
        server.client.submit_job,
        submission_id=name,
        entrypoint=f"exec python -m cifar_ray.cli {shlex.join(words)}",  # exec: signals reach Python
        runtime_env={"working_dir": str(root), "excludes": _HIDDEN, "env_vars": variables},
        metadata={_COMMAND: typed},
        seconds=_UPLOAD_S,
    )
    console.line(f"job {name} submitted to {server.url}: {typed}")
    console.line(f"  records go to {store}")
    console.line(f"  follow it: {follow}")
    console.line(f"  stop it:   {server.command('stop', name)}")
    return _follow(server, name) if wait else 0


def _store(named: str | None) -> tuple[dict[str, str], str]:
    """Return the variables that tell a job its MLflow store, unless its command names one, and the store in words."""
    here, clusters = os.environ.get(_STORE), f"the cluster's own store ({_STORE} there, else ~/.cifar_ray/mlflow.db)"
    if named is not None:
        return {}, f"{named} (--tracking-uri)"
    if not here:
        return {}, clusters
    addresses.check("tracking_uri", here)
    if re.match(_REACHABLE, here):
        return {_STORE: here}, f"{here} ({_STORE})"
    return {}, f"{clusters}, because {here} is an address on this machine; --tracking-uri after `--` names another"


def _user() -> str:
    """The name of the person who submits; in a container, a person may have a number only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _follow(server: JobServer, name: str) -> int:
    shown, answered = 0, time.monotonic()
    try:
        while True:
            try:
                job = server.ask(server.client.get_job_info, name)  # before its log, so that the log is complete
                log = server.ask(server.client.get_job_logs, name)
            except JobServerError:
                if time.monotonic() - answered > _RECONNECT_S:
                    raise
            else:
                print(log[shown:], end="", flush=True)
                shown, answered = len(log), time.monotonic()
                if job.status.is_terminal():
                    print(f"job {name} ended: {job.status.value}", file=sys.stderr)
                    return 0 if job.status == JobStatus.SUCCEEDED else job.driver_exit_code or 1
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        ways = f"`{server.command('logs', '--follow', name)}` follows it, `{server.command('stop', name)}` stops it"
        print(f"job {name} continues; {ways}", file=sys.stderr)
        return 130


def _reason(error: Exception) -> str:
    if isinstance(error, Overdue):
        return "timed out"
    known = (words for words in ("timed out", "refused", "closed", "reset") if words in str(error))
    return next(known, type(error).__name__)
