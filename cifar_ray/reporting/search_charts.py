"""The charts of a search: its objective over each axis, and every trial as a line through all axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from cifar_ray.reporting import draw
from cifar_ray.reporting.contents import Chart, Draw
from cifar_ray.reporting.draw import Look
from cifar_ray.reporting.search import Searched, places, shown
from cifar_ray.tracking.drawing import plain

_WIDTH = 3.4  # of a panel in inches
_COLUMN, _HEIGHT = 1.7, 3.6  # of a column of parallel coordinates and of all, in inches
_TRIALS, _BEST = 0, 1  # numbers of their colours


def charts(searched: Searched) -> list[Chart]:
    """Those that there are trials for."""
    if searched.known.empty or searched.axes.empty:
        return []
    caption = f"{searched.objective.title} of every trial, of a stopped one after its last epoch."
    made = [Chart("axes", "The objective over each axis", caption, _over_axes(searched))]
    if len(searched.known) > 1:
        caption = "A line for each trial, the stronger the better; thick: the best; dashed: stopped before the end."
        made.append(Chart("parallel", "All axes together", caption, draw.drawn(lambda look: _parallel(look, searched))))
    return made


def _over_axes(searched: Searched) -> Draw:
    """A panel for each axis, which all have the same vertical one."""
    finished, values = searched.known.end == "finished", searched.values

    def paint(look: Look, axes: Any, axis: Any) -> None:
        kinds: dict[str, tuple[Any, dict[str, Any]]] = {
            "finished": (finished, {"color": look.colour(_TRIALS), "marker": "o"}),
            "stopped (last epoch)": (~finished, {"color": look.colour(_TRIALS), "marker": "x"}),
            "the best": (finished & (finished.index == 0), {"color": look.colour(_BEST), "marker": "*", "ms": 13}),
        }
        for label, (rows, kind) in kinds.items():
            if rows.any():
                axes.plot(places(axis)[rows], values[rows], label=label, linestyle="none", **kind)
        axes.set_ylabel(searched.objective.title)
        if axis.dtype == "category":
            draw.name_places(axes, list(map(shown, axis.cat.categories)), _WIDTH)
        else:
            axes.set_xscale("log" if searched.is_log(axis.name) else "linear")
            axes.xaxis.set_major_locator(_locator(axis, searched.is_log(axis.name)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
        draw.unflatten(axes, values)

    return draw.panels(dict(searched.axes.items()), paint, _WIDTH, share=True)


def _locator(numbers: Any, is_log: bool) -> Any:
    """Where matplotlib sets the ticks of a range."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if is_log:
        return LogLocator(subs=(1.0,) if numbers.max() >= 100 * numbers.min() else (1.0, 2.0, 5.0))
    return MaxNLocator(4, integer=bool((numbers.dropna() % 1 == 0).all()))


def _parallel(look: Look, searched: Searched) -> Any:
    """Lines from axis to axis, the better ones on top."""
    from matplotlib.colors import LinearSegmentedColormap

    finished, values = searched.known.end == "finished", searched.values
    columns = {**searched.axes, searched.objective.title: values}
    figure = draw.sheet(max(_COLUMN * len(columns), 5.0), _HEIGHT)
    axes = figure.add_subplot()
    heights = []
    behind = {"facecolor": look.page, "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    for place, (name, column) in enumerate(columns.items()):
        height, ticks = _scaled(column, searched.is_log(name))
        heights.append(height)
        axes.axvline(place, color=look.text, linewidth=1.0, zorder=4)
        for at, label in ticks.items():
            axes.text(place + 0.04, at, plain(label), va="center", fontsize=8, zorder=5, bbox=behind)
    good = values.rank(pct=True, ascending=searched.goal.better == "max") ** 2
    colours = LinearSegmentedColormap.from_list("good", [look.grid, look.colour(_TRIALS)])
    for row, line in enumerate(zip(*heights)):
        kind = {"color": colours(good[row]), "zorder": 2 + good[row], "linestyle": "-" if finished[row] else "--"}
        if row == 0 and finished[0]:
            kind |= {"color": look.colour(_BEST), "linewidth": 3.0}
        axes.plot(range(len(columns)), line, **kind)
    names = [plain(name).replace(" ", "\n", 1).replace(".", ".\n") for name in columns]
    axes.set_xticks(range(len(columns)), names)
    axes.set(xlim=(-0.1, len(columns) - 0.4), ylim=(-0.06, 1.06), yticks=[])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(axis="x", length=0)
    return figure


def _scaled(column: Any, is_log: bool) -> tuple[Any, dict[float, str]]:
    """Heights of the trials on a parallel axis, from 0 to 1, NaN without a value; and its ticks, height to label."""
    x = places(column)
    low, high = x.min(), x.max()
    if column.dtype == "category":
        ticks = dict(enumerate(map(shown, column.cat.categories)))
    else:
        marks = _locator(x, is_log).tick_values(low, high) if low < high else [low]
        ticks = {mark: f"{mark:g}" for mark in marks if low <= mark <= high}
    scale = np.log if is_log else np.asarray
    bottom, span = scale(low), (scale(high) - scale(low)) or 1.0
    return (scale(x) - bottom) / span, {(scale(mark) - bottom) / span: label for mark, label in ticks.items()}
