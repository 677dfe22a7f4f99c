"""Samples that are no images: rows of numbers and texts, from a function of the user's own to a trained model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cifar_ray import data
from cifar_ray.config import runfile, schema
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import modality
from cifar_ray.tracking import artifacts
from cifar_ray.training import predictor, recipe
from cifar_ray.training.observer import Outcome
from tests.support.helpers import resolved
from tests.support.threads import train_on_threads

OWN = __name__
USUAL: dict[str, object] = {"epochs": 1, "precision": "fp32", "global_batch_size": 16, "optimizer": "sgd", "lr": 0.1}
USUAL |= {"weight_decay": 0.0, "warmup_epochs": 0.0, "log_every": 1}


def rows() -> object:
    """Points of three classes, the first feature in thousands, the last the same for all."""
    random = np.random.default_rng(0)
    labels = np.arange(120) % 3
    inputs = random.normal(size=(120, 4)) + labels[:, None]
    inputs[:, 0] *= 1000
    inputs[:, 3] = 7.1
    return (inputs[:96], labels[:96]), (inputs[96:], labels[96:]), ("a", "b", "c")


def texts() -> object:
    """Texts of at most six words; the first word tells the class."""
    labels = np.arange(100) % 2
    inputs = np.random.default_rng(0).integers(3, 9, (100, 6))
    inputs[:, 0] = labels + 1
    inputs[::5, 3:] = 0
    return (inputs[:80], labels[:80]), (inputs[80:], labels[80:])


def linear(features: int, classes: int, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, classes))


class Mean(nn.Module):
    def forward(self, embedded: Tensor) -> Tensor:
        return embedded.mean(1)


def bag(vocabulary: int, length: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(vocabulary, 8, padding_idx=0), Mean(), nn.Linear(8, classes))


ROWS: dict[str, object] = {**USUAL, "dataset": f"{OWN}:rows", "model": f"{OWN}:linear"}
TEXTS: dict[str, object] = {**USUAL, "dataset": f"{OWN}:texts", "model": f"{OWN}:bag"}


def test_what_a_function_returns_tells_the_kind() -> None:
    (numbers, words) = (data.read(resolved(usual)) for usual in (ROWS, TEXTS))
    assert (numbers.spec.inputs, numbers.train.kind, numbers.train.inputs.dtype) == ("features", "features", np.float32)
    assert (words.spec.inputs, words.train.kind, words.train.inputs.dtype) == ("tokens", "tokens", np.int32)
    assert (modality.of(numbers.spec).arguments, modality.of(numbers.spec).sizes) == (("features", "classes"), (4, 3))
    of_words = modality.of(words.spec)
    assert (of_words.arguments, of_words.sizes) == (("vocabulary", "length", "classes"), (9, 6, 2))
    assert (numbers.spec.shape, of_words.example(3).dtype) == ((4,), torch.int64)
    assert 1 <= of_words.example(50).min() <= of_words.example(50).max() < 9


def test_a_module_may_be_named_as_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist.py").write_text(f"from {OWN} import rows\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert data.look(TrainConfig(dataset="mnist:rows", model=f"{OWN}:linear")).num_classes == 3


def test_features_are_standardised_by_the_training_rows_alone() -> None:
    asked = resolved(ROWS, val_share=0.2)
    dataset = data.read(asked)
    train = dataset.train.inputs.astype(np.float64)
    assert dataset.spec.mean == pytest.approx(train.mean(0))
    assert dataset.spec.std[:3] == pytest.approx(train.std(0)[:3])
    assert dataset.spec.std[3] == 0.0
    assert dataset.left_out == "without variation in training, and 0 everywhere: 3"
    shown = modality.of(dataset.spec).normaliser()(torch.from_numpy(dataset.test.inputs + 1))
    assert (shown[:, 3].any(), shown[:, 2].any()) == (False, True)
    settled = recipe.settle(asked, Decided.asked(asked), dataset)  # type: ignore[arg-type]
    assert schema.to_plain(settled)["data"]["inputs"] == "features"


@pytest.mark.parametrize(("strategy", "usual"), [("ddp", ROWS), ("gpipe", TEXTS)], ids=["features", "tokens"])
def test_a_model_answers_for_inputs_as_stored(strategy: str, usual: dict[str, object], tmp_path: Path) -> None:
    asked = resolved(usual, strategy=strategy, topology="1x2", epochs=6, precision="auto")
    (outcome, _), *_ = train_on_threads(asked, data.read(asked), tmp_path)
    assert isinstance(outcome, Outcome)
    test = data.read(asked).test
    learned = predictor.of(Path(outcome.checkpoint))
    program = torch.export.export(learned, (torch.from_numpy(test.inputs),))
    for answers in (learned(torch.from_numpy(test.inputs)), program.module()(torch.from_numpy(test.inputs))):
        right = (answers.argmax(1).numpy() == test["labels"]).mean()
        assert right == pytest.approx(outcome.metrics["test/accuracy"])
        assert right > 0.6
    assert (artifacts.mistakes(outcome.mistakes, data.read(asked)), outcome.confusion != ()) == (
        [],
        True,
    )  # no pictures
    unit = "rows" if usual is ROWS else "texts"
    assert {f"test/{unit}", f"epoch_{unit}_per_s"} <= outcome.metrics.keys()


@pytest.mark.parametrize(
    ("usual", "values", "sentence"),
    [
        (ROWS, {"model": "resnet"}, "^model must be .*one of your own to learn the labels of rows"),
        (TEXTS, {"model": "vit"}, "^model must be .*one of your own to learn the labels of texts"),
        (ROWS, {"model": "torchvision:resnet18"}, "^model must be .* of rows, .* got torchvision:resnet18"),
        (ROWS, {"model": f"{OWN}:rows"}, r"^model must build a model when called with \(4, 3\), .*:rows fails"),
        (TEXTS, {"normalise": "half"}, "^normalise is for images"),
        (ROWS, {"dataset": f"{OWN}:with_nan"}, "^dataset must .*with_nan fails: ValueError: features of float64"),
        (TEXTS, {"dataset": f"{OWN}:negative"}, "^dataset must .*negative fails: ValueError: tokens of int64"),
        (TEXTS, {"dataset": f"{OWN}:padded_left"}, "^dataset .*padded_left fails: ValueError: tokens of int64"),
        (ROWS, {"dataset": f"{OWN}:mixed"}, r"^dataset .* ValueError: features \(4,\) for training and tokens"),
    ],
)
def test_what_does_not_fit_is_refused(usual: dict[str, object], values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolved(usual, **values)


def padded_left() -> object:
    (inputs, labels), test = texts()  # type: ignore[misc]
    return (inputs[:, ::-1], labels), test


def with_nan() -> object:
    (inputs, labels), test, names = rows()  # type: ignore[misc]
    return (np.where(inputs > 3000, np.nan, inputs), labels), test, names


def negative() -> object:
    train, (inputs, labels) = texts()  # type: ignore[misc]
    return train, (inputs - 1, labels)


def mixed() -> object:
    train, (inputs, labels), names = rows()  # type: ignore[misc]
    return train, (inputs.astype(int) + 10_000, labels), names


def test_a_data_set_may_have_a_usual_model_of_its_own() -> None:
    configs = TrainConfig(), TrainConfig(dataset="masks:x"), TrainConfig(dataset="masks:x", model="segnet")
    assert [config.model for config in configs] == ["resnet", "unet", "segnet"]
    for values, model in (
        ({"dataset": "masks:x"}, "unet"),
        ({"dataset": "masks:x", "model": "resnet"}, "resnet"),
        (runfile.merge({"epochs": 3}, {"dataset": "masks:x"}), "unet"),
        (runfile.merge({"model": "segnet"}, {"dataset": "masks:x"}), "segnet"),
    ):
        assert runfile.load(None, values).model == model
    sweep = SweepConfig("s", train={"dataset": "masks:x", "model_options": {"width": 3}}, grid=[{"lr": [0.1]}])  # type: ignore[arg-type]
    (cell,) = sweeps.cells(sweep, [{"lr": 0.1}])
    assert cell.config is not None
    assert (cell.config.model, cell.config.model_options["width"]) == ("unet", 3)
