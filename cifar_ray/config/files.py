"""Paths and addresses that a person gives, and files that are written whole."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from cifar_ray.config.errors import ConfigError, brief

ADDRESSES = {
    "tracking_uri": "MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, "
    "for a server; a database has a way of its own, such as ~/.pgpass",
    "storage": "keys belong in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS",
    "address": "Ray reads its token from RAY_AUTH_TOKEN_PATH, else ~/.ray/auth_token",
}
"""The options that are addresses, and what to do in place of a secret in one."""

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_PASSWORD = re.compile("[^@?]*:[^@]*@")
_SECRET_OPTION = re.compile(r"(passw|passphrase|pwd|token|secret|credential|api_?key|access_?key)\w*=", re.IGNORECASE)


def absolute(key: str, path: str) -> Path:
    """A path that a person has given, without ``~`` and independent of the working folder."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(key, f"must begin with the home folder of somebody who has one, got {path!r}") from None


def existing(key: str, text: str) -> Path | None:
    """The file that a text names, absolute; None when there is none, as when it names something else."""
    path = absolute(key, text)
    with suppress(OSError, ValueError):  # a name that is too long, a null byte
        return path if path.is_file() else None
    return None


def output(key: str, text: str, overwrite: bool) -> Path:
    """A file that a command is to write, of which it is known before anything is computed that it can be."""
    path = absolute(key, text)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(key, f"must be a file that can be written, got {brief(text)}")
    if not overwrite and os.path.lexists(path):
        raise ConfigError(key, f"must be a new file, and {text} is there; --overwrite replaces it")
    return path


def folder(key: str, text: str) -> Path:
    """A folder that a person has given."""
    if not text or "://" in text:
        raise ConfigError(key, f"must be a folder here, on this machine or mounted, got {text!r}")
    return absolute(key, text)


def home() -> Path:
    """This program's folder in the home folder.

    Raises:
        ConfigError: where there is no home folder, as in a container whose user has only a number.
    """
    try:
        return (Path.home() / ".cifar_ray").absolute()
    except RuntimeError:
        problem = "this user has no home folder: set HOME to a folder that can be written, for runs, data and MLflow"
        raise ConfigError("", problem) from None


def storage(text: str | None) -> Path:
    """The folder of all runs: the one given, or one in the home folder."""
    return folder("storage", text) if text else home() / "runs"


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that is never seen half written; a text as UTF-8.

    Raises:
        OSError: when it cannot be written; what was there before is untouched.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def check_address(key: str, address: str | None) -> None:
    """Refuse an address with a secret in it, without repeating it: addresses are shown, recorded, and seen by ``ps``.

    A database's may name a user; in any other, a user may be a token, and so may what follows a ? or #.
    """
    if address is None or (key == "storage" and not re.match(r"\w+:/", address)):  # a folder
        return
    scheme, _, rest = address.partition("://")
    if scheme.partition("+")[0] in _DATABASES:
        has_secret = _PASSWORD.match(rest) or _SECRET_OPTION.search(unquote(rest))
    else:
        has_secret = re.search("[@?#]", address)
    if has_secret:
        raise ConfigError(key, f"must not have a user, password or token in it, nor a ? or #; {ADDRESSES[key]}")
