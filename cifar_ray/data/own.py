"""Data sets of the user's own: ``--dataset folder:PATH`` and ``--dataset MODULE:FUNCTION``.

A folder has one folder of images for each class, in torchvision's layout: PATH/train/CLASS/... and PATH/test/CLASS/...
(or val/; Training/ and the like will do), or PATH/CLASS/... and a share that is kept for the test. Its images are
decoded once, and kept as arrays beside the other data sets; with ``stream`` they stay on disk. Functions are those of
:mod:`cifar_ray.data.arrays`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cifar_ray import tasks
from cifar_ray.config import files, schema
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.option import FOLDER
from cifar_ray.config.sections import Images
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays, imagefiles
from cifar_ray.data.datasets import Dataset, Split, folder

Progress = Callable[[int, int], None]
"""Called with the number of images that have been decoded, and that of all."""

_HALVES = {"train": ("train", "training"), "test": ("test", "testing"), "val": ("val", "valid", "validation")}
"""Usual names of the folders of training and test images, in any case; val/ is for the test where there is no other."""

_SYSTEM = ("@eaDir", "#recycle", "__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""Folders that storage devices and archive programs make; some hold thumbnails of every image."""

_KINDS = 5  # kinds of files that are left out and named, at most
_LAYOUT = 2  # of the decoded files; it changes when older ones would mean something else
_CHUNK = 256  # images that a thread decodes before it reports
_DECODED = re.compile(r"-[0-9a-f]{16}$")
_UNUSED_S = 30 * 86400
_MEMORY = 0.5  # share of the free memory that the images may take: the object store has its own copy


@dataclass(frozen=True)
class _Listing:
    """The files of a folder's images, with their labels, and in words what else is in the folder."""

    classes: tuple[str, ...]
    train: tuple[tuple[str, int], ...]
    test: tuple[tuple[str, int], ...]
    left_out: str


def absolute(dataset: str) -> str:
    """``dataset`` independent of the working folder.

    Raises:
        ConfigError: when its ``~`` stands for nobody's home folder.
    """
    return f"{FOLDER}{_path(dataset)}" if dataset.startswith(FOLDER) else dataset


def look(config: TrainConfig) -> Images:
    """What there is, as far as it can be told without decoding an image.

    Raises:
        ConfigError: when it cannot be learned from; the sentence says why.
    """
    if config.dataset.startswith(FOLDER):
        root = _path(config.dataset)
        with _reading(root):
            listing = _listing(root, config.test_share, _stamp(root))
        return Images(len(listing.classes), len(listing.train), len(listing.test), config.image_size)
    return described(arrays.from_function(config.dataset, tasks.of(config)))


def described(dataset: Dataset) -> Images:
    """What is in a data set that has been read."""
    spec = dataset.spec
    return Images(
        spec.num_classes, spec.train_size, spec.test_size, spec.image_size, spec.mean, spec.std, dataset.digest
    )


def load(config: TrainConfig, progress: Progress) -> Dataset:
    """Read the data set; a folder's images are decoded when they have not been, or have changed.

    Raises:
        ConfigError: when it cannot be read; the sentence names the file.
    """
    if not config.dataset.startswith(FOLDER):
        return arrays.from_function(config.dataset, tasks.of(config))
    root = _path(config.dataset)
    with _reading(root):
        listing = _listing.__wrapped__(root, config.test_share)  # deeper folders may have changed since a first look
        key = _key(root, listing, config.image_size)
    home = folder(config.data_dir) / "folders"
    name = os.fsencode(root.name)[:100].decode(errors="ignore")  # file systems count bytes; no character is cut
    kept = home / f"{name}-{key}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f".{kept.name}.lock"):
            if kept.exists():
                with suppress(PermissionError):  # somebody else has decoded it
                    os.utime(kept)
            else:
                _decode(listing, root, config, kept, progress)
                _remove_unused(home)
    except OSError as error:
        raise ConfigError(
            "data_dir", f"must be a folder that can be written, and {home} cannot be ({error.strerror})"
        ) from None
    try:
        train, test = (_kept(kept, half, config.stream) for half in ("train", "test"))
        facts = schema.build(Images, json.loads((kept / "facts.json").read_text())) if config.stream else None
    except (OSError, ValueError, EOFError):
        raise ConfigError(
            "data_dir", f"must have whole files, and those in {kept} are not; remove that folder"
        ) from None
    return dataclasses.replace(
        arrays.made(config.dataset, train, test, listing.classes, facts), left_out=listing.left_out
    )


def _remove_unused(home: Path) -> None:
    """Remove decoded folders that no run has used for a month: a folder that changes leaves one behind each time."""
    for path in home.iterdir():
        if _DECODED.search(path.name) and (path / "facts.json").exists():
            # In use, or somebody else's, it stays.
            with suppress(OSError), FileLock(home / f".{path.name}.lock", timeout=0):
                if time.time() - path.stat().st_mtime > _UNUSED_S:
                    doomed = path.rename(home / f".{path.name}.partial")  # it goes whole or not at all
                    shutil.rmtree(doomed)


def _kept(folder: Path, half: str, on_disk: bool) -> Split:
    images = np.load(folder / f"{half}_images.npy", mmap_mode="r" if on_disk else None)
    return Split({"images": images, "labels": np.load(folder / f"{half}_labels.npy")})


def _path(dataset: str) -> Path:
    return files.absolute("dataset", dataset.removeprefix(FOLDER))


@contextmanager
def _reading(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            "dataset", f"must be a folder that can be read, and {error.filename or root} cannot be ({error.strerror})"
        ) from None


def _stamp(root: Path) -> tuple[int, ...]:
    """The times at which a folder and those of its classes got or lost a file."""
    folders = (root, *root.glob("*/"), *root.glob("*/*/"))
    return tuple(folder.stat().st_mtime_ns for folder in folders if folder.is_dir())


@functools.cache
def _listing(root: Path, test_share: float, stamp: tuple[int, ...] = ()) -> _Listing:
    """The files of a folder, in the order of their names; read again when ``stamp`` is another.

    Raises:
        ConfigError: when there is no such folder, or its classes or images do not do.
    """
    if not root.is_dir():
        raise ConfigError("dataset", f"must name a folder that is there, and there is no {root}")
    train, test, unused = _halves(root)
    left_out: Counter[str] = Counter()
    classes, every = _classes(train, left_out)
    if len(classes) < 2:
        raise ConfigError(
            "dataset", f"must have a folder for each of at least two classes, and {train} has {len(classes)}"
        )
    if test is None:
        if not test_share:
            raise ConfigError(
                "test_share",
                f"must be given, such as 0.2, for {root}, which has no train/ with a test/ or val/ beside it",
            )
        learned, tests = _split(classes, every, test_share, train)
        return _Listing(classes, learned, tests, _in_words(left_out, unused))
    if test_share:
        raise ConfigError("test_share", f"is for folders without test images, and there is {test}")
    others, tests = _classes(test, left_out)
    if others != classes:
        odd = sorted(set(others) ^ set(classes))[0]
        raise ConfigError(
            "dataset", f"must have the same classes in {train.name}/ and {test.name}/ of {root}; {odd!r} is in one only"
        )
    return _Listing(classes, every, tests, _in_words(left_out, unused))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _SYSTEM


def _readable(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")  # a name need not be UTF-8


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not _is_hidden(entry.name))


def _halves(root: Path) -> tuple[Path, Path | None, list[str]]:
    """The folder of the training classes, that of the test classes if there is one, and the names of unused ones."""
    names = _folders(root)
    matches = {half: [name for name in names if name.lower() in usual] for half, usual in _HALVES.items()}
    count = sum(map(len, matches.values()))
    # Training/ may be a class among others, but not train/, and not where all folders have such names.
    if not count or (count < len(names) and not _HALVES.keys() & set(names)):
        return root, None, []
    train, test = matches["train"], matches["test"] or matches["val"]
    for several in (train, test):
        if len(several) > 1:
            raise ConfigError(
                "dataset", f"must have {several[0]}/ or {several[1]}/, and {root} has both; move one of them elsewhere"
            )
    if not train:
        raise ConfigError("dataset", f"must have train/ beside {test[0]}/, and {root} has none")
    return root / train[0], root / test[0] if test else None, [name for name in names if name not in (*train, *test)]


def _in_words(files: Counter[str], folders: Sequence[str]) -> str:
    """``124 files left out (.heic 120, .txt 4); val/ not used``."""
    parts = [f"{counted(files.total(), 'file')} left out ({_kinds(files)})"] if files else []
    if folders:
        parts.append(f"{', '.join(f'{_readable(name)}/' for name in folders)} not used")
    return "; ".join(parts)


def _kinds(files: Counter[str]) -> str:
    """``.heic 120, .txt 4``, the most frequent ones first."""
    kinds = sorted(files.items(), key=lambda each: (-each[1], each[0]))
    shown = kinds[:_KINDS]
    if rest := sum(count for _, count in kinds[_KINDS:]):
        shown.append(("others", rest))
    return ", ".join(f"{kind} {count:,}" for kind, count in shown)


def _classes(root: Path, left_out: Counter[str]) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """The names of a folder's folders, and their image files with the numbers of these, in torchvision's order.

    Other files are counted in ``left_out`` by the end of their names.
    """
    names = _folders(root)
    found: list[tuple[str, int]] = []
    for label, name in enumerate(names):
        others: Counter[str] = Counter()
        paths = sorted(_images(root / name, others))
        if not paths:
            kinds = ", ".join(imagefiles.SUFFIXES)
            has = f"; left out there: {_kinds(others)}" * bool(others)
            raise ConfigError(
                "dataset", f"must have an image in every class, and {root / name} has none ({kinds}){has}"
            )
        left_out += others
        found += [(path, label) for path in paths]
    if beside := sum(entry.is_file() and not _is_hidden(entry.name) for entry in root.iterdir()):
        left_out["beside the classes"] += beside
    return tuple(map(_readable, names)), tuple(found)


def _images(root: Path, others: Counter[str]) -> Iterator[str]:
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


def _split(
    classes: tuple[str, ...], every: Sequence[tuple[str, int]], share: float, root: Path
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """Of each class the same share for the test, drawn by the same seed in every run."""
    from cifar_ray.data import order

    train: list[tuple[str, int]] = []
    test: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        own = [one for one in every if one[1] == label]
        count = max(round(share * len(own)), 1)
        if count == len(own):
            raise ConfigError(
                "test_share", f"must leave an image of every class to learn from, and {root / name} has {len(own)}"
            )
        drawn = set(order.permutation(seed=0, epoch=label, size=len(own))[:count].tolist())
        train += [one for index, one in enumerate(own) if index not in drawn]
        test += [one for index, one in enumerate(own) if index in drawn]
    return tuple(train), tuple(test)


def _key(root: Path, listing: _Listing, image_size: int) -> str:
    """What the decoded images depend on: the files, their sizes and times, and how they are decoded."""
    state = hashlib.sha256(json.dumps([_LAYOUT, image_size, str(root), listing.classes]).encode())
    for half in (listing.train, listing.test):
        for path, label in half:
            stat = Path(path).stat()
            state.update(f"{path} {label} {stat.st_size} {stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
        state.update(b"\n")
    return state.hexdigest()[:16]


def _decode(listing: _Listing, root: Path, config: TrainConfig, kept: Path, progress: Progress) -> None:
    """Write both halves' images and labels to the folder ``kept``, which appears whole or not at all."""
    side, total = config.image_size, len(listing.train) + len(listing.test)
    _check_room(f"its {total:,} images of {side}x{side} pixels", total * side**2 * 3, root, config, kept.parent)
    partial = kept.with_name(f".{kept.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    done = 0
    try:
        for half, listed in (("train", listing.train), ("test", listing.test)):
            shape = (len(listed), side, side, 3)
            images = np.lib.format.open_memmap(partial / f"{half}_images.npy", "w+", np.uint8, shape)

            def decode(start: int, listed: Sequence[tuple[str, int]] = listed, images: Any = images) -> int:
                part = listed[start : start + _CHUNK]
                for index, (path, _) in enumerate(part, start):
                    with imagefiles.named(Path(path)):
                        images[index] = imagefiles.cropped(imagefiles.read(Path(path), side), side)
                return len(part)

            with ThreadPoolExecutor() as pool:
                for count in pool.map(decode, range(0, len(listed), _CHUNK)):
                    progress(done := done + count, total)
            images.flush()
            np.save(partial / f"{half}_labels.npy", np.array([label for _, label in listed], dtype=np.int64))
        train, test = (_kept(partial, half, True) for half in ("train", "test"))
        facts = dataclasses.asdict(arrays.facts_of(train, test, len(listing.classes)))
        (partial / "facts.json").write_text(json.dumps(facts))
        partial.rename(kept)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _check_room(what: str, needed: int, root: Path, config: TrainConfig, home: Path) -> None:
    """Refuse what would not fit into the memory, or on the disk."""
    import psutil  # not at the top: the loop alone, on a machine with torch and little else, does without it

    room = _MEMORY * psutil.virtual_memory().available
    if needed > room and not config.stream:
        raise ConfigError(
            "image_size",
            f"must be smaller for {root}, or come with --stream: {what} take {needed / 2**30:.1f} GiB, and "
            f"{room / 2**30:.1f} GiB may be used here, half of the free memory",
        )
    if needed > (free := shutil.disk_usage(home).free):
        raise ConfigError(
            "data_dir",
            f"must have room for {root}: {what} take {needed / 2**30:.1f} GiB, and {home} has {free / 2**30:.1f} GiB",
        )
