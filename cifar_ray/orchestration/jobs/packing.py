"""Choose what of the working folder goes to the cluster with a job: what git tracks; outside git, what Ray takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError, counted

EXCLUDES = [".?*"]
"""Outside git: hidden files, which may hold secrets. Ray itself leaves out ``venv`` and what .gitignore lists."""

_IGNORES = {".gitignore", ".rayignore"}  # Ray would apply them to the copy


def root(folder: Path) -> Path:
    """The working folder as an absolute path.

    Raises:
        ConfigError: when it is not a folder, or one that holds everything.
    """
    if not folder.is_dir():
        raise ConfigError("working_dir", f"must be a folder, got {str(folder)!r}")
    if folder.absolute() in (Path.home(), Path(folder.absolute().anchor)):
        raise ConfigError("working_dir", f"must be the folder of one piece of work, and {folder} holds everything")
    return folder.absolute()


def inside(root: Path, named: str) -> str:
    """The path of a file that the command names, relative to the working folder.

    Raises:
        ConfigError: when it is not in there.
    """
    path = Path(named).absolute()
    try:
        return str(path.resolve().relative_to(root.resolve()))
    except ValueError:
        raise ConfigError(
            "working_dir", f"must be a folder with the file that the command names, {path}, and {root} lacks it"
        ) from None


@contextmanager
def packed(root: Path, named: str | None, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Context manager: the working folder as entries of Ray's runtime environment.

    Args:
        root: the working folder.
        named: a file in it that goes along even if git does not track it.
        say: is called with one sentence on what goes.

    Raises:
        ConfigError: when a file that goes hides a library: Python looks in the working folder first there.
    """
    words = ["git", "-C", str(root), "ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True) if shutil.which("git") else None
    if listed is None or listed.returncode:
        imports.refuse_hiding(root)
        say(f"{root} goes along without hidden files; in a git repository, only what git tracks would")
        yield {"working_dir": str(root), "excludes": EXCLUDES}
        return
    entries = [os.fsdecode(entry).split(" ", 1) for entry in listed.stdout.split(b"\0") if entry]
    tracked = {name for tag, name in entries if tag != "?" and Path(name).name not in _IGNORES}
    with tempfile.TemporaryDirectory() as copy:
        going = {*tracked, *([inside(root, named)] if named else [])}
        files = [name for name in going if (root / name).is_file() and not (root / name).is_symlink()]
        for name in files:
            target = Path(copy, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, target)
        left = sum(tag == "?" and name not in going for tag, name in entries)
        imports.refuse_hiding(Path(copy))
        say(f"going along: {counted(len(files), 'file')} of {root} that git tracks; {left} untracked stay here")
        yield {"working_dir": copy}
