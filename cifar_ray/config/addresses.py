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
_PASSWORD = re.compile("[^@?]*:[^@]*@")
_SECRET_OPTION = re.compile(r"(passw|passphrase|pwd|token|secret|credential|api_?key|access_?key)\w*=", re.IGNORECASE)


def check(key: str, address: str | None) -> None:
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
        raise ConfigError(key, f"must not have a user, password or token in it, nor a ? or #; {_INSTEAD[key]}")
