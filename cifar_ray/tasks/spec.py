"""Facts about a task that need no torch: its figures, which way each is better, and what it counts and answers.

A checkpoint and a run in MLflow hold the facts of a task of the user's own, so that reading them needs no code of
theirs. Those without are of image classification.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cifar_ray.config.errors import ConfigError, brief, one_of

Subset = Literal["val", "test"]
"""Samples that a figure is counted on: the validation images, or the test."""

SUBSETS: Mapping[Subset, str] = {"val": "validation", "test": "test"}
"""What people call them."""

IGNORED = 255
"""The number in masks of pixels that are neither learned nor counted."""

CHOSEN, CHOSEN_EPOCH = "chosen/", "chosen/epoch"
"""How names of metrics begin that are of the chosen checkpoint, as ``chosen/test/accuracy``, and the one of its epoch.
"""


@dataclass(frozen=True)
class Figure:
    """A figure of an evaluation.

    Attributes:
        name: as in the metric ``test/NAME``.
        title: as the head of a table's column.
        better: whether the highest value is the best, or the lowest.
        percent: whether it is a share from 0 to 1, which people read in percent.
        macro: whether it is a mean over classes, each of equal weight.
        binomial: whether it is as exact as a share of the test set's samples can be, so that chance among them counts.
        beside: whether the main table of a report has it beside the primary figure.
        optional: whether an evaluation may lack it, as one of few classes does.
    """

    name: str
    title: str
    better: Literal["max", "min"] = "max"
    percent: bool = False
    macro: bool = False
    binomial: bool = False
    beside: bool = False
    optional: bool = False

    def on(self, subset: Subset) -> str:
        """Its name among a run's metrics, of the validation images or of the test."""
        return f"{subset}/{self.name}"

    @property
    def metric(self) -> str:
        """Its name among a run's metrics, of the test."""
        return self.on("test")

    @property
    def best(self) -> str:
        """Metric of its best epoch on the validation images, of a task's primary figure."""
        return f"best/{self.name}"

    def result(self, metrics: Container[str]) -> str:
        """The one of a run's metrics that is its result on the test: that of the chosen checkpoint if there is one."""
        chosen = f"{CHOSEN}{self.metric}"
        return chosen if chosen in metrics else self.metric

    def text(self, value: float) -> str:
        """A value as people read it: ``91.23%`` or ``0.1234``."""
        return f"{value:.2%}" if self.percent else f"{value:,.4f}"

    def named(self, value: float) -> str:
        """A value behind the figure's name: ``accuracy 91.23%``."""
        return f"{self.name} {self.text(value)}"

    def rank(self, value: float) -> float:
        """A number that is higher for a better value."""
        if math.isnan(value):
            return -math.inf
        return value if self.better == "max" else -value

    @property
    def noun(self) -> str:
        """Its title within a sentence: ``accuracy``, ``RMSE``."""
        is_word = self.title.partition(" ")[0][1:].islower()
        return self.title[:1].lower() + self.title[1:] if is_word else self.title


LOSS = Figure("loss", "Loss", "min")
"""Mean of what is minimised, over the test set: every task has it beside its own figures."""


def measured_on(metrics: Container[str]) -> Subset:
    """The samples that a run is measured on after every epoch, as its metrics show."""
    return "val" if LOSS.on("val") in metrics else "test"


@dataclass(frozen=True)
class TaskSpec:
    """Facts about a task.

    Attributes:
        name: ``classification``, or MODULE:CLASS.
        figures: of an evaluation, beside the loss. The first is the primary one, by which checkpoints and runs are
            chosen and compared.
        unit: a word for samples, in the plural: throughput is in ``images/s``, and its metric is ``images_per_s``.
        answer: what a prediction is: a probability for each name (``classes``), a number for each (``values``), or the
            class of each pixel (``masks``). With ``masks``, targets are (N, side, side) and vary with their images.
        loss: what is minimised, as an axis is labelled.
    """

    name: str
    figures: tuple[Figure, ...]
    unit: str = "images"
    answer: Literal["classes", "values", "masks"] = "classes"
    loss: str = "loss"

    def __post_init__(self) -> None:
        """Refuse names that MLflow would not take, or that stand for two things, with a ConfigError."""
        names = [figure.name for figure in self.figures]
        if not names:
            raise ConfigError("task", f"must have a figure, and {self.name} has none")
        taken = {LOSS.name, "epoch", self.unit}
        for name in (self.unit, *names):
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or re.search(r"_rank\d+$", name):
                raise ConfigError("task", f"must name figures and units by letters, digits and _, not {brief(name)}")
        if twice := next((name for name in names if names.count(name) > 1 or name in taken), None):
            raise ConfigError("task", f"must name each figure once, and none {one_of(sorted(taken))}, not {twice}")

    @property
    def primary(self) -> Figure:
        """The figure by which checkpoints and runs are chosen and compared."""
        return self.figures[0]

    def speed(self, per_s: float) -> str:
        """A throughput as people read it: ``9,300 images/s``."""
        return f"{per_s:,.0f} {self.unit}/s"

    @property
    def throughput(self) -> str:
        """Metric of what is counted in a second of steady state: ``images_per_s``."""
        return f"{self.unit}_per_s"

    @property
    def epoch_throughput(self) -> str:
        """Metric of what is counted in a second of an epoch: ``epoch_images_per_s``."""
        return f"epoch_{self.throughput}"

    def counted_on(self, subset: Subset) -> str:
        """Metric of how many samples an evaluation counts: ``test/images``."""
        return f"{subset}/{self.unit}"

    @property
    def names(self) -> str:
        """What the numbers that a model gives are of: ``classes`` or ``values``."""
        return "classes" if self.has_classes else "values"

    @property
    def has_classes(self) -> bool:
        """Whether the numbers that a model gives are of classes."""
        return self.answer != "values"

    @property
    def has_masks(self) -> bool:
        """Whether a prediction is the class of each pixel."""
        return self.answer == "masks"

    @property
    def confused(self) -> str:
        """What a confusion matrix counts: samples, or the pixels of masks."""
        return "pixels" if self.has_masks else self.unit

    @property
    def number(self) -> str:
        """What a class in a prediction has: a ``probability``, or in a mask a ``share`` of its pixels."""
        return "share" if self.has_masks else "probability"

    def outputs(self, names: int, side: int) -> tuple[int, ...]:
        """The shape of what a model gives for an image of ``side`` pixels, with a number for each name."""
        return (names, side, side) if self.has_masks else (names,)

    def answers(self, names: Sequence[str], numbers: Sequence[float]) -> list[tuple[str, float]]:
        """A prediction's numbers with their names; of classes, the likeliest first, of a mask the largest."""
        pairs = list(zip(names, numbers, strict=True))
        return sorted(pairs, key=lambda pair: -pair[1]) if self.has_classes else pairs

    def document(self, names: Sequence[str], numbers: Sequence[float], top: int) -> dict[str, Any]:
        """A prediction as JSON has it; of classes, the ``top`` likeliest, of a mask those with the most pixels."""
        pairs = self.answers(names, numbers)
        if not self.has_classes:
            return {"values": dict(pairs)}
        return {"classes": [{"class": name, self.number: number} for name, number in pairs[:top]]}
