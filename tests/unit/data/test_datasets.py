from __future__ import annotations

import dataclasses
import hashlib
import http.server
import multiprocessing
import shutil
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import datasets as tv

from cifar_ray import data, tasks
from cifar_ray.config.errors import ConfigError
from cifar_ray.data import SPECS, Dataset, Split, arrays
from cifar_ray.data import datasets as ours
from cifar_ray.display.dataset import lines


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def test_digits_are_the_real_ones_with_a_fixed_split(digits: Dataset) -> None:
    from sklearn.datasets import load_digits

    assert (len(digits.train["labels"]), len(digits.test["labels"])) == (1437, 360)
    assert digits.train.inputs.shape == (1437, 32, 32, 3)
    assert digits.train.inputs.dtype == np.uint8
    together = np.concatenate([digits.train.inputs, digits.test.inputs])[:, ::4, ::4, 0]
    real = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
    assert sorted(map(bytes, together)) == sorted(map(bytes, real))
    assert digits.spec.names == tuple("0123456789")
    assert min(Counter(digits.test["labels"].tolist()).values()) > 20
    assert digits.spec.digest == data.load("digits").spec.digest == "1872b75c538a060b"


def test_grey_images_are_brought_to_32x32x3() -> None:
    image = np.arange(28 * 28, dtype=np.uint8).reshape(1, 28, 28)
    out = ours.to_model_size(SPECS["mnist"], image)
    assert out.shape == (1, 32, 32, 3)
    assert (out[0, 2:-2, 2:-2] == image[0, :, :, None]).all()
    assert out.sum() == 3 * image.astype(int).sum()


def test_tensors_share_the_arrays_memory(digits: Dataset) -> None:
    for column in digits.test.columns.values():
        assert ours.as_tensor(column).data_ptr() == column.ctypes.data


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A copy of the real data that may be damaged."""
    source = ours.folder(None)
    shutil.copytree(source / "MNIST", tmp_path / "MNIST")
    shutil.copytree(source / "cifar-10-batches-py", tmp_path / "cifar-10-batches-py")
    return tmp_path


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "file", "sentence"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_3", "torchvision:CIFAR10 is not whole in {root} and could not be "),
    ],
)
def test_a_damaged_or_missing_file_is_refused(
    real: Path, name: str, file: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tv.CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    monkeypatch.setattr(tv.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    path = real / file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        data.load(name, str(real))
    assert str(caught.value).startswith(sentence.format(root=real))
    path.unlink()
    with pytest.raises(ConfigError, match=f"torchvision:{name.upper()} is not whole in {real} and could not be down"):
        data.load(name, str(real))


def test_no_network_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tv.CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    with pytest.raises(ConfigError) as caught:
        data.load("cifar10", str(tmp_path))
    sentence = str(caught.value)
    assert f"torchvision:CIFAR10 is not whole in {tmp_path} and could not be downloaded" in sentence
    assert "--dataset digits, which needs no network" in sentence
    assert not list(tmp_path.glob("cifar*"))


def test_the_folder_comes_from_the_option_the_variable_or_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIFAR_RAY_DATA_DIR", "/from/variable")
    assert ours.folder("/from/option") == Path("/from/option")
    assert ours.folder(None) == Path("/from/variable")
    monkeypatch.delenv("CIFAR_RAY_DATA_DIR")
    monkeypatch.setenv("HOME", "/home/someone")
    assert ours.folder(None) == Path("/home/someone/.cache/cifar_ray")


class Counting(http.server.SimpleHTTPRequestHandler):
    served: list[str]

    def do_GET(self) -> None:
        self.served.append(self.path)
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """CIFAR-10's real files in an archive on a server of this machine. Yields what is fetched from it."""
    root = tmp_path / "mirror"
    root.mkdir()
    archive = root / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(ours.folder(None) / "cifar-10-batches-py", "cifar-10-batches-py")
    served: list[str] = []

    def handler(*args: Any) -> Counting:
        return type("Handler", (Counting,), {"served": served})(*args, directory=str(root))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(tv.CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{archive.name}")
    monkeypatch.setattr(tv.CIFAR10, "tgz_md5", md5(archive))
    yield served
    server.shutdown()


def _load_digest(folder: str) -> str:
    return data.load("cifar10", folder).spec.digest


@pytest.mark.data
@pytest.mark.slow
def test_several_processes_that_start_together_download_once(tmp_path: Path, mirror: list[str]) -> None:
    target = tmp_path / "data"
    with multiprocessing.get_context("fork").Pool(3) as pool:
        digests = pool.map(_load_digest, [str(target)] * 3)
    assert digests == [data.load("cifar10").spec.digest] * 3
    assert len(mirror) == 2  # torchvision asks for the address twice: where it leads, and what is there
    assert {path.name for path in target.iterdir()} >= {".CIFAR10.lock", "cifar-10-batches-py"}


def test_classes_of_unequal_size_are_said(digits: Dataset) -> None:
    assert [*lines(digits, tasks.USUAL)] == ["10 classes, 1,437 training and 360 test images"]
    rows = np.flatnonzero((digits.train["labels"] != 3) | (np.arange(len(digits.train)) < 500))
    labels = digits.train["labels"][rows]
    counts = arrays.class_counts(Split({"labels": labels}), 10)
    few = dataclasses.replace(digits, spec=dataclasses.replace(digits.spec, class_counts=counts))
    assert [*lines(few, tasks.USUAL)][1:] == [
        f"training images by class: {100 * counts[3] / len(rows):.1f} % ({counts[3]}, 3) to "
        f"{100 * max(counts) / len(rows):.1f} % ({max(counts)}, {np.argmax(counts)})"
    ]
    for other in (labels[:, None], labels - 1, labels + 1, labels / 2):  # of a task of the user's own
        assert arrays.class_counts(Split({"labels": other}), 10) == ()
    assert arrays.class_counts(Split({"ink": labels}), 10) == ()
