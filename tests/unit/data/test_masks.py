"""Images with masks: which files belong together, how they vary together, and what is refused."""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from PIL import ExifTags, Image, PngImagePlugin

from cifar_ray import data
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import imagefiles
from cifar_ray.data.loader import DataShard, TrainLoader
from cifar_ray.data.masks import Masks
from cifar_ray.display.dataset import lines
from cifar_ray.runs import given
from cifar_ray.tasks.segmentation import Segmentation
from cifar_ray.training import recipe, samples
from tests.support.helpers import contents

SIDE, NAMES = 16, ("ground", "left", "right")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """24 training images and 8 for the test, whose red is 80 times the number of the class."""
    random = np.random.default_rng(0)
    for half, count in (("train", 24), ("test", 8)):
        for number in range(count):
            mask = random.integers(0, 3, (SIDE // 4, SIDE // 4), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
            image = np.stack([80 * mask, 0 * mask + 9, 255 - 80 * mask], axis=2)
            mask[number % SIDE] = 255
            write(tmp_path / "set" / half / "images" / "a" / f"{number:02}.png", image)
            write(tmp_path / "set" / half / "masks" / "a" / f"{number:02}.png", mask)
    (tmp_path / "set" / "classes.txt").write_text("\n".join(NAMES))
    return tmp_path / "set"


def write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def of(root: Path, **values: object) -> ResolvedConfig:
    usual = {
        "model": "unet",
        "model_options": {"width": 2},
        "global_batch_size": 8,
        "image_size": SIDE,
        "optimizer": "sgd",
    }
    usual |= {"dataset": f"masks:{root}", "data_dir": str(root.parent / "decoded")}
    return recipe.resolve(TrainConfig(**{**usual, **values}))  # type: ignore[arg-type]


def test_images_and_masks_are_paired_by_name(root: Path) -> None:
    config = of(root)
    dataset = data.read(config)
    assert (dataset.spec.names, data.facts(config).num_classes, len(dataset.train), len(dataset.test)) == (
        NAMES,
        3,
        24,
        8,
    )
    (counts,) = {tuple(dataset.train["masks"].shape)}
    assert counts == (24, SIDE, SIDE)
    valid = dataset.train["masks"] != 255
    assert np.array_equal(dataset.train.inputs[..., 0][valid], 80 * dataset.train["masks"][valid])
    assert dataset.spec.class_counts == tuple(int((dataset.train["masks"] == label).sum()) for label in range(3))
    assert recipe.settle(config, Decided.asked(config), dataset).data == dataset.spec


def test_masks_without_a_list_of_classes_have_as_many_as_their_highest_number(root: Path) -> None:
    (root / "classes.txt").unlink()
    assert data.read(of(root)).spec.names == ("0", "1", "2")


def test_pixels_that_do_not_count_and_classes_without_any_are_said(root: Path) -> None:
    for mask in root.glob("*/masks/a/*.png"):  # of an object and its ground, in black and white
        write(mask, np.pad(np.full((8, 8), 255, np.uint8), 4))
    (root / "classes.txt").write_text("ground\nthing\nother")
    dataset = data.read(of(root))
    assert contents(dataset) == (
        "3 classes, 24 training and 8 test images; 25.0 % of training and 25.0 % of test pixels do not count"
    )
    by_class = "training pixels by class: 0.0 % (0, thing) to 100.0 % (4,608, ground)"
    assert [*lines(dataset, Segmentation.spec)][1:] == [
        by_class,
        "caution: there are no training pixels of thing and other",
    ]


def read(image: Path, mask: Path, side: int) -> np.ndarray:
    made = object.__new__(Masks)
    made.classes = tuple(map(str, range(255)))
    return made.read((str(image), str(mask)), side)


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_photo_and_its_mask_are_turned_alike(tmp_path: Path, turn: int) -> None:
    mask, exif = np.arange(8 * 16, dtype=np.uint8).reshape(8, 16), Image.Exif()
    exif[ExifTags.Base.Orientation] = turn
    image, beside = tmp_path / "image.png", tmp_path / "mask.png"
    Image.fromarray(np.stack([mask] * 3, axis=2)).save(image, exif=exif)
    upright = np.asarray(imagefiles.read(image))[..., 0]
    for numbers in (mask, upright):
        write(beside, numbers)
        if turn in (2, 3, 4):  # where its mask may be turned or not
            with pytest.raises(
                ConfigError, match=f"no EXIF data turn where masks fit both ways, as {beside} fits {image}"
            ):
                read(image, beside, 8)
        else:
            both = read(image, beside, 8)
            assert np.array_equal(both[..., 0], both[..., 3])


def test_a_list_of_classes_may_begin_with_a_mark_and_end_with_empty_lines(root: Path) -> None:
    (root / "classes.txt").write_text("\n".join([*NAMES, "", ""]), encoding="utf-8-sig")
    assert data.read(of(root)).spec.names == NAMES


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_values_of_few_bits_are_numbers_of_classes(bits: int, tmp_path: Path) -> None:
    numbers = (np.arange(8) % 2**bits).astype(np.uint8)
    row = b"\0" + np.packbits(np.unpackbits(numbers[:, None], axis=1)[:, 8 - bits :]).tobytes()
    with (tmp_path / "mask.png").open("wb") as file:  # Pillow writes no such grey values
        file.write(b"\x89PNG\r\n\x1a\n")
        PngImagePlugin.putchunk(file, b"IHDR", struct.pack(">IIBBBBB", 8, 1, bits, 0, 0, 0, 0))
        PngImagePlugin.putchunk(file, b"IDAT", zlib.compress(row))
        PngImagePlugin.putchunk(file, b"IEND", b"")
    write(tmp_path / "image.png", np.zeros((1, 8, 3), dtype=np.uint8))
    assert read(tmp_path / "image.png", tmp_path / "mask.png", 1)[0, 0, 3] == numbers[4]


def test_images_that_stay_on_disk_are_the_same_ones(root: Path) -> None:
    streamed = data.read(of(root, stream=True))
    assert streamed.train.file is not None
    assert streamed.spec.digest == data.read(of(root)).spec.digest
    assert pickle.loads(pickle.dumps(streamed.train))["masks"].tobytes() == streamed.train["masks"].tobytes()


def test_images_and_masks_that_do_not_fit_into_the_memory_are_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2 * 32 * 4 * SIDE**2 - 2))
    with pytest.raises(ConfigError, match=f"image_size must leave room for 32 images of {SIDE}x{SIDE} pixels without"):
        data.read(of(root))
    assert len(data.read(of(root, stream=True)).train) == 24
    with pytest.raises(ConfigError, match=r"data_dir must leave room for 32 images of .*: 476837.2 GiB, of "):
        data.read(of(root, image_size=2_000_000, stream=True))


def test_class_weights_need_pixels_of_every_class(root: Path) -> None:
    config = of(root, class_weights="balanced")
    dataset = data.read(config)
    weighted = recipe.settle(config, Decided.asked(config), dataset)
    loss = Segmentation(config, weighted.facts).loss(torch.zeros(1, 3, 1, 2), torch.tensor([[[0, 255]]]), 1.0)
    assert torch.isfinite(loss)
    (root / "classes.txt").write_text("\n".join([*NAMES, "nowhere"]))
    more = of(root, class_weights="balanced")
    with pytest.raises(ConfigError, match="must be none where a class has no training pixels, as nowhere has none"):
        recipe.settle(more, Decided.asked(more), data.read(more))


def test_validation_images_are_a_share_by_their_names_or_a_folder(root: Path) -> None:
    few, more = (data.read(of(root, val_share=share)) for share in (0.2, 0.4))
    assert few.val is not None
    assert more.val is not None
    assert (len(few.val), len(few.train), len(more.val)) == (5, 19, 10)
    kept = {image.tobytes() for image in few.val["masks"]}
    assert kept <= {image.tobytes() for image in more.val["masks"]}
    assert not kept & {image.tobytes() for image in few.train["masks"]}
    (root / "test").rename(root / "val")
    whole = data.read(of(root))
    assert (whole.val, len(whole.test), whole.left_out) == (None, 8, "val/ is the test set, since there is no other")


@pytest.mark.parametrize("augment", ["none", "crop", "crop_flip", "resized_crop"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_mask_varies_as_its_image_and_what_counts_is_that_of_the_global_batch(
    augment: str, micro_batches: int, root: Path
) -> None:
    config = of(root, augment=augment, topology="1x2", accumulate=micro_batches)
    dataset = data.read(config)
    found: list[list[float]] = []
    divisors = set()
    for rank in range(2):
        loader = TrainLoader(
            config, Decided.asked(config), dataset, DataShard(rank, 2, micro_batches), torch.device("cpu")
        )
        mean, std = (torch.tensor(of)[:, None, None] for of in (dataset.spec.mean, dataset.spec.std))
        for step in range(3):
            for batch in loader.micro_batches(1, step):
                red = ((batch.inputs * std + mean) * 255)[:, 0].round()
                valid = batch.targets != 255
                off = (red - 80 * batch.targets).abs()[valid]
                blended = augment == "resized_crop"  # it mixes the colours at edges
                assert (off > (40 if blended else 1)).float().mean() < (0.15 if blended else 1e-9)
                found.append([step, valid.sum().item()])
                divisors.add((step, batch.divisor))
    for step in range(3):
        total = sum(count for at, count in found if at == step)
        assert (step, total / (2 * micro_batches)) in divisors
    assert len(divisors) == 3


def test_crops_show_pixels_outside_the_image_as_ignored(root: Path) -> None:
    config = of(root, augment="crop")
    dataset = data.read(config)
    (batch,) = TrainLoader(config, Decided.asked(config), dataset, DataShard(), torch.device("cpu")).micro_batches(0, 0)
    before = (dataset.train["masks"] == 255).mean()
    assert (batch.targets == 255).float().mean() > before + 0.1


def damage(root: Path, half: str, kind: str, pixels: np.ndarray) -> None:
    write(root / half / kind / "a" / "03.png", pixels)


BLANK = np.zeros((SIDE, SIDE), dtype=np.uint8)
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no mask": (
        lambda root: (root / "train/masks/a/03.png").unlink(),
        "must have a mask for every image, and {root}/train/images/a/03.png has none of its own as "
        "{root}/train/masks/a/03.png",
    ),
    "size": (
        lambda root: damage(root, "test", "masks", BLANK[:9]),
        "must have masks as large as images, and {root}/test/masks/a/03.png has (16, 9) pixels, "
        "{root}/test/images/a/03.png (16, 16)",
    ),
    "number": (
        lambda root: damage(root, "train", "masks", BLANK + 7),
        "must have numbers below 3, or 255, in masks, and {root}/train/masks/a/03.png has 7",
    ),
    "colours": (
        lambda root: damage(root, "train", "masks", np.stack([BLANK] * 3, axis=2)),
        "cannot read image {root}/train/masks/a/03.png: it is no PNG file of one 8-bit number a pixel, as masks are",
    ),
    "another format": (
        lambda root: Image.fromarray(BLANK).save(root / "train/masks/a/03.png", "bmp"),
        "cannot read image {root}/train/masks/a/03.png: it is no PNG file of one 8-bit number a pixel, as masks are",
    ),
    "no test": (
        lambda root: (root / "test").rename(root / "other"),
        "must have train/ and test/, each with images/ and masks/, and {root} has not",
    ),
    "two images": (
        lambda root: (root / "train/images/a/03.png").with_suffix(".bmp").write_bytes(b""),
        "must have a mask for every image, and {root}/train/images/a/03.png has none of its own as "
        "{root}/train/masks/a/03.png",
    ),
    "classes": (
        lambda root: (root / "classes.txt").write_text("one\none\n"),
        "must have two classes or more in masks, or a name for each of 2 to 255 in {root}/classes.txt",
    ),
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES.values(), ids=DAMAGES)
def test_what_cannot_be_learned_from_is_refused_in_a_sentence(
    damage: Callable[[Path], object], sentence: str, root: Path
) -> None:
    damage(root)
    with pytest.raises(ConfigError) as refused:
        data.read(of(root))
    assert str(refused.value).removeprefix("dataset ") == sentence.format(root=root)


def test_a_predicted_mask_is_named_as_its_image_and_replaces_none(tmp_path: Path) -> None:
    folder, alone = tmp_path / "photos", tmp_path / "a.jpg"
    images = [folder / "a.jpg", folder / "b" / "a.png"]
    (folder / "b").mkdir(parents=True)
    out = tmp_path / "out"
    assert given.places(images, [folder], out) == dict(zip(images, [out / "a.png", out / "b" / "a.png"]))
    with pytest.raises(ConfigError, match=f"must have one file for each mask, and {out}/a.png is another's"):
        given.places([images[0], alone], [images[0], alone], out)
    with pytest.raises(ConfigError, match=r"must have one file for each mask, and .*, or an image"):
        given.places(images, [folder], folder, overwrite=True)
    assert given.places([alone], [alone], None) == {alone: Path("predicted_masks/a.png")}
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="out must be a folder that can be written; "):
        given.write(tmp_path / "file" / "a.png", b"")


def test_masks_go_to_a_new_or_an_empty_folder_unless_files_may_be_replaced(tmp_path: Path) -> None:
    image, place = tmp_path / "images" / "a.jpg", tmp_path / "masks" / "a.png"
    place.parent.mkdir()
    assert given.places([image], [image], place.parent) == {image: place}
    given.write(place, samples.mask_png(np.zeros((4, 4), dtype=np.uint8), (9, 7)))
    with pytest.raises(ConfigError, match=f"must be a new or an empty folder, and {place.parent} has files; --over"):
        given.places([image], [image], place.parent)
    assert given.places([image], [image], place.parent, overwrite=True) == {image: place}


@pytest.mark.parametrize("size", [(16, 16), (40, 24), (24, 41)])
def test_a_predicted_mask_lies_over_the_centre_of_its_image(size: tuple[int, int]) -> None:
    width, height = size
    image = Image.fromarray(np.arange(width * height, dtype=np.uint32).reshape(height, width).astype(np.uint8))
    given = imagefiles.cropped(image, 8)[..., 0]
    file = Image.open(BytesIO(samples.mask_png(given, size)))
    assert (file.format, file.mode, file.size) == ("PNG", "P", size)
    side, numbers = min(size), np.asarray(file)
    top, left = (height - side) // 2, (width - side) // 2
    centre = numbers[top : top + side, left : left + side]
    assert np.array_equal(centre, np.asarray(Image.fromarray(given).resize((side, side), Image.Resampling.NEAREST)))
    assert (numbers == 255).sum() >= numbers.size - side**2
    assert samples.palette()[[0, 1, 15]].tolist() == [[0, 0, 0], [128, 0, 0], [192, 128, 128]]
