"""COCO's annotations as masks: which instance a pixel is of, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask

from cifar_ray import data, tasks
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data.coco import Coco
from cifar_ray.training import recipe
from tests.support import coco

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in pycocotools

SIDE, NAMES = 32, ("background", "person", "dog", "bottle")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small set, 12 images to train on and 4 for the test."""
    coco.make(tmp_path / "coco", 12, 4)
    return tmp_path / "coco"


def of(root: Path, **values: object) -> ResolvedConfig:
    usual = {
        "model": "unet",
        "model_options": {"width": 2},
        "global_batch_size": 4,
        "image_size": SIDE,
        "optimizer": "sgd",
    }
    usual |= {"dataset": f"coco:{root}", "data_dir": str(root.parent / "decoded")}
    return recipe.resolve(TrainConfig(**{**usual, **values}))  # type: ignore[arg-type]


def test_a_set_in_cocos_layout_is_read_as_images_with_masks(root: Path) -> None:
    config = of(root)
    dataset = data.read(config)
    assert (tasks.spec(config, data.facts(config)).name, config.dataset_name, dataset.spec.names) == (
        "segmentation",
        "coco",
        NAMES,
    )
    assert (len(dataset.train), len(dataset.test), data.facts(config).num_classes) == (12, 4, 4)
    assert dataset.left_out == "val2017/ is the test set, since COCO's test images have no annotations"
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
    found = mask_of(tmp_path, annotations)
    expected = np.full((8, 8), 1)
    expected[7, 7] = 255
    expected[1:5, 1:5] = expected[6, 6] = 2
    expected[2:4, 2:4] = 3
    assert found.tolist() == expected.tolist()
    assert mask_of(tmp_path, []).max() == 0


def mask_of(root: Path, annotations: list[dict[str, Any]]) -> np.ndarray:
    """The mask of the only training image, of 8x8 pixels, beside one that has an instance."""
    coco.make(root, 2, 1)
    content = read(root, "train")
    for image in content["images"]:
        Image.new("RGB", (8, 8)).save(root / "train2017" / image["file_name"])
        image |= {"width": 8, "height": 8}
    content["annotations"] = [*annotations, coco.instance(9, 2, 18, coco.outline(2, 2, 2, 2))]
    coco.write(root, "train", "2017", content)
    source = Coco(TrainConfig(dataset=f"coco:{root}"))
    return source.read(source.parts["train"].samples[0], 8)[..., 3]


def test_the_newest_year_of_both_is_taken_and_a_share_may_be_for_validation(root: Path) -> None:
    coco.make(root, 20, 4, year="2014", seed=1)
    coco.path(root, "train", "2018").write_text("{}")
    dataset = data.read(of(root, val_share=0.25, stream=True))
    assert dataset.val is not None
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (9, 3, 4)
    assert dataset.left_out.startswith("val2017/ is the test set")


def test_annotations_that_change_make_other_masks(root: Path) -> None:
    before = data.read(of(root))
    content = read(root, "val")
    content["annotations"][0]["category_id"] = 1 + 43 * (content["annotations"][0]["category_id"] == 1)
    coco.write(root, "val", "2017", content)
    assert data.read(of(root)).spec.digest != before.spec.digest


def read(root: Path, part: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(coco.path(root, part).read_text())
    return content


def change(part: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """What damages a part's annotations."""

    def changed(root: Path) -> None:
        content = read(root, part)
        change(content)
        coco.write(root, part, "2017", content)

    return changed


def segmented(**values: object) -> Callable[[Path], None]:
    return change("train", lambda content: content["annotations"][0].update(values))


TRAIN, VAL = "{root}/annotations/instances_train2017.json", "{root}/annotations/instances_val2017.json"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (
        lambda root: root.rename(root.with_name("other")),
        "must have instances_train2017.json and instances_val2017.json in {root}/annotations, of any year",
    ),
    "another layout": (
        lambda root: (root / "annotations").rename(root / "labels"),
        "must have instances_train2017.json and instances_val2017.json in {root}/annotations, of any year",
    ),
    "years": (
        lambda root: coco.path(root, "val").rename(coco.path(root, "val", "2014")),
        "must have instances_train2017.json and instances_val2017.json in {root}/annotations, of any year",
    ),
    "cut off": (
        lambda root: coco.path(root, "train").write_bytes(coco.path(root, "train").read_bytes()[:-9]),
        f"must be in COCO's format, and {TRAIN} is not (JSONDecodeError(",
    ),
    "a list": (
        lambda root: coco.path(root, "train").write_text("[]"),
        f"must be in COCO's format, and {TRAIN} is not (AssertionError(",
    ),
    "no images": (
        change("val", lambda content: content.pop("images")),
        f"must be in COCO's format, and {VAL} is not (KeyError('images'))",
    ),
    "nothing annotated": (
        change("train", lambda content: content["annotations"].clear()),
        f"must be in COCO's format, and {TRAIN} is not (ValueError('images and at most 254 categories need numbers, names and annotations'))",
    ),
    "unknown category": (segmented(category_id=2), f"must be in COCO's format, and {TRAIN} is not (KeyError(2))"),
    "size of an image": (
        lambda root: Image.new("RGB", (5, 4)).save(root / "train2017" / "000000000001.png"),
        f"must have masks as large as images, and {TRAIN} has {{size}} pixels, "
        "{root}/train2017/000000000001.png (5, 4)",
    ),
    "missing image": (
        lambda root: (root / "val2017" / "000000000003.png").unlink(),
        "must be files that can be read, and {root}/val2017/000000000003.png cannot be (No such file or directory)",
    ),
    "damaged image": (
        lambda root: (root / "val2017" / "000000000003.png").write_bytes(b"GIF"),
        "cannot read image {root}/val2017/000000000003.png: it is not an image",
    ),
    "two images of a number": (
        change("train", lambda content: content["images"][0].update(id=2)),
        f"must be in COCO's format, and {TRAIN} is not (ValueError('images and at most 254 categories need numbers, names and annotations'))",
    ),
    "two categories of a name": (
        change("train", lambda content: content["categories"][0].update(name="person")),
        f"must be in COCO's format, and {TRAIN} is not (ValueError('images and at most 254 categories need numbers, names and annotations'))",
    ),
    "other categories": (
        change("val", lambda content: content["categories"][2].update(name="can")),
        f"must be in COCO's format, and {VAL} is not (KeyError('can'))",
    ),
}


def size_of(root: Path) -> tuple[int, int]:
    """Width and height of the first training image."""
    return Image.open(root / "train2017" / "000000000001.png").size


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES.values(), ids=DAMAGES)
def test_what_cannot_be_learned_from_is_refused_in_a_sentence(
    damage: Callable[[Path], object], sentence: str, root: Path
) -> None:
    width, height = size_of(root)
    damage(root)
    with pytest.raises(ConfigError) as refused:
        data.read(of(root))
    expected = sentence.format(root=root, size=(width, height))
    assert str(refused.value).removeprefix("dataset ").startswith(expected)


def test_pycocotools_that_is_not_installed_is_named_with_its_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(ConfigError) as refused:
        of(root)
    assert str(refused.value) == "dataset needs pycocotools; install it with `pip install 'cifar-ray[coco]'`"
