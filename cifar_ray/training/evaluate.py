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

from cifar_ray.data import Dataset
from cifar_ray.data.loader import evaluation_batches
from cifar_ray.strategies.gradients import gather
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware


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
        from cifar_ray.training.confusion import MulticlassConfusionMatrix  # takes seconds

        self._dataset, self._place = dataset, worker
        self._confusion = MulticlassConfusionMatrix(dataset.spec.num_classes).to(worker.device)

    @torch.inference_mode()
    def __call__(self, model: nn.Module) -> Evaluation:
        """Evaluate ``model``, whose weights and buffers are the same on every rank.

        torchmetrics adds the counts of all ranks together; every rank returns the same figures.
        """
        self._confusion.reset()
        loss = torch.zeros((), dtype=torch.float64, device=self._place.device)  # float32 would lose digits
        for logits, labels in self._logits(model, self._place.rank, self._place.world_size):
            loss += F.cross_entropy(logits.double(), labels, reduction="sum")
            self._confusion.update(logits.argmax(1), labels)
        loss = torch.stack(gather(loss)).sum(0) / len(self._dataset.test.labels)
        return _evaluation(self._confusion.compute().cpu(), loss.item())

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


def _evaluation(confusion: Tensor, loss: float) -> Evaluation:
    """Figures of an integer confusion matrix (classes, classes), in float64; torchmetrics' own rates are float32."""
    right, images = confusion.diagonal(), confusion.sum()
    true, predicted = confusion.sum(1), confusion.sum(0)

    def share(part: Tensor, whole: Tensor) -> Tensor:
        return torch.where(whole > 0, part.double() / whole, 0.0)

    rates = {
        "precision": share(right, predicted),
        "recall": share(right, true),
        "f1": share(2 * right, true + predicted),
        "specificity": share(images - true - predicted + right, images - true),
    }
    present = true + predicted > 0  # a class that no image has or seems to have is left out of macro averages
    macro = {name: rate[present].mean().item() for name, rate in rates.items()}
    return Evaluation(
        metrics={"loss": loss, "accuracy": right.sum().item() / images.item(), **macro},
        per_class={name: rate.tolist() for name, rate in rates.items()},
        confusion=confusion.tolist(),
    )
