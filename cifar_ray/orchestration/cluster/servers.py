"""Which Ray cluster is asked for, and whether anything listens there, without the import of Ray."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import fork_server
from cifar_ray.tracking.variables import variables

JOB_SERVER_VARIABLE, _JOB_SERVER = "RAY_API_SERVER_ADDRESS", "http://127.0.0.1:8265"
UNAUTHORIZED = "does not take the token given here, if any; put its own into ~/.ray/auth_token, or RAY_AUTH_TOKEN"
_CONNECT_TIMEOUT_S = 5.0


def ray_head(address: str | None) -> str | None:
    """The Ray cluster to join; None when Ray is to be started here, which Ray calls ``local``.

    Raises:
        ConfigError: when the address has a secret in it.
    """
    chosen = address or os.environ.get("RAY_ADDRESS")
    files.check_address("address", chosen)
    return None if chosen in (None, "", "local") else chosen


def token_mode() -> dict[str, str]:
    """The variable by which Ray shows a cluster the token that is there; empty where RAY_AUTH_MODE decides.

    Ray reads it when it is imported. ``ray start`` does the same.
    """
    path = os.path.expanduser(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token")  # noqa: PTH111  as in tilde
    has_token = os.environ.get("RAY_AUTH_TOKEN") or Path(path).is_file()
    return {"RAY_AUTH_MODE": "token"} if has_token and "RAY_AUTH_MODE" not in os.environ else {}


@contextmanager
def before_ray(config: TrainConfig | None, changes: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Context manager to import Ray in: for a Ray started here, set the variables that Ray reads at its import only.

    Meanwhile the fork server imports, too. Under ``uv run`` its workers then start as without uv, and Ray listens on
    the loopback interface, if it is one node.

    Args:
        config: says whether Ray is started here; nothing is set when None.
        changes: fields of the config that have other values now.
    """
    now = {} if config is None else {**vars(config), **(changes or {})}
    names = []
    if config is not None and ray_head(now["address"]) is None:
        fork_server.prepare()
        names = ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"]
        names += ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] * (now["local_nodes"] == 1)
    with variables({name: "0" for name in names if name not in os.environ}):
        yield


def reach_chosen(address: str | None) -> None:
    """Check that something listens at HOST:PORT of the cluster that ``--address`` or RAY_ADDRESS names, if any does.

    Ray itself would try for a minute.

    Raises:
        ConfigError: when it is not an address, or nothing listens there.
    """
    head = ray_head(address)
    if head is None or head == "auto":  # Ray finds that one by itself
        return
    host, _, port = head.rpartition(":")
    if "://" in head or not host or not port.isdecimal():
        raise ConfigError("address", f"must be HOST:PORT of a Ray head, or auto, got {head!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError("address", f"must be that of a running Ray head; {head!r}: {error}") from None


def job_server(address: str | None) -> str:
    """The job server to ask: the one given, RAY_API_SERVER_ADDRESS, or port 8265 of this machine.

    Raises:
        ConfigError: when it is not ``http://HOST:PORT``.
    """
    url = (address or os.environ.get(JOB_SERVER_VARIABLE) or _JOB_SERVER).rstrip("/")
    if not re.fullmatch(r"https?://[^/@\s]+", url):
        shown = re.sub(".*@", "...@", url)  # do not print a password
        raise ConfigError("address", f"must be http://HOST:PORT of a Ray job server, got {shown!r}")
    return url
