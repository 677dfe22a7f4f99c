"""Folders of images by class, ``--dataset folder:PATH``, as torchvision has them: PATH/train/CLASS/... and below
test/ and perhaps val/ (Training/ and the like will do), or PATH/CLASS/... and a share that is kept for the test.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import imagefiles
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import PARTS, Files, Part

_HALVES = {"train": ("train", "training"), "test": ("test", "testing"), "val": ("val", "valid", "validation")}
"""Usual names of the parts' folders, in any case; val/ is for the test where there is no other."""

_SYSTEM = ("@eaDir", "#recycle", "__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""Folders that storage devices and archive programs make; some hold thumbnails of every image."""


class Halves(Files):
    """A folder with a folder of each part, its ``halves``; ``train`` is the whole where there are none.

    ``others`` are files that are not used, by kinds, ``notes`` folders that are not, or otherwise than their names say.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.check_there()
        names = _folders(self.root)
        parts = {name: part for name in names for part, usual in _HALVES.items() if name.lower() in usual}
        if not _HALVES.keys() & set(names) and len(parts) < len(names):
            parts = {}  # Training/ may be a class among others, but not train/
        self.others = Counter[str]()
        self.notes = [f"{_readable(name)}/ not used" for name in names if parts and name not in parts]
        found = {part: self.root / name for name, part in parts.items()}
        if "test" not in found and "val" in found:
            found["test"] = found.pop("val")
            self.notes.append(f"{found['test'].name}/ is the test set, since there is no other")
        if parts and ("train" not in found or len(found) < len(parts)):
            raise unusable(f"must have train/ and one folder of each part, and {self.root} has {'/, '.join(parts)}/")
        self.halves = {part: found[part] for part in PARTS if part in found} or {"train": self.root}
        self.base = self.halves["train"]


class Folder(Halves):
    """A folder of images by class."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.parts, names = {}, _folders(self.base)
        for part, folder in self.halves.items():
            odd = sorted({*_folders(folder)} ^ {*names})[:9]
            if odd or len(names) < 2:
                lacks = f"differs in {_readable(', '.join(odd))}" if odd else f"has {len(names)}"
                raise unusable(f"must have two or more classes, the same in each part, and {folder} {lacks}")
            paths = [images(folder / name, self.others) for name in names]  # in the order of torchvision's ImageFolder
            labels = np.repeat(np.arange(len(names)), [*map(len, paths)])
            self.parts[part] = Part([*itertools.chain(*paths)], labels)
        self.classes = tuple(map(_readable, names))
        self.left_out = in_words(self.others, *self.notes)

    def keys(self, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        """Paths; for the test, each image's place in a fixed shuffle of its class."""
        if option == "val_share":
            return super().keys(labels, option)
        from cifar_ray.data import order

        ranks = np.zeros_like(labels)
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            ranks[rows[order.permutation(seed=0, epoch=int(label), size=len(rows))]] = np.arange(len(rows))
        return list(map(int, ranks))


SOURCE = Folder


def in_words(others: Counter[str], *notes: str) -> str:
    """``124 files left out (.heic 120, .txt 4)``, the most frequent kinds, and more notes; empty without any."""
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in others.most_common(5))
    return "; ".join([f"{counted(others.total(), 'file')} left out ({kinds})"] * bool(others) + [*notes])


def images(root: Path, others: Counter[str]) -> list[str]:
    """The image files below a folder, sorted, none hidden, or a ConfigError; ``others`` counts files of other kinds."""
    found = []
    for path in _files(root, set()):
        if (suffix := path.suffix.lower()) in imagefiles.SUFFIXES:
            found.append(str(path))
        else:
            others[_readable(suffix) or "no suffix"] += 1
    if not found:
        raise ConfigError("", f"there is no image in {root} ({', '.join(imagefiles.SUFFIXES)})")
    return sorted(found)


def _files(folder: Path, seen: set[Path]) -> Iterator[Path]:
    if (real := folder.resolve()) not in seen:  # a link may lead back
        seen.add(real)
        for path in _shown(folder):
            yield from _files(path, seen) if path.is_dir() else [path]


def _shown(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in _SYSTEM]


def _folders(root: Path) -> list[str]:
    return sorted(path.name for path in _shown(root) if path.is_dir())


def _readable(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")  # a name need not be UTF-8
