"""Data sets that are published as files: downloaded when absent, verified, and read by torchvision."""

from __future__ import annotations

import io
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from filelock import FileLock

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError

# torchvision verifies MNIST's archives at download, but not the files that it reads afterwards.
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_DOWNLOAD_TIMEOUT_S = 30.0


def _reader(name: str) -> Any:
    from torchvision import datasets

    return {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100, "mnist": datasets.MNIST}[name]


def _home(name: str, root: Path) -> Path:
    return root / ("MNIST" if name == "mnist" else _reader(name).base_folder)


def listed(name: str, root: Path) -> list[tuple[Path, str]]:
    """Every file of a data set with its MD5."""
    home = _home(name, root)
    if name == "mnist":
        return [(home / "raw" / file, md5) for file, md5 in _MNIST_MD5.items()]
    reader = _reader(name)
    names = (reader.meta["filename"], reader.meta["md5"])
    return [(home / file, md5) for file, md5 in (*reader.train_list, *reader.test_list, names)]


def provide(name: str, root: Path) -> None:
    """Check that the files exist; download them when none does."""
    if not any(path.exists() for path, _ in listed(name, root)):
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
    for path, md5 in listed(name, root):
        again = f"delete {_home(name, root)} and run again to download it, or put the published file there"
        if not path.is_file():
            raise ConfigError("", f"data set {name} is incomplete: {path} is missing; {again}")
        try:
            digest = files.digest(path, "md5")
        except OSError as error:
            raise ConfigError("", f"cannot read {path} of data set {name}: {error.strerror}") from None
        if digest != md5:
            raise ConfigError(
                "", f"data set {name} is corrupt: {path} has MD5 {digest}, the published file {md5}; {again}"
            )


def read(name: str, root: Path, train: bool) -> Any:
    """torchvision's reader of one half, with its ``data``, ``targets`` and ``classes``, from verified files alone."""
    if name != "mnist":
        return _reader(name)(str(root), train=train, download=False)
    from torchvision.datasets import mnist

    # torchvision's class prefers the files that an old version of it has left in processed/, which nobody can verify.
    half = f"{_home(name, root)}/raw/{'train' if train else 't10k'}"
    data = mnist.read_image_file(f"{half}-images-idx3-ubyte")
    targets = mnist.read_label_file(f"{half}-labels-idx1-ubyte")
    return SimpleNamespace(data=data, targets=targets, classes=mnist.MNIST.classes)


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
