"""Addresses of stores and clusters, which must hold no secrets."""

from __future__ import annotations

import re
from urllib.parse import unquote

from cifar_ray.config.errors import ConfigError

_INSTEAD = {
    "tracking_uri": "MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, "
    "for a server; a database has a way of its own, such as ~/.pgpass",
    "storage": "keys belong in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS",
    "address": "Ray reads its token from RAY_AUTH_TOKEN_PATH, else ~/.ray/auth_token",
}
KEYS = tuple(_INSTEAD)
"""The options that are addresses."""

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_USER = re.compile(r"[^/?#]*@")
_PASSWORD = re.compile(r"[^/?#@]*:(?!\d+([/#][^@?]*)?(\?|$)).*@", re.DOTALL)  # a port is none, unless an @ follows
_SECRET_OPTION = re.compile(r"(passw|passphrase|pwd|token|secret|credential|api_?key|access_?key)\w*=", re.IGNORECASE)


def check(key: str, address: str | None) -> None:
    """Refuse an address with a secret in it, without repeating it: addresses are shown, recorded, and seen by ``ps``.

    A database's may name a user; in any other, a user may be a token, also where slashes are missing or too many.

    Raises:
        ConfigError: of ``key``, one of :data:`KEYS`, saying where the secret belongs.
    """
    scheme, separator, rest = (address or "").partition("://")
    if not separator:
        is_path = key != "address" and re.match(r"[.~]|/(?!/)", scheme)
        if is_path or (key == "storage" and not re.search(":.*@", scheme)):
            return
        scheme, rest = "", scheme
    rest = rest.lstrip("/")
    named = re.split("[?#]", rest, maxsplit=1)
    options = unquote(named[1]) if len(named) > 1 else ""
    if scheme.partition("+")[0] in _DATABASES:
        secret = _SECRET_OPTION.search(options) is not None
    else:
        secret = bool(_USER.match(rest)) if separator else "@" in rest
        if options and not secret:
            raise ConfigError(key, f"must not have a ? or #, after which there may be a secret; {_INSTEAD[key]}")
    if secret or _PASSWORD.match(rest):
        raise ConfigError(key, f"must not have a user, password or token in it; {_INSTEAD[key]}")
