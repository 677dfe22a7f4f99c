from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torchvision import datasets as tv

from cifar_ray import data, tasks
from cifar_ray.config.errors import ConfigError
from cifar_ray.data import SPECS, Dataset, Split, arrays
from cifar_ray.data import datasets as ours
from cifar_ray.display.dataset import lines


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


def test_no_network_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tv.CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    with pytest.raises(ConfigError, match=f"CIFAR10 is not whole in {tmp_path} and could not .*--dataset digits"):
        data.load("cifar10", str(tmp_path))
    assert not list(tmp_path.glob("cifar*"))


def test_the_folder_comes_from_the_option_the_variable_or_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIFAR_RAY_DATA_DIR", "/from/variable")
    assert ours.folder("/from/option") == Path("/from/option")
    assert ours.folder(None) == Path("/from/variable")
    monkeypatch.delenv("CIFAR_RAY_DATA_DIR")
    monkeypatch.setenv("HOME", "/home/someone")
    assert ours.folder(None) == Path("/home/someone/.cache/cifar_ray")


def test_classes_of_unequal_size_are_said(digits: Dataset) -> None:
    assert [*lines(digits, tasks.USUAL)] == ["10 classes, 1,437 training and 360 test images"]
    rows = np.flatnonzero((digits.train["labels"] != 3) | (np.arange(len(digits.train)) < 500))
    labels = digits.train["labels"][rows]
    counts = arrays.class_counts(Split({"labels": labels}), 10)
    few = dataclasses.replace(digits, spec=dataclasses.replace(digits.spec, class_counts=counts))
    said = [*lines(few, tasks.USUAL)][1]
    assert (f"({counts[3]}, 3) to" in said, said.endswith(f"({max(counts)}, {np.argmax(counts)})")) == (True, True)
    for other in (labels[:, None], labels - 1, labels + 1, labels / 2):  # of a task of the user's own
        assert arrays.class_counts(Split({"labels": other}), 10) == ()
    assert arrays.class_counts(Split({"ink": labels}), 10) == ()


GENERATOR = np.random.default_rng(0)
CONTENT = {name: GENERATOR.integers(0, 256, (count, 32, 32, 3), np.uint8) for name, count in (("a", 6), ("b", 3))}


class Reader:
    """What torchvision's class of a data set is to ours: it fetches all files, and reads one half."""

    base_folder = "cifar-10-batches-py"
    error: ClassVar[Exception | None] = None
    log: ClassVar[Path]

    def __init__(self, root: str, train: bool, download: bool = False) -> None:
        home = Path(root) / self.base_folder
        if download and not home.exists():
            with self.log.open("a") as file:
                file.write("once ")
            home.mkdir(parents=True)
            time.sleep(0.05)  # as long as another process may take to begin, too
            for name, content in CONTENT.items():
                (home / name).write_bytes(content.tobytes())
            if self.error is not None:
                raise self.error
            (home / "names").write_bytes(b"cat dog")
        raw = (home / ("a" if train else "b")).read_bytes()
        self.data = np.frombuffer(raw, np.uint8).reshape(-1, 32, 32, 3)
        self.targets = [number % 2 for number in range(len(self.data))]
        self.classes = (home / "names").read_text().split()

    def __len__(self) -> int:
        return len(self.data)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Reader]:
    monkeypatch.setattr(Reader, "log", tmp_path / "fetched", raising=False)
    monkeypatch.setattr(tv, "CIFAR10", Reader)
    monkeypatch.setitem(SPECS, "cifar10", replace(SPECS["cifar10"], num_classes=2, train_size=6, test_size=3))
    return Reader


def digest_of(root: Path) -> str:
    return data.load("cifar10", str(root)).spec.digest


def test_a_data_set_is_there_with_its_folder(tmp_path: Path) -> None:
    for name, folder in {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python", "mnist": "MNIST"}.items():
        assert not data.present(name, str(tmp_path))
        (tmp_path / folder).mkdir()
        assert data.present(name, str(tmp_path))
    assert data.present("digits", "/nowhere")


@pytest.mark.usefixtures("small")
def test_it_is_fetched_once_by_processes_that_start_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "new" / "data"
    assert not data.present("cifar10", str(root))
    with multiprocessing.get_context("fork").Pool(3) as pool:
        digests = pool.map(digest_of, [root] * 3, chunksize=1)
    assert Reader.log.read_text() == "once "
    assert {path.name for path in root.iterdir()} == {".CIFAR10.lock", Reader.base_folder}
    assert data.present("cifar10", str(root))
    assert capfd.readouterr().err == f"note: downloading torchvision:CIFAR10 to {root}\n"
    found = data.load("cifar10", str(root))
    content = [CONTENT["a"], np.arange(6) % 2, CONTENT["b"], np.arange(3) % 2]
    arrays = [array for half in (found.train, found.test) for array in (half.inputs, half["labels"])]
    assert all(map(np.array_equal, arrays, content))
    assert found.spec.names == ("cat", "dog")
    digest = hashlib.sha256(b"".join(array.tobytes() for array in content)).hexdigest()[:16]
    assert {found.spec.digest, *digests} == {digest}


@pytest.mark.parametrize(
    ("error", "reason"),
    [(RuntimeError("File not found\n  or corrupted."), "File not found"), (TimeoutError("slow"), "slow")],
)
def test_a_download_that_fails_leaves_nothing_that_counts(
    error: Exception, reason: str, tmp_path: Path, small: type[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "error", error)
    with pytest.raises(ConfigError, match=rf"CIFAR10 is not whole in {tmp_path} and .* / {reason}\)"):
        data.load("cifar10", str(tmp_path))
    assert not (tmp_path / Reader.base_folder).exists()
    monkeypatch.setattr(small, "error", None)
    assert len(data.load("cifar10", str(tmp_path)).train["labels"]) == 6


@pytest.mark.usefixtures("small")
def test_what_can_be_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"is not whole in .*File exists"):
        data.load("cifar10", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"^data_dir "):
        ours.folder("~nobody-of-that-name/data")


def test_memory_that_is_read_only_is_taken_without_a_word() -> None:
    """As it is shared between processes. PyTorch would warn of it once in a process."""
    labels = np.arange(6)
    labels.flags.writeable = False
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tensor = ours.as_tensor(labels)
    finally:
        torch.set_warn_always(False)
    assert (tensor.tolist(), tensor.data_ptr()) == ([*range(6)], labels.ctypes.data)
