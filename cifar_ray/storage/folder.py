"""What a run asks of the place that it is kept in, and the place that is a folder."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from cifar_ray.config import files

LOCK = ".driver.lock"
DESCRIPTION = "run.json"
"""Name of the file that identifies a run, in its folder."""

_LONGEST_REASON = 200
_PAUSES_S = (1.0, 2.0, 4.0)


class Held(Protocol):
    """A lock that this process has."""

    def release(self, force: bool = ...) -> None:
        """Let others have it."""

    def __enter__(self) -> Held: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Folder(Protocol):
    """A place for files, and for other such places below it. What fails raises an ``OSError``."""

    @property
    def address(self) -> str:
        """What leads to it from any machine that has it: an absolute path, or ``s3://bucket/prefix``."""

    @property
    def name(self) -> str:
        """The last part of the address."""

    def below(self, name: str) -> Folder:
        """A place in this one, which need not be there yet."""

    def exists(self) -> bool:
        """Whether there is anything."""

    def make(self) -> None:
        """Make it, with what is above it; a ``FileExistsError`` when it is there."""

    def read(self, name: str) -> str:
        """A text file; a ``FileNotFoundError`` when it is not there."""

    def write(self, name: str, text: str) -> None:
        """Write a text file that is never seen half written."""

    def names(self) -> Sequence[str]:
        """What lies directly below it."""

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""

    def remove(self) -> None:
        """Remove it with everything below, if it is there."""

    def lock(self, refusal: Exception) -> Held:
        """Keep other drivers away, until this process ends or releases the lock; ``refusal`` when one is at work."""


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine, or one that several machines have mounted at the same path."""

    path: Path

    @staticmethod
    def at(given: str | None) -> LocalFolder:
        """The folder given, or the usual one in the home folder.

        Raises:
            ConfigError: when it is below somebody's home folder who has none.
        """
        return LocalFolder(files.storage(given))

    @property
    def address(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    def below(self, name: str) -> LocalFolder:
        return LocalFolder(self.path / name)

    def exists(self) -> bool:
        return self.path.exists()

    def make(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir()

    def read(self, name: str) -> str:
        return (self.path / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        files.write_whole(self.path / name, text)

    def names(self) -> Sequence[str]:
        return sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def lock(self, refusal: Exception) -> Held:
        return files.hold(self.path / LOCK, refusal)


def persistently(write: Callable[[], None]) -> None:
    """Write something, and again after a pause when it fails.

    Raises:
        OSError: of the last of four tries.
    """
    for pause in _PAUSES_S:
        try:
            write()
            return
        except OSError:
            time.sleep(pause)
    write()


def reason(error: OSError) -> str:
    """Why something failed, in few words; object stores tell with many."""
    text = " ".join((error.strerror or str(error)).split())
    text = re.sub(r"\(Request ID: [^)]*\)|^When .*?: AWS Error | during \w+ operation|; Details: .*", "", text)
    text = re.sub(r"google::cloud::Status\(|Permanent error, with a last message of | error_info=.*", "", text)
    return text.strip()[:_LONGEST_REASON]
