"""Where the tracking store is, and what can be told of it without MLflow, whose import takes a second or two."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from cifar_ray.config import addresses, files
from cifar_ray.config.errors import ConfigError

SWEEP_TAG = "cifar_ray.sweep"
"""Tag of a sweep and of each of its runs: the sweep's name."""


def resolve_uri(given: str | None) -> str:
    """The tracking URI: the one given, ``MLFLOW_TRACKING_URI``, or SQLite at one place in the home folder.

    Raises:
        ConfigError: when it is relative, since it would then mean another place in every process, or has a
            secret in it.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return _at_home()
    addresses.check("tracking_uri", uri)
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


def lacks(uri: str, run: str) -> bool:
    """Whether a SQLite store certainly has no run or sweep of that name or id; False when only MLflow can tell."""
    path = sqlite_path(uri)
    if path is None or not path.exists():
        return path is not None
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=1)) as database:
            named = database.execute("SELECT 1 FROM runs WHERE name = ? OR run_uuid = ? LIMIT 1", (run, run)).fetchone()
            # Whose run a person has renamed in MLflow's pages is found by its tag.
            tagged = "SELECT 1 FROM tags WHERE key = ? AND value = ? LIMIT 1"
            return named is None and database.execute(tagged, (SWEEP_TAG, run)).fetchone() is None
    except (sqlite3.Error, UnicodeEncodeError):  # no database, another layout, in use; a name that is no UTF-8
        return False


def no_such(kind: str, uri: str, name: str) -> ConfigError:
    """The error about a ``kind``, such as ``run`` or ``sweep``, that is not in the store."""
    return ConfigError("", f"there is no {kind} {name!r} in {uri}; a {kind} is named by its name or MLflow id")


def sqlite_path(uri: str) -> Path | None:
    """The file of an absolute SQLite URI; None for any other URI."""
    match = re.fullmatch(r"sqlite:///(/[^?]+)(\?.*)?", uri)
    return Path(match[1]) if match else None
