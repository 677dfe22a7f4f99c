"""Data sets of this package: scikit-learn's digits, and three of torchvision's whose facts are known here."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.facts import Facts
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays, torchvision_images
from cifar_ray.data.datasets import SPECS, Dataset, digest, folder, to_model_size
from cifar_ray.data.decoded import Progress
from cifar_ray.data.source import PARTS, Part, Source

_FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python", "mnist": "MNIST"}

_MNIST_MD5 = {"train": "65e3bbc3fa6148d786a74d0e2884e0e1", "test": "8281dd42328a9749b8d38e82a48dccfa"}
"""Of pixels and labels: torchvision verifies MNIST's archives at download, but not the files that it reads."""


class Published(Source):
    """A data set of this package."""

    def __init__(self, config: TrainConfig) -> None:
        name, home = config.dataset, folder(config.data_dir)
        spec = SPECS[name]
        if name == "digits":
            self.parts, self.classes = _digits(spec), tuple("0123456789")
            return
        readers = torchvision_images.opened(f"torchvision:{name.upper()}", home)
        for part, md5 in _MNIST_MD5.items() if name == "mnist" else ():
            content = readers[part].data.numpy().tobytes() + readers[part].targets.numpy().tobytes()
            if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
                raise ConfigError("", f"data set mnist is corrupt: {home / 'MNIST'} is not as published; remove it")
        self.classes = tuple(map(str, readers["train"].classes))
        self.parts = {
            part: Part(to_model_size(spec, reader.data), np.asarray(reader.targets, np.int64))
            for part, reader in readers.items()
        }

    def load(self, config: TrainConfig, progress: Progress, encoding: str) -> Dataset:
        """The samples, with facts that are known before."""
        splits = self.splits
        facts = replace(
            SPECS[config.dataset],
            train_size=len(splits["train"]),
            val_size=len(splits.get("val", ())),
            names=self.classes,
            class_counts=arrays.class_counts(splits["train"], len(self.classes)),
            digest=digest(*(splits[part] for part in PARTS if part in splits)),
        )
        return arrays.made(config.dataset, splits, facts)


SOURCE = Published


def present(name: str, data_dir: str | None = None) -> bool:
    """Whether a data set of this package is there; nothing is read or verified."""
    return name == "digits" or (folder(data_dir) / _FOLDERS[name]).is_dir()


def _digits(spec: Facts) -> dict[str, Part]:
    """scikit-learn's 8x8 digits, values 0 to 16; the last 360 of a fixed shuffle are kept for the test."""
    from sklearn.datasets import load_digits

    from cifar_ray.data import order

    bunch = load_digits()
    images, labels = to_model_size(spec, np.rint(bunch.images * (255 / 16))), bunch.target.astype(np.int64)
    shuffled = order.permutation(seed=0, epoch=0, size=len(images)).numpy()
    rows = dict(zip(("train", "test"), np.split(shuffled, [spec.train_size])))
    return {part: Part(images[at], labels[at]) for part, at in rows.items()}
