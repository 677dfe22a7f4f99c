"""The charts of a search: its objective over each axis, and every trial as a line through all axes."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from cifar_ray.reporting import draw
from cifar_ray.reporting.contents import Chart
from cifar_ray.reporting.draw import Look
from cifar_ray.reporting.search import Axis, Candidate, Searched, shown
from cifar_ray.tracking.drawing import plain

_MOST_FLATTENING = 10  # ratio of the largest value to the median on a linear axis
_TICKS = 5
_WIDTH = 3.4  # of a panel in inches
_COLUMN, _HEIGHT = 1.7, 3.6  # of a column of parallel coordinates and of all, in inches
_CHARACTER = 0.09  # width of a character of a name below a column, in inches
_STOPPED = "stopped (last epoch)"


Spots = Sequence[tuple[float, float]]
"""Where trials stand on one axis, and how high."""


class Over(NamedTuple):
    """What stands over one axis: the best trial, all that finished, and those that were stopped; none that lacks it."""

    axis: Axis
    best: Spots
    finished: Spots
    stopped: Spots


class Column(NamedTuple):
    """One of the parallel axes: its name, and the heights from 0 to 1 of its ticks, with their labels."""

    name: str
    ticks: Sequence[tuple[float, str]]


class Thread(NamedTuple):
    """A trial through the parallel axes: its heights, NaN on an axis that it lacks, and how good it is, from 0 to 1."""

    heights: Sequence[float]
    good: float
    stopped: bool


def charts(searched: Searched) -> list[Chart]:
    """Those that there are trials for."""
    known = [*searched.ranked, *searched.stopped]
    if not known or not searched.axes:
        return []
    finished, axes, of = len(searched.ranked), searched.axes, searched.goal.figure
    values = [value * searched.scale for value, _ in known]
    best = "highest" if of.better == "max" else "lowest"
    caption = (
        f"{searched.title} of every trial, of a stopped one after its last epoch; the {best} is best. An axis that was "
        "drawn logarithmically is so here; values from a list stand side by side."
    )
    over = [(axis.name, _over(axis, known, values, finished)) for axis in axes]
    log = min(values) > 0 and not of.percent and max(values) > _MOST_FLATTENING * statistics.median(values)
    made = [Chart("axes", "The objective over each axis", caption, draw.drawn(_axes, over, searched.title, log))]
    if len(known) > 1:
        caption = (
            f"One line for each trial, from axis to axis to its {of.name}: the stronger its colour, the "
            "better, and the worse half has the palest. The thick one is the best, dashed ones were stopped before "
            "the end."
        )
        paint = draw.drawn(_parallel, *_parallels(searched, known, values, finished))
        made.append(Chart("parallel", "All axes together", caption, paint))
    return made


def _over(axis: Axis, known: Sequence[tuple[float, Candidate]], values: Sequence[float], finished: int) -> Over:
    spots = [(axis.at(candidate.trial), value) for (_, candidate), value in zip(known, values)]

    def placed(some: Sequence[tuple[float | None, float]]) -> Spots:
        return [(x, y) for x, y in some if x is not None]

    return Over(axis, placed(spots[: min(finished, 1)]), placed(spots[:finished]), placed(spots[finished:]))


def _axes(look: Look, panels: Sequence[tuple[str, Over]], label: str, log: bool) -> Any:
    """A panel for each axis, which all have the same vertical one."""
    columns = 2 if len(panels) in (2, 4) else 3
    figure, every = draw.panel_axes([title for title, _ in panels], columns, _WIDTH, share=True)
    done = {"color": look.colour(0), "marker": "o", "linestyle": "none", "alpha": 0.75}
    stopped = {"color": look.colour(1), "marker": "x", "linestyle": "none"}
    best: dict[str, Any] = {"color": look.colour(2), "marker": "*", "linestyle": "none", "markersize": 13}
    best["markeredgecolor"] = look.text
    for (_, over), axes in zip(panels, every):
        for spots, kind in ((over.stopped, stopped), (over.finished, done), (over.best, best)):
            axes.plot([x for x, _ in spots], [y for _, y in spots], **kind)
        axes.set_ylabel(label)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        _scale(axes, over)
    kinds = {"finished": done, "the best": best} if any(over.finished for _, over in panels) else {}
    kinds |= {_STOPPED: stopped} if any(over.stopped for _, over in panels) else {}
    draw.add_legend(figure, [draw.handle(name, **kind) for name, kind in kinds.items()])
    return figure


def _scale(axes: Any, over: Over) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    if over.axis.kind == "list":
        draw.name_places(axes, list(map(shown, over.axis.values)), _WIDTH)
        return
    at = [x for x, _ in (*over.finished, *over.stopped)]
    if over.axis.kind == "log":
        axes.set_xscale("log")
        decades = math.log10(max(at) / min(at)) if at else 0.0
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades >= 2 else (1.0, 2.0, 5.0)))
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(int(_WIDTH), integer=all(map(float.is_integer, at))))
    axes.xaxis.set_major_formatter("{x:g}")


def _parallels(
    searched: Searched, known: Sequence[tuple[float, Candidate]], values: Sequence[float], finished: int
) -> tuple[list[Thread], list[Column]]:
    made = [_column(axis.name, axis, [axis.at(candidate.trial) for _, candidate in known]) for axis in searched.axes]
    made.append(_column(searched.title, None, values))
    columns, heights = [column for column, _ in made], [of for _, of in made]
    ranks = [searched.goal.figure.rank(value) for value in values]
    worst = statistics.median_low(ranks)
    span = max(ranks) - worst
    good = [min(max((rank - worst) / span, 0.0), 1.0) if span > 0 else 1.0 for rank in ranks]
    threads = [Thread([of[number] for of in heights], good[number], number >= finished) for number in range(len(known))]
    return threads, columns


def _column(name: str, axis: Axis | None, at: Sequence[float | None]) -> tuple[Column, list[float]]:
    """A parallel axis, and the height of every trial on it."""
    is_log = axis is not None and axis.kind == "log"
    known = [value for value in at if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if axis is not None and axis.kind == "list":
        low, high = 0.0, len(axis.values) - 1.0

    def height(value: float | None) -> float:
        if value is None:
            return math.nan
        if low == high:
            return 0.5
        return math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)

    if axis is not None and axis.kind == "list":
        ticks = {shown(value): height(float(number)) for number, value in enumerate(axis.values)}
    else:
        steps = [number / (_TICKS - 1) for number in range(_TICKS)]
        marks = [low * (high / low) ** step if is_log else low + (high - low) * step for step in steps]
        if axis is not None and all(value.is_integer() for value in known):
            marks = [float(round(mark)) for mark in marks]
        ticks = {_mark(mark): height(mark) for mark in marks}
    return Column(name, [(height, label) for label, height in ticks.items()]), [height(value) for value in at]


def _mark(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else f"{value:.3g}"


def _parallel(look: Look, threads: Sequence[Thread], columns: Sequence[Column]) -> Any:
    """Lines from axis to axis, the best on top."""
    from matplotlib.colors import LinearSegmentedColormap

    width = max(_COLUMN * len(columns), 5.0)
    figure = draw.sheet(width, _HEIGHT)
    axes = figure.add_subplot()
    colours = LinearSegmentedColormap.from_list("good", [look.grid, look.full])
    places = range(len(columns))
    for number in sorted(range(len(threads)), key=lambda number: (threads[number].good, -number)):
        thread, is_best = threads[number], number == 0 and not threads[number].stopped
        dashes = {"linestyle": (0, (4, 2)), "linewidth": 1.0} if thread.stopped else {}
        kind = {"linewidth": 3.0, "color": look.colour(1)} if is_best else dashes | {"color": colours(thread.good)}
        axes.plot(places, thread.heights, zorder=3 if is_best else 2, **kind)
    for place, column in enumerate(columns):
        axes.axvline(place, color=look.text, linewidth=1.0, zorder=4)
        for height, label in column.ticks:
            behind = {"facecolor": look.page, "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
            where = {"textcoords": "offset points", "va": "center", "fontsize": 8, "zorder": 5}
            axes.annotate(plain(label), (place, height), (4, 0), bbox=behind, **where)
    _name(axes, [column.name for column in columns], width / len(columns))
    axes.set_xlim(-0.1, len(columns) - 0.4)
    axes.set_ylim(-0.06, 1.06)
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(axis="x", length=0)
    return figure


def _name(axes: Any, names: Sequence[str], room: float) -> None:
    """Names below columns so many inches wide, on several lines, or slanted where a word is too long."""
    most = max(int(room / _CHARACTER), 1)
    wrapped = [textwrap.wrap(plain(name).replace("_", "_ "), most, break_long_words=False) for name in names]
    if max(len(line) for lines in wrapped for line in lines) > most:
        draw.name_places(axes, names, 0.0)
    else:
        axes.set_xticks(range(len(names)), ["\n".join(lines).replace("_ ", "_") for lines in wrapped])
