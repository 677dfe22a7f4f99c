"""A task of the user's own, the example's: numbers of which some are missing, so that samples count differently."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cifar_ray import data, tasks
from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks import Evaluation, Figure, Targets, TaskSpec
from cifar_ray.training import checkpoint, predictor, recipe
from cifar_ray.training.evaluate import Evaluator
from examples.own_task import Ink
from tests.support.helpers import Recorder, plain_losses, resolved, train_here
from tests.support.threads import evaluated, losses_of_steps, train_everywhere

OWN = "examples.own_task"
INK: dict[str, object] = {"task": f"{OWN}:Ink", "dataset": f"{OWN}:load", "model": "simple_cnn", "precision": "fp32"}
INK |= {"lr": 0.01, "weight_decay": 0.0, "warmup_epochs": 0.0, "epochs": 1, "global_batch_size": 48}
config = partial(resolved, INK)


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
def test_weights_are_the_same_at_any_world_size_and_after_a_stop(tmp_path: Path) -> None:
    train_everywhere(partial(config, strategy="reproducible", log_every=1, steps_per_epoch=4), tmp_path, stop_after=3)


def test_figures_are_those_of_all_workers_together() -> None:
    whole = evaluated(config())  # type: ignore[arg-type]
    assert (whole.images, set(whole.metrics)) == (360, {"loss", "rmse", "mae", "r2"})


def test_the_best_checkpoint_is_the_one_with_the_lowest_figure(tmp_path: Path) -> None:
    asked = config(epochs=4, steps_per_epoch=4, keep_checkpoints=1, lr=0.1, val_share=0.2)
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
    evaluator = Evaluator(dataset, Worker(), tasks.build(asked, dataset.spec))
    assert evaluator(predictor.of(best, checkpoint.load(best)).model).metrics["rmse"] == pytest.approx(tested)
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
    def counts(self, targets: Tensor) -> Tensor:
        return super().counts(targets) / 2


class Several(Ink):
    def loss(self, outputs: Tensor, targets: Tensor, divisor: float) -> Tensor:
        return super().loss(outputs, targets, divisor).expand(2)


class Missing(Ink):
    def evaluation(self, tally: Mapping[str, Tensor], images: int) -> Evaluation:
        whole = super().evaluation(tally, images)
        return dataclasses.replace(whole, metrics={"loss": whole.metrics["loss"], "rmse": whole.metrics["rmse"]})


class One(Ink):
    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.mean(1, keepdim=True)


class Failing(Ink):
    def tally(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        raise KeyError("ink")


class Fewer(Ink):
    @classmethod
    def targets(cls, train: Any, test: Any, names: Sequence[Any] | None) -> Targets:
        whole = super().targets(train, test, names)
        return whole._replace(train=whole.train[~np.isnan(whole.train).any(1)])


class Pictures(Ink):
    target = "images"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Half", "^task must count whole numbers"),
        ("Several", "^task must have a loss of one number"),
        ("Missing", "^task must evaluate loss, mae, r2, rmse"),
        ("One", "^task must predict 4 numbers for a sample"),
        ("Fewer", r"^dataset must return \(images, ink\)"),
        ("Pictures", "^task must learn another column than the images"),
        ("Failing", r"^task must have the methods of .*:Failing fails: KeyError: 'ink' \("),
    ],
)
def test_a_task_is_tried_on_two_samples(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config(task=f"{__name__}:{name}")


@pytest.mark.parametrize("names", [(), ("err%",), ("epoch",)])
def test_names_that_mlflow_does_not_take_or_that_are_taken_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"must (have a figure|name (figures|each figure))"):
        TaskSpec("ink", tuple(Figure(name, "Error") for name in names))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"task": "ranking"}, "^task must be classification, .* or MODULE:CLASS, got 'ranking'"),
        ({"task": f"{OWN}:load"}, f"^task must name a class, and {OWN}:load"),
        ({"task": f"{OWN}:TaskSpec"}, "^task must have the parts of .* has no spec"),
        ({"dataset": "digits"}, f"^task must learn the labels of digits, and {OWN}:Ink learns ink"),
        ({"augment": "mixup"}, f"^augment must be none, .* for {OWN}:Ink"),
        ({"task": "classification"}, f"^dataset must return .*{OWN}:load fails: ValueError: training labels of"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config(**values)
