"""Charts as PDF for a document: without titles, and no taller than a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cifar_ray.reporting import draw
from cifar_ray.reporting.contents import Chart, Draw

_TALLEST = 200 / 25.4  # inches; with a caption, as tall as the text of article on A4


def figures(chart: Chart, width: float) -> list[Any]:
    """The chart in print, so many inches wide; in several figures where one that can be parted would be too tall."""
    parts = list(_parts(chart.draw, width))
    every = [axes for figure in parts for axes in figure.axes]
    titles = [(axes, loc) for axes in every for loc in ("left", "center") if axes.get_title(loc)]
    panels: dict[str, list[Any]] = {}
    for axes, loc in titles:
        panels.setdefault(axes.get_title(loc), []).append(axes)
    for alike in panels.values():  # a panel in two figures has one scale
        farthest = max(axes.get_xlim()[1] for axes in alike)
        for axes in alike:
            axes.set_xlim(right=farthest)
    if len(panels) == 1:  # several tell panels apart
        with draw.settings(draw.in_print(width)):
            for axes, loc in titles:
                axes.set_title("", loc=loc)
    return parts


def names(chart: Chart, parts: int) -> list[str]:
    """The names of its files: ``KEY.pdf``, ``KEY-2.pdf`` and so on."""
    return [f"{chart.key}.pdf", *(f"{chart.key}-{number}.pdf" for number in range(2, parts + 1))]


def save(chart: Chart, parts: list[Any], folder: Path, width: float) -> list[Path]:
    """Write its figures, with their fonts in them; return the paths."""
    paths = [folder / name for name in names(chart, len(parts))]
    with draw.settings(draw.in_print(width)):
        for figure, path in zip(parts, paths):
            figure.savefig(path, metadata=dict.fromkeys(("Creator", "Producer", "CreationDate")))
    return paths


def _parts(drawing: Draw, width: float) -> Iterator[Any]:
    figure = drawing("light", width)
    # Whoever asks for more width than that has a larger page.
    halves = drawing.halves() if figure.get_figheight() > max(_TALLEST, width) + 1e-6 else ()
    if not halves:
        yield figure
    for half in halves:
        yield from _parts(half, width)
