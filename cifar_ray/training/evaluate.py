"""Test metrics, counted over every test sample exactly once at any world size.

Always in float32, whatever training computes in: the figures are those of the model as it is saved, exported and
served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection, SumMetric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassRecall,
    MulticlassSpecificity,
)

from cifar_ray.data import Dataset
from cifar_ray.data.loader import evaluation_batches
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware

_RATES = {
    "precision": MulticlassPrecision,
    "recall": MulticlassRecall,
    "f1": MulticlassF1Score,
    "specificity": MulticlassSpecificity,
}


@dataclass(frozen=True)
class Evaluation:
    """Figures over a whole test set.

    Attributes:
        metrics: ``loss`` (mean cross-entropy, without label smoothing), ``accuracy``, and macro
            ``precision``, ``recall``, ``f1``, ``specificity``; from 0 to 1 but for the loss.
        per_class: ``precision``, ``recall``, ``f1``, ``specificity`` -> one number per class.
        confusion: images by true class (row) and predicted class (column).
    """

    metrics: dict[str, float]
    per_class: dict[str, list[float]]
    confusion: list[list[int]]

    @property
    def images(self) -> int:
        """How many images were counted."""
        return sum(map(sum, self.confusion))


class Evaluator:
    """Evaluates a model on a data set's test images, each rank on its own share."""

    def __init__(self, dataset: Dataset, worker: Worker) -> None:
        self._dataset, self._place = dataset, worker
        classes = dataset.spec.num_classes
        rates = {f"{name}_macro": metric(classes, average="macro") for name, metric in _RATES.items()}
        rates |= {f"{name}_each": metric(classes, average="none") for name, metric in _RATES.items()}
        self._scores = MetricCollection(
            {
                "accuracy": MulticlassAccuracy(classes, average="micro"),
                "confusion": MulticlassConfusionMatrix(classes),
                **rates,
            }
        ).to(worker.device)
        # A sum of 10,000 float32 losses loses digits; and a loss that is no number must show.
        self._loss = SumMetric(nan_strategy="disable").set_dtype(torch.float64).to(worker.device)

    @torch.inference_mode()
    def __call__(self, model: nn.Module) -> Evaluation:
        """Evaluate ``model``, whose weights and buffers are the same on every rank.

        torchmetrics adds the counts of all ranks together; every rank returns the same figures.
        """
        self._scores.reset()
        self._loss.reset()
        for logits, labels in self._logits(model, self._place.rank, self._place.world_size):
            self._loss.update(F.cross_entropy(logits.double(), labels, reduction="sum"))
            self._scores.update(logits.argmax(1), labels)
        return self._read(self._scores.compute(), self._loss.compute() / len(self._dataset.test.labels))

    @torch.inference_mode()
    def alone(self, model: nn.Module) -> tuple[float, float]:
        """Loss and accuracy of this rank's ``model`` over all test images, whatever the other ranks have."""
        loss = torch.zeros((), dtype=torch.float64, device=self._place.device)
        right = torch.zeros((), dtype=torch.int64, device=self._place.device)
        for logits, labels in self._logits(model, 0, 1):
            loss += F.cross_entropy(logits.double(), labels, reduction="sum")
            right += (logits.argmax(1) == labels).sum()
        images = len(self._dataset.test.labels)
        return loss.item() / images, right.item() / images

    def _logits(self, model: nn.Module, rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and labels of the share of ``rank``, batch by batch, with the model in evaluation mode meanwhile."""
        was_training = model.training
        model.eval()
        device = self._place.device
        for images, labels in evaluation_batches(self._dataset.test, self._dataset.spec, rank, world_size, device):
            with hardware.plain_float32():
                logits = model(images)
            yield logits, labels
        model.train(was_training)

    def _read(self, scores: dict[str, Tensor], loss: Tensor) -> Evaluation:
        macro = {name: float(scores[f"{name}_macro"]) for name in _RATES}
        return Evaluation(
            metrics={"loss": float(loss), "accuracy": float(scores["accuracy"]), **macro},
            per_class={name: scores[f"{name}_each"].tolist() for name in _RATES},
            confusion=scores["confusion"].tolist(),
        )
