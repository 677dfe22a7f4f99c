"""Data sets of the user's own: ``--dataset folder:PATH`` and ``--dataset MODULE:FUNCTION``.

A folder has one folder of images for each class, in torchvision's layout: PATH/train/CLASS/... and PATH/test/CLASS/...
(or val/; Training/ and the like will do), or PATH/CLASS/... and a share that is kept for the test. With val/ beside
test/, val/ has the validation images; else they are a share of those to train on, by their relative paths. Images are
decoded once, and kept as arrays beside the other data sets; with ``stream`` they stay on disk. Functions are those of
:mod:`cifar_ray.data.arrays`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cifar_ray import tasks
from cifar_ray.config import files, schema
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import FOLDER
from cifar_ray.config.sections import Images
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays, folders, imagefiles
from cifar_ray.data.datasets import Dataset, Split, folder
from cifar_ray.data.folders import Listing

Progress = Callable[[int, int], None]
"""Called with the number of images that have been decoded, and that of all."""

_LAYOUT = 2  # of the decoded files; it changes when older ones would mean something else
_CHUNK = 256  # images that a thread decodes before it reports
_DECODED = re.compile(r"-[0-9a-f]{16}$")
_UNUSED_S = 30 * 86400
_MEMORY = 0.5  # share of the free memory that the images may take: the object store has its own copy


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
            listing = folders.listing(root, config.test_share, config.val_share or 0.0, True, folders.stamp(root))
        counts = (len(listing.classes), len(listing.train), len(listing.test))
        return Images(*counts, config.image_size, val=len(listing.val))
    return described(_from_function(config))


def has_validation(config: TrainConfig) -> bool:
    """Whether it is a folder that has validation images beside its test images.

    Raises:
        ConfigError: when the folder cannot be read.
    """
    if not config.dataset.startswith(FOLDER):
        return False
    root = _path(config.dataset)
    with _reading(root):
        return root.is_dir() and folders.halves(root).val is not None


def _from_function(config: TrainConfig) -> Dataset:
    return arrays.from_function(config.dataset, tasks.of(config), config.val_share or 0.0)


def described(dataset: Dataset) -> Images:
    """What is in a data set that has been read."""
    spec = dataset.spec
    counts = (spec.num_classes, spec.train_size, spec.test_size)
    return Images(*counts, spec.image_size, spec.mean, spec.std, dataset.digest, spec.val_size)


def load(config: TrainConfig, progress: Progress) -> Dataset:
    """Read the data set; a folder's images are decoded when they have not been, or have changed.

    Raises:
        ConfigError: when it cannot be read; the sentence names the file.
    """
    if not config.dataset.startswith(FOLDER):
        return _from_function(config)
    root = _path(config.dataset)
    with _reading(root):
        # Deeper folders may have changed since a first look. A run that began without validation images, when val/ had
        # no use beside test/, goes on so.
        with_val = config.validated or not config.images.classes
        listing = folders.listing.__wrapped__(root, config.test_share, config.val_share or 0.0, with_val)
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
        splits = {part: _kept(kept, part, config.stream) for part in listing.parts}
        facts = schema.build(Images, json.loads((kept / "facts.json").read_text())) if config.stream else None
    except (OSError, ValueError, EOFError):
        raise ConfigError(
            "data_dir", f"must have whole files, and those in {kept} are not; remove that folder"
        ) from None
    made = arrays.made(config.dataset, splits["train"], splits["test"], listing.classes, facts, splits.get("val"))
    return dataclasses.replace(made, left_out=listing.left_out)


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


def _key(root: Path, listing: Listing, image_size: int) -> str:
    """What the decoded images depend on: the files, their sizes and times, and how they are decoded."""
    state = hashlib.sha256(json.dumps([_LAYOUT, image_size, str(root), listing.classes]).encode())
    for half in listing.parts.values():
        for path, label in half:
            stat = Path(path).stat()
            state.update(f"{path} {label} {stat.st_size} {stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
        state.update(b"\n")
    return state.hexdigest()[:16]


def _decode(listing: Listing, root: Path, config: TrainConfig, kept: Path, progress: Progress) -> None:
    """Write all parts' images and labels to the folder ``kept``, which appears whole or not at all."""
    side, total = config.image_size, sum(map(len, listing.parts.values()))
    _check_room(f"its {total:,} images of {side}x{side} pixels", total * side**2 * 3, root, config, kept.parent)
    partial = kept.with_name(f".{kept.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    done = 0
    try:
        for half, listed in listing.parts.items():
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
        splits = {half: _kept(partial, half, True) for half in listing.parts}
        of = arrays.facts_of(splits["train"], splits["test"], len(listing.classes), splits.get("val"))
        facts = dataclasses.asdict(of)
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
