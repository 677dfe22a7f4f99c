"""The file with which MLflow loads a model: it prepares images as this program does, without it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cifar_ray.data import SPECS, Facts, imagefiles
from cifar_ray.tracking import logged_model
from cifar_ray.training import samples
from tests.support.helpers import png

FOLDER = Facts(3, 9, 3, shape=(3, 40, 40), native_size=40, crop=True)
SHADES = np.random.default_rng(0).integers(0, 256, (53, 37, 3), dtype=np.uint8)


def turned() -> bytes:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(SHADES).save(file, "jpeg", exif=exif)
    return file.getvalue()


def encoded(kind: str, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.fromarray(SHADES).convert(mode).save(file, kind)
    return file.getvalue()


FILES = {
    "turned": turned(),
    "16 bits": png(SHADES[..., 0].astype(np.uint16) * 257),
    **{kind: encoded(kind) for kind in imagefiles.FORMATS},
    **{mode: encoded("TIFF", mode) for mode in ("1", "LA", "P", "CMYK", "LAB")},
}


@pytest.mark.parametrize("spec", [*map(SPECS.get, ("cifar10", "digits")), FOLDER], ids=["cifar10", "digits", "folder"])
@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_it_prepares_an_image_as_predict_does(file: bytes, spec: Facts) -> None:
    model = logged_model.LoggedModel()
    model.config = {"side": spec.image_size, "native_side": spec.native_size, "grey": spec.grey, "crop": spec.crop}
    (expected,) = samples.batch(spec, [imagefiles.read(io.BytesIO(file))]).numpy()
    assert np.array_equal(model.pixels(model.image(file)), expected)


@pytest.mark.parametrize("size", [(8, 8), (30, 17), (16, 41)])
def test_its_masks_are_those_of_predict(size: tuple[int, int]) -> None:
    numbers = np.random.default_rng(0).integers(0, 11, (8, 8), dtype=np.uint8)
    files = logged_model.LoggedModel().mask(torch.from_numpy(numbers), size)["mask"], samples.mask_png(numbers, size)
    ours, theirs = (np.asarray(Image.open(io.BytesIO(file))) for file in files)
    assert (ours.shape, np.array_equal(ours, theirs)) == (size[::-1], True)


def test_it_reads_the_same_formats_and_needs_nothing_of_this_program() -> None:
    assert logged_model.FORMATS == imagefiles.FORMATS
    assert "cifar_ray" not in Path(logged_model.__file__).read_text()
    with pytest.raises(ValueError, match="32-bit values"):
        logged_model.LoggedModel().image(encoded("TIFF", "F"))
