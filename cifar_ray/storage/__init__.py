"""Where runs are kept: a folder, or a prefix in an object store. Nothing here knows Ray or MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cifar_ray.config.errors import ConfigError
from cifar_ray.storage.folder import DESCRIPTION, Folder, Held, LocalFolder, persistently, reason
from cifar_ray.storage.lease import Lease
from cifar_ray.storage.objects import SCHEMES, ObjectFolder, StorageError, parse

__all__ = [
    "DESCRIPTION",
    "SCHEMES",
    "Folder",
    "Held",
    "Lease",
    "LocalFolder",
    "ObjectFolder",
    "StorageError",
    "at",
    "persistently",
    "reason",
    "refusal",
    "refusing",
]


def at(given: str | None) -> Folder:
    """The folder that a person has named, or that a record names; the usual one when None.

    Raises:
        ConfigError: when it is neither a folder nor in an object store that this program knows, or the store
            does not tell where the bucket is.
    """
    return parse(given) if given is not None and "://" in given else LocalFolder.at(given)


def refusal(folder: Folder, error: OSError) -> ConfigError:
    """What to say of a folder that cannot be read or written."""
    kind = "a folder that can be written" if isinstance(folder, LocalFolder) else "a place that can be written"
    return ConfigError("storage", f"must be {kind}; {folder.address}: {reason(error)}")


@contextmanager
def refusing(folder: Folder) -> Iterator[None]:
    """Within it, an ``OSError`` is a ``ConfigError`` that says of ``folder`` why it cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise refusal(folder, error) from None
