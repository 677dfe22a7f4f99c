"""Regression: its loss over a global batch, its figures, and the same weights at any number of workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from torch import Tensor, nn
from torch.nn import functional as F

from cifar_ray import data, models, tasks
from cifar_ray.config import runfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.facts import Facts
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import modality
from cifar_ray.tasks.regression import Regression
from cifar_ray.training import checkpoint, predictor
from tests.support.helpers import plain_losses, resolved, train_here
from tests.support.threads import evaluated, losses_of_steps, train_everywhere

OWN = __name__
USUAL: dict[str, object] = {"dataset": f"{OWN}:arrays", "task": "regression", "model": "mlp", "precision": "fp32"}
USUAL |= {"model_options": {"width": 8}, "epochs": 1, "optimizer": "sgd", "lr": 0.05, "weight_decay": 0.0}
USUAL |= {"warmup_epochs": 0.0, "global_batch_size": 16}


def arrays() -> object:
    """Two targets, one in thousands, of four features."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(120, 4))
    targets = np.stack([5000 + 300 * inputs[:, 0] - 100 * inputs[:, 1], np.abs(inputs[:, 2])], 1)
    targets += random.normal(size=targets.shape) * [30, 0.1]
    return (inputs[:96], targets[:96]), (inputs[96:], targets[96:]), ("price", "size")


def standardised(targets: Tensor) -> Tensor:
    train = torch.from_numpy(arrays()[0][1])  # type: ignore[index]
    return (targets - train.mean(0)) / train.std(0, correction=0)


STRATEGIES = [
    {"topology": "1x1", "accumulate": 4},
    *({"topology": "1x2", "strategy": name} for name in ("send_recv", "all_reduce", "one_f_one_b", "model_parallel")),
    {"topology": "1x2", "strategy": "ddp", "accumulate": 2},
]


@pytest.mark.parametrize("values", STRATEGIES, ids=lambda values: "-".join(map(str, values.values())))
def test_the_loss_is_the_mean_over_all_targets_of_a_global_batch(values: dict[str, object], tmp_path: Path) -> None:
    asked = resolved(USUAL, **values, schedule="constant", steps_per_epoch=4, log_every=1)

    def mean(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, standardised(targets).float())

    assert losses_of_steps(asked, tmp_path) == pytest.approx(plain_losses(asked, 4, "targets", mean), rel=2e-5)


@pytest.mark.slow
def test_weights_are_the_same_at_any_world_size_and_after_a_stop(tmp_path: Path) -> None:
    more: dict[str, object] = {"strategy": "reproducible", "ema": 0.9, "val_share": 0.2, "steps_per_epoch": 3}
    more |= {"model_options": {"width": 8, "norm": "layer"}, "epochs": 2, "log_every": 1}
    train_everywhere(partial(resolved, USUAL, **more), tmp_path, stop_after=5)


def test_figures_are_scikit_learns_and_add_up_over_parts() -> None:
    generator = np.random.default_rng(0)
    true = generator.normal(size=(50, 3)) * [1, 1000, 1e-3] + [1e6, 0, 5]
    answers = true + generator.normal(size=true.shape) * [0.5, 300, 1e-3]
    mean, std = true[:20].mean(0), true[:20].std(0)
    facts = Facts(3, 20, 50, target_mean=tuple(mean.tolist()), target_std=tuple(std.tolist()))
    task = Regression(TrainConfig(dataset=f"{OWN}:arrays"), facts)
    outputs, targets = torch.from_numpy((answers - mean) / std), torch.from_numpy(true)
    parts = [task.tally(outputs[at : at + 20], targets[at : at + 20]) for at in range(0, 50, 20)]
    found = task.evaluation({name: sum(part[name] for part in parts) for name in parts[0]}, 50)  # type: ignore[misc]
    expected = {
        "r2": r2_score(true, answers),
        "mae": mean_absolute_error(true, answers),
        "mse": mean_squared_error(true, answers),
        "loss": mean_squared_error((true - mean) / std, (answers - mean) / std),
    }
    assert found.metrics == pytest.approx(expected, rel=1e-6)
    assert found.per_class["r2"] == pytest.approx(r2_score(true, answers, multioutput="raw_values"), rel=1e-6)
    assert task.predictions(outputs).numpy() == pytest.approx(answers, rel=1e-6)


@pytest.mark.parametrize("count", [1, 5])
def test_targets_that_are_all_alike_have_no_r2(count: int) -> None:
    task = Regression(TrainConfig())
    tally = task.tally(torch.zeros(count, 1), torch.full((count, 1), 1.7, dtype=torch.float64))
    metrics = task.evaluation(tally, count).metrics
    assert np.isnan(metrics["r2"])
    assert metrics["mae"] == pytest.approx(1.7)
    tally = task.tally(torch.ones(3, 2), torch.tensor([[1.0, 7.0], [2.0, 7.0], [3.0, 7.0]], dtype=torch.float64))
    assert task.evaluation(tally, 3).metrics["r2"] == pytest.approx(r2_score([1, 2, 3], [1, 1, 1]))


def test_figures_are_those_of_all_workers_together() -> None:
    whole = evaluated(resolved(USUAL))  # type: ignore[arg-type]
    assert (whole.images, set(whole.metrics)) == (24, {"loss", "r2", "mae", "mse"})


def test_a_trained_model_answers_in_the_targets_units(tmp_path: Path) -> None:
    asked = resolved(USUAL, val_share=0.2, epochs=10, lr=0.2)
    dataset = data.read(asked)
    outcome = train_here(asked, dataset, tmp_path)
    best = checkpoint.best(tmp_path)
    assert best is not None
    snapshot = checkpoint.load(best)
    assert (snapshot.task.primary.name, snapshot.task.answer, snapshot.task.unit) == ("r2", "values", "rows")
    assert snapshot.spec.names == ("price", "size")
    assert snapshot.spec.target_mean == pytest.approx(dataset.train["targets"].mean(0))
    assert snapshot.score == outcome.metrics["best/r2"]
    with torch.inference_mode():
        answers = predictor.of(best)(torch.from_numpy(dataset.test.inputs)).numpy()
    assert outcome.metrics["chosen/test/r2"] == pytest.approx(r2_score(dataset.test["targets"], answers), rel=1e-5)
    assert outcome.metrics["chosen/test/r2"] > 0.7
    assert (outcome.metrics["test/rows"], "epoch_rows_per_s" in outcome.metrics) == (24, True)


def one_target() -> object:
    (inputs, targets), (others, tested), _ = arrays()  # type: ignore[misc]
    return (inputs, targets[:, 0].astype(int)), (others, tested[:, 0].astype(int))


def images() -> object:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    ink = pixels.mean((1, 2, 3))
    return (pixels[:40], ink[:40]), (pixels[40:], ink[40:]), ["ink"]


class Answers(nn.Module):
    def __init__(self, mean: float) -> None:
        super().__init__()
        self.task = Regression(resolved(USUAL), Facts(1, 4, 4, target_mean=(mean,), target_std=(2.0,)))

    def forward(self, outputs: Tensor) -> Tensor:
        return self.task.predictions(outputs)


def test_answers_are_exported_again_in_one_process() -> None:
    """As the models of a run's checkpoints are, one after the other; torch.export replaces tensors by its own."""
    outputs = torch.tensor([[0.0], [1.0]])
    for mean in (3.0, 3.0, 5.0):
        program = torch.export.export(Answers(mean), (outputs,))
        assert program.module()(outputs).tolist() == [[mean], [mean + 2]]


def test_a_function_may_return_one_target_and_images() -> None:
    one = data.read(resolved(USUAL, dataset=f"{OWN}:one_target"))
    assert (one.spec.names, one.train["targets"].shape) == (("target",), (96, 1))
    asked = resolved({**USUAL, "model": "simple_cnn", "model_options": {}}, dataset=f"{OWN}:images")
    assert (asked.augment, tasks.spec(asked, data.facts(asked)).unit) == ("none", "images")
    facts = data.facts(asked)
    assert models.build(asked, facts)(modality.of(facts).example(2)).shape == (2, 1)
    written = runfile.to_mapping(asked)
    assert written["task"] == "regression"
    assert runfile.to_mapping(resolved(USUAL))["model_options"]["width"] == 8


def constant() -> object:
    (inputs, targets), test, names = arrays()  # type: ignore[misc]
    return (inputs, targets * [1, 0]), test, names


def with_inf() -> object:
    train, (inputs, targets), names = arrays()  # type: ignore[misc]
    return train, (inputs, np.where(targets > 5000, np.inf, targets)), names


def words() -> object:
    (inputs, targets), test, names = arrays()  # type: ignore[misc]
    return (inputs, targets.astype(str)), test, names


def unnamed() -> object:
    return (*arrays()[:2], ["price"])  # type: ignore[index]


def wide(features: int, classes: int) -> nn.Module:
    return nn.Linear(features, classes + 1)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"dataset": f"{OWN}:constant"}, "^dataset .* ValueError: a target that is the same for all training"),
        ({"dataset": f"{OWN}:with_inf"}, "^dataset .* ValueError: test targets that are not finite"),
        ({"dataset": f"{OWN}:words"}, "^dataset .* ValueError: training targets of <U"),
        ({"dataset": f"{OWN}:unnamed"}, "^dataset .* as the names of 2 targets"),
        ({"task": "classification"}, "^dataset .* ValueError: training labels of float64"),
        ({"dataset": "digits", "model": "resnet", "model_options": {}}, "^task must learn the labels of digits"),
        ({"model": "resnet", "model_options": {}}, "^model must be mlp or one of your own"),
        ({"model": f"{OWN}:wide", "model_options": {}}, r"^model must give float logits \(B, 2\).*shape \(2, 3\)"),
        ({"class_weights": "balanced"}, "^class_weights is for tasks of classes, .* regression$"),
        ({"label_smoothing": 0.1}, "^label_smoothing is for tasks of classes, .* regression$"),
        ({"dataset": f"{OWN}:images"}, "^model must be .* or one of your own to learn the targets of images"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolved(USUAL, **values)


def test_a_linear_model_finds_what_least_squares_finds(tmp_path: Path) -> None:
    asked = resolved(USUAL, model_options={"depth": 0}, epochs=12, lr=0.1, dataset=f"{OWN}:one_target")
    dataset = data.read(asked)
    outcome = train_here(asked, dataset, tmp_path)
    (x, y), (other, tested) = ((split.inputs, split["targets"]) for split in (dataset.train, dataset.test))
    weights = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
    expected = r2_score(tested, np.c_[other, np.ones(len(other))] @ weights)
    assert outcome.metrics["test/r2"] == pytest.approx(expected, abs=0.01)
