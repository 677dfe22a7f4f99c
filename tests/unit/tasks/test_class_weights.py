"""``--class-weights balanced``: classes of unequal size that count alike in the loss."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

from cifar_ray import data
from cifar_ray.config import runfile, schema
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.tasks.classification import Classification
from cifar_ray.training import recipe
from tests.support.helpers import plain_losses, resolved
from tests.support.threads import losses_of_steps

TEST = 360


def load() -> tuple[Any, Any]:
    """Digits, of 0 to 4 a fifth of the training images."""
    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8).repeat(2, axis=1).repeat(2, axis=2)
    train = np.flatnonzero((labels > 4) | (np.arange(len(labels)) % 5 == 0))
    train = train[train >= TEST]
    return (pixels[train], labels[train]), (pixels[:TEST], labels[:TEST])


USUAL: dict[str, object] = {"dataset": f"{__name__}:load", "model": "simple_cnn", "precision": "fp32", "epochs": 1}
USUAL |= {"lr": 0.05, "weight_decay": 0.0, "warmup_epochs": 0.0, "global_batch_size": 48, "augment": "none"}
USUAL |= {"class_weights": "balanced", "log_every": 1, "steps_per_epoch": 4, "schedule": "constant"}
config = partial(resolved, USUAL)


def weighted_mean(outputs: Tensor, labels: Tensor) -> Tensor:
    """PyTorch's own weighted mean, with scikit-learn's weights."""
    balanced = compute_class_weight("balanced", classes=np.arange(10), y=load()[0][1])
    return torch.nn.functional.cross_entropy(outputs, labels, torch.from_numpy(balanced).float())


@pytest.mark.parametrize(
    "values",
    [
        {"topology": "1x1", "accumulate": 3},
        {"topology": "1x2", "strategy": "ddp"},
        {"topology": "1x2", "strategy": "reproducible"},
        {"topology": "1x2", "strategy": "gpipe"},
    ],
    ids=lambda values: "-".join(map(str, values.values())),
)
def test_the_loss_is_the_weighted_mean_over_a_global_batch(values: dict[str, object], tmp_path: Path) -> None:
    asked = config(**values, label_smoothing=0.0)
    assert losses_of_steps(asked, tmp_path) == pytest.approx(plain_losses(asked, 4, "labels", weighted_mean), rel=2e-5)


def test_the_counts_are_recorded_and_weigh_as_scikit_learns_do() -> None:
    asked = config()
    assert isinstance(asked, ResolvedConfig)
    dataset = data.read(asked)
    known = recipe.settle(asked, Decided.asked(asked), dataset)
    assert known.facts.class_counts == tuple(np.bincount(dataset.train["labels"]).tolist())
    assert schema.build(Decided, schema.to_plain(known)) == known
    assert "--class-weights balanced" in recipe.command(asked)
    counts = Classification(asked, known.facts).counts(torch.arange(10))
    assert counts is not None
    balanced = compute_class_weight("balanced", classes=np.arange(10), y=dataset.train["labels"])
    assert (counts / counts.sum()).numpy() == pytest.approx(balanced / balanced.sum(), rel=1e-5)
    usual = config(class_weights="none")
    known = recipe.settle(usual, Decided.asked(usual), dataset)  # type: ignore[arg-type]
    params = runfile.params(usual, known)  # type: ignore[arg-type]
    assert [name for name in params if "class_weights" in name] == ["class_weights"]
    assert Classification(usual, known.facts).counts(torch.arange(10)) is None
    lacking = replace(dataset, spec=replace(dataset.spec, class_counts=(0, *known.facts.class_counts[1:])))
    assert recipe.settle(usual, Decided.asked(usual), lacking).facts.class_counts[0] == 0  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="class_weights must be none where a class has no "):
        recipe.settle(asked, Decided.asked(asked), lacking)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"augment": "mixup"}, "^class_weights must be left out with --augment mixup"),
        ({"task": "examples.own_task:Ink", "dataset": "examples.own_task:load"}, "^class_weights is for tasks of cl"),
    ],
)
def test_weights_that_do_not_fit_are_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config(**values)
