"""Data sets by name: uint8 images and labels in memory, verified, downloaded when absent."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError
from cifar_ray.data import order


@dataclass(frozen=True)
class DatasetSpec:
    """Facts about a data set that hold before it is read.

    Attributes:
        name: its name on the command line.
        num_classes: labels run from 0 to ``num_classes - 1``.
        train_size: training images.
        test_size: test images.
        mean: mean of the training pixels per channel, on a scale of 0 to 1.
        std: standard deviation of the training pixels per channel, on the same scale.
        flip: whether a mirrored image still shows its class.
        native_size: side of an image in pixels, as published.
        grey: whether the published images have one channel.
        image_size: side of an image in pixels, as the models get it.
        channels: channels of an image, as the models get it.
    """

    name: str
    num_classes: int
    train_size: int
    test_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    flip: bool
    native_size: int = 32
    grey: bool = False
    image_size: int = 32
    channels: int = 3


@dataclass(frozen=True)
class Split:
    """The training or the test images.

    Attributes:
        images: uint8, shape (N, 32, 32, 3), channels last; may be read-only.
        labels: int64, shape (N,).
    """

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Dataset:
    """A data set in memory.

    Attributes:
        spec: its fixed facts.
        train: training images.
        test: test images.
        class_names: one per label.
        digest: first 16 hex digits of the SHA-256 over all images and labels.
    """

    spec: DatasetSpec
    train: Split
    test: Split
    class_names: tuple[str, ...]
    digest: str


def _grey(value: float) -> tuple[float, float, float]:
    return (value, value, value)


SPECS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        DatasetSpec("cifar10", 10, 50_000, 10_000, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), True),
        DatasetSpec("cifar100", 100, 50_000, 10_000, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), True),
        DatasetSpec("mnist", 10, 60_000, 10_000, _grey(0.1000), _grey(0.2752), False, 28, True),
        DatasetSpec("digits", 10, 1_437, 360, _grey(0.3053), _grey(0.3760), False, 8, True),
    )
}

# torchvision verifies MNIST's archives at download, but not the files that it reads afterwards.
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_DOWNLOAD_TIMEOUT_S = 30.0


def folder(data_dir: str | None) -> Path:
    """The folder of the data sets: the one given, ``CIFAR_RAY_DATA_DIR``, or a cache in the home folder."""
    chosen = data_dir or os.environ.get("CIFAR_RAY_DATA_DIR") or "~/.cache/cifar_ray"
    return files.absolute("data_dir", chosen)


def load(name: str, data_dir: str | None = None) -> Dataset:
    """Read a data set, downloading it first when it is not there.

    Several processes may call this at once with one folder: one downloads, the others wait.

    Raises:
        ConfigError: when a file is missing, corrupt or unreadable, or the download fails; the
            sentence names the file and what to do.
    """
    spec = SPECS[name]
    if name == "digits":
        return _digits(spec)
    root = folder(data_dir)
    _provide(name, root)
    train, test = (_read(name, root, train) for train in (True, False))
    names = tuple(str(label) for label in train.classes)
    train_split, test_split = (Split(to_model_size(spec, half.data), _labels(half.targets)) for half in (train, test))
    return _dataset(spec, train_split, test_split, names)


def present(name: str, data_dir: str | None = None) -> bool:
    """Whether every file of a data set is there; nothing is read or verified."""
    return name == "digits" or all(path.is_file() for path, _ in _files(name, folder(data_dir)))


def _reader(name: str) -> Any:
    from torchvision import datasets

    return {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100, "mnist": datasets.MNIST}[name]


def _home(name: str, root: Path) -> Path:
    """This data set's folder below ``root``."""
    return root / ("MNIST" if name == "mnist" else _reader(name).base_folder)


def _files(name: str, root: Path) -> list[tuple[Path, str]]:
    """Every file of a data set with its MD5."""
    home = _home(name, root)
    if name == "mnist":
        return [(home / "raw" / file, md5) for file, md5 in _MNIST_MD5.items()]
    reader = _reader(name)
    listed = [*reader.train_list, *reader.test_list, (reader.meta["filename"], reader.meta["md5"])]
    return [(home / file, md5) for file, md5 in listed]


def _provide(name: str, root: Path) -> None:
    """Check that the files exist; download them when none does."""
    if any(path.exists() for path, _ in _files(name, root)):
        _verify(name, root)
        return
    from filelock import FileLock

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
    from http.client import HTTPException
    from urllib.error import URLError

    partial = root / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with _socket_timeout(_DOWNLOAD_TIMEOUT_S), _bar_in_a_terminal_only():
            _reader(name)(str(partial), train=True, download=True)
    except (URLError, HTTPException, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            "",
            f"data set {name} is not in {root} and could not be downloaded ({reason}); check the network, put "
            f"its files into {_home(name, root)}, name another --data-dir, or take --dataset digits, which "
            "needs no network",
        ) from None
    _home(name, partial).rename(_home(name, root))
    shutil.rmtree(partial, ignore_errors=True)


def _verify(name: str, root: Path) -> None:
    for path, md5 in _files(name, root):
        again = f"delete {_home(name, root)} and run again to download it, or put the published file there"
        if not path.is_file():
            raise ConfigError("", f"data set {name} is incomplete: {path} is missing; {again}")
        try:
            found = files.digest(path, "md5")
        except OSError as error:
            raise ConfigError("", f"cannot read {path} of data set {name}: {error.strerror}") from None
        if found != md5:
            raise ConfigError(
                "", f"data set {name} is corrupt: {path} has MD5 {found}, the published file {md5}; {again}"
            )


def _read(name: str, root: Path, train: bool) -> Any:
    """torchvision's reader of one half, with its ``data``, ``targets`` and ``classes``, from verified files alone."""
    if name != "mnist":
        return _reader(name)(str(root), train=train, download=False)
    from torchvision.datasets import mnist

    # torchvision's class prefers the files that an old version of it has left in processed/, which nobody can verify.
    images, labels = (_home(name, root) / "raw" / file for file in list(_MNIST_MD5)[0 if train else 2 :][:2])
    data, targets = mnist.read_image_file(str(images)), mnist.read_label_file(str(labels))
    return SimpleNamespace(data=data, targets=targets, classes=mnist.MNIST.classes)


def to_model_size(spec: DatasetSpec, images: Any) -> np.ndarray:
    """Published images as the models get them.

    8x8 images are enlarged, each pixel to 4x4; 28x28 ones get a border of 2 zeros; grey ones get three
    equal channels.

    Args:
        spec: the data set.
        images: uint8, (N, side, side, 3), or (N, side, side) when grey, with ``spec.native_size`` as side.

    Returns:
        uint8, (N, 32, 32, 3), contiguous.
    """
    array = np.asarray(images, dtype=np.uint8)
    scale = spec.image_size // spec.native_size
    array = array.repeat(scale, axis=1).repeat(scale, axis=2)
    border = (spec.image_size - array.shape[1]) // 2
    if spec.grey:
        array = np.repeat(array[..., None], spec.channels, axis=3)
    return np.ascontiguousarray(np.pad(array, ((0, 0), (border, border), (border, border), (0, 0))))


def _labels(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.int64)


def _digits(spec: DatasetSpec) -> Dataset:
    """scikit-learn's 8x8 digits, values 0 to 16; the last 360 of a fixed shuffle are kept for the test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ConfigError("dataset", "digits needs scikit-learn, which is not installed here") from None

    bunch = load_digits()
    images = to_model_size(spec, np.rint(bunch.images * (255 / 16)))
    shuffled = order.permutation(seed=0, epoch=0, size=len(images)).numpy()
    train, test = (Split(images[part], _labels(bunch.target[part])) for part in np.split(shuffled, [spec.train_size]))
    return _dataset(spec, train, test, tuple(str(digit) for digit in range(spec.num_classes)))


def _dataset(spec: DatasetSpec, train: Split, test: Split, names: tuple[str, ...]) -> Dataset:
    assert train.images.shape == (spec.train_size, spec.image_size, spec.image_size, spec.channels)
    assert test.images.shape == (spec.test_size, spec.image_size, spec.image_size, spec.channels)
    digest = hashlib.sha256()
    for split in (train, test):
        digest.update(split.images.data)
        digest.update(split.labels.data)
    return Dataset(spec, train, test, names, digest.hexdigest()[:16])


def as_tensors(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    """The split's memory as tensors, without a copy: uint8 (N, 32, 32, 3) and int64 (N,)."""
    import warnings

    with warnings.catch_warnings():
        # Memory shared between processes is read-only; nothing here writes to it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(split.images), torch.from_numpy(split.labels)


@contextmanager
def _bar_in_a_terminal_only() -> Iterator[None]:
    """Context manager: no progress bar of torchvision in files, where it would be thousands of lines."""
    if sys.stderr.isatty():
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
