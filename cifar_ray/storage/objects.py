"""A prefix in an object store, ``s3://bucket/prefix`` or ``gs://bucket/prefix``, through PyArrow."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cifar_ray.config.errors import ConfigError
from cifar_ray.storage.folder import Held, reason
from cifar_ray.storage.lease import Lease

if TYPE_CHECKING:
    from pyarrow import fs

SCHEMES = ("s3", "gs")
_ADDRESS = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<bucket>[a-zA-Z0-9][\w.-]*)(?P<path>(/[^/?#]+)*)/?")
_TRIES = 3  # of one request, by the library
_GCS_PATIENCE = timedelta(seconds=15)


class StorageError(RuntimeError):
    """The store has not taken something, though it was tried again; the sentence says what and why."""


@dataclass(frozen=True)
class ObjectFolder:
    """A prefix in an object store. It can be sent to other processes, and has no secret in it.

    Attributes:
        scheme: one of :data:`SCHEMES`.
        path: bucket and prefix.
        endpoint: ``http(s)://HOST:PORT`` of a server that speaks the store's language; the cloud's own when empty.
        region: the bucket's, of S3.
    """

    scheme: str
    path: str
    endpoint: str = ""
    region: str = ""

    @property
    def address(self) -> str:
        return f"{self.scheme}://{self.path}"

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def here(self) -> Path:
        """A folder of this machine for what has to lie on a disk while somebody works on it."""
        name = hashlib.sha256(f"{self.endpoint} {self.address}".encode()).hexdigest()[:16]
        return Path.home() / ".cifar_ray" / "copies" / name

    def below(self, name: str) -> ObjectFolder:
        return ObjectFolder(self.scheme, f"{self.path}/{name}", self.endpoint, self.region)

    def exists(self) -> bool:
        return bool(self.names())

    def make(self) -> None:
        """Nothing is written: a prefix is there when an object is."""
        if self.exists():
            raise FileExistsError(self.address)

    def read(self, name: str) -> str:
        with self._store.open_input_stream(f"{self.path}/{name}") as stream:
            return stream.read().decode()

    def write(self, name: str, text: str) -> None:
        with self._store.open_output_stream(f"{self.path}/{name}") as stream:
            stream.write(text.encode())

    def names(self) -> Sequence[str]:
        from pyarrow import fs

        # Google's knows no folders, so only what lies in them tells of them.
        found = self._store.get_file_info(fs.FileSelector(self.path, recursive=True, allow_not_found=True))
        return sorted({info.path.removeprefix(f"{self.path}/").split("/")[0] for info in found})

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._store.delete_file(f"{self.path}/{name}")

    def remove(self) -> None:
        if self.exists():
            with contextlib.suppress(FileNotFoundError):  # of what another process has just removed
                self._store.delete_dir(self.path)

    def lock(self, refusal: Exception) -> Held:
        return Lease(self, refusal)

    def upload(self, file: Path) -> None:
        """Put a file of this machine into the prefix, under its own name."""
        from pyarrow import fs

        fs.copy_files(
            str(file),
            f"{self.path}/{file.name}",
            source_filesystem=fs.LocalFileSystem(),
            destination_filesystem=self._store,
        )

    def download(self, name: str, folder: Path) -> None:
        """Fetch an object into a folder of this machine; a ``FileNotFoundError`` when it is not there."""
        from pyarrow import fs

        folder.mkdir(parents=True, exist_ok=True)
        fs.copy_files(
            f"{self.path}/{name}",
            str(folder / name),
            source_filesystem=self._store,
            destination_filesystem=fs.LocalFileSystem(),
        )

    @property
    def _store(self) -> fs.FileSystem:
        return _connection(self.scheme, self.endpoint, self.region)


def parse(address: str) -> ObjectFolder:
    """The prefix that an address names.

    A server other than the cloud's own is named by ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``, or by
    ``STORAGE_EMULATOR_HOST``, as the clouds' own clients have it. Credentials are where these look for them.

    Raises:
        ConfigError: when it is none, or nobody tells the bucket's region.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or match["scheme"] not in SCHEMES or ".." in match["path"].split("/"):
        shown = re.sub(r"//.*@", "//...@", address)  # a secret is not repeated
        raise ConfigError(
            "storage", f"must be a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, without a query, got {shown!r}"
        )
    scheme, path = match["scheme"], match["bucket"] + match["path"]
    if scheme == "gs":
        return ObjectFolder(scheme, path, os.environ.get("STORAGE_EMULATOR_HOST", ""))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    if endpoint:
        return ObjectFolder(scheme, path, endpoint, region or "us-east-1")
    return ObjectFolder(scheme, path, region=_region(match["bucket"]))


@cache
def _region(bucket: str) -> str:
    """Where a bucket of S3 is, which may be elsewhere than what computes with it."""
    from pyarrow import fs

    try:
        return fs.resolve_s3_region(bucket)
    except OSError as error:
        raise ConfigError("storage", f"must be in a bucket that is there; s3://{bucket}: {reason(error)}") from None


@cache
def _connection(scheme: str, endpoint: str, region: str) -> fs.FileSystem:
    from pyarrow import fs

    if scheme == "s3":
        return fs.S3FileSystem(
            region=region,
            endpoint_override=endpoint or None,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
        )
    if not endpoint:
        return fs.GcsFileSystem(retry_time_limit=_GCS_PATIENCE)
    protocol, _, host = endpoint.rpartition("://")
    return fs.GcsFileSystem(
        anonymous=True, scheme=protocol or "http", endpoint_override=host, retry_time_limit=_GCS_PATIENCE
    )
