"""Folders of images by class, ``--dataset folder:PATH``.

There is one folder of images for each class, in torchvision's layout: PATH/train/CLASS/... and PATH/test/CLASS/...
(or val/; Training/ and the like will do), or PATH/CLASS/... and a share that is kept for the test. With val/ beside
test/, val/ has the validation images; else they are a share of those to train on, by their relative paths.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from cifar_ray.config.errors import counted
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import imagefiles
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import Files, Part

_HALVES = {"train": ("train", "training"), "test": ("test", "testing"), "val": ("val", "valid", "validation")}
"""Usual names of the folders of training, test and validation images, in any case; val/ is for the test where there is
no other."""

_SYSTEM = ("@eaDir", "#recycle", "__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""Folders that storage devices and archive programs make; some hold thumbnails of every image."""

_KINDS = 5  # kinds of files that are left out and named, at most


class Halves(Files):
    """A folder with a folder of each part.

    Attributes:
        halves: those folders; ``train`` is the whole where there are none.
        unused: names of others, and of one that is used otherwise than it says, in words.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.check_there()
        self.halves, others = _halves(self.root)
        self.base = self.halves["train"]
        names = ", ".join(f"{_readable(name)}/" for name in others)
        self.unused = [f"{names} not used"] if others else []
        if (test := self.halves.get("test")) and test.name.lower() in _HALVES["val"]:
            self.unused.append(f"{_readable(test.name)}/ is the test set, since there is no other")


class Folder(Halves):
    """A folder of images by class."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        left_out = Counter[str]()
        found = {part: _classes(folder, left_out) for part, folder in self.halves.items()}
        self.classes = found["train"][0]
        if len(self.classes) < 2:
            raise unusable(
                f"must have a folder for each of at least two classes, and {self.base} has {len(self.classes)}"
            )
        for part, (others, _) in found.items():
            if odd := sorted({*others} ^ {*self.classes}):
                where = f"{self.base.name}/ and {self.halves[part].name}/ of {self.root}"
                raise unusable(f"must have the same classes in {where}; {odd[0]!r} is in one only")
        self.parts = {part: each for part, (_, each) in found.items()}
        self.left_out = "; ".join(filter(None, (in_words(left_out), *self.unused)))

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


def _halves(root: Path) -> tuple[dict[str, Path], list[str]]:
    """The folders of the parts, told by their names, and the names of unused ones.

    Raises:
        ConfigError: when two have a name for the same part, or there is one for the test alone.
    """
    names = _folders(root)
    matches = {half: [name for name in names if name.lower() in usual] for half, usual in _HALVES.items()}
    count = sum(map(len, matches.values()))
    # Training/ may be a class among others, but not train/, and not where all folders have such names.
    if not count or (count < len(names) and not _HALVES.keys() & set(names)):
        return {"train": root}, []
    if not matches["test"]:
        matches |= {"test": matches["val"], "val": []}
    matches["val"] = [name for name in matches["val"] if _folders(root / name)]
    for several in matches.values():
        if len(several) > 1:
            raise unusable(f"must have {several[0]}/ or {several[1]}/, and {root} has both; move one of them elsewhere")
    if not matches["train"]:
        raise unusable(f"must have train/ beside {matches['test'][0]}/, and {root} has none")
    parts = {part: root / each[0] for part, each in matches.items() if each}
    return parts, [name for name in names if root / name not in parts.values()]


def in_words(left_out: Counter[str]) -> str:
    """``124 files left out (.heic 120, .txt 4)``; empty without any."""
    return f"{counted(left_out.total(), 'file')} left out ({_kinds(left_out)})" if left_out else ""


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
        folders[:] = filter(_is_shown, folders)
        for path in (Path(place, name) for name in filter(_is_shown, names)):
            suffix = path.suffix.lower()
            if suffix in imagefiles.SUFFIXES and path.is_file():
                yield str(path)
            else:
                others["broken links" if not path.is_file() else _readable(suffix) or "no suffix"] += 1


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
    if beside := sum(entry.is_file() and _is_shown(entry.name) for entry in root.iterdir()):
        left_out["beside the classes"] += beside
    return tuple(map(_readable, names)), Part(paths, np.array(labels, dtype=np.int64))


def _is_shown(name: str) -> bool:
    return not name.startswith(".") and name not in _SYSTEM


def _readable(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")  # a name need not be UTF-8


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and _is_shown(entry.name))
