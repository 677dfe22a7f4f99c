"""How a published data set gets into memory, shown on a small one that is fetched from nowhere."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torchvision import datasets

from cifar_ray import data
from cifar_ray.config.errors import ConfigError
from cifar_ray.data import SPECS
from cifar_ray.data import datasets as ours

GENERATOR = np.random.default_rng(0)
CONTENT = {name: GENERATOR.integers(0, 256, (count, 32, 32, 3), np.uint8) for name, count in (("a", 6), ("b", 3))}


class Reader:
    """What torchvision's class of a data set is to ours: it fetches all files, and reads one half."""

    base_folder = "cifar-10-batches-py"
    fetched: ClassVar[list[str]] = []
    error: ClassVar[Exception | None] = None

    def __init__(self, root: str, train: bool, download: bool = False) -> None:
        home = Path(root) / self.base_folder
        if download and not home.exists():
            self.fetched.append(root)
            home.mkdir(parents=True)
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


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> type[Reader]:
    monkeypatch.setattr(datasets, "CIFAR10", Reader)
    monkeypatch.setattr(Reader, "fetched", [])
    monkeypatch.setitem(SPECS, "cifar10", replace(SPECS["cifar10"], num_classes=2, train_size=6, test_size=3))
    return Reader


def test_it_is_fetched_once_and_each_half_is_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "new" / "data"
    assert not data.present("cifar10", str(root))
    first, again = (data.load("cifar10", str(root)) for _ in range(2))
    assert len(Reader.fetched) == 1
    assert {path.name for path in root.iterdir()} == {".CIFAR10.lock", Reader.base_folder}
    assert data.present("cifar10", str(root))
    assert capsys.readouterr().err == f"note: downloading torchvision:CIFAR10 to {root}\n"
    assert np.array_equal(first.train.inputs, CONTENT["a"])
    assert np.array_equal(first.test.inputs, CONTENT["b"])
    assert (first.train["labels"].tolist(), first.test["labels"].tolist()) == ([0, 1, 0, 1, 0, 1], [0, 1, 0])
    assert first.spec.names == ("cat", "dog")
    assert first.spec.digest == again.spec.digest
    content = [CONTENT["a"], first.train["labels"], CONTENT["b"], first.test["labels"]]
    assert first.spec.digest == hashlib.sha256(b"".join(array.tobytes() for array in content)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(RuntimeError("File not found\n  or corrupted."), "File not found"), (TimeoutError("slow"), "slow")],
)
def test_a_download_that_fails_leaves_nothing_that_counts(
    error: Exception, reason: str, tmp_path: Path, small: type[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "error", error)
    with pytest.raises(ConfigError) as caught:
        data.load("cifar10", str(tmp_path))
    assert str(caught.value).startswith(f"torchvision:CIFAR10 is not whole in {tmp_path} and could not be downloaded (")
    assert f" / {reason}); check the network, " in str(caught.value)
    assert not (tmp_path / Reader.base_folder).exists()
    monkeypatch.setattr(small, "error", None)
    assert len(data.load("cifar10", str(tmp_path)).train["labels"]) == 6


def test_a_folder_that_is_a_file_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        data.load("cifar10", str(tmp_path / "file"))
    assert "is not whole in" in str(caught.value)
    assert "File exists" in str(caught.value)


def test_a_folder_of_nobody_is_a_mistake_of_the_flag() -> None:
    with pytest.raises(ConfigError) as caught:
        ours.folder("~nobody-of-that-name/data")
    assert caught.value.key == "data_dir"


def test_memory_that_is_read_only_is_taken_without_a_word() -> None:
    """As it is shared between processes. PyTorch would warn of it once in a process."""
    labels = np.arange(6)
    labels.flags.writeable = False
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            ours.as_tensor(labels)
    finally:
        torch.set_warn_always(always)
    assert told == []
