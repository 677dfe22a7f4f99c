"""How charts look, how their panels are laid out, and how they are written.

A colour stands for one series in all charts of a report; parts of a time have colours of their own.
"""

from __future__ import annotations

import io
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cifar_ray.reporting.contents import Chart, Draw, Theme
from cifar_ray.tracking import drawing
from cifar_ray.tracking.drawing import plain

_T = TypeVar("_T")
_HATCHES = ("", "////", "--", "xxxx", "\\\\\\\\", "||||")  # one less than colours; dots would make a large SVG
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)))
_PARTS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#BB99CC", "#AAAA00")
_CHARACTER, _HANDLE, _LINE = 0.085, 0.9, 0.22  # inches: mean width; of a legend, width beside a label, height of a line
_PAGE, _HEIGHT = 10.5, 3.0  # inches: most width of all panels, height of one
_MARKERS_PER_LINE = 10
_MOST_FLATTENING = 10  # ratio of the largest value to the median on a linear axis
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


class Look(NamedTuple):
    """The colours of a page and of what is drawn on it: ``full`` is that of the largest share in a matrix."""

    page: str
    text: str
    grid: str
    full: str
    colours: tuple[str, ...]

    def colour(self, series: int) -> str:
        return self.colours[series % len(self.colours)]

    def line(self, series: int, shape: int) -> dict[str, Any]:
        """How a line or a point looks, by the numbers of its colour and of its shape."""
        marker, dashes = _MARKERS[shape % len(_MARKERS)], _DASHES[shape % len(_DASHES)]
        return {"color": self.colour(series), "marker": marker, "linestyle": dashes}

    def bar(self, series: int) -> dict[str, Any]:
        """How the bar of a series is filled, so that it is known without its colour."""
        return {"facecolor": self.colour(series), "hatch": _HATCHES[series % len(_HATCHES)]}

    def part(self, number: int) -> dict[str, Any]:
        """How a part of a time is filled; -1 is a rest."""
        if number < 0:
            return {"facecolor": self.grid}
        return {"facecolor": _PARTS[number % len(_PARTS)], "hatch": _HATCHES[number % len(_HATCHES)]}


# Colours of Okabe and Ito (2008), which people with any colour vision tell apart. The order is such that the
# first ones stand out from the page: the darker ones on a light page, the lighter ones on a dark one.
LOOKS: dict[Theme, Look] = {
    "light": Look(
        *("#ffffff", "#1f2328", "#d5d9de", "#08457e"),
        ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00"),
    ),
    "dark": Look(
        *("#15181d", "#e4e7eb", "#3a4048", "#7cc6f5"),
        ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#FFFFFF", "#D55E00"),
    ),
}


class Line(NamedTuple):
    """A line: its label, the numbers of its colour and shape, its points, and their deviations, if any."""

    label: str
    colour: int
    shape: int
    x: Sequence[float]
    y: Sequence[float]
    std: Sequence[float]

    def paint(self, look: Look, axes: Any) -> None:
        """Draw it on axes of matplotlib, with a band of its deviations."""
        kind, step = look.line(self.colour, self.shape), max(1, len(self.x) // _MARKERS_PER_LINE)
        axes.plot(self.x, self.y, markevery=step, label=plain(self.label), **kind)
        if any(self.std):
            low, high = np.subtract(self.y, self.std), np.add(self.y, self.std)
            axes.fill_between(self.x, low, high, color=kind["color"], alpha=0.2, linewidth=0)


def settings(look: Look) -> AbstractContextManager[None]:
    """Context manager: give figures this look, and make SVG files the same every time, with their text as text."""
    coloured = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    clear = ("figure.facecolor", "savefig.facecolor", "axes.facecolor", "legend.facecolor")
    style = {
        **dict.fromkeys((*coloured, "patch.edgecolor", "legend.labelcolor"), look.text),
        **dict.fromkeys(clear, "none"),
        **{"font.family": "DejaVu Sans", "font.size": 10},  # comes with matplotlib: every machine draws the same
        **{"axes.titlesize": 11, "axes.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False},
        **{"axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": look.grid},
        **{"patch.linewidth": 0.5, "patch.force_edgecolor": True, "hatch.linewidth": 0.7, "errorbar.capsize": 3},
        **{"lines.markersize": 5, "legend.frameon": False, "legend.handlelength": 3.2},
        **{"figure.constrained_layout.w_pad": 0.08, "figure.constrained_layout.h_pad": 0.08},
        **{"savefig.dpi": 160, "svg.fonttype": "none", "svg.hashsalt": "cifar-ray"},
        "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    }
    return drawing.settings(style)


def drawn(paint: Callable[[Look], Any]) -> Draw:
    """Make a chart's ``draw`` of ``paint``, which returns a figure: it gets a theme's look, within its settings."""

    def draw(theme: Theme) -> Any:
        with settings(LOOKS[theme]):
            return paint(LOOKS[theme])

    return draw


def panels(
    shown: Mapping[str, _T],
    paint: Callable[[Look, Any, _T], None],
    width: float = 3.4,
    *,
    share: bool = False,
    height: float = _HEIGHT,
) -> Draw:
    """Make a chart's ``draw`` of panels that wrap into rows, each with its title, with one legend below them.

    ``shown`` has their titles and contents, which ``paint`` draws on matplotlib axes; what it labels is in the legend.
    """

    def whole(look: Look) -> Any:
        across = min(max(int(_PAGE / width), 1), len(shown))
        down = math.ceil(len(shown) / across)
        figure = sheet(max(width * across, 5.0), height * down + 0.6)
        every = list(figure.subplots(down, across, sharey=share, squeeze=False).flat)
        for axes, (title, content) in zip(every, shown.items()):
            axes.set_title(plain(title))
            axes.tick_params(labelleft=True)
            paint(look, axes, content)
        for spare in every[len(shown) :]:
            spare.remove()
        _add_legend(figure)
        return figure

    return drawn(whole)


def sheet(width: float, height: float) -> Any:
    """An empty figure of this size in inches, whose parts make room for each other."""
    from matplotlib.figure import Figure  # without pyplot there is no global state and no window

    return Figure(figsize=(width, height), layout="constrained")


def _add_legend(figure: Any) -> None:
    """Below the panels, where it covers no data; the figure grows with it."""
    named = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels())}
    if not named:
        return
    width, height = figure.get_size_inches()
    widest = _HANDLE + _CHARACTER * max(map(len, named))
    columns = min(len(named), max(1, int(width / widest)))
    figure.set_size_inches(max(width, widest), height + (math.ceil(len(named) / columns) - 1) * _LINE)
    figure.legend(named.values(), named, loc="outside lower center", ncols=columns)


def name_places(axes: Any, names: Sequence[str], width: float) -> None:
    """Names below the groups of bars of a panel that is ``width`` inches wide, slanted where there is no room."""
    axes.set_xticks(range(len(names)), [plain(name) for name in names])
    axes.set_xlim(-0.6, len(names) - 0.4)
    if len(names) * (max(map(len, names)) + 2) * _CHARACTER > width:
        axes.tick_params("x", rotation=25)


def unflatten(axes: Any, values: Sequence[float]) -> None:
    """Make the vertical axis logarithmic where one large value would flatten all others."""
    if min(values) > 0 and max(values) > _MOST_FLATTENING * statistics.median(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")


def save(chart: Chart, folder: Path, pdf: bool = False) -> list[Path]:
    """Write ``KEY.png`` and ``KEY.svg``, on white and with the title in them, and ``KEY.pdf`` without; return paths."""
    figure, look = chart.draw("light"), LOOKS["light"]
    png, svg, paper = (folder / f"{chart.key}.{kind}" for kind in ("png", "svg", "pdf"))
    with settings(look):
        if pdf:
            figure.savefig(paper, metadata=dict.fromkeys(("Creator", "Producer", "CreationDate")))
        figure.suptitle(plain(chart.title))
        figure.savefig(png, facecolor=look.page)
        figure.savefig(svg, facecolor=look.page, metadata=_NO_METADATA)
    return [png, svg, *[paper] * pdf]


def svg(chart: Chart, theme: Theme) -> str:
    """The chart as an ``svg`` element for a page of this theme.

    Its ids begin with the chart's key and the theme, so that several can stand in one page.
    """
    figure, written = chart.draw(theme), io.StringIO()
    with settings(LOOKS[theme]):
        figure.savefig(written, format="svg", metadata=_NO_METADATA)
    text = written.getvalue()
    text = text[text.index("<svg") :].strip()  # a page has no place for the XML heading
    # Only within tags: the same characters may stand in a text, where they are no id.
    ids = r'(\bid="|href="#|url\(#)'
    return re.sub(r"<[^>]+>", lambda tag: re.sub(ids, rf"\g<1>{chart.key}-{theme}-", tag[0]), text)
