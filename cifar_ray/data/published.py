"""Data sets of this package: scikit-learn's digits, and files that torchvision downloads and reads, verified."""

from __future__ import annotations

import io
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data.datasets import SPECS, Dataset, DatasetSpec, digest, folder, to_model_size, unusable
from cifar_ray.data.decoded import Progress
from cifar_ray.data.source import PARTS, Found, Part, Source

# torchvision verifies MNIST's archives at download, but not the files that it reads afterwards.
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_DOWNLOAD_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Published(Source):
    """A data set of this package, whose facts are known before it is read."""

    name: str
    folder: Path

    @classmethod
    def of(cls, config: TrainConfig) -> Published:
        return cls(config.dataset, folder(config.data_dir))

    def find(self) -> Found:
        spec = SPECS[self.name]
        if self.name == "digits":
            return _digits(spec)
        provide(self.name, self.folder)
        halves = {part: _read(self.name, self.folder, part == "train") for part in ("train", "test")}
        names = tuple(map(str, halves["train"].classes))
        return Found(
            names,
            {
                part: Part(to_model_size(spec, half.data), np.asarray(half.targets, np.int64))
                for part, half in halves.items()
            },
        )

    def load(self, config: TrainConfig, found: Found, progress: Progress, encoding: str) -> Dataset:
        splits = found.splits
        val = splits.get("val")
        spec = replace(SPECS[self.name], train_size=len(splits["train"]), val_size=len(val or ()))
        of_all = digest(*(splits[part] for part in PARTS if part in splits))
        return Dataset(spec, splits["train"], splits["test"], found.classes, of_all, val=val)


def present(name: str, data_dir: str | None = None) -> bool:
    """Whether every file of a data set is there; nothing is read or verified."""
    return name == "digits" or all(path.is_file() for path, _ in _listed(name, folder(data_dir)))


def _digits(spec: DatasetSpec) -> Found:
    """scikit-learn's 8x8 digits, values 0 to 16; the last 360 of a fixed shuffle are kept for the test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise unusable("digits needs scikit-learn, which is not installed here") from None

    from cifar_ray.data import order

    bunch = load_digits()
    images, labels = to_model_size(spec, np.rint(bunch.images * (255 / 16))), bunch.target.astype(np.int64)
    shuffled = order.permutation(seed=0, epoch=0, size=len(images)).numpy()
    rows = dict(zip(("train", "test"), np.split(shuffled, [spec.train_size])))
    return Found(tuple("0123456789"), {part: Part(images[at], labels[at]) for part, at in rows.items()})


def _reader(name: str) -> Any:
    from torchvision import datasets

    return {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100, "mnist": datasets.MNIST}[name]


def _home(name: str, root: Path) -> Path:
    return root / ("MNIST" if name == "mnist" else _reader(name).base_folder)


def _listed(name: str, root: Path) -> list[tuple[Path, str]]:
    """Every file of a data set with its MD5."""
    home = _home(name, root)
    if name == "mnist":
        return [(home / "raw" / file, md5) for file, md5 in _MNIST_MD5.items()]
    reader = _reader(name)
    names = (reader.meta["filename"], reader.meta["md5"])
    return [(home / file, md5) for file, md5 in (*reader.train_list, *reader.test_list, names)]


def provide(name: str, root: Path) -> None:
    """Check that the files exist; download them when none does."""
    if not any(path.exists() for path, _ in _listed(name, root)):
        try:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f".{name}.lock"):
                if not _home(name, root).exists():  # another process may have been first
                    _download(name, root)
        except OSError as error:
            raise ConfigError(
                "",
                f"data set {name} is not in {root}, and the folder cannot be written ({error.strerror}); "
                "choose another --data-dir",
            ) from None
    _verify(name, root)


def _download(name: str, root: Path) -> None:
    """Download into a temporary folder and move it at the end, so that all files exist or none."""
    partial = root / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with downloading(name, root, _home(name, root)):
        _reader(name)(str(partial), train=True, download=True)
    _home(name, partial).rename(_home(name, root))
    shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def downloading(name: str, root: Path, home: Path) -> Iterator[None]:
    """Context manager: download data set ``name``; an error becomes a sentence, in which files go into ``home``."""
    try:
        # torchvision's progress bar would be thousands of lines in a file.
        bar = nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())
        with _socket_timeout(_DOWNLOAD_TIMEOUT_S), bar:
            yield
    except ConfigError:
        raise
    except Exception as error:  # of the network, of archives that are cut off, of gdown
        reason = " ".join(str(error).split())
        raise ConfigError(
            "",
            f"data set {name} is not in {root} and could not be downloaded ({reason}); check the network, put "
            f"its files into {home}, name another --data-dir, or take --dataset digits, which needs no network",
        ) from None


def _verify(name: str, root: Path) -> None:
    for path, md5 in _listed(name, root):
        again = f"delete {_home(name, root)} and run again to download it, or put the published file there"
        if not path.is_file():
            raise ConfigError("", f"data set {name} is incomplete: {path} is missing; {again}")
        if (found := files.digest(path, "md5")) != md5:
            raise ConfigError(
                "", f"data set {name} is corrupt: {path} has MD5 {found}, the published file {md5}; {again}"
            )


def _read(name: str, root: Path, train: bool) -> Any:
    """torchvision's reader of one half, with its ``data``, ``targets`` and ``classes``, from verified files alone."""
    reader = _reader(name)
    if name == "mnist":
        # It prefers the files that an old version of it has left in processed/, which nobody can verify.
        reader = type("MNIST", (reader,), {"_check_legacy_exist": lambda self: False})
    return reader(str(root), train=train, download=False)


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
