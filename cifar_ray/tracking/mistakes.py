"""The test images or texts that a run's model got wrong most surely: what MLflow keeps of them, and their picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from cifar_ray.data import Dataset
from cifar_ray.tracking import drawing
from cifar_ray.training import samples

if TYPE_CHECKING:  # imports torch
    from cifar_ray.training.mistakes import Mistake

COLUMNS, WIDTH = 8, 1.25
"""Images beside each other, at most, and inches of one."""

WORDS = 0.55
"""Inches of the words above an image, in letters of 8 points."""

_LETTER = 0.075  # inches

Record = Mapping[str, Any]
"""One sample: ``index`` in the test set, ``true`` and ``predicted`` class, ``probability``, and ``png`` in base64 of an
image, or ``text``, as the model sees it and shortened."""


def records(mistakes: Sequence[Mistake], tested: Dataset) -> list[Record]:
    """What is kept of mistakes on the test samples of ``tested``, which may be some of all (``--test-images``).

    Nothing is kept of what cannot be shown: rows of numbers, and tokens of a function of the user's own.
    """
    shown, every, some = samples.of(tested.spec, tested.encoding), tested.spec.test_size, len(tested.test)
    if not shown.is_readable:
        return []
    return [
        {
            "index": mistake.position * every // some,  # as Dataset.tested_on takes them
            "true": tested.spec.names[mistake.label],
            "predicted": tested.spec.names[mistake.predicted],
            "probability": mistake.probability,
            **drawn,
        }
        for mistake in mistakes
        if (drawn := shown.drawn(np.asarray(tested.test.inputs[mistake.position])))
    ]


def grid(count: int, columns: int) -> tuple[int, int]:
    """Columns and rows of so many images, at most ``columns`` beside each other, with rows about equally full."""
    rows = -(-count // columns)
    return -(-count // rows), rows


def draw(figure: Any, shown: Sequence[Record], columns: int) -> None:
    """Fill a figure with the images in rows, each with its true class above what it was taken for."""
    longest = int(WIDTH / _LETTER)
    for number, record in enumerate(shown, 1):
        axes = figure.add_subplot(-(-len(shown) // columns), columns, number)
        axes.imshow(Image.open(io.BytesIO(base64.b64decode(record["png"]))), interpolation="none")
        axes.set_axis_off()
        words = [record["true"], f"as {record['predicted']}", f"{100 * record['probability']:.2f} %"]
        text = "\n".join(_short(drawing.plain(word), longest) for word in words)
        axes.set_title(text, fontsize=8, fontweight="normal")


def _short(words: str, longest: int) -> str:
    return words if len(words) <= longest else f"{words[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def picture(shown: Sequence[Record]) -> Any:
    """A figure of them, for :func:`cifar_ray.tracking.drawing.settings`."""
    from matplotlib.figure import Figure  # without pyplot there is no global state and no window

    columns, rows = grid(len(shown), COLUMNS)
    figure = Figure(figsize=(max(WIDTH * columns, 2.5), (WIDTH + WORDS) * rows + 0.4), layout="constrained")
    figure.suptitle("Test images most surely wrong")
    draw(figure, shown, columns)
    return figure
