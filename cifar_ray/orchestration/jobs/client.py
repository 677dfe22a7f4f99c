"""Submit a command to a Ray cluster as a job, through Ray's own client."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp  # which Ray's client needs
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from cifar_ray._version import __version__
from cifar_ray.config import command_line, files
from cifar_ray.config.errors import CommandFailedError, ConfigError, first_line
from cifar_ray.orchestration.cluster import optional, servers
from cifar_ray.orchestration.jobs import Submission
from cifar_ray.tracking.background import within

_STORE = "MLFLOW_TRACKING_URI"
_STOP_WAIT, _STOP_WAIT_S = "RAY_JOB_STOP_WAIT_TIME_S", "60"  # Ray's 3 s are too short to record an interrupted run
_HIDDEN = [".?*"]  # may hold secrets; Ray leaves out by itself what .gitignore lists
_REACHABLE = r"https?://(?!localhost\b|127\.|0\.0\.0\.0|\[::1?\])"
_REQUEST_S, _UPLOAD_S = 20.0, 600.0


def submit(asked: Submission, address: str | None, working_dir: str | None, wait: bool) -> int:
    """Run ``train``, ``resume`` or ``sweep`` on the cluster as a job; return the exit status, with ``wait`` its own.

    Args:
        asked: the command.
        address: of the job server.
        working_dir: the folder to send; the current one when None.
        wait: whether to print the job's output until it ends.

    Raises:
        ConfigError: no server answers, the name is taken, the folder is unfit, or MLFLOW_TRACKING_URI has a secret.
        CommandFailedError: the server has gone.
    """
    root = Path(working_dir or ".").absolute()
    if not root.is_dir() or root in (Path(os.path.expanduser("~")), Path(root.anchor)):  # noqa: PTH111
        raise ConfigError("working_dir", f"must be the folder of one piece of work, got {str(root)!r}")
    name, words, variables = asked.name, asked.words, _store(asked.tracking_uri)
    if (file := asked.file) is not None:
        whole = Path(file).resolve()
        there = os.path.relpath(whole, root.resolve())
        if there.startswith(".."):
            raise ConfigError("working_dir", f"must be a folder with the file that the command names, {whole}")
        words = [{file: there, f"--config={file}": f"--config={there}"}.get(word, word) for word in words]
    url = servers.job_server(address)
    mode = {name: value for name, value in os.environ.items() if name == "RAY_AUTH_MODE"} or servers.token_mode()
    client = _connect(url, mode)
    shown = {servers.JOB_SERVER_VARIABLE: url, **mode}  # go before an --address of Ray's command
    ray_job = " ".join([*map("=".join, shown.items()), "ray job"])
    for job in _ask(url, client.list_jobs):
        if job.submission_id == name:
            state = f"{name!r} is a job at {url} ({job.status.value})"
            raise ConfigError("name", f"must be new, and {state}; `{ray_job} logs --follow {name}` shows it")
    variables |= {
        command_line.SUBMITTED_WITH: __version__,
        _STOP_WAIT: os.environ.get(_STOP_WAIT, _STOP_WAIT_S),
        **{name: os.environ[name] for name in ("MLFLOW_EXPERIMENT_NAME",) if name in os.environ},
    }
    with suppress(KeyError, OSError):  # in a container, a person may have a number only
        variables[command_line.SUBMITTED_BY] = getpass.getuser()
    _ask(
        url,
        client.submit_job,
        submission_id=name,
        entrypoint=f"exec python -m cifar_ray.cli {shlex.join(words)}",  # exec: signals reach Python
        runtime_env={"working_dir": str(root), "excludes": _HIDDEN, "env_vars": variables},
        seconds=_UPLOAD_S,
    )
    print(f"job {name} submitted to {url}: {shlex.join(['cifar-ray', *asked.words])}")
    print(f"  follow it: {ray_job} logs --follow {name}")
    print(f"  stop it:   {ray_job} stop {name}", flush=True)
    return _follow(url, client, name) if wait else 0


def _connect(url: str, token: dict[str, str]) -> JobSubmissionClient:
    """Ray's client, where the server answers and takes the token."""
    try:
        with optional.environment(token | {servers.JOB_SERVER_VARIABLE: url}):  # goes before the argument
            return within(_REQUEST_S, JobSubmissionClient, url)
    except AuthenticationError:
        raise ConfigError("", f"the Ray cluster at {url} {servers.UNAUTHORIZED}") from None
    except Exception:  # another server may answer anything
        tunnel = "for a remote cluster, open a tunnel first: `ssh -N -L 8265:127.0.0.1:8265 HEAD`"
        problem = f"must be that of a Ray job server, and none answers at {url}; {tunnel}"
        raise ConfigError("address", problem) from None


def _ask(url: str, request: Callable[..., Any], *args: Any, seconds: float = _REQUEST_S, **options: Any) -> Any:
    """Return the answer to a request of Ray's client, which has no deadline by itself."""
    try:
        return within(seconds, request, *args, **options)
    except RuntimeError as error:
        problem = f"refuses: {' '.join(str(error).split())[:300]}"
    except OSError as error:  # those of requests among them
        problem = f"does not answer ({type(error).__name__})"
    raise CommandFailedError(f"the job server at {url} {problem}")


def _store(named: str | None) -> dict[str, str]:
    """The variable with this shell's MLflow store, unless the command names one or other machines do not reach it."""
    here = os.environ.get(_STORE)
    if named is not None or not here:
        return {}
    files.check_address("tracking_uri", here)
    if re.match(_REACHABLE, here):
        return {_STORE: here}
    print(f"note: {here} is on this machine, so records go to the cluster's own store; --tracking-uri names another")
    return {}


def _follow(url: str, client: JobSubmissionClient, name: str) -> int:
    """Print a job's output until it ends; return its exit status."""

    async def show() -> None:
        async for lines in client.tail_job_logs(name):
            print(lines, end="", flush=True)

    try:
        asyncio.run(show())
    except KeyboardInterrupt:
        print(f"job {name} continues", file=sys.stderr)
        return 130
    except (OSError, RuntimeError, aiohttp.ClientError) as error:
        raise CommandFailedError(f"job {name} continues, but {url} does not answer: {first_line(error)}") from None
    job = _ask(url, client.get_job_info, name)
    print(f"job {name} ended: {job.status.value}", file=sys.stderr)
    return 0 if job.status == JobStatus.SUCCEEDED else job.driver_exit_code or 1
