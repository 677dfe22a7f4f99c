"""Semantic segmentation: a class for each pixel.

Source: Long et al. 2015, "Fully Convolutional Networks for Semantic Segmentation" (pixel accuracy, mean IoU).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cifar_ray.tasks.classification import ONE, Classes, class_names, whole_numbers
from cifar_ray.tasks.protocol import Evaluation, Targets
from cifar_ray.tasks.spec import IGNORED, Figure, TaskSpec

if TYPE_CHECKING:  # reading the facts needs no torch
    from torch import Tensor


class Segmentation(Classes):
    """Cross-entropy over the classes of pixels; figures of the confusion matrix of all pixels."""

    spec = TaskSpec(
        "segmentation",
        (
            Figure("miou", "mIoU", percent=True),
            Figure("pixel_accuracy", "Pixel accuracy", percent=True, beside=True),
            Figure("dice", "Dice", percent=True, macro=True),
        ),
        answer="masks",
        loss="cross-entropy loss of a pixel",
    )
    target = "masks"
    rule = f"for each pixel of an image the number of its class, from 0 to 254, or {IGNORED} where it does not count"

    @classmethod
    def targets(cls, train: Any, test: Any, names: Sequence[Any] | None) -> Targets:
        """See the protocol."""
        import numpy as np

        halves = whole_numbers(train, test, 3, cls.target)
        numbers = np.unique(np.concatenate([np.unique(half) for half in halves]))
        highest = int(numbers.max(initial=0, where=numbers != IGNORED))
        classes = highest + 1 if names is None else len(names)
        if numbers[0] < 0 or highest >= min(classes, IGNORED):
            raise ValueError(f"masks of the numbers {numbers[0]} to {highest} for {classes} classes")
        if not 2 <= classes <= IGNORED:
            raise ValueError(f"masks of {classes} kinds of pixels")
        return Targets(halves[0].astype(np.uint8), halves[1].astype(np.uint8), class_names(names, classes))

    def counts(self, targets: Tensor) -> Tensor:
        """How many pixels of each sample are not ignored, each counting 1 or the weight of its class."""
        return (self._pixels(targets) if self._weights else targets != IGNORED).sum((1, 2))

    def _pixels(self, targets: Tensor) -> Tensor:
        """The weight of each pixel; 0 of those that are ignored."""
        valid = targets != IGNORED
        return self._weighted(targets.where(valid, 0).long()) * valid

    def loss(self, outputs: Tensor, targets: Tensor, divisor: float) -> Tensor:
        """Mean cross-entropy of logits (B, classes, side, side) and masks (B, side, side), over what is not ignored.

        With class weights w it is sum(w loss) / sum(w).
        """
        from torch.nn import functional as F

        # Without its own reduction, which on a GPU adds up in another order each time; bfloat16 would lose digits.
        losses = F.cross_entropy(
            outputs.float(),
            targets.long(),
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=self._smoothing,
        )
        if self._weights:
            return (losses * (self._pixels(targets) / ONE)).sum() / (divisor / ONE)
        return losses.sum() / divisor

    def tally(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The sum of the cross-entropy, and pixels by true class (row) and predicted class (column)."""
        from torch.nn import functional as F

        from cifar_ray.tasks.confusion import multiclass_confusion_matrix

        true, classes = targets.long(), outputs.shape[1]
        matrix = multiclass_confusion_matrix(
            outputs.argmax(1), true, classes, ignore_index=IGNORED, validate_args=False
        )
        return {
            # A GPU's own sum of pixels adds them in an order that varies.
            "loss": F.cross_entropy(outputs.double(), true, ignore_index=IGNORED, reduction="none").sum(),
            "confusion": matrix,
        }

    def evaluation(self, tally: Mapping[str, Tensor], images: int) -> Evaluation:
        """Figures in float64. Means are over the classes that some pixel has or seems to have."""
        confusion = tally["confusion"].double()  # exact, up to 2**53 pixels
        right, pixels = confusion.diagonal(), confusion.sum(1) + confusion.sum(0)
        present, counted = pixels > 0, max(confusion.sum().item(), 1.0)
        rates = {"iou": right / (pixels - right).clamp(min=1), "dice": 2 * right / pixels.clamp(min=1)}
        iou, dice = (rate[present].mean().item() if present.any() else 0.0 for rate in rates.values())
        return Evaluation(
            metrics={
                "loss": tally["loss"].item() / counted,
                "miou": iou,
                "pixel_accuracy": right.sum().item() / counted,
                "dice": dice,
            },
            images=images,
            per_class={name: rate.tolist() for name, rate in rates.items()},
            confusion=tally["confusion"].tolist(),
        )

    def predictions(self, outputs: Tensor) -> Tensor:
        """The likeliest class of each pixel: uint8 (B, side, side)."""
        import torch

        return outputs.argmax(1).to(torch.uint8)


TASK = Segmentation
