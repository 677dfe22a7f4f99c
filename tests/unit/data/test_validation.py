"""Which training images are kept for validation."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cifar_ray import data, tasks
from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset, Split, source, validation
from cifar_ray.display.dataset import lines
from cifar_ray.training import recipe
from tests.support.helpers import contents
from tests.support.images import folder_of_digits, of


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CIFAR_RAY_DATA_DIR", str(tmp_path / "decoded"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder_of_digits(tmp_path / "images", 200)
    return tmp_path / "images"


def rows_of(split: Split | None) -> set[bytes]:
    assert split is not None
    return {image.tobytes() + label.tobytes() for image, label in zip(split.inputs, split["labels"], strict=True)}


def test_it_is_that_share_of_each_class_and_the_rest_is_trained_on(digits: Dataset) -> None:
    config = of("digits", val_share=0.2)
    found = data.read(config)
    assert found.val is not None
    published = np.bincount(digits.train["labels"])
    kept = np.bincount(found.val["labels"])
    assert np.abs(kept - 0.2 * published).max() <= 1  # of equal images, one more may be kept
    assert (np.bincount(found.train["labels"]) == published - kept).all()
    assert rows_of(found.train) | rows_of(found.val) == rows_of(digits.train)
    assert (found.spec.train_size, found.spec.val_size) == (len(found.train), len(found.val))
    assert rows_of(found.test) == rows_of(digits.test)
    assert found.spec.digest != digits.spec.digest
    assert abs(data.facts(config).train_size - found.spec.train_size) <= 10
    assert f" {len(found.val):,} validation and 360 test images" in contents(found)


class Made(source.Source):
    """Parts as a source finds them, before any are kept for validation."""

    def __init__(self, parts: dict[str, Split], names: tuple[str, ...]) -> None:
        (self.column,) = (name for name in parts["train"].columns if name != "images")
        self.parts = {name: source.Part(part.inputs, part[self.column]) for name, part in parts.items()}
        self.classes = names


def split(whole: source.Source, share: float) -> dict[str, Split]:
    return whole.split(TrainConfig(dataset="digits", val_share=share)).splits


def test_neither_the_seed_nor_the_test_images_move_it_and_a_larger_share_keeps_more(digits: Dataset) -> None:
    first, larger, without = (data.read(of("digits", val_share=share)) for share in (0.2, 0.3, 0))
    assert data.read(of("digits", val_share=0.2, seed=5, epochs=3)).spec.digest == first.spec.digest
    moved = Made({"train": digits.train, "test": digits.test.at(slice(None, None, -1))}, digits.spec.names)
    assert rows_of(split(moved, 0.2)["val"]) == rows_of(first.val) < rows_of(larger.val)
    assert (without.val, without.spec.digest) == (None, digits.spec.digest)


def test_equal_images_are_on_one_side_whatever_their_class() -> None:
    contents = [row // 4 for row in range(38)] + [0, 1]  # one image of class 1 is also one of class 0
    keys, classes = [f"{row}".encode() for row in range(40)], np.repeat([0, 1], 20)
    kept = validation.rows(keys, contents, classes, ("a", "b"), 0.3, "val_share")
    assert 0 < kept.sum() < 40
    by_content = {content: {bool(kept[row]) for row in range(40) if contents[row] == content} for content in contents}
    assert all(len(sides) == 1 for sides in by_content.values())


@pytest.mark.parametrize(
    ("classes", "contents", "share", "sentence"),
    [
        ([0, 0, 1], range(3), 0.5, "'b' on both sides, got 0.5 of 1"),
        ([0, 0, 1, 1, 1], range(5), 0.9, "'a' on both sides, got 0.9 of 2"),
        ([0, 0, 0, 1, 1], [0, 1, 2, 3, 3], 0.1, "'b' on both sides, got 0.1 of 2"),  # which are equal
        ([0, 0, 0, 1, 1], [0, 1, 2, 0, 1], 0.1, "'b' on both sides, got 0.1 of 2"),  # as those of a
    ],
)
def test_too_few_are_refused(classes: list[int], contents: Sequence[int], share: float, sentence: str) -> None:
    def tried() -> None:
        for salt in range(20):  # some hashes refuse it
            keys = [bytes([salt, row]) for row in range(len(classes))]
            validation.rows(keys, contents, np.array(classes), ("a", "b"), share, "val_share")

    with pytest.raises(ConfigError, match=f"^val_share must leave a sample of class {sentence}$"):
        tried()


def test_a_folder_keeps_files_by_their_relative_paths(root: Path, tmp_path: Path) -> None:
    config = of(root, val_share=0.2)
    first = data.read(config)
    assert first.val is not None
    facts = data.facts(config)
    assert (facts.train_size, facts.val_size) == (len(first.train), len(first.val))
    assert (facts.train_size + facts.val_size, facts.test_size) == (200, 200)
    held = recipe.settle(config, Decided.asked(config), first)
    assert held.data.val_size == len(first.val)
    assert runfile.params(config, held)["data.val_size"] == str(len(first.val))
    shutil.copytree(root, tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "elsewhere" / "test" / "0")
    shutil.copytree(root / "test" / "1", tmp_path / "elsewhere" / "test" / "0")
    assert rows_of(data.read(of(tmp_path / "elsewhere", val_share=0.2)).val) == rows_of(first.val)
    pixels = first.train.inputs.reshape(-1, 3) / 255
    assert np.allclose(first.spec.mean, pixels.mean(0), atol=1e-4)  # of the images to train on alone


def test_copies_are_in_one_part_where_we_split_and_counted_where_the_user_did(root: Path) -> None:
    for path in [*(root / "train").glob("*/*.png")]:
        shutil.copy(path, path.with_name(f"copy-of-{path.name}"))
    shared = data.read(of(root / "train", test_share=0.2, val_share=0.2))
    assert shared.val is not None
    splits = (shared.train, shared.test, shared.val)
    parts = [{image.tobytes() for image in split.inputs} for split in splits]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 200
    assert (sum(map(len, splits)), shared.spec.test_copies, shared.spec.val_copies) == (400, 0, 0)
    folder_of_digits(root, 60, ("val",))  # which are training images
    for half, label in (("train", 3), ("val", 5)):
        shutil.copy(next((root / "test").glob(f"{label}/*.png")), root / half / f"{label}" / "also.png")
    for stream in (False, True, True):  # of which the last is decoded already
        config = of(root, stream=stream)
        given = data.read(config)
        said = [*lines(given, tasks.USUAL)][1]
        assert ("2 of 200 test images are" in said, "60 of 61 validation images are" in said) == (True, True)
    settled = recipe.settle(config, Decided.asked(config), given)
    assert runfile.params(config, settled)["data.val_copies"] == "60"


def test_val_beside_test_needs_no_share(root: Path) -> None:
    folder_of_digits(root, 120, ("valid",))
    config = of(root)
    found = data.read(config)
    assert (config.val_share, data.facts(config).val_size) == (None, 120)
    assert found.val is not None
    assert (len(found.train), len(found.val), len(found.test)) == (200, 120, 200)
    assert "not used" not in found.left_out
    for share in (0.1, 0):
        with pytest.raises(ConfigError, match=r"^val_share is for data without validation"):
            data.read(of(root, val_share=share))
    shutil.rmtree(root / "valid" / "3")
    with pytest.raises(ConfigError, match=r"^dataset must have two or more classes, the same in each part"):
        data.read(of(root))


def test_val_alone_is_the_test_set_and_that_is_said(root: Path) -> None:
    before = data.read(of(root))
    (root / "test").rename(root / "val")
    found = data.read(of(root))
    assert (found.val, found.spec.digest, before.left_out) == (None, before.spec.digest, "")
    assert found.left_out.startswith("val/ is the test set")
    assert data.read(of(root, val_share=0.1)).val is not None


def some() -> object:
    digits = data.load("digits")
    return tuple((split.inputs[:150], split["labels"][:150]) for split in (digits.train, digits.test))


def test_a_function_of_ones_own_has_them_too_and_what_has_been_read_is_not_kept_beside_it() -> None:
    config = of(f"{__name__}:some", val_share=0.2)
    found, facts = data.read(config), data.facts(config)
    assert found.val is not None
    assert (facts.train_size, facts.val_size, facts.digest) == (len(found.train), len(found.val), found.spec.digest)
    assert np.bincount(found.val["labels"], minlength=10).min() >= 1
    assert data.read(of(f"{__name__}:some")).spec.digest != found.spec.digest
    assert recipe.settle(config, Decided.asked(config), found).data == facts
    kept = weakref.ref(found.train.inputs)
    del found
    assert kept() is None


def test_without_labels_they_are_drawn_by_position(digits: Dataset) -> None:
    ink = digits.train.inputs.reshape(len(digits.train), -1).mean(1, dtype=np.float32)
    train = Split({"images": digits.train.inputs, "ink": ink})
    parts = split(Made({"train": train, "test": train}, ("ink",)), 0.1)
    assert abs(len(parts["val"]) - 0.1 * len(train)) <= 2
    assert len(parts["train"]) + len(parts["val"]) == len(train)
    ordered = Split({"images": train.inputs, "labels": digits.train["labels"] + 100})  # numbers of nothing with a name
    again = split(Made({"train": ordered, "test": ordered}, ("a", "b")), 0.1)
    assert np.array_equal(again["val"].inputs, parts["val"].inputs)
    with pytest.raises(ConfigError, match=r"of the data on both sides, got 0\.5 of 1$"):
        split(Made({"train": train.at(slice(1)), "test": train}, ("ink",)), 0.5)


def test_too_few_images_are_refused_also_once_they_are_counted(digits: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"^batch_size must leave at least one step"):
        data.read(of("digits", val_share=0.98, batch_size=64))
    config, decided = replace(of("digits", val_share=0.1), topology="1x2"), Decided("1x2")
    for known, sentence in (
        ({"train_size": 1}, "^global_batch_size must leave"),
        ({"val_size": 1}, "^topology must have .* validation image"),
    ):
        few = replace(digits, spec=replace(digits.spec, **known))
        with pytest.raises(ConfigError, match=sentence):
            recipe.settle(config, decided, few)
