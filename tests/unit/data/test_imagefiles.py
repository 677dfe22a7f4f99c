"""Images from files and from strangers."""

from __future__ import annotations

import io
import random
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cifar_ray.config.errors import ConfigError
from cifar_ray.data import SPECS, Dataset, imagefiles
from cifar_ray.data.imagefiles import FORMATS, UnreadableError, read
from cifar_ray.runs import given
from cifar_ray.training import samples


def encoded(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


@pytest.fixture
def image(digits: Dataset) -> Image.Image:
    return Image.fromarray(digits.test.inputs[0])


def test_an_image_of_the_data_set_is_what_training_had(digits: Dataset) -> None:
    """Digits are published as 8x8 grey images; training and files both enlarge them."""
    published = [Image.fromarray(pixels[::4, ::4, 0]) for pixels in digits.test.inputs[:5]]
    assert torch.equal(samples.batch(digits.spec, published), torch.from_numpy(digits.test.inputs[:5]))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("name", SPECS)
def test_every_mode_and_size_becomes_a_models_input(name: str, mode: str) -> None:
    colour = (255, 255, 255) if mode in ("1", "L", "LA") or name in ("mnist", "digits") else (255, 0, 0)
    images = [Image.new("RGB", size, colour).convert(mode) for size in ((50, 3), (1, 1))]
    pixels = samples.batch(SPECS[name], images)
    assert (pixels.shape, pixels.dtype) == ((2, 32, 32, 3), torch.uint8)
    assert pixels[0, 16, 16].tolist() == list(colour)


def test_images_keep_their_shape_and_lose_the_margin() -> None:
    image = Image.new("RGB", (60, 20), "red")
    image.paste("blue", (20, 0, 40, 20))
    found = imagefiles.cropped(image, 32)
    assert (found.shape, (found[:, 1:-1] == (0, 0, 255)).all()) == ((32, 32, 3), True)


@pytest.mark.parametrize("mode", ["I;16", "I;16B"])
@pytest.mark.parametrize("name", SPECS)
def test_grey_of_16_bits_has_all_shades(name: str, mode: str) -> None:
    shades = np.arange(256, dtype=np.uint8).reshape(16, 16)
    fine = (shades * np.uint16(257)).astype(">u2" if mode == "I;16B" else "<u2")
    files = [encoded(Image.fromarray(shades), "TIFF"), encoded(Image.frombytes(mode, (16, 16), fine.tobytes()), "TIFF")]
    coarse, deep = samples.batch(SPECS[name], [read(io.BytesIO(file)) for file in files])
    assert torch.equal(coarse, deep)


@pytest.mark.parametrize("name", SPECS)
def test_lab_colours_become_a_models_input(name: str) -> None:
    white = encoded(Image.new("LAB", (9, 9), (255, 128, 128)), "TIFF")
    centre = samples.batch(SPECS[name], [read(io.BytesIO(white))])[:, 4:-4, 4:-4]  # small images have a margin
    assert centre.min() > 250


@pytest.mark.parametrize("mode", ["I", "F"])
def test_numbers_in_place_of_shades_are_refused(mode: str) -> None:
    with pytest.raises(UnreadableError, match=r"^its grey values have no known white; save it"):
        read(io.BytesIO(encoded(Image.new(mode, (9, 9)), "TIFF")))


def test_every_format_is_read_and_no_other(image: Image.Image) -> None:
    for kind in FORMATS:
        found = np.asarray(read(io.BytesIO(encoded(image, kind))).convert("RGB")).astype(float)
        assert np.abs(found - np.asarray(image)).mean() < 10  # some lose a little
    for kind in ("EPS", "ICO", "PCX", "TGA"):
        with pytest.raises(UnreadableError, match=r"^it is not an image$"):
            read(io.BytesIO(encoded(image, kind)))


@pytest.mark.filterwarnings("ignore")  # Pillow's remarks on damage that it gets over
@pytest.mark.parametrize("kind", FORMATS)
def test_a_damaged_image_is_read_or_refused_and_nothing_else(image: Image.Image, kind: str) -> None:
    """Bytes changed and bytes missing, anywhere."""
    whole, refused = encoded(image.resize((64, 64)), kind), 0
    draw = random.Random(1)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(draw.randint(0, 5)):
            damaged[draw.randrange(min(len(damaged), draw.choice((40, len(damaged)))))] = draw.randrange(256)
        try:
            samples.batch(
                SPECS["cifar10"], [read(io.BytesIO(damaged[: draw.choice((len(whole), draw.randrange(len(whole))))]))]
            )
        except UnreadableError:
            refused += 1
    assert refused > 4


def test_many_photos_are_held_one_at_a_time(digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = tmp_path / "photo.bmp"
    Image.new("RGB", (30, 30), (0, 128, 255)).save(photo)
    ((_, one, _),) = given.of(digits.spec).batches([photo], (), print)
    decoded: list[weakref.ref[Image.Image]] = []
    held = []

    def watched(source: Path) -> Image.Image:
        image = read(source)
        decoded.append(weakref.ref(image))
        held.append(sum(other() is not None for other in decoded))
        return image

    monkeypatch.setattr(imagefiles, "read", watched)
    ((_, several, _),) = given.of(digits.spec).batches([photo] * 12, (), print)
    assert torch.equal(several, one.expand(12, -1, -1, -1))
    assert held == [1] * 12


@pytest.mark.filterwarnings("ignore:Image size")
def test_why_an_image_is_refused(tmp_path: Path, image: Image.Image) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "whole.png").write_bytes(encoded(image, "PNG"))
    (tmp_path / "half.png").write_bytes(encoded(image, "PNG")[:-40])
    Image.new("1", (10_001, 10_000)).save(tmp_path / "huge.png")
    reader = given.of(SPECS["digits"])
    for name, reason in (("none", "No such"), ("folder", "Is a dir"), ("half.png", "it is trunc"), ("huge.png", "it has too many")):  # fmt: skip
        sentence = f"cannot read image {tmp_path / name}: {reason}"
        with pytest.raises(UnreadableError, match=f"^{sentence}"):
            read(tmp_path / name)
        with pytest.raises(ConfigError, match="there is no image in" if name == "folder" else f"^{sentence}"):
            next(reader.batches([tmp_path / "whole.png", tmp_path / name], (), print))
    (tmp_path / "huge.png").unlink()
    notes: list[str] = []
    ((readable, scaled, _),) = reader.batches([tmp_path], (), notes.append)  # of a folder, it is left out
    assert (readable, len(scaled), len(notes)) == ([{"image": tmp_path / "whole.png"}], 1, 1)
    assert notes[0].startswith(f"left out: cannot read image {tmp_path / 'half.png'}")


def test_a_folder_is_all_images_below_it(tmp_path: Path, image: Image.Image) -> None:
    for name in ("b/10.png", "b/2.PNG", "a.jpg", "b/c/d.webp", "1.HEIC", "b/2.heic", ".hidden/e.png", "b/.f.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encoded(image, "PNG"))
    (tmp_path / "b" / "broken.png").write_text("no image")  # is looked at when its turn comes
    below = [tmp_path / name for name in ("a.jpg", "b/10.png", "b/2.PNG", "b/broken.png", "b/c/d.webp")]
    found = [tmp_path / "a.jpg", *below], "2 files left out (.heic 2)"
    assert given.images([tmp_path / "a.jpg", tmp_path]) == found
    (nothing := tmp_path / "nothing").mkdir()
    with pytest.raises(ConfigError, match=f"^there is no image in {nothing} "):
        given.images([nothing])
