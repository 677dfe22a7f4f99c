"""Images with masks: which files belong together, how they vary together, and what is refused."""

from __future__ import annotations

import json
import pickle
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import ExifTags, Image, PngImagePlugin
from pycocotools import mask

from cifar_ray import data, tasks
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import imagefiles
from cifar_ray.data.coco import Coco
from cifar_ray.data.loader import DataShard, TrainLoader
from cifar_ray.data.masks import Masks
from cifar_ray.display.dataset import lines
from cifar_ray.runs import given
from cifar_ray.tasks.segmentation import Segmentation
from cifar_ray.training import recipe, samples
from tests.support import coco

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
    usual = {"model": "unet", "model_options": {"width": 2}, "global_batch_size": 8, "image_size": SIDE}
    usual |= {"optimizer": "sgd", "dataset": f"masks:{root}", "data_dir": str(root.parent / "decoded")}
    return recipe.resolve(TrainConfig(**{**usual, **values}))  # type: ignore[arg-type]


def test_images_and_masks_are_paired_by_name(root: Path) -> None:
    config = of(root)
    dataset = data.read(config)
    assert (data.facts(config).num_classes, len(dataset.train), len(dataset.test)) == (3, 24, 8)
    assert dataset.train["masks"].shape == (24, SIDE, SIDE)
    valid = dataset.train["masks"] != 255
    assert np.array_equal(dataset.train.inputs[..., 0][valid], 80 * dataset.train["masks"][valid])
    assert dataset.spec.class_counts == tuple(int((dataset.train["masks"] == label).sum()) for label in range(3))
    assert recipe.settle(config, Decided.asked(config), dataset).data == dataset.spec


def test_classes_have_the_names_of_a_list_or_the_numbers_in_masks(root: Path) -> None:
    assert data.read(of(root)).spec.names == NAMES
    (root / "classes.txt").write_text("\n".join([*NAMES, "", ""]), encoding="utf-8-sig")
    assert data.read(of(root)).spec.names == NAMES
    (root / "classes.txt").unlink()
    assert data.read(of(root)).spec.names == ("0", "1", "2")


def test_pixels_that_do_not_count_and_classes_without_any_are_said(root: Path) -> None:
    for path in root.glob("*/masks/a/*.png"):  # of an object and its ground, in black and white
        write(path, np.pad(np.full((8, 8), 255, np.uint8), 4))
    (root / "classes.txt").write_text("ground\nthing\nother")
    first, by_class, caution = lines(data.read(of(root)), Segmentation.spec)
    assert first.endswith("25.0 % of training and 25.0 % of test pixels do not count")
    assert by_class.endswith("0.0 % (0, thing) to 100.0 % (4,608, ground)")
    assert caution.endswith("thing and other")


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
            with pytest.raises(ConfigError, match="no EXIF data turn where masks fit both ways"):
                read(image, beside, 8)
        else:
            both = read(image, beside, 8)
            assert np.array_equal(both[..., 0], both[..., 3])


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


def test_masks_that_do_not_fit_into_the_memory_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2 * 32 * 4 * SIDE**2 - 2))
    with pytest.raises(ConfigError, match=f"^image_size must leave room for 32 images of {SIDE}x{SIDE} pixels without"):
        data.read(of(root))


def test_class_weights_need_pixels_of_every_class(root: Path) -> None:
    config = of(root, class_weights="balanced")
    dataset = data.read(config)
    weighted = recipe.settle(config, Decided.asked(config), dataset)
    loss = Segmentation(config, weighted.facts).loss(torch.zeros(1, 3, 1, 2), torch.tensor([[[0, 255]]]), 1.0)
    assert torch.isfinite(loss)
    (root / "classes.txt").write_text("\n".join([*NAMES, "nowhere"]))
    more = of(root, class_weights="balanced")
    with pytest.raises(ConfigError, match="nowhere has none"):
        recipe.settle(more, Decided.asked(more), data.read(more))


def test_validation_images_are_a_share_by_their_names(root: Path) -> None:
    few, more = (data.read(of(root, val_share=share)) for share in (0.2, 0.4))
    sides = [few.train["masks"], few.val["masks"], more.val["masks"]]  # type: ignore[index]
    train, kept, larger = ({mask.tobytes() for mask in masks} for masks in sides)
    assert (len(train), len(kept), len(larger), kept <= larger, train & kept) == (19, 5, 10, True, set())


@pytest.mark.parametrize(
    ("augment", "micro_batches"), [("none", 1), ("crop", 2), ("crop_flip", 1), ("resized_crop", 2)]
)
def test_a_mask_varies_as_its_image_and_is_counted(augment: str, micro_batches: int, root: Path) -> None:
    config = of(root, augment=augment, topology="1x2", accumulate=micro_batches)
    dataset = data.read(config)
    counted: Counter[int] = Counter()
    divisors = set()
    mean, std = (torch.tensor(of)[:, None, None] for of in (dataset.spec.mean, dataset.spec.std))
    blended = augment == "resized_crop"  # it mixes the colours at edges
    for rank in range(2):
        shard = DataShard(rank, 2, micro_batches)
        loader = TrainLoader(config, Decided.asked(config), dataset, shard, torch.device("cpu"))
        for step in range(3):
            for batch in loader.micro_batches(1, step):
                red, valid = ((batch.inputs * std + mean) * 255)[:, 0].round(), batch.targets != 255
                off = (red - 80 * batch.targets).abs()[valid]
                assert (off > (40 if blended else 1)).float().mean() < (0.15 if blended else 1e-9)
                counted[step] += int(valid.sum())
                divisors.add((step, batch.divisor))
    assert divisors == {(step, count / (2 * micro_batches)) for step, count in counted.items()}


def test_crops_show_pixels_outside_the_image_as_ignored(root: Path) -> None:
    config = of(root, augment="crop")
    dataset = data.read(config)
    (batch,) = TrainLoader(config, Decided.asked(config), dataset, DataShard(), torch.device("cpu")).micro_batches(0, 0)
    before = (dataset.train["masks"] == 255).mean()
    assert (batch.targets == 255).float().mean() > before + 0.1


def damage(part: str, pixels: np.ndarray) -> Callable[[Path], None]:
    return lambda root: write(root / part / "a" / "03.png", pixels)


BLANK, MASK = np.zeros((SIDE, SIDE), dtype=np.uint8), "train/masks/a/03.png"
ALONE = "/train/images/a/03.png has none of its own"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no mask": (lambda root: (root / MASK).unlink(), ALONE),
    "size": (damage("test/masks", BLANK[:9]), r"/test/masks/a/03.png has \(16, 9\) pixels, .*/test/images/a/03.png \(16, 16\)"),
    "number": (damage("train/masks", BLANK + 7), "must have numbers below 3, or 255, .*/train/masks/a/03.png has 7"),
    "colours": (damage("train/masks", np.stack([BLANK] * 3, axis=2)), f"cannot read image .*{MASK}: it is no PNG file of one"),
    "no test": (lambda root: (root / "test").rename(root / "other"), "must have train/ and test/"),
    "two images": (lambda root: (root / "train/images/a/03.bmp").write_bytes(b""), ALONE),
    "classes": (lambda root: (root / "classes.txt").write_text("one\none\n"), "a name for each of 2 to 255"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES.values(), ids=DAMAGES)
def test_what_cannot_be_learned_from_is_refused(damage: Callable[[Path], object], sentence: str, root: Path) -> None:
    damage(root)
    with pytest.raises(ConfigError, match=sentence):
        data.read(of(root))


def test_a_predicted_mask_is_named_as_its_image_and_replaces_none(tmp_path: Path) -> None:
    folder, alone = tmp_path / "photos", tmp_path / "a.jpg"
    images = [folder / "a.jpg", folder / "b" / "a.png"]
    (folder / "b").mkdir(parents=True)
    out = tmp_path / "out"
    assert given.places(images, [folder], out) == dict(zip(images, [out / "a.png", out / "b" / "a.png"]))
    with pytest.raises(ConfigError, match=f"{out}/a.png is another's"):
        given.places([images[0], alone], [images[0], alone], out)
    with pytest.raises(ConfigError, match="or an image"):
        given.places(images, [folder], folder, overwrite=True)
    assert given.places([alone], [alone], None) == {alone: Path("predicted_masks/a.png")}
    given.write(out / "a.png", samples.mask_png(np.zeros((4, 4), dtype=np.uint8), (9, 7)))
    with pytest.raises(ConfigError, match="must be a new or an empty folder"):
        given.places([alone], [alone], out)
    assert given.places([alone], [alone], out, overwrite=True) == {alone: out / "a.png"}
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^out must be a folder that can be written"):
        given.write(tmp_path / "file" / "a.png", b"")


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


pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in pycocotools


@pytest.fixture
def cocos(tmp_path: Path) -> Path:
    """A small set, 12 images to train on and 4 for the test."""
    coco.make(tmp_path / "coco", 12, 4)
    return tmp_path / "coco"


def of_coco(root: Path, **values: object) -> ResolvedConfig:
    return of(root, **{"dataset": f"coco:{root}", "global_batch_size": 4, "image_size": 32, **values})


def test_a_set_in_cocos_layout_is_read_as_images_with_masks(cocos: Path) -> None:
    config = of_coco(cocos)
    dataset, facts = data.read(config), data.facts(config)
    assert (tasks.spec(config, facts).name, config.dataset_name, dataset.spec.names) == (
        "segmentation",
        "coco",
        ("background", "person", "dog", "bottle"),
    )
    assert (len(dataset.train), len(dataset.test), facts.num_classes) == (12, 4, 4)
    assert "val2017/ is the test set" in dataset.left_out
    for number, colour in enumerate(coco.COLOURS.values(), 1):  # the categories by their numbers
        learned = (dataset.train.inputs == colour).all(-1)
        assert learned.any()
        # At the edges of a rectangle, colours are blended.
        assert (dataset.train["masks"][learned] == number).all()
    crowd = (dataset.train.inputs == coco.CROWD).all(-1)
    assert (dataset.train["masks"][crowd] == 255).all()
    assert (dataset.train["masks"] == 255).sum() == pytest.approx(crowd.sum(), rel=0.2)
    assert recipe.settle(config, Decided.asked(config), dataset).data == dataset.spec


def test_a_pixel_has_the_class_of_the_smallest_instance_there(tmp_path: Path) -> None:
    everywhere = {"size": [8, 8], "counts": [0, 64]}
    text = mask.frPyObjects({"size": [8, 8], "counts": [0, 63, 1]}, 8, 8)
    annotations = [
        coco.instance(1, 1, 44, coco.outline(2, 2, 2, 2)),
        coco.instance(2, 1, 18, [*coco.outline(1, 1, 4, 4), *coco.outline(6, 6, 1, 1)]),
        {**coco.instance(3, 1, 1, everywhere), "iscrowd": 1},
        coco.instance(4, 1, 1, {**text, "counts": text["counts"].decode()}),
    ]
    expected = np.full((8, 8), 1)
    expected[7, 7] = 255
    expected[1:5, 1:5] = expected[6, 6] = 2
    expected[2:4, 2:4] = 3
    assert mask_of(tmp_path, annotations).tolist() == expected.tolist()
    assert mask_of(tmp_path, []).max() == 0


def mask_of(root: Path, annotations: list[dict[str, Any]]) -> np.ndarray:
    """The mask of the only training image, of 8x8 pixels, beside one that has an instance."""
    coco.make(root, 2, 1)
    content = annotations_of(root, "train")
    for image in content["images"]:
        Image.new("RGB", (8, 8)).save(root / "train2017" / image["file_name"])
        image |= {"width": 8, "height": 8}
    content["annotations"] = [*annotations, coco.instance(9, 2, 18, coco.outline(2, 2, 2, 2))]
    coco.write(root, "train", "2017", content)
    source = Coco(TrainConfig(dataset=f"coco:{root}"))
    return source.read(source.parts["train"].samples[0], 8)[..., 3]


def test_the_newest_year_of_both_is_taken_and_a_share_may_be_for_validation(cocos: Path) -> None:
    coco.make(cocos, 20, 4, year="2014", seed=1)
    coco.path(cocos, "train", "2018").write_text("{}")
    dataset = data.read(of_coco(cocos, val_share=0.25, stream=True))
    assert dataset.val is not None
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (9, 3, 4)


def test_annotations_that_change_make_other_masks(cocos: Path) -> None:
    before = data.read(of_coco(cocos))
    content = annotations_of(cocos, "val")
    content["annotations"][0]["category_id"] = 1 + 43 * (content["annotations"][0]["category_id"] == 1)
    coco.write(cocos, "val", "2017", content)
    assert data.read(of_coco(cocos)).spec.digest != before.spec.digest


def annotations_of(root: Path, part: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(coco.path(root, part).read_text())
    return content


def change(part: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """What damages a part's annotations."""

    def changed(root: Path) -> None:
        content = annotations_of(root, part)
        change(content)
        coco.write(root, part, "2017", content)

    return changed


LAYOUT, TRAIN, VAL = (
    "must have instances_",
    "format, and .*_train2017.json is not",
    "format, and .*_val2017.json is not",
)
COCO_DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "years": (lambda root: coco.path(root, "val").rename(coco.path(root, "val", "2014")), LAYOUT),
    "cut off": (lambda root: coco.path(root, "train").write_text("{"), TRAIN),
    "no images": (change("val", lambda content: content.pop("images")), VAL),
    "nothing annotated": (change("train", lambda content: content["annotations"].clear()), TRAIN),
    "unknown category": (change("train", lambda content: content["annotations"][0].update(category_id=2)), rf"{TRAIN} \(KeyError\(2"),
    "size of an image": (lambda root: Image.new("RGB", (5, 4)).save(root / "train2017/000000000001.png"), r"as large as images, .*/train2017/000000000001.png \(5, 4\)"),
    "missing image": (lambda root: (root / "val2017/000000000003.png").unlink(), "can be read, and .*/val2017/000000000003.png cannot"),
    "damaged image": (lambda root: (root / "val2017/000000000003.png").write_bytes(b"GIF"), "cannot read image .*/val2017/000000000003.png"),
    "two images of a number": (change("train", lambda content: content["images"][0].update(id=2)), TRAIN),
    "two categories of a name": (change("train", lambda content: content["categories"][0].update(name="person")), TRAIN),
    "other categories": (change("val", lambda content: content["categories"][2].update(name="can")), VAL),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "sentence"), COCO_DAMAGES.values(), ids=COCO_DAMAGES)
def test_bad_annotations_are_refused(damage: Callable[[Path], object], sentence: str, cocos: Path) -> None:
    damage(cocos)
    with pytest.raises(ConfigError, match=sentence):
        data.read(of_coco(cocos))


def test_pycocotools_that_is_missing_is_named(cocos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(ConfigError, match=r"^dataset needs pycocotools; .*'cifar-ray\[coco\]'"):
        of_coco(cocos)
