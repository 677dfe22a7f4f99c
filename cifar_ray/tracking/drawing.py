"""Draw with matplotlib's own settings, whatever the user has set; and the picture that MLflow and reports share."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cifar_ray.config import imports

MOST_CLASSES = 20
"""Classes whose names and counts there is room for in a confusion matrix."""

ONE_AT_A_TIME = threading.RLock()
"""Of two runs in a sweep's process, one may be recorded while the other ends; what is global is used by one."""


@contextmanager
def settings(changes: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Context manager: matplotlib with its default settings and these ``changes``, and text that is never a formula.

    What is drawn in it must be saved in it, too. The user's matplotlibrc, ``rcParams`` and ``MPLBACKEND`` change
    nothing, and stay as they are.
    """
    with ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks
        matplotlib = imports.matplotlib()
        defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
        with matplotlib.rc_context({**defaults, "text.parse_math": False, **(changes or {})}):
            yield


def plain(text: str) -> str:
    """``text`` as matplotlib can draw it: no letters that are none, and no ``_`` at its start, which hides a label."""
    text = re.sub("[\x00-\x1f\x7f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
    return f" {text}" if text.startswith("_") else text


def matrix(
    counts: Sequence[Sequence[int]],
    names: Sequence[str],
    unit: str,
    page: str = "white",
    full: str = "#08306b",
    text: str = "black",
) -> Any:
    """A confusion matrix, true classes down, predicted across: the share of each row as colour, the counts as numbers.

    The colours are those of no share, of a full one, and of the numbers.
    """
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure  # without pyplot there is no global state and no window

    images = np.array(counts)
    shares = images / np.maximum(images.sum(axis=1, keepdims=True), 1)
    few = len(images) <= MOST_CLASSES
    side = 2.6 + 0.48 * len(images) if few else 9.0
    figure = Figure(figsize=(side + 1.2, side), layout="constrained")
    axes = figure.add_subplot()
    colours = LinearSegmentedColormap.from_list("shares", [page, full])
    mesh = axes.pcolormesh(shares, cmap=colours, vmin=0, vmax=1, rasterized=not few)
    axes.set(aspect="equal", xlabel="predicted class", ylabel="true class")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(True)
    scale: Any = figure.colorbar(mesh, ax=axes, label=f"share of the true class's {unit}", fraction=0.046)
    scale.solids.set_edgecolor("face")  # else the page shines through between its steps
    if few:
        middles = [number + 0.5 for number in range(len(images))]
        labels = [plain(name) for name in names or map(str, range(len(images)))]
        axes.set_xticks(middles, labels, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(middles, labels)
        axes.tick_params(length=0)
        for (row, column), count in np.ndenumerate(images):
            colour = page if shares[row, column] > 0.5 else text
            axes.text(column + 0.5, row + 0.5, f"{count}", ha="center", va="center", color=colour, fontsize=8)
    return figure
