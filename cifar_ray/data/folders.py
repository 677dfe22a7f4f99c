"""The files of a folder of images: which are of which class, and which to train, to validate and to test with."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.data import imagefiles, validation
from cifar_ray.data.datasets import unusable

_HALVES = {"train": ("train", "training"), "test": ("test", "testing"), "val": ("val", "valid", "validation")}
"""Usual names of the folders of training, test and validation images, in any case; val/ is for the test where there is
no other."""

_SYSTEM = ("@eaDir", "#recycle", "__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""Folders that storage devices and archive programs make; some hold thumbnails of every image."""

_KINDS = 5  # kinds of files that are left out and named, at most


Files = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True)
class Listing:
    """The files of a folder's images, with their labels or the paths of their masks, as ``column`` says.

    ``left_out`` says in words what else is in the folder.
    """

    classes: tuple[str, ...]
    train: Files
    test: Files
    left_out: str
    val: Files = ()
    column: str = "labels"

    @property
    def parts(self) -> dict[str, Files]:
        """The files by the part of the data set that they are, validation where there is any."""
        return {"train": self.train, "test": self.test, **({"val": self.val} if self.val else {})}


def stamp(root: Path) -> tuple[int, ...]:
    """The times at which a folder and those of its classes got or lost a file."""
    folders = (root, *root.glob("*/"), *root.glob("*/*/"))
    return tuple(folder.stat().st_mtime_ns for folder in folders if folder.is_dir())


@functools.cache
def listing(root: Path, test_share: float, val_share: float, stamp: tuple[int, ...] = ()) -> Listing:
    """The files of a folder, in the order of their names; read again when ``stamp`` is another.

    Args:
        root: the folder.
        test_share: of each class's images, for the test.
        val_share: of each class's images to train on, for validation.
        stamp: of the folder.

    Raises:
        ConfigError: when there is no such folder, or its classes or images do not do.
    """
    train, test, val, unused = parts(root)
    left_out: Counter[str] = Counter()
    classes, every = _classes(train, left_out)
    if len(classes) < 2:
        raise unusable(f"must have a folder for each of at least two classes, and {train} has {len(classes)}")
    if test is None:
        if not test_share:
            raise ConfigError(
                "test_share",
                f"must be given, such as 0.2, for {root}, which has no train/ with a test/ or val/ beside it",
            )
        every, tests = _split(classes, every, test_share)
        return validated(Listing(classes, every, tests, in_words(left_out, unused)), train, val_share)
    if test_share:
        raise ConfigError("test_share", f"is for folders without test images, and there is {test}")
    if val is not None and val_share:
        raise ConfigError("val_share", f"is for folders without validation images, and there is {val}")
    held = {half: _classes(half, left_out) for half in filter(None, (test, val))}
    for half, (others, _) in held.items():
        if others != classes:
            odd = sorted(set(others) ^ set(classes))[0]
            where = f"{train.name}/ and {half.name}/ of {root}"
            raise unusable(f"must have the same classes in {where}; {odd!r} is in one only")
    words = in_words(left_out, unused, test)
    kept = () if val is None else held[val][1]
    return validated(Listing(classes, every, held[test][1], words, kept), train, val_share)


def parts(root: Path) -> Halves:
    """The parts of a folder, as :func:`halves`; refuse one that is not there."""
    check_there(root)
    return halves(root)


def check_there(root: Path, kind: str = "a folder") -> None:
    """Refuse what is no folder; ``kind`` says what it may be."""
    if not root.is_dir():
        has = f"{root} is none" if root.exists() else f"there is no {root}"
        raise unusable(f"must name {kind} that is there, and {has}")


def validated(whole: Listing, train: Path, share: float) -> Listing:
    """The same with that share of each class's training images for validation; with none when it is 0.

    Images that have no label are drawn alike.
    """
    if not share:
        return whole
    paths = [path for path, _ in whole.train]
    keys = [os.fsencode(os.path.relpath(path, train)) for path in paths]
    labels = [label if isinstance(label, int) else 0 for _, label in whole.train]
    names = whole.classes if whole.column == "labels" else ("",)
    kept = validation.rows(keys, contents(paths), np.array(labels), names, share)
    learned, val = _parted(whole.train, kept)
    return dataclasses.replace(whole, train=learned, val=val)


def contents(paths: Sequence[str]) -> list[tuple[int, str]]:
    """What is equal for files of equal bytes; those of a size that no other has are not read."""
    stats = [Path(path).stat() for path in paths]
    sizes = Counter(stat.st_size for stat in stats)
    shared = [(path, stat) for path, stat in zip(paths, stats) if sizes[stat.st_size] > 1]
    with ThreadPoolExecutor() as pool:
        digests = dict(pool.map(lambda file: (file[0], _digest(file[0], file[1].st_ctime_ns)), shared))
    return [(stat.st_size, digests.get(path, "")) for path, stat in zip(paths, stats)]


@functools.cache
def _digest(path: str, changed_ns: int) -> str:
    """A file's SHA-256, once in a process for as long as ``changed_ns`` stays."""
    return files.digest(Path(path), "sha256")


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _SYSTEM


def _readable(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")  # a name need not be UTF-8


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not _is_hidden(entry.name))


class Halves(NamedTuple):
    """The folders of the training classes, of the test classes and of validation, and the names of unused ones."""

    train: Path
    test: Path | None
    val: Path | None
    unused: list[str]


def halves(root: Path) -> Halves:
    """Tell the parts of a folder apart by the names of its folders.

    Raises:
        ConfigError: when two have a name for the same part, or there is one for the test alone.
    """
    names = _folders(root)
    matches = {half: [name for name in names if name.lower() in usual] for half, usual in _HALVES.items()}
    count = sum(map(len, matches.values()))
    # Training/ may be a class among others, but not train/, and not where all folders have such names.
    if not count or (count < len(names) and not _HALVES.keys() & set(names)):
        return Halves(root, None, None, [])
    train, test = matches["train"], matches["test"] or matches["val"]
    val = [name for name in matches["val"] if matches["test"] and _folders(root / name)]
    for several in (train, test, val):
        if len(several) > 1:
            raise unusable(f"must have {several[0]}/ or {several[1]}/, and {root} has both; move one of them elsewhere")
    if not train:
        raise unusable(f"must have train/ beside {test[0]}/, and {root} has none")
    unused = [name for name in names if name not in (*train, *test, *val)]
    return Halves(root / train[0], root / test[0] if test else None, root / val[0] if val else None, unused)


def in_words(files: Counter[str], folders: Sequence[str], test: Path | None = None) -> str:
    """``124 files left out (.heic 120, .txt 4); val/ not used``, and where the ``test`` images have another name."""
    parts = [f"{counted(files.total(), 'file')} left out ({_kinds(files)})"] if files else []
    if folders:
        parts.append(f"{', '.join(f'{_readable(name)}/' for name in folders)} not used")
    if test is not None and test.name.lower() in _HALVES["val"]:
        parts.append(f"{_readable(test.name)}/ is the test set, since there is no other")
    return "; ".join(parts)


def _kinds(files: Counter[str]) -> str:
    """``.heic 120, .txt 4``, the most frequent ones first."""
    kinds = sorted(files.items(), key=lambda each: (-each[1], each[0]))
    shown = kinds[:_KINDS]
    if rest := sum(count for _, count in kinds[_KINDS:]):
        shown.append(("others", rest))
    return ", ".join(f"{kind} {count:,}" for kind, count in shown)


def _classes(root: Path, left_out: Counter[str]) -> tuple[tuple[str, ...], Files]:
    """The names of a folder's folders, and their image files with the numbers of these, in torchvision's order.

    Other files are counted in ``left_out`` by the end of their names.
    """
    names = _folders(root)
    found: list[tuple[str, int]] = []
    for label, name in enumerate(names):
        others: Counter[str] = Counter()
        paths = sorted(images(root / name, others))
        if not paths:
            raise unusable(f"must have an image in every class, and {root / name} has none {_no_image(others)}")
        left_out += others
        found += [(path, label) for path in paths]
    if beside := sum(entry.is_file() and not _is_hidden(entry.name) for entry in root.iterdir()):
        left_out["beside the classes"] += beside
    return tuple(map(_readable, names)), tuple(found)


def images(root: Path, others: Counter[str]) -> Iterator[str]:
    """The image files below a folder, where links lead too, but nothing hidden; what else there is, in ``others``."""

    def fail(error: OSError) -> None:
        raise error

    seen: set[str] = set()
    for place, folders, names in os.walk(root, onerror=fail, followlinks=True):
        if (real := os.path.realpath(place)) in seen:  # a link may lead back
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for path in (Path(place, name) for name in names if not _is_hidden(name)):
            if not path.is_file():
                others["broken links"] += 1
            elif path.suffix.lower() in imagefiles.SUFFIXES:
                yield str(path)
            else:
                others[_readable(path.suffix.lower()) or "no suffix"] += 1


def given(paths: Sequence[Path]) -> tuple[list[Path], str]:
    """The image files that paths name: each file, and below each folder its images, sorted; what is left out, in words.

    Files that are named are looked at; of those in a folder, any may be damaged.

    Raises:
        ConfigError: as :func:`imagefiles.check`, or naming a folder without images, or when there is no path at all.
    """
    if not paths:
        raise ConfigError("", "there is no image to classify; name at least one file or folder after the run")
    found: list[Path] = []
    left_out: Counter[str] = Counter()
    imagefiles.check([path for path in paths if not path.is_dir()])
    for path in paths:
        others: Counter[str] = Counter()
        try:
            below = sorted(map(Path, images(path, others))) if path.is_dir() else [path]
        except OSError as error:
            raise ConfigError("", f"cannot read folder {error.filename}: {error.strerror}") from None
        if not below:
            raise ConfigError("", f"there is no image in {path} {_no_image(others)}")
        found += below
        left_out += others
    return found, in_words(left_out, ())


def _no_image(others: Counter[str]) -> str:
    """What would be images, and what else there is."""
    return f"({', '.join(imagefiles.SUFFIXES)})" + f"; left out there: {_kinds(others)}" * bool(others)


def _split(classes: Sequence[str], every: Files, share: float) -> tuple[Files, Files]:
    """Of each class the same share for the test, drawn by the same seed in every run; equal files are on one side."""
    from cifar_ray.data import order

    labels = np.array([label for _, label in every])
    ranks = np.zeros_like(labels)
    for label in range(len(classes)):
        rows = np.flatnonzero(labels == label)
        ranks[rows[order.permutation(seed=0, epoch=label, size=len(rows))]] = np.arange(len(rows))
    paths = [path for path, _ in every]
    return _parted(every, validation.rows(ranks.tolist(), contents(paths), labels, classes, share, "test_share", int))


def _parted(every: Files, kept: np.ndarray) -> tuple[Files, Files]:
    """The files that are not kept, and those that are."""
    rest, those = (tuple(itertools.compress(every, chosen)) for chosen in (~kept, kept))
    return rest, those
