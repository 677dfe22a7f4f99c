"""What must hold of any study's figures, whoever measured them, and which of them cannot be right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_CLASSES = {"cifar10": 10, "cifar100": 100}  # data sets with as many test images of every class
# Strategies after which every rank holds the same weights.
_SAME_WEIGHTS = ("gather_scatter", "send_recv", "all_reduce", "ddp", "reproducible")
_PRINTED = 1e-4  # a share that was printed with four decimals is off by half of this; so is what is computed from it
_ROUNDED = 1.01  # a ratio of two times with three digits is off by a percent at most


@dataclass(frozen=True)
class Claim:
    """The figures of one configuration.

    ``figures`` are macro averages, 0 to 1, and ``test_loss``, of every rank where that was measured; ``speed_up`` is
    against the single worker that the study takes as its base, and ``noise`` what chance may have added to it.
    """

    label: str
    dataset: str
    figures: Mapping[str, Sequence[float]]
    strategy: str = ""
    workers: int = 1
    speed_up: float | None = None
    noise: float = 0.0


def faults(claim: Claim) -> Iterator[str]:
    """Why figures of a claim cannot be right, one sentence each."""

    def share(name: str) -> float:
        values = claim.figures.get(name, ())
        return values[0] if len(values) == 1 else math.nan  # NaN exceeds nothing

    accuracy, recall, specificity = share("accuracy"), share("recall"), share("specificity")
    if claim.dataset in _CLASSES and abs(accuracy - recall) > _PRINTED:
        yield (
            f"accuracy {accuracy:.4f} beside macro recall {recall:.4f}: with as many test images of every class they "
            "are one figure"
        )
    must_be = 1 - (1 - accuracy) / (_CLASSES.get(claim.dataset, math.nan) - 1)
    if abs(specificity - must_be) > _PRINTED:
        yield (
            f"macro specificity {specificity:.4f}: with as many test images of every class, accuracy {accuracy:.4f} "
            f"makes it {must_be:.4f}"
        )
    most = (share("precision") + recall) / 2
    if share("f1") > most + _PRINTED:
        yield f"macro F1 {share('f1'):.4f}: it is at most the mean of macro precision and recall, {most:.4f}"
    losses = claim.figures.get("test_loss", ())
    if claim.strategy in _SAME_WEIGHTS and max(losses, default=0) - min(losses, default=0) > _PRINTED:
        yield (
            f"test losses {min(losses):.4f} to {max(losses):.4f} on {len(losses)} ranks: not one model's on the same "
            f"images, though after {claim.strategy} all ranks hold the same weights; batch norm's running statistics "
            "may differ"
        )
    if claim.speed_up is not None and claim.speed_up - claim.noise > claim.workers * _ROUNDED:
        yield (
            f"{claim.speed_up:.2f} times as fast with {claim.workers} workers: more than the workers can give, so "
            "something else has changed as well"
        )
