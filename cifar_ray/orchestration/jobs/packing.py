"""What of a person's working folder goes to the cluster with a job.

Only what a command can need goes: configurations, and source code, so that a checkout of cifar_ray is run as it is.
Data sets are of other kinds, and what may hold a secret is told by its path and by what is in it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cifar_ray.config.errors import ConfigError

KINDS = frozenset({".cfg", ".ini", ".json", ".py", ".toml", ".txt", ".yaml", ".yml"})
"""Suffixes of the files that go."""

MOST_FILE_BYTES = 1 << 20
MOST_BYTES = 20 << 20

_FOLDERS = frozenset(
    {"__pycache__", "build", "checkpoints", "dist", "mlartifacts", "mlruns", "node_modules", "ray_results", "runs"}
    | {"site-packages", "venv", "wandb"}
)
_SECRET = re.compile(
    r"(^|[._-])(auth|credentials?|kubeconfig|passwd|passwords?|secrets?|service[_-]account|tokens?"
    r"|(access|api|private)?[_-]?keys?)([._-]|$)"
    r"|^\.(env|netrc|pgpass)(\.|$)|^id_(dsa|ecdsa|ed25519|rsa)|\.(key|p12|pem|pfx)$",
    re.IGNORECASE,
)
_SECRET_CONTENT = re.compile(rb'-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----|"private_key"\s*:|AKIA[0-9A-Z]{16}')
_SHOWN = 3


@dataclass(frozen=True)
class Package:
    """What goes, and what stays behind.

    Attributes:
        root: the working folder.
        files: paths that go, relative to it.
        size: of these, in bytes.
        secret: paths that may hold a secret.
        large: paths of files above :data:`MOST_FILE_BYTES`.
        others: how many files are of another kind, hidden, or links.
        folders: names of folders that were passed over.
    """

    root: Path
    files: tuple[str, ...]
    size: int
    secret: tuple[str, ...]
    large: tuple[str, ...]
    others: int
    folders: tuple[str, ...]

    def copy(self, folder: Path) -> None:
        """Lay the files that go into an empty folder."""
        for name in self.files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / name, target)

    def in_words(self) -> list[str]:
        """One sentence on what goes, and one on what does not, if there is anything."""
        goes = f"packaged {len(self.files)} file(s), {self.size / 1024:,.1f} KiB, of {self.root}"
        stays = []
        if self.secret:
            stays.append(f"{_listed(self.secret)}, which may hold a secret")
        if self.large:
            stays.append(f"{_listed(self.large)}, above {MOST_FILE_BYTES >> 20} MiB")
        if self.others:
            stays.append(f"{self.others} file(s) that are no configuration or source code")
        if self.folders:
            stays.append(f"folder(s) {_listed(self.folders)}")
        return [goes, f"left out: {'; '.join(stays)}"] if stays else [goes]


def look(folder: Path, named: str | None) -> Package:
    """What of a folder goes with a job.

    Args:
        folder: the working folder. Where it is below a git repository, what git ignores stays out of sight.
        named: a file that the command names; it goes whatever git says.

    Raises:
        ConfigError: when the folder is no project's, is not there, or holds too much, or the named file is not in it.
    """
    root = folder.absolute()
    if not root.is_dir():
        raise ConfigError("working_dir", f"must be a folder, got {str(folder)!r}")
    if root in (Path.home(), Path(root.anchor)):
        raise ConfigError("working_dir", f"must be the folder of one piece of work, and {root} holds everything")
    needed = None if named is None else inside(root, named)
    names, folders = _listing(root)
    files: list[str] = []
    secret: list[str] = []
    large: list[str] = []
    size = others = 0
    for name in sorted({*names, *([needed] if needed else [])}):
        path = root / name
        if any(_SECRET.search(part) for part in Path(name).parts):
            secret.append(name)
        elif name != needed and (path.suffix not in KINDS or path.name.startswith(".") or path.is_symlink()):
            others += 1
        elif path.stat().st_size > MOST_FILE_BYTES:
            large.append(name)
        elif _SECRET_CONTENT.search(path.read_bytes()):
            secret.append(name)
        else:
            files.append(name)
            size += path.stat().st_size
    if needed is not None and needed not in files:
        raise ConfigError("config", f"must be a file without secrets of at most 1 MiB, got {needed!r}")
    if size > MOST_BYTES:
        raise ConfigError(
            "working_dir",
            f"must have at most {MOST_BYTES >> 20} MiB of configurations and source code, and {root} has "
            f"{size / (1 << 20):,.0f} MiB in {len(files):,} files",
        )
    return Package(root, tuple(files), size, tuple(secret), tuple(large), others, tuple(sorted(folders)))


def inside(root: Path, named: str) -> str:
    """The path of a named file, which has been read already, relative to the working folder.

    Raises:
        ConfigError: when it is not in there.
    """
    path = Path(named).absolute()
    try:
        return str(path.resolve().relative_to(root.resolve()))
    except ValueError:
        raise ConfigError(
            "working_dir", f"must be a folder that has the file the command names, {path}, and {root} has not"
        ) from None


def _listing(root: Path) -> tuple[list[str], set[str]]:
    """The files below a folder, and the names of folders in it that were passed over."""
    shown = _shown_by_git(root)
    passed: set[str] = set()
    if shown is None:
        shown = []
        for folder, below, names in os.walk(root):
            here = Path(folder)
            over = {name for name in below if _is_passed_over(name) or (here / name / "pyvenv.cfg").exists()}
            passed |= over
            below[:] = [name for name in below if name not in over]
            shown += [str((here / name).relative_to(root)) for name in names]
    files = []
    for name in shown:
        over = {part for part in Path(name).parts[:-1] if _is_passed_over(part)}
        passed |= over
        if not over and (root / name).is_file():
            files.append(name)
    return files, passed


def _shown_by_git(root: Path) -> list[str] | None:
    """The files that git does not ignore; None where there is no repository."""
    if shutil.which("git") is None:
        return None
    words = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True, check=False)
    return [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name] if listed.returncode == 0 else None


def _is_passed_over(folder: str) -> bool:
    return folder.startswith(".") or folder in _FOLDERS or folder.endswith(".egg-info")


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
