"""The job server of a Ray cluster, which its head's dashboard is: reached over HTTP, often through an SSH tunnel."""

from __future__ import annotations

import http.client
import json
import logging
import os
import platform
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient, JobType

from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.cluster.ray_internals import get_auth_headers_if_auth_enabled

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_ADDRESS = "RAY_API_SERVER_ADDRESS"
_TIMEOUT_S = 20.0
_REQUEST_S = 120.0
"""Of Ray's client, in which a whole package may be on its way, or a log."""

T = TypeVar("T")


class JobServerError(CommandFailedError):
    """The server, or a job on it, does not do what is asked for; the sentence says why."""


class _Client(JobSubmissionClient):
    """Ray's client, which by itself waits for ever for a server behind a tunnel that has stalled."""

    def _do_request(self, *words: Any, **named: Any) -> requests.Response:
        return super()._do_request(*words, **named, timeout=_REQUEST_S)


@dataclass(frozen=True)
class JobServer:
    """A job server that has just answered.

    Attributes:
        address: ``http://HOST:PORT``.
        client: Ray's own client of it.
    """

    address: str
    client: JobSubmissionClient

    def call(self, method: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """What a method of the client returns.

        Raises:
            JobServerError: when the server has gone, or refuses.
        """
        try:
            return method(*arguments, **named)
        except (requests.RequestException, AuthenticationError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise JobServerError(f"the job server at {self.address} has gone, or refuses: {reason}") from None

    def jobs(self) -> list[JobDetails]:
        """Every job that was submitted to it, the oldest first."""
        found = [job for job in self.call(self.client.list_jobs) if job.type == JobType.SUBMISSION]
        return sorted(found, key=lambda job: job.start_time or 0)

    def find(self, name: str) -> JobDetails | None:
        """The job of that name, if there is one."""
        return next((job for job in self.jobs() if job.submission_id == name), None)

    def job(self, name: str) -> JobDetails:
        """The job of that name.

        Raises:
            ConfigError: when there is none.
        """
        found = self.find(name)
        if found is None:
            raise ConfigError("", f"there is no job {name!r} at {self.address}; `{self.command('jobs')}` lists them")
        return found

    def log(self, name: str) -> str:
        """What a job has printed so far."""
        return self.call(self.client.get_job_logs, name)

    def command(self, *words: str) -> str:
        """A command of cifar-ray for this server."""
        usual = self.address == _chosen(None)
        return " ".join(["cifar-ray", *words, *([] if usual else ["--address", self.address])])


def connect(address: str | None) -> JobServer:
    """The job server at an address, with the token that Ray finds here.

    Args:
        address: ``http://HOST:PORT``; ``RAY_API_SERVER_ADDRESS``, or port 8265 on this machine, when None.

    Raises:
        ConfigError: when none answers there, or it does not take the token.
    """
    url = _chosen(address).rstrip("/")
    if not re.fullmatch(r"https?://[^/@\s]+", url):
        shown = re.sub(r"//.*@", "//...@", url)  # a password is not repeated
        raise ConfigError("address", f"must be http://HOST:PORT of a Ray job server, got {shown!r}")
    # Else it has notices of its own on what it uploads.
    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
    with connection.token():
        _get(url, "/api/version")
        before = os.environ.get(_ADDRESS)
        os.environ[_ADDRESS] = url  # goes before what the client is given
        try:
            return JobServer(url, _Client(url))
        except (requests.RequestException, AuthenticationError, RuntimeError, ValueError, OSError) as error:
            raise _refused(url, " ".join(str(error).split())[:300]) from None
        finally:
            if before is None:
                del os.environ[_ADDRESS]
            else:
                os.environ[_ADDRESS] = before


def check_versions(server: JobServer) -> None:
    """Make sure that the cluster understands a command as this machine does.

    Raises:
        ConfigError: when it has another Ray or Python.
    """
    with connection.token():
        there = _get(server.address, "/api/v0/cluster_metadata")["data"]
    if there["rayVersion"] != ray.__version__:
        raise ConfigError("", connection.other_version(server.address, "Ray", there["rayVersion"], ray.__version__))
    minor = there["pythonVersion"].rpartition(".")[0]
    if minor != ".".join(platform.python_version_tuple()[:2]):
        here = platform.python_version()
        raise ConfigError("", connection.other_version(server.address, "Python", there["pythonVersion"], here))


def _chosen(address: str | None) -> str:
    return address or os.environ.get(_ADDRESS) or DEFAULT_ADDRESS


def _get(url: str, path: str) -> dict[str, Any]:
    """What the server says, within a time; Ray's own client waits for ever."""
    try:
        request = urllib.request.Request(url + path, headers=get_auth_headers_if_auth_enabled({}))  # noqa: S310
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            said = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise ConfigError("", connection.wrong_token(url)) from None
        raise _refused(url, f"it answers with {error.code}") from None
    except AuthenticationError:  # a token that is asked for by RAY_AUTH_MODE, and is not there
        raise ConfigError("", connection.wrong_token(url)) from None
    except urllib.error.URLError as error:
        raise _refused(url, str(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:  # a tunnel whose other end is not there
        raise _refused(url, str(error) or type(error).__name__) from None
    except ValueError:
        raise _refused(url, "it answers something else") from None
    if not isinstance(said, dict):
        raise _refused(url, "it answers something else")
    return said


def _refused(url: str, reason: str) -> ConfigError:
    return ConfigError(
        "address",
        f"must be that of a Ray job server; {url}: {reason} (to one that listens on its own machine only, "
        "`ssh -N -L 8265:127.0.0.1:8265 HEAD` makes a way)",
    )
