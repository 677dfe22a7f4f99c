"""Data sets of the user's own: folders of images, and functions that return arrays."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from cifar_ray import data
from cifar_ray.config import errors, runfile, schema
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import imagefiles, loader
from cifar_ray.runs import given
from cifar_ray.tracking import logged_model
from cifar_ray.training import recipe
from tests.support.helpers import contents
from tests.support.images import folder_of_digits

COLOURS = np.zeros((4, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CIFAR_RAY_DATA_DIR", str(tmp_path / "decoded"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """100 digits for training and 100 for the test."""
    folder_of_digits(tmp_path / "images", 100)
    return tmp_path / "images"


def of(root: Path | str, **values: object) -> ResolvedConfig:
    dataset = f"folder:{root}" if isinstance(root, Path) else root
    return recipe.resolve(TrainConfig(**{"dataset": dataset, "batch_size": 2, "model": "simple_cnn", **values}))  # type: ignore[arg-type]


def refusal(root: Path | str, **values: object) -> str:
    with pytest.raises(ConfigError) as refused:
        data.read(of(root, **values))
    return refused.value.as_flag()


def test_a_folder_gives_what_torchvisions_reader_gives(root: Path) -> None:
    config = of(root, image_size=8)
    found, theirs = data.read(config), ImageFolder(str(root / "train"))
    assert found.spec.names == tuple(theirs.classes)
    assert found.train["labels"].tolist() == theirs.targets
    assert all(
        np.array_equal(np.asarray(image), ours) for (image, _), ours in zip(theirs, found.train.inputs, strict=True)
    )
    assert (data.facts(config).num_classes, data.facts(config).train_size, data.facts(config).test_size) == (
        10,
        100,
        100,
    )
    pixels = found.train.inputs.reshape(-1, 3) / 255
    assert np.allclose(found.spec.mean, pixels.mean(0), atol=1e-4)
    assert np.allclose(found.spec.std, pixels.std(0), atol=1e-4)


def test_images_are_decoded_once_and_again_when_a_file_has_changed(root: Path) -> None:
    told: list[tuple[int, int]] = []
    config = of(root)

    def read() -> data.Dataset:
        return data.read(config, lambda done, total: told.append((done, total)))

    first = read()
    assert told[-1] == (200, 200)
    assert (read().spec.digest, len(told)) == (first.spec.digest, 2)
    one = next(root.glob("train/0/*.png"))
    one.write_bytes(next(root.glob("train/1/*.png")).read_bytes())
    assert read().spec.digest != first.spec.digest
    held = recipe.settle(config, Decided.asked(config), first)
    with pytest.raises(
        ConfigError, match=f"dataset must have the images that the run began with, and those of folder:{root} "
    ):
        recipe.settle(config, held, read())


@pytest.mark.parametrize("bring", [shutil.copy2, os.replace], ids=["cp -p", "rsync -a"])
def test_a_file_of_another_content_with_the_size_and_time_of_the_first_is_decoded(
    root: Path, bring: Callable[[Path, Path], object]
) -> None:
    files = sorted(root.glob("train/0/*.png"))[0], root.parent / "other.png"
    for file, shade in zip(files, (0, 255)):
        Image.new("RGB", (8, 8), (shade, shade, shade)).save(file, "BMP")
        os.utime(file, ns=(10**18, 10**18))
    assert data.read(of(root)).train.inputs[0].max() == 0
    bring(files[1], files[0])
    assert (files[0].stat().st_mtime_ns, data.read(of(root)).train.inputs[0].min()) == (10**18, 255)


def test_what_was_found_is_part_of_the_run(root: Path) -> None:
    config = of(root)
    dataset = data.read(config)
    found = recipe.settle(config, Decided.asked(config), dataset)
    assert found.data == dataset.spec
    shutil.rmtree(root)  # workers, predictions and the server need no folder
    assert runfile.resolved_from_mapping(runfile.to_mapping(config)) == config
    assert schema.build(Decided, schema.to_plain(found)) == found
    assert runfile.params(config, found)["data.digest"] == dataset.spec.digest
    shown = recipe.command(config)
    assert f"--dataset folder:{root}" in shown
    assert "digest" not in shown


def test_a_share_is_kept_for_the_test_and_is_the_same_in_every_run(tmp_path: Path) -> None:
    folder_of_digits(tmp_path / "some", 100, ("train",))
    config = of(tmp_path / "some" / "train", test_share=0.2)
    dataset = data.read(config)
    per_class = np.bincount(dataset.train["labels"]) + np.bincount(dataset.test["labels"])
    assert np.bincount(dataset.test["labels"]).tolist() == [round(0.2 * count) for count in per_class]
    assert data.read(replace(config, seed=1)).spec.digest == dataset.spec.digest
    together = [image.tobytes() for split in (dataset.train, dataset.test) for image in split.inputs]
    whole = ImageFolder(str(tmp_path / "some" / "train"))
    assert sorted(together) == sorted(imagefiles.cropped(image, 32).tobytes() for image, _ in whole)


def test_images_keep_their_shape_and_lose_the_margin(tmp_path: Path) -> None:
    image = Image.new("RGB", (60, 20), "red")
    image.paste("blue", (20, 0, 40, 20))
    found = imagefiles.cropped(image, 32)
    assert found.shape == (32, 32, 3)
    assert (found[:, 1:-1] == (0, 0, 255)).all()


def images_in(root: Path, made: dict[str, Image.Image], **options: object) -> None:
    for half in ("train", "test"):
        for name, image in made.items():
            (root / half / name).mkdir(parents=True)
            image.save(root / half / name / "1.png", **options)  # type: ignore[arg-type]


def test_images_of_every_kind_become_three_channels(tmp_path: Path) -> None:
    grey = Image.new("L", (9, 9), 200)
    deep = Image.fromarray(np.full((9, 9), 200 << 8, dtype=np.uint16))
    colours = {"a": grey, "b": grey.convert("P"), "c": grey.convert("1"), "d": grey.convert("RGBA"), "e": deep}
    images_in(tmp_path, colours)
    found = data.read(of(tmp_path)).train.inputs
    assert found[0, 0, 0].tolist() == found[4, 0, 0].tolist() == [200, 200, 200]
    for half in ("train", "test"):
        Image.new("CMYK", (9, 9), (0, 255, 255, 0)).save(tmp_path / half / "a" / "1.png.jpg")
        (tmp_path / half / "a" / "1.png").unlink()
    red = data.read(of(tmp_path)).train.inputs[0, 16, 16]
    assert red[0] > 200 > 50 > red[1]


def test_a_photo_is_turned_as_its_camera_was(tmp_path: Path) -> None:
    image = Image.new("RGB", (32, 32), "white")
    image.paste("black", (0, 0, 32, 16))  # the upper half
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    images_in(tmp_path, {"a": image, "b": image}, exif=exif)
    upright = data.read(of(tmp_path)).train.inputs[0]
    assert (upright[:16].min(), upright[16:].max()) == (255, 0)


def test_training_predictions_the_server_and_mlflow_see_one_image(tmp_path: Path) -> None:
    """Stripes show a JPEG that is decoded to a part of its size."""
    stripes, exif = (np.indices((900, 1200)).sum(0) * 11).astype(np.uint8), Image.Exif()
    exif[0x0112] = 6
    for half in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / half / name).mkdir(parents=True)
            Image.fromarray(stripes).convert("RGB").save(tmp_path / half / name / "1.jpg", exif=exif)
    dataset, file = data.read(of(tmp_path)), tmp_path / "test" / "a" / "1.jpg"
    body, model, reader = file.read_bytes(), logged_model.LoggedModel(), given.of(dataset.spec)
    model.config = {"side": 32, "native_side": 32, "crop": dataset.spec.crop}
    for seen in (
        next(reader.batches([file], (), print))[1][0].numpy(),
        reader.read(body)[0][0].numpy(),
        model.pixels(model.image(body)),
    ):
        assert np.array_equal(seen, dataset.test.inputs[0])


def renamed(root: Path, halves: dict[str, str]) -> None:
    for before, after in halves.items():
        (root / before).rename(root / after)


@pytest.mark.parametrize(
    ("train", "test"),
    [("Training", "Testing"), ("TRAIN", "valid"), ("train", "Validation"), ("training", "val")],
)
def test_folders_of_training_and_test_images_may_have_any_usual_name(root: Path, train: str, test: str) -> None:
    before = data.read(of(root))
    renamed(root, {"train": train, "test": test})
    found = data.read(of(root))
    assert (found.spec.names, found.spec.digest) == (before.spec.names, before.spec.digest)


def test_training_among_other_folders_is_a_class(root: Path) -> None:
    renamed(root / "train", {"0": "Training", "1": "Testing"})
    found = data.read(of(root / "train", test_share=0.2))
    assert (found.spec.names[-2:], len(found.spec.names)) == (("Testing", "Training"), 10)


def test_folders_that_systems_make_are_no_classes_and_their_files_no_images(root: Path) -> None:
    before = data.read(of(root))
    image = next((root / "train" / "3").iterdir())
    for folder in ("__MACOSX/train", "train/@eaDir", "train/3/@eaDir/0.png", "test/.thumbnails", "test/lost+found"):
        (root / folder).mkdir(parents=True)
        shutil.copy(image, root / folder)
    found = data.read(of(root))
    assert (found.spec.names, found.spec.digest, found.left_out) == (before.spec.names, before.spec.digest, "")


def test_what_is_left_out_is_counted_also_where_the_images_have_been_decoded_before(root: Path) -> None:
    usual = "10 classes, 100 training and 100 test images"
    assert contents(data.read(of(root))) == usual
    for number in range(12):
        (root / "train" / "3" / f"{number}.HEIC").touch()
    for name in ("4/notes.txt", "5/README", "5/x.\udcff", "4/.DS_Store", "outside.jpg"):
        (root / "test" / name).touch()
    (root / "more").mkdir()
    for _ in range(2):
        found = contents(data.read(of(root)))
        assert found.startswith(f"{usual}; 15 files left out (.heic 12, ")
        assert ".\\xff 1" in found
        assert found.endswith("; more/ not used")
    shutil.rmtree(root / "more")
    shutil.rmtree(root / "test")
    shared = contents(data.read(of(root, test_share=0.2)))
    assert shared == "10 classes, 81 training and 19 test images; 12 files left out (.heic 12)"


@pytest.mark.parametrize("name", ["ä" * 120, "x" + "写" * 84, "\udcff" * 200])
def test_the_name_of_a_folder_may_be_long_in_any_script(root: Path, name: str) -> None:
    moved = root.rename(root.with_name(name))
    assert len(data.read(of(moved)).train["labels"]) == 100
    assert len(data.read(of(moved)).train["labels"]) == 100
    (kept,) = (path for path in (data.folder(None) / "folders").iterdir() if not path.name.startswith("."))
    assert kept.name.startswith(f"{name[:50]}-")


def without(*names: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for name in names:
            shutil.rmtree(root / name)

    return change


def emptied(root: Path) -> None:
    for file in root.glob("train/3/*"):
        file.unlink()


def broken(root: Path) -> None:
    (root / "train" / "3" / "broken.png").write_bytes(next(root.glob("train/3/*")).read_bytes()[:60])


def photographed(root: Path) -> None:
    emptied(root)
    (root / "train" / "3" / "1.HEIC").touch()


def twice(root: Path) -> None:
    (root / "Training").mkdir()


def only_testing(root: Path) -> None:
    without("train")(root)
    renamed(root, {"test": "Testing"})


def one_class(root: Path) -> None:
    without(*(f"{half}/{digit}" for half in ("train", "test") for digit in range(1, 10)))(root)


@pytest.mark.parametrize(
    ("change", "values", "sentence"),
    [
        (
            without("train", "test"),
            {},
            "--dataset must have two or more classes, the same in each part, and {root} has not (too few)",
        ),
        (
            one_class,
            {},
            "--dataset must have two or more classes, the same in each part, and {root}/train has not (too few)",
        ),
        (
            without("test"),
            {},
            "--test-share must be given, such as 0.2, for data without test samples, and folder:{root} has none",
        ),
        (without(), {"test_share": 0.2}, "--test-share is for data without test samples, and folder:{root} has some"),
        (
            without("test/3"),
            {},
            "--dataset must have two or more classes, the same in each part, and {root}/test has not (3)",
        ),
        (
            emptied,
            {},
            "there is no image in {root}/train/3 (.bmp, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, .webp)",
        ),
        (
            photographed,
            {},
            "there is no image in {root}/train/3 (.bmp, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, .webp)",
        ),
        (
            twice,
            {},
            "--dataset must have train/ and one folder of each part, and {root} has Training/, test/, train/",
        ),
        (
            only_testing,
            {},
            "--dataset must have train/ and one folder of each part, and {root} has Testing/",
        ),
        (broken, {}, "cannot read image {root}/train/3/broken.png: it is truncated or damaged"),
        (
            without("train"),
            {},
            "--dataset must have train/ and one folder of each part, and {root} has test/",
        ),
        (without(), {"image_size": 16}, ""),
        (
            without(),
            {"image_size": 16, "model": "vgg11"},
            "--image-size must suit --model vgg11, which cannot take 2 images of 3x16x16 at once: ",
        ),
        (
            without(),
            {"image_size": 10**5},
            "--image-size must leave room for 200 images of 100000x100000 pixels without --stream: ",
        ),
    ],
)
def test_a_folder_that_cannot_be_learned_from_is_refused(
    root: Path, change: Callable[[Path], None], values: dict[str, object], sentence: str
) -> None:
    change(root)
    if not sentence:
        assert data.read(of(root, **values)).train.inputs.shape == (100, 16, 16, 3)
    else:
        assert refusal(root, **values).startswith(sentence.format(root=root))


def test_nothing_is_left_of_images_that_could_not_be_decoded(root: Path, tmp_path: Path) -> None:
    broken(root)
    assert "truncated" in refusal(root)
    assert [path.suffix for path in (tmp_path / "decoded" / "folders").iterdir()] == [".lock"]


@pytest.mark.parametrize("keeps_its_header", [True, False])
def test_images_that_cannot_be_read_are_refused_by_the_first_of_training(root: Path, keeps_its_header: bool) -> None:
    """Some damage is found only when an image is decoded."""
    paths = sorted(root.glob("train/3/*.png"))[:12]
    for path in paths:
        whole = Image.open(path).resize((9, 9))
        whole.save(path, "BMP")
        path.write_bytes(path.read_bytes()[: 60 if keeps_its_header else 1])
    reason = "it is truncated or damaged" if keeps_its_header else "it is not an image"
    assert refusal(root) == f"cannot read image {paths[0]}: {reason}"


def test_a_new_image_is_seen_by_the_next_run_of_a_process(root: Path) -> None:
    before = data.facts(of(root)).train_size
    some = next(root.glob("train/0/*.png"))
    shutil.copy(some, some.with_name("new.png"))
    assert data.facts(of(root)).train_size == before + 1


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert refusal(nowhere) == f"--dataset must name a folder that is there, and {nowhere} is none"
    nowhere.touch()
    assert refusal(nowhere) == f"--dataset must name a folder that is there, and {nowhere} is none"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"dataset": "cifar"},
            "--dataset must be cifar10, cifar100, mnist, digits, torchvision:NAME, folder:PATH, masks:PATH, coco:PATH, text:PATH, table:PATH or MODULE:FUNCTION, got 'cifar'",
        ),
        (
            {"dataset": "folder:"},
            "--dataset must be cifar10, cifar100, mnist, digits, torchvision:NAME, folder:PATH, masks:PATH, coco:PATH, text:PATH, table:PATH or MODULE:FUNCTION, got 'folder:'",
        ),
        (
            {"image_size": 64},
            "--image-size is for --dataset folder:PATH, masks:PATH, coco:PATH, torchvision:NAME or table:PATH only, and the dataset is cifar10",
        ),
        (
            {"dataset": "mine:load", "test_share": 0.2},
            "--test-share is for --dataset folder:PATH, text:PATH or table:PATH only, and the dataset is mine:load",
        ),
    ],
)
def test_what_is_for_other_data_sets_is_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig(**values)  # type: ignore[arg-type]
    assert refused.value.as_flag() == sentence


@pytest.mark.parametrize("written", ["~nobody-here", "x" * 5000, "\0"])
def test_what_can_be_no_folder_is_refused_as_before(written: str) -> None:
    assert refusal(written).endswith(f"got {errors.brief(written)}")


ARRAYS = """
import numpy as np
draw = np.random.default_rng(0)
def half(count, shape=(16, 16), dtype="uint8"):
    return draw.integers(0, 255, (count, *shape)).astype(dtype), np.arange(count) % 3
"""


@pytest.fixture
def arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module whose function returns an expression; gives its import path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    count = iter(range(9))

    def write(returned: str) -> str:
        name = f"arrays_{tmp_path.name}_{next(count)}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(f"{ARRAYS}def load():\n    return {returned}\n")
        return f"{name}:load"

    return write


def test_a_function_gives_arrays_and_perhaps_names(arrays: Callable[[str], str]) -> None:
    config = of(arrays("half(12), half(6), ['cat', 'dog', 'owl']"))
    dataset = data.read(config)
    assert dataset.spec.names == ("cat", "dog", "owl")
    assert (dataset.train.inputs.shape, dataset.test.inputs.shape) == ((12, 16, 16, 3), (6, 16, 16, 3))
    assert (data.facts(config).image_size, config.dataset_name.partition(".")[2]) == (16, "load")
    assert data.read(of(arrays("half(12), half(6)"))).spec.names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        ("7", "TypeError: object of type 'int' has no len()"),
        ("half(12)[0], half(12)[0]", "ValueError: too many values to unpack (expected 2"),
        ("half(12), 5", "TypeError: 'int' object is not iterable"),
        ("half(12, dtype='float32'), half(6)", "ValueError: images of float32 (12, 16, 16)"),
        ("half(12, (16, 8)), half(6)", "ValueError: images of uint8 (12, 16, 8)"),
        ("half(12, ()), half(6)", "ValueError: images of uint8 (12,)"),
        ("half(12), half(6, (8, 8))", "ValueError: images (16, 16, 3) for training and images (8, 8, 3)"),
        ("(half(12)[0], half(6)[1]), half(6)", "ValueError: labels of int64 (6,) for 12 images"),
        (
            "(half(12)[0], np.arange(12) % 3 + 7), half(6)",
            "ValueError: 3 kinds of labels for training, and labels from 7 to 9",
        ),
        (
            "(half(12)[0], np.arange(12) % 2), half(6)",
            "ValueError: 2 kinds of labels for training, and labels from 0 to 2",
        ),
        ("half(12), half(6), ['a', 'a', 'b']", "ValueError: ['a', 'a', 'b'] as the names of 3 classes"),
        ("half(12), half(6), ['cat', 'dog']", "ValueError: ['cat', 'dog'] as the names of 3 classes"),
    ],
)
def test_what_a_function_may_not_return_is_refused(arrays: Callable[[str], str], returned: str, fault: str) -> None:
    path = arrays(returned)
    rule, _, told = refusal(path).partition(f", and {path} fails: ")
    assert rule.startswith("--dataset must return (images, labels) for training and for the test, and perhaps ")
    assert told.startswith(fault)
    assert "\n" not in told


@pytest.mark.parametrize(
    ("returned", "error"), [("1 / 0", "ZeroDivisionError: division by zero"), ("exit(3)", "SystemExit: 3")]
)
def test_a_function_that_fails_is_named_with_the_line(arrays: Callable[[str], str], returned: str, error: str) -> None:
    path = arrays(returned)
    file = f"{path.partition(':')[0]}.py"
    assert refusal(path).startswith("--dataset must return (images, labels) for training ")
    assert f", and {path} fails: {error} ({file}, line " in refusal(path)


def test_a_function_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal("nowhere:load") == (
        f"--dataset must name a module that can be imported in {tmp_path}, and nowhere fails: "
        "ModuleNotFoundError: No module named 'nowhere'"
    )


def test_links_are_followed_and_what_is_hidden_or_comes_back_is_left_out(root: Path, tmp_path: Path) -> None:
    before = len(data.read(of(root)).train["labels"])
    outside = tmp_path / "outside"
    outside.mkdir()
    image = next((root / "train" / "3").iterdir())
    (outside / os.fsdecode(b"linked\xff.png")).write_bytes(image.read_bytes())
    (root / "train" / "3" / "more").symlink_to(outside)
    (root / "train" / "3" / "back").symlink_to(root / "train" / "3")
    (root / "train" / "3" / ".ipynb_checkpoints").mkdir()
    (root / "train" / "3" / ".ipynb_checkpoints" / "0.png").write_bytes(image.read_bytes())
    assert len(data.read(of(root)).train["labels"]) == before + 1


def test_decoded_images_that_are_damaged_are_refused(root: Path) -> None:
    data.read(config := of(root))
    (file,) = (data.folder(config.data_dir) / "folders").glob("*/train_images.npy")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"^decoded images in .*/folders/.* are damaged \(.*\); remove them$"):
        data.read(config)


def test_images_left_on_disk_are_the_same_and_travel_as_a_path(root: Path) -> None:
    whole, streamed = data.read(of(root)), data.read(of(root, stream=True))
    assert streamed.spec == whole.spec
    assert whole.train.file is None
    assert streamed.train.file is not None
    sent = pickle.dumps(streamed)
    assert len(sent) < 10_000 < whole.train.inputs.nbytes
    for mine, theirs in ((streamed, whole), (pickle.loads(sent), whole), (pickle.loads(pickle.dumps(whole)), whole)):
        for half in ("train", "test"):
            assert np.array_equal(getattr(mine, half).inputs, getattr(theirs, half).inputs)
            assert np.array_equal(getattr(mine, half)["labels"], getattr(theirs, half)["labels"])
    shutil.rmtree(data.folder(None))
    with pytest.raises(
        ConfigError, match=r"stream needs a --data-dir that all nodes share, and .*images.npy is not on "
    ):
        pickle.loads(sent)


@pytest.mark.parametrize("augment", ["none", "crop", "mixup"])
def test_a_step_sees_the_same_of_them(root: Path, augment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of several steps, with the last one of an epoch, and from the middle."""
    monkeypatch.setattr(loader, "AHEAD", 24)
    config = of(root, batch_size=8, augment=augment)
    shard = loader.DataShard(1, 2)
    both = [
        loader.TrainLoader(
            replace(config, global_batch_size=16), Decided.asked(config), dataset, shard, torch.device("cpu")
        )
        for dataset in (data.read(config), data.read(of(root, stream=True)))
    ]
    for epoch, step in ((0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 4), (1, 0)):
        (whole,), (streamed,) = (each.micro_batches(epoch, step) for each in both)
        assert torch.equal(whole.inputs, streamed.inputs)
        assert torch.equal(whole.targets, streamed.targets)


def test_a_thread_gathers_them_ahead_into_memory_that_a_gpu_reads_by_itself(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "AHEAD", 16)
    config = replace(of(root, batch_size=8, augment="none"), steps_per_epoch=6)
    made = loader.TrainLoader(
        config, Decided.asked(config), data.read(of(root, stream=True)), loader.DataShard(), torch.device("cpu")
    )
    gather, ahead = made._gathered, []

    def noted(samples: torch.Tensor) -> torch.Tensor:
        ahead.append(threading.current_thread() is not threading.main_thread())
        return gather(samples)

    monkeypatch.setattr(made, "_gathered", noted)
    for epoch in range(2):
        for step in range(6):  # three blocks
            next(made.micro_batches(epoch, step))
    assert ahead == [False, True, True] * 2  # an epoch's order is not known before it begins
    assert made._coming == {}

    empty, pinned = torch.empty, []

    def without_a_gpu(*size: int, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        pinned.append(pin_memory)
        return empty(*size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", without_a_gpu)
    monkeypatch.setattr(made, "_device", torch.device("cuda", 0))
    samples = torch.tensor([3, 1, 2])
    assert torch.equal(gather(samples), made._inputs[samples])
    assert pinned == [True]


def test_images_that_do_not_fit_are_refused_with_the_sizes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1_000_000))
    assert refusal(root) == (
        "--image-size must leave room for 200 images of 32x32 pixels without --stream: 0.0 GiB, of 0.0 GiB"
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=600_000))
    assert refusal(root, stream=True) == (
        "--data-dir must leave room for 200 images of 32x32 pixels: 0.0 GiB, of 0.0 GiB"
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=700_000))
    assert len(data.read(of(root, stream=True)).train["labels"]) == 100


def test_a_class_whose_name_is_not_utf_8_has_a_name_that_can_be_written(root: Path) -> None:
    for half in ("train", "test"):
        (root / half / "0").rename(root / half / "caf\udce9")
    assert "caf\\xe9" in data.read(of(root)).spec.names
