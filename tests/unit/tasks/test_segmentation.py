"""Segmentation: its loss over a global batch, its figures, and the same weights at any number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch import Tensor
from torch.nn import functional as F

from cifar_ray import data, tasks
from cifar_ray.config import runfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.facts import Facts
from cifar_ray.config.train import TrainConfig
from cifar_ray.tasks.segmentation import Segmentation
from cifar_ray.training import checkpoint, predictor, recipe
from cifar_ray.training.observer import Outcome
from examples.segmentation import make_masks
from tests.support.helpers import plain_losses, resolved, train_here
from tests.support.threads import evaluated, losses_of_steps, train_everywhere, train_on_threads

USUAL: dict[str, object] = {"model": "unet", "model_options": {"width": 2, "norm": "none"}, "precision": "fp32"}
USUAL |= {"image_size": 16, "optimizer": "sgd", "lr": 0.05, "weight_decay": 0.0, "warmup_epochs": 0.0}
USUAL |= {"epochs": 1, "global_batch_size": 16, "label_smoothing": 0.0}
SEGNET: dict[str, object] = {"model": "segnet", "model_options": {"width": 2, "blocks": (1, 1, 2)}}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """40 images of digits for training, and 10 for the test."""
    folder = tmp_path_factory.mktemp("masks")
    make_masks.make(folder / "digits", 50)
    return {**USUAL, "dataset": f"masks:{folder / 'digits'}", "data_dir": str(folder)}


def mean_of_valid(outputs: Tensor, masks: Tensor, least: float = 0.001) -> Tensor:
    """The mean cross-entropy of all pixels of a global batch that count."""
    assert (masks == 255).float().mean() > least
    rows = outputs.permute(0, 2, 3, 1)[masks != 255]
    return F.cross_entropy(rows, masks[masks != 255].long())


STRATEGIES = [
    {"topology": "1x1", "accumulate": 4},
    {"topology": "1x2", "strategy": "gather_scatter"},
    {"topology": "1x2", "strategy": "ddp", "accumulate": 2},
]


@pytest.mark.parametrize("values", STRATEGIES, ids=lambda values: "-".join(map(str, values.values())))
def test_the_loss_is_the_mean(values: dict[str, object], usual: dict[str, object], tmp_path: Path) -> None:
    asked = resolved(usual, **values, augment="none", schedule="constant", steps_per_epoch=2, log_every=1)
    assert losses_of_steps(asked, tmp_path) == pytest.approx(plain_losses(asked, 2, "masks", mean_of_valid), rel=2e-5)


@pytest.mark.slow
def test_weights_are_the_same_at_any_world_size_and_after_a_stop(usual: dict[str, object], tmp_path: Path) -> None:
    more: dict[str, object] = {"strategy": "reproducible", "augment": "crop_flip", "ema": 0.9, "val_share": 0.2}
    more |= {"model_options": {"width": 2}, "epochs": 2, "steps_per_epoch": 2, "global_batch_size": 8, "log_every": 1}
    more |= {"class_weights": "balanced"}
    train_everywhere(partial(resolved, usual, **more), tmp_path, stop_after=3)


def test_replicas_that_go_their_own_way_train_it(usual: dict[str, object], tmp_path: Path) -> None:
    asked = resolved(usual, topology="1x2", strategy="local_sgd", epochs=2, **SEGNET)
    (outcome, _), *_ = train_on_threads(asked, data.read(asked), tmp_path)
    assert isinstance(outcome, Outcome)
    assert outcome.metrics["test/loss"] < np.log(11)


def figures_by_hand(predicted: np.ndarray, true: np.ndarray, classes: int) -> Mapping[str, float]:
    counts = confusion_matrix(true[true != 255], predicted[true != 255], labels=range(classes)).astype(float)
    right, rows, columns = counts.diagonal(), counts.sum(1), counts.sum(0)
    there = rows + columns > 0
    iou = right[there] / (rows + columns - right)[there]
    dice = 2 * right[there] / (rows + columns)[there]
    return {"miou": iou.mean(), "dice": dice.mean(), "pixel_accuracy": right.sum() / counts.sum()}


def test_figures_are_those_of_the_definitions_and_add_up_over_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(12, 5, 8, 8, generator=generator)
    masks = torch.randint(0, 4, (12, 8, 8), generator=generator, dtype=torch.uint8)  # nowhere class 4
    masks[torch.rand(masks.shape, generator=generator) < 0.2] = 255
    outputs[:, 3] -= 9  # nobody answers 3
    task = Segmentation(TrainConfig())
    parts = [task.tally(outputs[at : at + 5], masks[at : at + 5]) for at in range(0, 12, 5)]
    found = task.evaluation({name: sum(part[name] for part in parts) for name in parts[0]}, 12)  # type: ignore[misc]
    expected = figures_by_hand(outputs.argmax(1).numpy(), masks.numpy(), 5)
    loss = F.cross_entropy(outputs.double(), masks.long(), ignore_index=255)
    assert found.metrics == pytest.approx({**expected, "loss": loss.item()}, rel=1e-9)
    assert sum(map(sum, found.confusion)) == (masks != 255).sum()
    assert (found.per_class["iou"][3], len(found.per_class["dice"])) == (0.0, 5)


def test_nothing_that_counts_is_no_division_by_zero() -> None:
    task, ignored = Segmentation(TrainConfig()), torch.full((2, 4, 4), 255, dtype=torch.uint8)
    outputs = torch.randn(2, 3, 4, 4, requires_grad=True)
    loss = task.loss(outputs, ignored, 1.0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert (loss.item(), outputs.grad.abs().sum().item()) == (0.0, 0.0)  # type: ignore[union-attr]
    assert set(task.evaluation(task.tally(outputs, ignored), 2).metrics.values()) == {0.0}


def test_with_class_weights_each_class_counts_alike_in_the_loss() -> None:
    counts = (900, 90, 10)
    weighted = Segmentation(TrainConfig(class_weights="balanced"), Facts(3, 1, 1, class_counts=counts))
    masks = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)]).view(1, 20, 50).byte()
    outputs = torch.randn(1, 3, 20, 50, generator=torch.Generator().manual_seed(0))
    losses = F.cross_entropy(outputs, masks.long(), reduction="none")
    expected = torch.stack([losses[masks == label].mean() for label in range(3)]).mean()
    divisor = float(weighted.counts(masks).sum())
    assert weighted.loss(outputs, masks, divisor).item() == pytest.approx(expected.item(), rel=1e-4)


def test_figures_are_those_of_all_workers_together(usual: dict[str, object]) -> None:
    whole = evaluated(resolved(usual))  # type: ignore[arg-type]
    assert (whole.images, set(whole.metrics)) == (10, {"loss", "miou", "pixel_accuracy", "dice"})


def test_a_trained_model_answers_masks(usual: dict[str, object], tmp_path: Path) -> None:
    asked = resolved(usual, val_share=0.2, steps_per_epoch=2)
    outcome = train_here(asked, data.read(asked), tmp_path)
    best = checkpoint.best(tmp_path)
    assert best is not None
    snapshot = checkpoint.load(best)
    assert (snapshot.task.primary.name, snapshot.task.answer) == ("miou", "masks")
    assert snapshot.score == outcome.metrics["best/miou"]
    test = data.read(asked).test
    with torch.inference_mode():
        answers = predictor.of(best)(torch.from_numpy(test.inputs))
    assert (answers.dtype, answers.shape) == (torch.uint8, (10, 16, 16))
    expected = figures_by_hand(answers.numpy(), test["masks"], 11)
    assert outcome.metrics["chosen/test/miou"] == pytest.approx(expected["miou"], rel=1e-9)


def arrays() -> tuple[object, object, object]:
    """A user's own function."""
    masks = np.zeros((40, 16, 16), dtype=np.int64)
    masks[:, 4:8, 4:8] = 1
    images = np.uint8(masks * 200)
    return (images[8:], masks[8:]), (images[:8], masks[:8]), ("ground", "square")


def small() -> tuple[object, object]:
    (images, masks), _, _ = arrays()  # type: ignore[misc]
    return (images, masks[:, 1:]), (images, masks[:, 1:])


def unnamed() -> tuple[object, object, object]:
    (images, masks), test, _ = arrays()  # type: ignore[misc]
    return (images, masks + 1), test, ("one", "two")


def test_a_function_of_the_users_own_may_return_masks(usual: dict[str, object]) -> None:
    asked = resolved({**USUAL, "image_size": 32}, dataset=f"{__name__}:arrays", task="segmentation")
    dataset = data.read(asked)
    assert (dataset.train["masks"].dtype, dataset.spec.names) == (np.uint8, ("ground", "square"))
    assert runfile.to_mapping(asked)["task"] == "segmentation"
    assert "--task segmentation" in recipe.command(asked)  # type: ignore[arg-type]
    by_data = resolved(usual, task="segmentation")
    assert (by_data.task, tasks.spec(by_data, data.facts(by_data)).name) == (None, "segmentation")


OF_ARRAYS = {"task": "segmentation", "image_size": 32}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"augment": "mixup"}, "^augment must be none, crop, crop_flip or resized_crop for masks"),
        ({"model": "resnet", "model_options": {}}, "^model must be unet, segnet or one of your own"),
        ({"task": "classification"}, "^task must learn the masks of masks:.*, and classification learns labels"),
        ({"image_size": 8}, "^image_size must suit --model unet"),
        ({"strategy": "gpipe", "topology": "1x2"}, "^strategy must keep the model whole for --model unet"),
        ({"model": "torchvision:resnet18", "model_options": {}}, r"^model .* \(B, 11, 16, 16\) .*shape \(2, 11\)"),
        (
            {**OF_ARRAYS, "dataset": f"{__name__}:small"},
            r"^dataset .*:small fails: .*masks of uint8 \(\d+, 15, 16\) for",
        ),
        ({**OF_ARRAYS, "dataset": f"{__name__}:unnamed"}, "^dataset must return .*:unnamed fails: "),
    ],
)
def test_what_does_not_fit_masks_is_refused(values: dict[str, object], sentence: str, usual: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolved(usual, **values)
