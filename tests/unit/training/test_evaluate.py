from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import nn

from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset, Split
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks.classification import Classification
from cifar_ray.training import predictor
from cifar_ray.training.evaluate import Evaluator
from tests.support.helpers import train_here


@pytest.fixture
def evaluate(digits: Dataset) -> Evaluator:
    return Evaluator(digits, Worker(), Classification(TrainConfig()))


class Noisy(nn.Module):
    """Logits that are right most of the time, and a layer that behaves otherwise in training."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        generator = torch.Generator().manual_seed(0)
        labels = torch.from_numpy(dataset.test["labels"])
        noise = torch.randn(len(labels), 10, generator=generator)
        self.logits = 1.5 * nn.functional.one_hot(labels, 10) + noise
        self.position = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert not self.training
        self.norm(images)
        part = self.logits[self.position : self.position + len(images)]
        self.position += len(images)
        return part


def test_figures_equal_those_of_an_independent_library(digits: Dataset, evaluate: Evaluator) -> None:
    model = Noisy(digits)
    evaluation = evaluate(model)
    truth, predicted = digits.test["labels"], model.logits.argmax(1).numpy()
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(truth, predicted, average="macro")
    confusion = metrics.confusion_matrix(truth, predicted)
    specificity = 1 - (confusion.sum(0) - confusion.diagonal()) / (len(truth) - confusion.sum(1))
    expected = {
        "accuracy": metrics.accuracy_score(truth, predicted),
        "precision": precision,
        "recall": recall,
        "f1": f1,
        "specificity": specificity.mean(),
        "loss": metrics.log_loss(truth, model.logits.double().softmax(1)),
    }
    assert evaluation.metrics == pytest.approx(expected, rel=1e-12)
    assert (evaluation.confusion, evaluation.images) == (confusion.tolist(), 360)
    assert evaluation.per_class["specificity"] == pytest.approx(specificity.tolist())
    each = metrics.precision_recall_fscore_support(truth, predicted)
    assert evaluation.per_class["recall"] == pytest.approx(each[1].tolist())
    assert evaluation.metrics["accuracy"] == confusion.trace() / 360  # to the last digit


def test_the_surest_mistakes_are_those_of_the_whole_test_set(digits: Dataset, evaluate: Evaluator) -> None:
    model = Noisy(digits)
    model.logits[250:270] = torch.eye(10)[3] * 50  # as sure as can be: the first ones count
    assert evaluate.mistakes() == ()
    evaluate(model)
    labels, (sure, predicted) = torch.from_numpy(digits.test["labels"]), model.logits.softmax(1).max(1)
    order = sorted((-round(sure[row].item(), 4), row) for row in range(360) if predicted[row] != labels[row])
    expected = [(row, labels[row].item(), predicted[row].item(), -level) for level, row in order[:16]]
    assert [tuple(mistake) for mistake in evaluate.mistakes()] == expected
    assert expected[1][0] > expected[0][0] >= 250
    right = Noisy(digits)
    right.logits = nn.functional.one_hot(labels, 10).float()
    evaluate(right)
    assert evaluate.mistakes() == ()


def test_a_class_without_images_counts_only_where_it_is_predicted(digits: Dataset) -> None:
    """As scikit-learn does for the labels that occur."""
    truth = digits.test["labels"] % 8
    predicted = np.where(np.arange(360) % 9 == 0, 8, truth)
    model = Noisy(digits)
    model.logits = nn.functional.one_hot(torch.from_numpy(predicted), 10).float()
    split = Split({"images": digits.test.inputs, "labels": truth})
    evaluation = Evaluator(replace(digits, test=split), Worker(), Classification(TrainConfig()))(model)
    expected = metrics.precision_recall_fscore_support(truth, predicted, average="macro", zero_division=0)
    found = [evaluation.metrics[name] for name in ("precision", "recall", "f1")]
    assert found == pytest.approx(expected[:3], rel=1e-12)
    assert evaluation.metrics["specificity"] == pytest.approx((8 + 320 / 360) / 9, rel=1e-12)
    assert evaluation.per_class["precision"][8:] == [0.0, 0.0]


@pytest.mark.parametrize("count", [7, 359])
def test_some_of_the_images_are_spread_over_the_whole_set(count: int, digits: Dataset) -> None:
    several = digits.tested_on(count)
    chosen = [at * 360 // count for at in range(count)]
    assert several.test["labels"].tolist() == digits.test["labels"][chosen].tolist()
    model = Noisy(digits)
    model.logits = model.logits[chosen]
    assert Evaluator(several, Worker(), Classification(TrainConfig()))(model).images == count
    assert digits.tested_on(None) is digits


def test_evaluating_leaves_no_trace(digits: Dataset, evaluate: Evaluator) -> None:
    model = Noisy(digits).train()
    before = model.norm.running_mean.clone()  # type: ignore[union-attr]
    first = evaluate(model)
    model.position = 0
    assert evaluate(model) == first
    assert model.training
    assert torch.equal(model.norm.running_mean, before)  # type: ignore[arg-type]


def test_figures_are_those_of_the_saved_model_in_float32(
    small: TrainConfig, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where training computes in 16 bits, lets cuDNN round to TF32, and normalises in its own way."""
    rounding = []
    forward = nn.Flatten.forward

    def seen(self: nn.Flatten, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            rounding.append((torch.backends.cudnn.conv.fp32_precision, x.dtype))
        return forward(self, x)

    monkeypatch.setattr(nn.Flatten, "forward", seen)
    outcome = train_here(replace(small, precision="bf16", normalise="half"), digits, tmp_path)
    assert set(rounding) == {("ieee", torch.float32)}
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"  # for training again
    with torch.inference_mode():
        probabilities = predictor.of(Path(outcome.checkpoint))(torch.from_numpy(digits.test.inputs))
    labels = digits.test["labels"]
    loss = nn.functional.nll_loss(probabilities.double().log(), torch.from_numpy(labels))
    assert outcome.metrics["test/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert outcome.confusion == metrics.confusion_matrix(labels, probabilities.argmax(1)).tolist()


def test_shares_of_all_ranks_make_the_whole(digits: Dataset, evaluate: Evaluator) -> None:
    """Each rank alone, without a process group: their counts are those of one worker."""
    whole, model = evaluate(Noisy(digits)), Noisy(digits)
    parts = [Evaluator(digits, Worker(rank, 3), Classification(TrainConfig()))(model) for rank in range(3)]
    assert np.sum([part.confusion for part in parts], axis=0).tolist() == whole.confusion
    assert [sum(map(sum, part.confusion)) for part in parts] == [120, 120, 120]


class Small(Noisy):
    """A model of which a GPU holds the activations of so many images at once."""

    room = 50

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if len(images) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return super().forward(images)


def test_an_evaluation_without_room_takes_fewer_images_at_once(digits: Dataset, evaluate: Evaluator) -> None:
    usual, small = Noisy(digits), Small(digits)
    assert evaluate(small) == evaluate(usual)
    assert evaluate._at_once == 32  # after 128 and 64
    small.room = 0
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(small)


def test_top_5_accuracy_is_counted_where_there_are_more_than_20_classes() -> None:
    task, generator = Classification(TrainConfig()), torch.Generator().manual_seed(0)
    targets = torch.randint(21, (500,), generator=generator)
    logits = torch.randn(500, 21, generator=generator) + 2 * nn.functional.one_hot(targets, 21)
    whole = task.tally(logits, targets)
    parts = [task.tally(logits[rows], targets[rows]) for rows in (slice(123), slice(123, None))]
    assert whole["top5"] == parts[0]["top5"] + parts[1]["top5"]
    found = task.evaluation(whole, 500).metrics
    assert found["top5_accuracy"] == metrics.top_k_accuracy_score(targets, logits, k=5, labels=range(21))
    assert found["accuracy"] < found["top5_accuracy"] < 1
    assert "top5" not in task.tally(logits[:, :20], targets % 20)


def test_of_equally_likely_classes_the_first_five_are_right() -> None:
    task, targets = Classification(TrainConfig()), torch.arange(30)
    assert task.tally(torch.zeros(30, 30), targets)["top5"] == 5
    assert task.tally(torch.full((30, 30), torch.nan), targets)["top5"] == 0
