"""Image classification: one label for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cifar_ray.config.errors import brief
from cifar_ray.tasks.protocol import Evaluation, Targets, constant
from cifar_ray.tasks.spec import Figure, TaskSpec

if TYPE_CHECKING:  # reading the facts needs no torch
    import numpy as np
    from torch import Tensor

    from cifar_ray.config.facts import Facts
    from cifar_ray.config.train import TrainConfig

_TOP = 5
MANY = 20
"""Classes above which the likeliest few are looked at, too."""

ONE = 2**20
"""The weight of the rarest class. Counts are whole numbers, and a power of two divides exactly."""


class Classes:
    """What tasks of classes have in common: label smoothing, and weights of classes."""

    def __init__(self, config: TrainConfig, facts: Facts | None = None) -> None:
        self._smoothing = config.label_smoothing or 0.0
        counts = facts.class_counts if facts and config.class_weights != "none" else ()
        fewest = min(filter(None, counts), default=0)
        # In inverse proportion to a class's training images, and 0 of one that has none.
        self._weights = tuple(max(round(ONE * fewest / count), 1) if count else 0 for count in counts)

    def _weighted(self, targets: Tensor) -> Tensor:
        return constant(self._weights, targets.device)[targets]


def whole_numbers(train: Any, test: Any, dimensions: int, target: str) -> list[np.ndarray]:
    """Training and test targets as arrays; a ValueError where they are no whole numbers of so many dimensions."""
    import numpy as np

    halves = [np.asarray(half) for half in (train, test)]
    for name, half in zip(("training", "test"), halves):
        if half.ndim != dimensions or not np.issubdtype(half.dtype, np.integer):
            raise ValueError(f"{name} {target} of {half.dtype} {half.shape} for {len(half)} images")
    return halves


def class_names(names: Sequence[Any] | None, count: int) -> tuple[str, ...]:
    """The names of so many classes, by default their numbers; a ValueError where two are alike or the count differs."""
    texts = tuple(map(str, range(count) if names is None else names))
    if isinstance(names, str) or len(set(texts)) != count or len(texts) != count:
        raise ValueError(f"{brief(names)} as the names of {count} classes")
    return texts


class Classification(Classes):
    """Cross-entropy over classes; figures of the confusion matrix, and of many classes top-5 accuracy.

    The loss of an evaluation is without label smoothing.
    """

    spec = TaskSpec(
        "classification",
        (
            Figure("accuracy", "Accuracy", percent=True, binomial=True),
            Figure("precision", "Precision", percent=True, macro=True, binomial=True),
            Figure("recall", "Recall", percent=True, macro=True, binomial=True),
            Figure("f1", "F1", percent=True, macro=True, binomial=True, beside=True),
            Figure("specificity", "Specificity", percent=True, macro=True),
            Figure("top5_accuracy", "Top-5 accuracy", percent=True, binomial=True, optional=True),
        ),
        loss="cross-entropy loss",
    )
    target = "labels"
    rule = "for each a whole number from 0, without a gap"

    @classmethod
    def targets(cls, train: Any, test: Any, names: Sequence[Any] | None) -> Targets:
        """See the protocol."""
        import numpy as np

        halves = whole_numbers(train, test, 1, cls.target)
        labels = np.unique(halves[0])
        if len(labels) < 2 or labels.tolist() != list(range(len(labels))) or not np.isin(halves[1], labels).all():
            last = max(labels[-1], halves[1].max())
            raise ValueError(f"{len(labels)} kinds of labels for training, and labels from {labels[0]} to {last}")
        return Targets(halves[0].astype(np.int64), halves[1].astype(np.int64), class_names(names, len(labels)))

    def counts(self, targets: Tensor) -> Tensor | None:
        """Every image counts 1, or the weight of its class."""
        return self._weighted(targets) if self._weights else None

    def loss(self, outputs: Tensor, targets: Tensor, divisor: float) -> Tensor:
        """Mean cross-entropy of logits (B, classes) and labels (B,), or of mixed images each class's share.

        With class weights w it is sum(w loss) / sum(w).
        """
        from torch.nn import functional as F

        if self._weights:
            losses = F.cross_entropy(outputs, targets, reduction="none", label_smoothing=self._smoothing)
            return (losses * (self._weighted(targets) / ONE)).sum() / (divisor / ONE)
        # Not a sum that is divided: with label smoothing its last bits are others.
        return F.cross_entropy(outputs, targets, label_smoothing=self._smoothing)

    def tally(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The sum of the cross-entropy, and images by true class (row) and predicted class (column).

        Of many classes also the images whose class is among the five likeliest, of equals the first ones.
        """
        import torch
        from torch.nn import functional as F

        from cifar_ray.tasks.confusion import multiclass_confusion_matrix

        predicted, classes = outputs.argmax(1), outputs.shape[1]
        right = {}
        if classes > MANY:
            own, numbers = outputs.gather(1, targets[:, None]), torch.arange(classes, device=outputs.device)
            before = ~(outputs <= own) | ((outputs == own) & (numbers < targets[:, None]))  # NaN is never right
            right["top5"] = (before.sum(1) < _TOP).sum()
        return {
            **right,
            "loss": F.cross_entropy(outputs.double(), targets, reduction="sum"),  # float32 would lose digits
            "confusion": multiclass_confusion_matrix(predicted, targets, classes, validate_args=False),
        }

    def evaluation(self, tally: Mapping[str, Tensor], images: int) -> Evaluation:
        """Figures in float64; torchmetrics' own rates are float32."""
        import torch

        confusion = tally["confusion"]
        right, true, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)

        def share(part: Tensor, whole: Tensor) -> Tensor:
            return torch.where(whole > 0, part.double() / whole, 0.0)

        rates = {
            "precision": share(right, predicted),
            "recall": share(right, true),
            "f1": share(2 * right, true + predicted),
            "specificity": share(images - true - predicted + right, images - true),
        }
        present = true + predicted > 0  # a class that no image has or seems to have is left out of macro averages
        others = {name: rate[present].mean().item() for name, rate in rates.items()}
        if "top5" in tally:
            others["top5_accuracy"] = tally["top5"].item() / images
        return Evaluation(
            metrics={"loss": tally["loss"].item() / images, "accuracy": right.sum().item() / images, **others},
            images=images,
            per_class={name: rate.tolist() for name, rate in rates.items()},
            confusion=confusion.tolist(),
        )

    def wrongly(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest class of each image (B,), and its probability (B,), or -1 where it is the true one."""
        predicted = outputs.argmax(1)
        probability = self.predictions(outputs).gather(1, predicted[:, None])[:, 0]
        return predicted, probability.where(predicted != targets, -1.0)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Probabilities (B, classes)."""
        return outputs.float().softmax(1)


TASK = Classification
