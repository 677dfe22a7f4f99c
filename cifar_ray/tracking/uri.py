"""Where the tracking store is, and what can be told of it without MLflow, whose import takes a second or two."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError


def resolve_uri(given: str | None) -> str:
    """The tracking URI: the one given, ``MLFLOW_TRACKING_URI``, or SQLite at one place in the home folder.

    Raises:
        ConfigError: when it is relative, since it would then mean another place in every process, or has a
            secret in it.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return _at_home()
    files.check_address("tracking_uri", uri)
    scheme = uri.split(":", 1)[0] if "://" in uri else ""
    if not scheme or scheme == "file" or (scheme.startswith("sqlite") and sqlite_path(uri) is None):
        raise ConfigError(
            "tracking_uri", f"must be http(s)://HOST:PORT or sqlite:////absolute/path.db (four slashes), got {uri!r}"
        )
    return uri


def _at_home() -> str:
    return f"sqlite:///{files.home() / 'mlflow.db'}"


def flag(uri: str) -> str:
    """The flag, after a space, with which another command finds the store; empty for the one it finds by itself."""
    given = os.environ.get("MLFLOW_TRACKING_URI")
    return "" if uri == (given or _at_home()) else f" --tracking-uri {shlex.quote(uri)}"


def is_server(uri: str) -> bool:
    """Whether a tracking URI is that of a server."""
    return uri.startswith(("http://", "https://"))


def exists(uri: str) -> bool:
    """Whether a SQLite store exists; other stores are assumed to exist."""
    path = sqlite_path(uri)
    return path is None or path.exists()


def sqlite_path(uri: str) -> Path | None:
    """The file of an absolute SQLite URI; None for any other URI."""
    match = re.fullmatch(r"sqlite:///(/[^?]+)(\?.*)?", uri)
    return Path(match[1]) if match else None
