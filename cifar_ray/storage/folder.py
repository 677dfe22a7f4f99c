"""A folder on a disk, or a prefix in a bucket: ``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX``."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError
from cifar_ray.storage.temporary import scratch

if TYPE_CHECKING:
    from pyarrow import fs

_ADDRESS = re.compile(r"(?P<scheme>s3|gs)://(?P<bucket>[a-zA-Z0-9][\w.-]*)(?P<path>(/[^/?#]+)*)/?")
_GCS_PATIENCE = timedelta(seconds=15)
_PAUSES_S = (1.0, 2.0, 4.0)
_LONGEST_REASON = 200


class StorageError(RuntimeError):
    """A store could not be read or written while training, even after several tries; the message says why."""


@dataclass(frozen=True)
class Folder:
    """A folder of files and folders. All methods raise ``OSError`` when the file system fails.

    It can be sent to other processes and holds no secret; credentials are where PyArrow looks for them.

    Attributes:
        path: absolute path on a disk, or bucket and prefix.
        scheme: ``s3`` or ``gs``; empty for a folder on a disk.
        endpoint: ``http(s)://HOST:PORT`` of a server other than the cloud's own; empty otherwise.
        region: the bucket's, for S3.
    """

    path: str
    scheme: str = ""
    endpoint: str = ""
    region: str = ""

    @property
    def local(self) -> bool:
        """Whether it is on a disk, this machine's own or one that several machines have mounted at the same path."""
        return not self.scheme

    @property
    def address(self) -> str:
        """What :func:`at` finds it by, on any machine that has access."""
        return self.path if self.local else f"{self.scheme}://{self.path}"

    @property
    def name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.path).name

    @property
    def disk(self) -> Path:
        """Where its files are on a disk: the folder itself, or where this machine keeps copies of a bucket's files."""
        if self.local:
            return Path(self.path)
        name = hashlib.sha256(f"{self.endpoint} {self.address}".encode()).hexdigest()[:16]
        return files.home() / "copies" / name

    def below(self, name: str) -> Folder:
        """A folder in this one, which need not exist."""
        return replace(self, path=self._of(name))

    @property
    def above(self) -> Folder:
        """The folder that it is in."""
        return replace(self, path=str(PurePosixPath(self.path).parent))

    def exists(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.names())

    def make(self) -> None:
        """Make it, with the folders above it. In a bucket, a prefix exists once an object does."""
        if self.local:
            self._files.create_dir(self.path, recursive=True)

    def names(self) -> list[str]:
        """What is directly in it, sorted; nothing when it does not exist."""
        from pyarrow import fs

        # Google's store has no folders: only the objects below tell that there is one.
        selector = fs.FileSelector(self.path, recursive=not self.local, allow_not_found=True)
        infos = self._files.get_file_info(selector)
        return sorted({PurePosixPath(info.path).relative_to(self.path).parts[0] for info in infos})

    def size(self) -> int:
        """Bytes of all files in it and below."""
        from pyarrow import fs

        return sum(info.size or 0 for info in self._files.get_file_info(fs.FileSelector(self.path, recursive=True)))

    def read(self, name: str) -> str:
        """A text file; ``FileNotFoundError`` when it does not exist."""
        with self._files.open_input_stream(self._of(name)) as stream:
            return stream.read().decode()

    def write(self, name: str, text: str) -> None:
        """Write a text file, which others see whole or not at all."""
        target = self._of(name)
        partial = self._of(f".{name}.partial") if self.local else target  # an object appears when it is complete
        with self._files.open_output_stream(partial) as stream:
            stream.write(text.encode())
        if self.local:
            self._files.move(partial, target)

    def delete(self, name: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(self._of(name))

    def remove(self) -> None:
        """Remove the folder with everything in it, if it exists."""
        if self.local or self.exists():
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                self._files.delete_dir(self.path)

    def upload(self, file: Path) -> None:
        """Copy a file of this machine into the folder, under its own name."""
        from pyarrow import fs

        fs.copy_files(str(file), self._of(file.name), destination_filesystem=self._files)

    def download(self, name: str, folder: Path) -> None:
        """Copy a file into a folder of this machine; ``FileNotFoundError`` when it does not exist."""
        from pyarrow import fs

        folder.mkdir(parents=True, exist_ok=True)
        fs.copy_files(self._of(name), str(folder / name), source_filesystem=self._files)

    @contextmanager
    def on_disk(self, name: str) -> Iterator[Path]:
        """Context manager: a file as one on a disk, to read. It need not exist."""
        if self.local:
            yield self.disk / name
            return
        with scratch() as temporary:
            with contextlib.suppress(FileNotFoundError):
                self.download(name, temporary)
            yield temporary / name

    def _of(self, name: str) -> str:
        return str(PurePosixPath(self.path, name))

    @property
    def _files(self) -> fs.FileSystem:
        return _file_system(self.scheme, self.endpoint, self.region)


def at(address: str | None) -> Folder:
    """The folder or prefix that an address names; ``~/.cifar_ray/runs`` for None.

    A server other than the cloud's own is named by ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL`` or
    ``STORAGE_EMULATOR_HOST``, as for the clouds' own clients.

    Raises:
        ConfigError: when the address is neither a folder nor a bucket's, or the bucket's region cannot be found.
    """
    if address is None or "://" not in address:
        return Folder(str(files.storage(address)))
    match = _ADDRESS.fullmatch(address)
    if match is None or ".." in match["path"].split("/"):
        shown = re.sub(r"//.*@", "//...@", address)  # a secret is not repeated
        rule = "must be a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, without a query"
        raise ConfigError("storage", f"{rule}, got {shown!r}")
    scheme, bucket, path = match["scheme"], match["bucket"], match["bucket"] + match["path"]
    if scheme == "gs":
        return Folder(path, scheme, os.environ.get("STORAGE_EMULATOR_HOST", ""))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return Folder(path, scheme, endpoint, region if endpoint else _region(bucket))


@cache
def _region(bucket: str) -> str:
    """Region of a bucket of S3, which may be another than that of the machine that computes."""
    from pyarrow import fs

    try:
        return fs.resolve_s3_region(bucket)
    except OSError as error:
        raise ConfigError("storage", f"must be in a bucket that exists; s3://{bucket}: {reason(error)}") from None


@cache
def _file_system(scheme: str, endpoint: str, region: str) -> fs.FileSystem:
    from pyarrow import fs

    if scheme == "s3":
        return fs.S3FileSystem(region=region, endpoint_override=endpoint or None)
    if scheme == "gs" and endpoint:
        protocol, _, host = endpoint.rpartition("://")
        return fs.GcsFileSystem(
            anonymous=True, scheme=protocol or "http", endpoint_override=host, retry_time_limit=_GCS_PATIENCE
        )
    return fs.GcsFileSystem(retry_time_limit=_GCS_PATIENCE) if scheme == "gs" else fs.LocalFileSystem()


@contextmanager
def refusing(folder: Folder) -> Iterator[None]:
    """Context manager: turn an ``OSError`` into a refusal of ``--storage``, which cannot be read or written."""
    try:
        yield
    except OSError as error:
        problem = f"must be a folder or a bucket that can be written; {folder.address}: {reason(error)}"
        raise ConfigError("storage", problem) from None


def persistently(write: Callable[[], None]) -> None:
    """Call ``write``, up to four times with pauses in between.

    Raises:
        OSError: of the last try.
    """
    for pause in _PAUSES_S:
        try:
            return write()
        except OSError:
            time.sleep(pause)
    return write()


def reason(error: OSError) -> str:
    """Why something failed, in a few words: those of the disk, or the first of the cloud's client."""
    return os.strerror(error.errno) if error.errno else " ".join(str(error).split())[:_LONGEST_REASON]
