"""Data sets of the user's own: folders of images, and functions that return arrays."""

from __future__ import annotations

import itertools
import os
import pickle
import re
import runpy
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
from cifar_ray.config import runfile, schema
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset, loader
from cifar_ray.runs import given
from cifar_ray.tracking import logged_model
from cifar_ray.training import recipe
from tests.support.images import folder_of_digits, of


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CIFAR_RAY_DATA_DIR", str(tmp_path / "decoded"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """100 digits for training and 100 for the test."""
    folder_of_digits(tmp_path / "images", 100)
    return tmp_path / "images"


def test_a_folder_gives_what_torchvisions_reader_gives(root: Path) -> None:
    config = of(root, image_size=8)
    found, theirs = data.read(config), ImageFolder(str(root / "train"))
    assert found.spec.names == tuple(theirs.classes)
    assert found.train["labels"].tolist() == theirs.targets
    assert np.array_equal([np.asarray(image) for image, _ in theirs], found.train.inputs)
    facts = data.facts(config)
    assert (facts.num_classes, facts.train_size, facts.test_size) == (10, 100, 100)
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
    one, another = next(root.glob("train/0/*.png")), next(root.glob("train/1/*.png"))
    one.write_bytes(another.read_bytes())
    assert read().spec.digest != first.spec.digest
    shutil.copy(another, one.with_name("new.png"))
    assert data.facts(of(root)).train_size == first.spec.train_size + 1
    held = recipe.settle(config, Decided.asked(config), first)
    with pytest.raises(ConfigError, match=r"^dataset must have the images that the run began with"):
        recipe.settle(config, held, read())


@pytest.mark.parametrize("bring", [shutil.copy2, os.replace], ids=["cp -p", "rsync -a"])
def test_a_file_replaced_by_one_of_its_size_and_time_is_decoded(
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
    shutil.rmtree(root)  # workers, predictions and the server need no folder
    assert runfile.resolved_from_mapping(runfile.to_mapping(config)) == config
    assert schema.build(Decided, schema.to_plain(found)) == found
    assert (found.data, runfile.params(config, found)["data.digest"]) == (dataset.spec, dataset.spec.digest)
    assert f"--dataset folder:{root}" in recipe.command(config)


def test_training_predictions_the_server_and_mlflow_see_one_image_turned_as_its_camera_was(tmp_path: Path) -> None:
    """Stripes show a JPEG that is decoded to a part of its size."""
    stripes, exif = (np.indices((1200, 900)).sum(0) * 11).astype(np.uint8), Image.Exif()
    stripes[:400] = 0  # the upper half of what is upright, and more than a margin
    exif[0x0112] = 3  # upside down
    for folder in (tmp_path / half / name for half in ("train", "test") for name in ("a", "b")):
        folder.mkdir(parents=True)
        Image.fromarray(stripes).convert("RGB").save(folder / "1.jpg", exif=exif)
    dataset, file = data.read(of(tmp_path)), tmp_path / "test" / "a" / "1.jpg"
    upright = dataset.test.inputs[0]
    assert (upright[-8:].max() < 40, upright[:8].max() > 40) == (True, True)
    body, model, reader = file.read_bytes(), logged_model.LoggedModel(), given.of(dataset.spec)
    model.config = {"side": 32, "native_side": 32, "crop": dataset.spec.crop}
    for seen in (
        next(reader.batches([file], (), print))[1][0].numpy(),
        reader.read(body)[0][0].numpy(),
        model.pixels(model.image(body)),
    ):
        assert np.array_equal(seen, upright)


def renamed(root: Path, names: dict[str, str]) -> None:
    for before, after in names.items():
        (root / before).rename(root / after)


def test_folders_of_training_and_test_images_may_have_any_usual_name(root: Path) -> None:
    before, last = data.read(of(root)), ("train", "test")
    for names in (("Training", "Testing"), ("TRAIN", "valid"), ("train", "Validation"), ("training", "val")):
        renamed(root, dict(zip(last, names)))
        found, last = data.read(of(root)), names
        assert (found.spec.names, found.spec.digest) == (before.spec.names, before.spec.digest)


def test_training_among_other_folders_is_a_class(root: Path) -> None:
    renamed(root / "train", {"0": "Training", "1": "Testing"})
    found = data.read(of(root / "train", test_share=0.2))
    assert (found.spec.names[-2:], len(found.spec.names)) == (("Testing", "Training"), 10)


def test_links_are_followed_and_what_systems_make_is_hidden_or_comes_back_is_left_out(root: Path) -> None:
    before = data.read(of(root))
    three = root / "train" / "3"
    image = next(three.iterdir())
    for folder in ("__MACOSX/train", "train/@eaDir", "train/3/@eaDir/0.png", "test/.thumbnails", "test/lost+found"):
        (root / folder).mkdir(parents=True)
        shutil.copy(image, root / folder)
    (three / ".ipynb_checkpoints").mkdir()
    shutil.copy(image, three / ".ipynb_checkpoints" / "0.png")
    (three / "back").symlink_to(three)
    found = data.read(of(root))
    assert (found.spec.names, found.spec.digest, found.left_out) == (before.spec.names, before.spec.digest, "")
    (outside := root.parent / "outside").mkdir()
    shutil.copy(image, outside / os.fsdecode(b"linked\xff.png"))
    (three / "more").symlink_to(outside)
    assert len(data.read(of(root)).train) == len(before.train) + 1


def test_what_is_left_out_is_counted_also_where_the_images_have_been_decoded_before(root: Path) -> None:
    for number in range(12):
        (root / "train" / "3" / f"{number}.HEIC").touch()
    for name in ("4/notes.txt", "5/README", "5/x.\udcff", "4/.DS_Store", "outside.jpg"):
        (root / "test" / name).touch()
    (root / "more").mkdir()
    for _ in range(2):
        found = data.read(of(root)).left_out
        assert found.startswith("15 files left out (.heic 12, ")
        assert ".\\xff 1" in found
        assert found.endswith("; more/ not used")
    shutil.rmtree(root / "more")
    shutil.rmtree(root / "test")
    shared = data.read(of(root, test_share=0.2))
    assert (len(shared.train), len(shared.test), shared.left_out) == (81, 19, "12 files left out (.heic 12)")


@pytest.mark.parametrize("name", ["ä" * 120, "x" + "写" * 84, "\udcff" * 200])
def test_the_name_of_a_folder_may_be_long_in_any_script(root: Path, name: str) -> None:
    moved = root.rename(root.with_name(name))
    assert [len(data.read(of(moved)).train) for _ in range(2)] == [100, 100]
    (kept,) = data.folder(None).glob("folders/[!.]*")
    assert kept.name.startswith(f"{name[:50]}-")


def without(*names: str) -> Callable[[Path], None]:
    return lambda root: [shutil.rmtree(root / name) for name in names][-1]


def emptied(root: Path) -> None:
    for file in root.glob("train/3/*"):
        file.unlink()
    (root / "train" / "3" / "1.HEIC").touch()


def broken(root: Path) -> None:
    (root / "train" / "3" / "broken.png").write_bytes(next(root.glob("train/3/*")).read_bytes()[:60])


ALL_BUT_ONE = without(*(f"{half}/{digit}" for half in ("train", "test") for digit in range(1, 10)))
CLASSES, PARTS = "^dataset must have two or more classes, .*{}", "^dataset must have train/ and one folder of "


@pytest.mark.parametrize(
    ("change", "values", "sentence"),
    [
        (ALL_BUT_ONE, {}, CLASSES.format("/train") + " has 1$"),
        (without("test/3"), {}, CLASSES.format("/test") + " differs in 3$"),
        (without("test"), {}, "^test_share must be given"),
        (None, {"test_share": 0.2}, "^test_share is for data without test samples"),
        (emptied, {}, r"^there is no image in .*/train/3 \(.bmp"),
        (lambda root: (root / "Training").mkdir(), {}, f"{PARTS}.* Training/, test/, train/"),
        (without("train"), {}, f"{PARTS}.* test/$"),
        (broken, {}, "^cannot read image .*/train/3/broken.png: it is truncated or damaged"),
        (None, {"image_size": 16, "model": "vgg11"}, "^image_size must suit --model vgg11"),
        (None, {"image_size": 10**5}, "^image_size must leave room for 200 images of 100000x100000 pixels"),
    ],
)
def test_a_folder_that_cannot_be_learned_from_is_refused(
    root: Path, change: Callable[[Path], None] | None, values: dict[str, object], sentence: str
) -> None:
    if change:
        change(root)
    with pytest.raises(ConfigError, match=sentence):
        data.read(of(root, **values))
    assert not [*data.folder(None).glob("folders/[!.]*")]  # nothing is left of what could not be decoded


@pytest.mark.parametrize(("size", "reason"), [(60, "it is truncated or damaged"), (1, "it is not an image")])
def test_images_that_cannot_be_read_are_refused_by_the_first_of_training(root: Path, size: int, reason: str) -> None:
    """Some damage is found only when an image is decoded."""
    paths = sorted(root.glob("train/3/*.png"))[:12]
    for path in paths:
        Image.open(path).resize((9, 9)).save(path, "BMP")
        path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigError, match=f"^cannot read image {paths[0]}: {reason}"):
        data.read(of(root))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"dataset": "cifar"}, "^dataset must be cifar10, .* or MODULE:FUNCTION, got 'cifar'"),
        ({"dataset": "folder:"}, "^dataset must be cifar10, .* got 'folder:'"),
        *(({"dataset": other}, "^dataset must be cifar10, ") for other in ("~nobody-here", "x" * 5000, "\0")),
        ({"dataset": "folder:/dev/null"}, "^dataset must name a folder that is there, and /dev/null is none"),
        ({"dataset": "nowhere:load"}, "^dataset must name a module .* and nowhere fails: ModuleNotFoundError"),
        ({"dataset": "cifar10", "image_size": 64}, "^image_size is for --dataset folder:PATH, .* only"),
        ({"dataset": "mine:load", "test_share": 0.2}, "^test_share is for --dataset folder:PATH, .* only"),
    ],
)
def test_what_is_no_data_set_or_for_others_is_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        data.read(of(**values))  # type: ignore[arg-type]


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

    def write(returned: str) -> str:
        name = f"arrays_{abs(hash((tmp_path, returned)))}"
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


IMAGES, LABELS = "ValueError: images of ", "kinds of labels for training, and labels from "


@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        ("7", "TypeError: object of type 'int' has no len()"),
        ("half(12, dtype='float32'), half(6)", f"{IMAGES}float32 (12, 16, 16)"),
        ("half(12, (16, 8)), half(6)", f"{IMAGES}uint8 (12, 16, 8)"),
        ("(np.full((12, 4), 1e39), half(12)[1]), half(6)", "ValueError: features of float64 (12, 4)"),
        ("half(12), half(6, (8, 8))", "images (16, 16, 3) for training and images (8, 8, 3)"),
        ("(half(12)[0], half(6)[1]), half(6)", "labels of int64 (6,) for 12 images"),
        ("(half(12)[0], np.arange(12) % 3 + 7), half(6)", f"3 {LABELS}7 to 9"),
        ("(half(12)[0], np.arange(12) % 2), half(6)", f"2 {LABELS}0 to 2"),
        ("half(12), half(6), ['a', 'a', 'b']", "the names of 3 classes"),
        ("1 / 0", "ZeroDivisionError: division by zero (arrays_"),  # and its line
        ("exit(3)", "SystemExit: 3 (arrays_"),
    ],
)
def test_what_a_function_may_not_return_is_refused(arrays: Callable[[str], str], returned: str, fault: str) -> None:
    path = arrays(returned)
    with pytest.raises(ConfigError, match=rf"^dataset must return .*, and {path} fails: .*{re.escape(fault)}.*$"):
        data.read(of(path))


def test_decoded_images_that_are_damaged_are_refused(root: Path) -> None:
    data.read(config := of(root))
    (file,) = (data.folder(config.data_dir) / "folders").glob("*/train_images.npy")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"^decoded images in .*/folders/.* are damaged"):
        data.read(config)


def test_images_left_on_disk_are_the_same_and_travel_as_a_path(root: Path) -> None:
    whole, streamed = (data.read(of(root, stream=stream, val_share=0.2)) for stream in (False, True))
    assert (streamed.spec, whole.train.file) == (whole.spec, None)
    sent = pickle.dumps(streamed)
    assert len(sent) < 10_000 < whole.train.inputs.nbytes
    for mine in (streamed, pickle.loads(sent), pickle.loads(pickle.dumps(whole))):
        for half in ("train", "test", "val"):
            assert np.array_equal(getattr(mine, half).inputs, getattr(whole, half).inputs)
            assert np.array_equal(getattr(mine, half)["labels"], getattr(whole, half)["labels"])
    assert streamed.train.file is not None
    some = streamed.train.at(slice(3, 5))  # travel without the others
    again = pickle.loads(pickle.dumps(some))
    assert (again.file, len(pickle.dumps(streamed.train)) < len(pickle.dumps(some)) < 10_000) == (None, True)
    assert np.array_equal(again.inputs, streamed.train.inputs[3:5])
    shutil.rmtree(data.folder(None))
    with pytest.raises(ConfigError, match="stream needs a --data-dir that all nodes share"):
        pickle.loads(sent)


@pytest.mark.parametrize("augment", ["none", "crop", "mixup"])
def test_a_step_sees_the_same_of_them(root: Path, augment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of several steps, with the last one of an epoch, and from the middle."""
    monkeypatch.setattr(loader, "AHEAD", 24)
    config = of(root, batch_size=8, augment=augment)
    shard, asked = loader.DataShard(1, 2), replace(config, global_batch_size=16)
    both = [
        loader.TrainLoader(asked, Decided.asked(config), data.read(of(root, stream=stream)), shard, torch.device("cpu"))
        for stream in (False, True)
    ]
    for epoch, step in ((0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 4), (1, 0)):
        (whole,), (streamed,) = (each.micro_batches(epoch, step) for each in both)
        assert torch.equal(whole.inputs, streamed.inputs)
        assert torch.equal(whole.targets, streamed.targets)


def test_a_thread_gathers_them_ahead(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "AHEAD", 16)
    config = replace(of(root, batch_size=8, augment="none"), steps_per_epoch=6)
    dataset, decided = data.read(of(root, stream=True)), Decided.asked(config)
    made = loader.TrainLoader(config, decided, dataset, loader.DataShard(), torch.device("cpu"))
    gather, ahead = made._gathered, []

    def noted(samples: torch.Tensor) -> torch.Tensor:
        ahead.append(threading.current_thread() is not threading.main_thread())
        return gather(samples)

    monkeypatch.setattr(made, "_gathered", noted)
    for epoch, step in itertools.product(range(2), range(6)):  # three blocks
        next(made.micro_batches(epoch, step))
    assert ahead == [False, True, True] * 2  # an epoch's order is not known before it begins
    assert made._coming == {}


def test_images_that_do_not_fit_are_refused_with_the_sizes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1_000_000))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=600_000))
    for stream, flag in ((False, "image_size"), (True, "data_dir")):
        with pytest.raises(ConfigError, match=f"^{flag} must leave room for 200 images of 32x32 pixels"):
            data.read(of(root, stream=stream))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=700_000))
    assert len(data.read(of(root, stream=True)).train["labels"]) == 100


def test_a_class_whose_name_is_not_utf_8_has_a_name_that_can_be_written(root: Path) -> None:
    for half in ("train", "test"):
        (root / half / "0").rename(root / half / "caf\udce9")
    assert "caf\\xe9" in data.read(of(root)).spec.names


EXAMPLE = Path(__file__).parents[3] / "examples" / "own_source.py"


def test_the_example_of_an_own_source(digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^dataset .* and npy fails: "):
        of(f"npy:{tmp_path}")
    monkeypatch.setitem(data.SOURCES, "npy:", None)
    runpy.run_path(str(EXAMPLE))
    for part, split in (("train", digits.train), ("test", digits.test)):
        np.save(tmp_path / f"{part}_images.npy", split.inputs)
        np.save(tmp_path / f"{part}_labels.npy", split["labels"])
    whole, shared = (data.read(of(f"npy:{tmp_path}", val_share=share)) for share in (0.0, 0.2))
    same = data.read(TrainConfig(dataset="digits", val_share=0.2))
    assert (whole.spec.digest, whole.spec.names, whole.spec.train_size) == (digits.spec.digest, digits.spec.names, 1437)
    assert (shared.spec.digest, shared.spec.val_size) == (same.spec.digest, same.spec.val_size)
    config: ResolvedConfig = pickle.loads(pickle.dumps(of(f"npy:{tmp_path}")))
    assert (config.dataset_name, data.facts(config).digest) == (tmp_path.name, whole.spec.digest)
    (tmp_path / "train_images.npy").unlink()
    with pytest.raises(ConfigError, match=r"^dataset must have train_images.npy"):
        of(f"npy:{tmp_path}")
    with pytest.raises(ConfigError, match=r"^dataset .*/nowhere is none"):
        of(f"npy:{tmp_path}/nowhere")
