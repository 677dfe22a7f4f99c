"""A task of the user's own, the example's: numbers of which some are missing, so that samples count differently."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cifar_ray import data, models, tasks
from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks import Evaluation, Figure, Targets, TaskSpec
from cifar_ray.training import checkpoint, predictor, recipe
from cifar_ray.training.evaluate import Evaluator
from examples.own_task import Ink
from tests.support.helpers import Recorder, digest, plain_losses, resolved, train_here
from tests.support.threads import losses_of_steps, on_threads, train_everywhere

OWN = "examples.own_task"
INK: dict[str, object] = {"task": f"{OWN}:Ink", "dataset": f"{OWN}:load", "model": "simple_cnn", "precision": "fp32"}
INK |= {"lr": 0.01, "weight_decay": 0.0, "warmup_epochs": 0.0, "epochs": 1, "global_batch_size": 48}
config = partial(resolved, INK)
RESNET: dict[str, object] = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}}


def mean_of_known(outputs: Tensor, ink: Tensor) -> Tensor:
    """The mean of the squared errors of all that is known in a global batch."""
    known = ~ink.isnan()
    assert 0.7 < known.float().mean() < 0.9
    return (outputs[known] - ink[known] / 10).square().mean()


@pytest.mark.parametrize(
    "values",
    [
        {"topology": "1x1"},
        {"topology": "1x1", "accumulate": 3},
        *(
            {"topology": "1x2", "strategy": name}
            for name in ("gather_scatter", "send_recv", "all_reduce", "ddp", "fsdp")
        ),
        {"topology": "1x4", "strategy": "ddp", "accumulate": 2},
        {"topology": "1x2", "strategy": "reproducible"},
        *({"topology": "1x2", "strategy": name} for name in ("gpipe", "one_f_one_b")),
    ],
    ids=lambda values: "-".join(map(str, values.values())),
)
def test_the_loss_is_the_mean_over_all_that_counts_in_a_global_batch(values: dict[str, object], tmp_path: Path) -> None:
    asked = config(**values, schedule="constant", steps_per_epoch=4, log_every=1)
    assert losses_of_steps(asked, tmp_path) == pytest.approx(plain_losses(asked, 4, "ink", mean_of_known), rel=2e-5)


@pytest.mark.slow
def test_weights_are_the_same_at_any_number_of_workers_and_after_a_stop(tmp_path: Path) -> None:
    reproducible = partial(config, strategy="reproducible", **RESNET, log_every=1, steps_per_epoch=4)
    snapshots = train_everywhere(reproducible, tmp_path, stop_after=3)
    assert len({digest(snapshot) for snapshot in snapshots}) == 1
    # The weights are equal to the bit; the figure is a sum over ranks, whose order may show in its last digit.
    assert [snapshot.score for snapshot in snapshots] == pytest.approx([snapshots[0].score] * len(snapshots), rel=1e-6)


def test_figures_are_those_of_all_workers_together() -> None:
    dataset, model = data.read(config()), models.build(config(), data.read(config()).spec)
    whole, ranks = (
        on_threads(count, lambda worker: Evaluator(dataset, worker, tasks.build(config(), dataset.spec))(model))
        for count in (1, 2)
    )
    for one in ranks:
        assert one.metrics == pytest.approx(whole[0].metrics, rel=1e-6)
    assert whole[0].images == 360
    assert set(whole[0].metrics) == {"loss", "rmse", "mae", "r2"}


def test_the_best_checkpoint_is_the_one_with_the_lowest_figure(tmp_path: Path) -> None:
    asked = config(**RESNET, epochs=4, steps_per_epoch=8, keep_checkpoints=1, lr=0.1, val_share=0.2)
    outcome = train_here(asked, data.read(asked), tmp_path, recorder := Recorder())
    errors = [epoch.row.metrics["val/rmse"] for epoch in recorder.epochs]
    assert outcome.metrics["best/rmse"] == min(errors)
    assert outcome.metrics["chosen/epoch"] == errors.index(min(errors)) + 1
    tested = outcome.metrics["chosen/test/rmse"]
    best = checkpoint.best(tmp_path)
    assert best is not None
    assert checkpoint.load(best).score == min(errors)
    task = checkpoint.load(best).task  # without the user's code
    assert (task.primary.better, task.answer) == ("min", "values")
    dataset = data.read(asked)
    with torch.inference_mode():
        answers = predictor.of(best)(torch.from_numpy(dataset.test.inputs))
    model = predictor.of(best, checkpoint.load(best)).model
    assert Evaluator(dataset, Worker(), tasks.build(asked, dataset.spec))(model).metrics["rmse"] == pytest.approx(
        tested
    )
    known = ~torch.from_numpy(dataset.test["ink"]).isnan()
    error = (answers - torch.from_numpy(dataset.test["ink"]))[known].double()
    assert error.square().mean().sqrt().item() == pytest.approx(tested, rel=1e-5)


def test_a_task_is_written_where_the_data_set_does_not_tell_it() -> None:
    usual = recipe.resolve(TrainConfig(dataset="digits", task="classification"))
    assert usual == recipe.resolve(TrainConfig(dataset="digits"))
    assert not {name for name in runfile.params(usual, Decided.asked(usual)) if "task" in name}
    own = config()
    assert runfile.to_mapping(own)["task"] == f"{OWN}:Ink"
    assert runfile.resolved_from_mapping(runfile.to_mapping(own)) == own
    assert f"--task {OWN}:Ink" in recipe.command(own)  # type: ignore[arg-type]


class Half(Ink):
    """Each sample counts a half."""

    def counts(self, targets: Tensor) -> Tensor:
        return super().counts(targets) / 2


class Several(Ink):
    """A loss for each sample."""

    def loss(self, outputs: Tensor, targets: Tensor, divisor: float) -> Tensor:
        return super().loss(outputs, targets, divisor).expand(2)


class Missing(Ink):
    """An evaluation without one of its figures."""

    def evaluation(self, tally: Mapping[str, Tensor], images: int) -> Evaluation:
        whole = super().evaluation(tally, images)
        return dataclasses.replace(whole, metrics={"loss": whole.metrics["loss"], "rmse": whole.metrics["rmse"]})


class One(Ink):
    """One answer for all."""

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.mean(1, keepdim=True)


class Failing(Ink):
    """An error of the user's."""

    def tally(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        raise KeyError("ink")


class Fewer(Ink):
    """Targets without those of which nothing is known."""

    @classmethod
    def targets(cls, train: Any, test: Any, names: Sequence[Any] | None) -> Targets:
        whole = super().targets(train, test, names)
        return whole._replace(train=whole.train[~np.isnan(whole.train).any(1)])


class Pictures(Ink):
    """Its images are what it learns."""

    target = "images"


class Changing(Ink):
    """NumPy's numbers, a primary figure without a value at first, and counts in an order of their own."""

    def tally(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        whole = super().tally(outputs, targets)
        return dict(sorted(whole.items(), reverse=bool(targets.nan_to_num().sum().int() % 2)))

    def evaluation(self, tally: Mapping[str, Tensor], images: int) -> Evaluation:
        whole = super().evaluation(tally, images)
        values: Any = {name: np.float64(value) for name, value in whole.metrics.items()}
        return dataclasses.replace(whole, metrics={**values, "rmse": np.nan if values["rmse"] > 12 else values["rmse"]})


def test_figures_may_be_numpys_and_without_a_value_at_first(tmp_path: Path) -> None:
    asked = config(task=f"{__name__}:Changing", epochs=3, lr=0.001, keep_checkpoints=3, val_share=0.2)
    outcome = train_here(asked, data.read(asked), tmp_path)
    found = [checkpoint.load(path).score for path in checkpoint.every(tmp_path)]
    assert found[0] is None
    assert outcome.metrics["best/rmse"] == min(score for score in found[1:] if score is not None)
    assert checkpoint.best(tmp_path) is not None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Half", "must count whole numbers (N,), and {} does not"),
        ("Several", "must have a loss of one number, with a gradient, and {} does not"),
        ("Missing", "must evaluate loss, mae, r2, rmse, and {} does not"),
        ("One", "must predict 4 numbers for a sample, and {} does not"),
        ("Fewer", "must return (images, ink) for training and for the test, and perhaps names: .*"),
        ("Pictures", "must learn another column than the images that the model is given, not {}"),
        ("Failing", "must have the methods of cifar_ray.tasks.protocol.Task, and {} fails: KeyError: 'ink' ("),
    ],
)
def test_a_task_is_tried_on_two_samples(name: str, sentence: str) -> None:
    path = f"{__name__}:{name}"
    key = "dataset" if name == "Fewer" else "task"
    with pytest.raises(ConfigError, match=re.escape(f"{key} {sentence.format(path)}").replace(r"\.\*", ".*")):
        config(task=path)


@pytest.mark.parametrize(
    ("figures", "problem"),
    [
        ((), "must have a figure, and ink has none"),
        ((Figure("err%", "Error"),), "must name figures and units by letters, digits and _, not 'err%'"),
        ((Figure("epoch", "Epoch"),), "must name each figure once, and none epoch, images or loss, not epoch"),
    ],
)
def test_names_that_mlflow_does_not_take_or_that_are_taken_are_refused(
    figures: tuple[Figure, ...], problem: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        TaskSpec("ink", figures)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"task": "ranking"}, "task must be classification, segmentation, regression or MODULE:CLASS, got 'ranking'"),
        ({"task": f"{OWN}:load"}, f"task must name a class, and {OWN}:load is <function load"),
        ({"task": f"{OWN}:TaskSpec"}, "task must have the parts of cifar_ray.tasks.protocol.Task, and .* has no spec"),
        ({"dataset": "digits"}, f"task must learn the labels of digits, and {OWN}:Ink learns ink; a --dataset of your"),
        ({"augment": "mixup"}, f"augment must be none, .* for {OWN}:Ink, which has no labels to mix, got mixup"),
        (
            {"task": "classification"},
            rf"dataset must return \(images, labels\).*, and {OWN}:load fails: ValueError: training labels of",
        ),
    ],
)
def test_a_task_that_does_not_fit_is_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config(**values)
