"""Data sets that are not this package's own: of files, such as a ``folder:``, torchvision's, ``MODULE:FUNCTION``.

A folder has one folder of images for each class, in torchvision's layout: PATH/train/CLASS/... and PATH/test/CLASS/...
(or val/; Training/ and the like will do), or PATH/CLASS/... and a share that is kept for the test. With val/ beside
test/, val/ has the validation images; else they are a share of those to train on, by their relative paths. Images with
masks are those of :mod:`cifar_ray.data.masks`, with COCO's annotations of :mod:`cifar_ray.data.coco`, texts those of
:mod:`cifar_ray.data.texts`, functions those of :mod:`cifar_ray.data.arrays`, torchvision's sets those of
:mod:`cifar_ray.data.torchvision_images`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cifar_ray import tasks
from cifar_ray.config import files
from cifar_ray.config.option import COCO, MASKS, TABLE, TEXT, TORCHVISION, is_folder, path_of
from cifar_ray.config.sections import Images
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays, coco, decoded, folders, imagefiles, masks, tables, texts, torchvision_images
from cifar_ray.data.datasets import Dataset, unusable
from cifar_ray.data.decoded import Progress


def absolute(dataset: str) -> str:
    """``dataset`` independent of the working folder.

    Raises:
        ConfigError: when its ``~`` stands for nobody's home folder.
    """
    return f"{dataset.partition(':')[0]}:{_path(dataset)}" if is_folder(dataset) else dataset


def look(config: TrainConfig) -> Images:
    """What there is, as far as it can be told without decoding an image.

    Raises:
        ConfigError: when it cannot be learned from; the sentence says why.
    """
    if is_folder(config.dataset):
        root = _path(config.dataset)
        with _reading(root):
            if config.dataset.startswith(TEXT):
                return texts.look(config, root)
            if config.dataset.startswith(TABLE):
                return tables.look(config, root)
            list_files, arguments = _lister(config, root)
            listing = list_files(*arguments, folders.stamp(root))
        counts = (len(listing.classes), len(listing.train), len(listing.test))
        return Images(*counts, config.image_size, val=len(listing.val))
    if config.dataset.startswith(TORCHVISION):
        return torchvision_images.look(config)
    return arrays.described(_from_function(config))


def _lister(config: TrainConfig, root: Path) -> tuple[Any, tuple[Any, ...]]:
    """What lists the files of a folder, and its arguments."""
    share = config.val_share or 0.0
    if config.dataset.startswith(MASKS):
        return masks.listing, (root, share, config.ignore_value)
    if config.dataset.startswith(COCO):
        return coco.listing, (root, share)
    return folders.listing, (root, config.test_share, share)


def _from_function(config: TrainConfig) -> Dataset:
    return arrays.from_function(config.dataset, tasks.of(config), config.val_share or 0.0)


def load(config: TrainConfig, progress: Progress, encoding: str = "") -> Dataset:
    """Read the data set; image files are decoded when they have not been, or have changed.

    ``encoding``: of texts, the tokenizer to use in place of one that is trained.

    Raises:
        ConfigError: when it cannot be read; the sentence names the file.
    """
    if config.dataset.startswith(TORCHVISION):
        return torchvision_images.load(config, progress)
    if not is_folder(config.dataset):
        return _from_function(config)
    root = _path(config.dataset)
    with _reading(root):
        if config.dataset.startswith(TEXT):
            return texts.load(config, root, progress, encoding)
        if config.dataset.startswith(TABLE):
            return tables.load(config, root, progress)
        list_files, arguments = _lister(config, root)
        listing: folders.Listing = list_files.__wrapped__(*arguments)  # deeper folders may have changed since a look
        marks = (map(_mark, listed) for listed in listing.parts.values())
        how = f"{root} {config.ignore_value}" if config.dataset.startswith(MASKS) else str(root)
        key = decoded.key(config.image_size, how, listing.classes, marks)
    parts = {part: _part(listed, config, len(listing.classes)) for part, listed in listing.parts.items()}
    made = decoded.provide(config, root.name, key, parts, listing.classes, progress)
    coco.forget()
    return dataclasses.replace(made, left_out=listing.left_out)


def _path(dataset: str) -> Path:
    return files.absolute("dataset", path_of(dataset))


@contextmanager
def _reading(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unusable(
            f"must be a folder or file that can be read, and {error.filename or root} cannot be ({error.strerror})"
        ) from None


def _mark(file: tuple[str, int | str]) -> bytes:
    """What tells an image file and its label, or the file of its mask, from others."""
    path, target = file
    if isinstance(target, str):
        return decoded.mark(path, 0) + decoded.mark(target, 0)
    return decoded.mark(path, target)


def _part(listed: folders.Files, config: TrainConfig, classes: int) -> decoded.Part:
    side = config.image_size
    if listed and isinstance(listed[0][1], str):
        is_coco = config.dataset.startswith(COCO)
        of_mask = functools.partial(masks.read, side=side, classes=classes, ignored=config.ignore_value)
        pair = functools.partial(coco.read, side=side) if is_coco else of_mask
        return decoded.Part(
            np.broadcast_to(np.uint8(0), (len(listed), side, side)),
            lambda row: pair(*map(str, listed[row])),
            [str(path) for pair in listed for path in pair[: 1 if is_coco else 2]],
        )

    labels = np.array([label for _, label in listed], dtype=np.int64)
    paths = [path for path, _ in listed]
    return decoded.Part(labels, lambda row: imagefiles.square(Path(paths[row]), side), paths)
