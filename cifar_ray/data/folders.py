"""Folders of images by class, ``--dataset folder:PATH``.

There is one folder of images for each class, in torchvision's layout: PATH/train/CLASS/... and PATH/test/CLASS/...
(or val/; Training/ and the like will do), or PATH/CLASS/... and a share that is kept for the test. With val/ beside
test/, val/ has the validation images; else they are a share of those to train on, by their relative paths.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cifar_ray.config.errors import counted
from cifar_ray.data import imagefiles
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import Files, Found, Part

_HALVES = {"train": ("train", "training"), "test": ("test", "testing"), "val": ("val", "valid", "validation")}
"""Usual names of the folders of training, test and validation images, in any case; val/ is for the test where there is
no other."""

_SYSTEM = ("@eaDir", "#recycle", "__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""Folders that storage devices and archive programs make; some hold thumbnails of every image."""

_KINDS = 5  # kinds of files that are left out and named, at most


@dataclass(frozen=True)
class Folder(Files):
    """A folder of images by class."""

    def find(self) -> Found:
        halves, left_out = self.halves(), Counter[str]()
        of = {part: _classes(folder, left_out) for part, folder in halves.parts.items()}
        train, classes = halves.parts["train"], of["train"][0]
        if len(classes) < 2:
            raise unusable(f"must have a folder for each of at least two classes, and {train} has {len(classes)}")
        for part, (others, _) in of.items():
            if others != classes:
                odd = sorted(set(others) ^ set(classes))[0]
                where = f"{train.name}/ and {halves.parts[part].name}/ of {self.root}"
                raise unusable(f"must have the same classes in {where}; {odd!r} is in one only")
        return Found(classes, {part: each for part, (_, each) in of.items()}, left_out=in_words(left_out, halves))

    def halves(self) -> Halves:
        """Tell the parts of a folder apart by the names of its folders.

        Raises:
            ConfigError: when two have a name for the same part, or there is one for the test alone.
        """
        self.check_there()
        names = _folders(self.root)
        matches = {half: [name for name in names if name.lower() in usual] for half, usual in _HALVES.items()}
        count = sum(map(len, matches.values()))
        # Training/ may be a class among others, but not train/, and not where all folders have such names.
        if not count or (count < len(names) and not _HALVES.keys() & set(names)):
            return Halves({"train": self.root}, [])
        train, test = matches["train"], matches["test"] or matches["val"]
        val = [name for name in matches["val"] if matches["test"] and _folders(self.root / name)]
        for several in (train, test, val):
            if len(several) > 1:
                both = f"{several[0]}/ or {several[1]}/"
                raise unusable(f"must have {both}, and {self.root} has both; move one of them elsewhere")
        if not train:
            raise unusable(f"must have train/ beside {test[0]}/, and {self.root} has none")
        parts = {"train": train, "test": test, "val": val}
        unused = [name for name in names if name not in (*train, *test, *val)]
        return Halves({part: self.root / each[0] for part, each in parts.items() if each}, unused)

    def keys(self, part: Part, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        if option == "val_share":
            return super().keys(part, labels, option)
        from cifar_ray.data import order

        ranks = np.zeros_like(labels)
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            ranks[rows[order.permutation(seed=0, epoch=int(label), size=len(rows))]] = np.arange(len(rows))
        return list(map(int, ranks))


class Halves(NamedTuple):
    """The folders of the parts, and the names of unused ones."""

    parts: Mapping[str, Path]
    unused: list[str]


def in_words(files: Counter[str], halves: Halves | None = None) -> str:
    """``124 files left out (.heic 120, .txt 4); old/ not used``, and where the test images have another name."""
    parts = [f"{counted(files.total(), 'file')} left out ({_kinds(files)})"] if files else []
    if halves and halves.unused:
        parts.append(f"{', '.join(f'{_readable(name)}/' for name in halves.unused)} not used")
    if halves and (test := halves.parts.get("test")) and test.name.lower() in _HALVES["val"]:
        parts.append(f"{_readable(test.name)}/ is the test set, since there is no other")
    return "; ".join(parts)


def _kinds(files: Counter[str]) -> str:
    """``.heic 120, .txt 4, ...``, the most frequent ones first."""
    kinds = sorted(files.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join([f"{kind} {count:,}" for kind, count in kinds[:_KINDS]] + ["..."] * (len(kinds) > _KINDS))


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


def no_image(others: Counter[str]) -> str:
    """What would be images, and what else there is."""
    return f"({', '.join(imagefiles.SUFFIXES)})" + f"; left out there: {_kinds(others)}" * bool(others)


def _classes(root: Path, left_out: Counter[str]) -> tuple[tuple[str, ...], Part]:
    """The names of a folder's folders, and their image files with the numbers of these, in torchvision's order.

    Other files are counted in ``left_out`` by the end of their names.
    """
    names, paths, labels = _folders(root), [], []
    for label, name in enumerate(names):
        others: Counter[str] = Counter()
        of_class = sorted(images(root / name, others))
        if not of_class:
            raise unusable(f"must have an image in every class, and {root / name} has none {no_image(others)}")
        left_out += others
        paths += of_class
        labels += [label] * len(of_class)
    if beside := sum(entry.is_file() and not _is_hidden(entry.name) for entry in root.iterdir()):
        left_out["beside the classes"] += beside
    return tuple(map(_readable, names)), Part(paths, np.array(labels, dtype=np.int64), root)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _SYSTEM


def _readable(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")  # a name need not be UTF-8


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not _is_hidden(entry.name))
