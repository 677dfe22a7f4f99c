"""Data sets of torchvision, in the formats that they are published in, and what is refused of them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from cifar_ray import data
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import torchvision_sets
from cifar_ray.training import recipe, samples
from tests.support import images

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 28, 28), np.uint8)


def of(name: str, root: Path, **values: object) -> ResolvedConfig:
    return images.of(f"torchvision:{name}", **{"data_dir": str(root), **values})


def write_idx(path: Path, values: np.ndarray) -> None:
    """MNIST's format: two zeros, the type (8: uint8), the number of axes, their lengths, the values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes())


def fashion(root: Path, pixels: np.ndarray = PIXELS, name: str = "FashionMNIST") -> None:
    """40 training and 20 test images of ten classes in turn."""
    labels = (np.arange(len(pixels)) % 10).astype(np.uint8)
    for half, part in (("train", slice(40)), ("t10k", slice(40, 60))):
        write_idx(root / name / "raw" / f"{half}-images-idx3-ubyte", pixels[part])
        write_idx(root / name / "raw" / f"{half}-labels-idx1-ubyte", labels[part])


def test_the_table_fits_the_classes_of_torchvision() -> None:
    for name, splits in torchvision_sets.SPLITS.items():
        reader = getattr(datasets, name.partition("/")[0])
        known = {key for cls in reader.__mro__[:2] for key in inspect.signature(cls).parameters}
        assert ("split" if splits else "train") in known, name
    assert torchvision_sets.SPLITS.keys() >= {*torchvision_sets.UNFLIPPED, *torchvision_sets.BORDERED}


def test_mnists_format_is_read_with_its_border_and_its_classes(tmp_path: Path) -> None:
    fashion(tmp_path)
    config = of("FashionMNIST", tmp_path)
    found, facts = data.read(config), data.facts(config)
    assert (facts.num_classes, facts.train_size, facts.test_size) == (10, 40, 20)
    assert found.spec.names[:2] == ("T-shirt/top", "Trouser")
    assert found.test["labels"].tolist() == [*range(10)] * 2
    assert np.array_equal(found.train.inputs[3, 2:30, 2:30, 1], PIXELS[3])
    assert not found.train.inputs[:, :2].any()
    assert config.augment == "crop_flip"
    assert np.array_equal(samples.batch(found.spec, [Image.fromarray(PIXELS[41])])[0], found.test.inputs[1])
    assert config.dataset_name == "torchvision.FashionMNIST"
    assert "--dataset torchvision:FashionMNIST" in recipe.command(config)
    (tmp_path / "FashionMNIST").rename(tmp_path / "KMNIST")
    assert of("KMNIST", tmp_path).augment == "crop"


def test_validation_images_are_those_of_the_same_share_at_any_size_and_on_disk(tmp_path: Path) -> None:
    fashion(tmp_path)
    whole = data.read(of("FashionMNIST", tmp_path))
    cut = data.read(config := of("FashionMNIST", tmp_path, val_share=0.25))
    assert cut.val is not None
    assert (len(cut.train), len(cut.val)) == (data.facts(config).train_size, data.facts(config).val_size) == (30, 10)
    both = {image.tobytes() for image in (*cut.train.inputs, *cut.val.inputs)}
    assert both == {image.tobytes() for image in whole.train.inputs}
    streamed = data.read(of("FashionMNIST", tmp_path, val_share=0.25, stream=True, model="resnet"))
    assert streamed.train.file is not None
    assert streamed.spec.digest == cut.spec.digest


def test_image_files_are_those_of_a_folder_and_have_their_validation_images(tmp_path: Path) -> None:
    root, exif = tmp_path / "rendered-sst2", Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    for number, half in enumerate(("train", "valid", "test")):
        for label in ("negative", "positive"):
            (root / half / label).mkdir(parents=True)
            for row in range(3):
                shown = Image.fromarray(np.tile(PIXELS[number * 20 + row], (2, 1 + row)))
                shown.save(root / half / label / f"{row}.png", exif=exif)
    sized = {"image_size": 16, "batch_size": 1, "model": "resnet"}
    found = data.read(config := of("RenderedSST2", tmp_path, **sized))
    same = data.read(recipe.resolve(TrainConfig(dataset=f"folder:{root}", data_dir=str(tmp_path), **sized)))  # type: ignore[arg-type]
    assert (found.spec.digest, found.spec.names, found.spec.val_size) == (same.spec.digest, same.spec.names, 6)
    assert data.facts(config).val_size == 6
    (root / "test" / "negative" / "1.png").write_bytes(b"no image")
    refused("RenderedSST2", tmp_path, "^val_share is for data without validation samples", val_share=0.1)
    refused("RenderedSST2", tmp_path, "^cannot read image 1 of torchvision:RenderedSST2", **sized)


def test_a_file_that_is_listed_and_missing_is_named(tmp_path: Path) -> None:
    home = tmp_path / "food-101"
    (home / "meta").mkdir(parents=True)
    listed = {f"{label}": [f"{label}/{row}" for row in range(2)] for label in ("pie", "soup")}
    for half in ("train", "test"):
        (home / "meta" / f"{half}.json").write_text(json.dumps(listed))
    for image in {image for some in listed.values() for image in some} - {"pie/1"}:
        (home / "images" / image).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS[0]).save(home / "images" / f"{image}.jpg")
    refused(
        "Food101", tmp_path, f"^dataset .* {home / 'images' / 'pie' / '1.jpg'} cannot be", batch_size=1, val_share=0.5
    )


def test_a_part_of_emnist_is_named_and_its_labels_begin_at_0(tmp_path: Path) -> None:
    labels = (np.arange(52) % 26 + 1).astype(np.uint8)
    for half in ("train", "test"):
        for kind, values in (("images-idx3", PIXELS[:52]), ("labels-idx1", labels)):
            write_idx(tmp_path / "EMNIST" / "raw" / f"emnist-letters-{half}-{kind}-ubyte", values)
    config = of("EMNIST/letters", tmp_path)
    found = data.read(config)
    assert (config.dataset_name, len(found.spec.names)) == ("torchvision.EMNIST.letters", 26)
    assert found.spec.names[found.train["labels"][27]] == "b"


def refused(name: str, root: Path, sentence: str, **values: object) -> None:
    with pytest.raises(ConfigError, match=sentence):
        data.read(of(name, root, **values))


def test_other_names_are_refused(tmp_path: Path) -> None:
    for name, other in (("FashionMnist", "FashionMNIST"), ("EMNIST/letter", "EMNIST/letters")):
        refused(name, tmp_path, f"^dataset must be torchvision: .*got torchvision:{name}; did you mean '{other}'")
    with pytest.raises(ConfigError, match=r"^dataset must be cifar10, .*, got 'timm:resnet18'"):
        TrainConfig(dataset="timm:resnet18")  # a network


@pytest.mark.data
@pytest.mark.slow
def test_torchvisions_are_the_images_of_the_built_in_ones(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").symlink_to(data.folder(None) / "cifar-10-batches-py")
    ours, found = data.load("cifar10").spec, data.read(of("CIFAR10", tmp_path)).spec
    assert (found.digest, found.names, found.mean, found.std) == (ours.digest, ours.names, ours.mean, ours.std)
