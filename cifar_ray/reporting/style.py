"""What charts look like: colours, hatches, markers and panels, for a light and for a dark page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cifar_ray.reporting.contents import Theme
from cifar_ray.tracking import drawing
from cifar_ray.tracking.drawing import plain

# Colours of Okabe and Ito (2008), which people with any colour vision tell apart. The order is such that the
# first ones stand out from the page: the darker ones on a light page, the lighter ones on a dark one.
_ON_LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")
_ON_DARK = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#FFFFFF", "#D55E00")
_HATCHES = ("", "////", "--", "xxxx", "\\\\\\\\", "||||", "++++")  # dots would make an SVG ten times as large
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)))
_CHARACTER = 0.085  # mean width in inches
_HANDLE = 0.9  # width of a legend's entry beside its label, in inches
_LINE = 0.22  # height in inches


@dataclass(frozen=True)
class Look:
    """The colours of a page and of what is drawn on it.

    Attributes:
        page: colour of the page, which the figure itself leaves transparent.
        text: of words, axes and outlines.
        grid: of the lines behind the data.
        colours: of series, in order.
        full: colour of the largest share in a matrix, whose smallest has that of the page.
    """

    page: str
    text: str
    grid: str
    colours: tuple[str, ...]
    full: str

    def colour(self, index: int) -> str:
        """Colour of a series."""
        return self.colours[index % len(self.colours)]


LOOKS: dict[Theme, Look] = {
    "light": Look("#ffffff", "#1f2328", "#d5d9de", _ON_LIGHT, "#08457e"),
    "dark": Look("#15181d", "#e4e7eb", "#3a4048", _ON_DARK, "#7cc6f5"),
}


def hatch(index: int) -> str:
    """Pattern of a bar of series ``index``, so that it is known without its colour."""
    return _HATCHES[(index + index // len(_HATCHES)) % len(_HATCHES)]  # there are as many colours


def marker(index: int) -> str:
    """Shape of the points of series ``index``."""
    return _MARKERS[index % len(_MARKERS)]


def dash(index: int) -> Any:
    """Pattern of the line of series ``index``."""
    return _DASHES[index % len(_DASHES)]


@contextmanager
def settings(look: Look) -> Iterator[None]:
    """Within it, what matplotlib makes has this look, and SVG is the same every time with its text as text."""
    colours = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    with drawing.settings(
        {
            **dict.fromkeys(colours, look.text),
            "figure.facecolor": "none",
            "savefig.facecolor": "none",
            "axes.facecolor": "none",
            "legend.facecolor": "none",
            "legend.frameon": False,
            "legend.labelcolor": look.text,
            "font.family": "DejaVu Sans",  # it comes with matplotlib, so that every machine draws the same
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlepad": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "grid.color": look.grid,
            "grid.linewidth": 0.7,
            "hatch.linewidth": 0.7,
            "lines.linewidth": 1.6,
            "lines.markersize": 5,
            "svg.fonttype": "none",
            "svg.hashsalt": "cifar-ray",
        }
    ):
        yield


def drawn(paint: Callable[[Look], Any]) -> Callable[[Theme], Any]:
    """``paint`` as a chart's ``draw``: it is called within the theme's settings."""

    def draw(theme: Theme) -> Any:
        with settings(LOOKS[theme]):
            return paint(LOOKS[theme])

    return draw


def sheet(width: float, height: float) -> Any:
    """An empty figure of this size in inches, whose parts make room for each other."""
    from matplotlib.figure import Figure  # without pyplot there is no global state and no window

    figure: Any = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.04, hspace=0.06)
    return figure


def panels(titles: Sequence[str], columns: int, width: float, height: float, *, share: bool) -> tuple[Any, list[Any]]:
    """A figure of equal panels that wrap into rows.

    Args:
        titles: one for every panel.
        columns: most panels in a row.
        width: of one panel in inches.
        height: of one panel in inches.
        share: whether they have one vertical axis.

    Returns:
        The figure and the axes of every panel.
    """
    columns = min(columns, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = sheet(max(width * columns, 5.0), height * rows + 0.6)
    found: list[Any] = []
    for number in range(len(titles)):
        beside = found[0] if found and share else None
        found.append(figure.add_subplot(rows, columns, number + 1, sharey=beside))
    for axes, title in zip(found, titles):
        axes.set_title(plain(title))
        axes.grid(axis="y")
    return figure, found


def legend(figure: Any, handles: Sequence[Any]) -> None:
    """Below the panels, where it covers no data; the figure grows by its rows, and long labels wrap."""
    if handles:
        room = int((figure.get_figwidth() - _HANDLE) / _CHARACTER)
        for handle in handles:
            handle.set_label("\n".join(textwrap.wrap(handle.get_label(), room)))
        labels = [handle.get_label().splitlines() for handle in handles]
        widest = _HANDLE + _CHARACTER * max(len(line) for lines in labels for line in lines)
        columns = min(len(handles), max(1, int(figure.get_figwidth() / widest)))
        more = math.ceil(sum(map(len, labels)) / columns) - 1
        figure.set_size_inches(figure.get_figwidth(), figure.get_figheight() + more * _LINE)
        figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, handlelength=3.2)


def name_places(axes: Any, names: Sequence[str], width: float) -> None:
    """Names below the groups of bars of a panel that is ``width`` inches wide, slanted where there is no room."""
    slanted = len(names) * (max(map(len, names)) + 2) * _CHARACTER > width
    axes.set_xticks(range(len(names)), [plain(name) for name in names])
    if slanted:
        axes.tick_params(axis="x", labelrotation=25)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.6, len(names) - 0.4)


def short(value: float) -> str:
    """Three digits, as there is room for beside a bar."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def value(axes: Any, x: float, y: float, text: str) -> None:
    """What a lying bar that ends at ``x`` comes to."""
    axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=8)


def dotted(look: Look, index: int) -> dict[str, Any]:
    """How a point of series ``index`` looks."""
    return {"color": look.colour(index), "marker": marker(index), "linestyle": "none"}


def point(look: Look, index: int, label: str) -> Any:
    """A legend's entry for the points of series ``index``."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **dotted(look, index), label=plain(label))


def patch(fill: Mapping[str, Any], label: str) -> Any:
    """A legend's entry for bars that are filled so."""
    from matplotlib.patches import Patch

    return Patch(**fill, label=plain(label))


def filled(look: Look, index: int) -> dict[str, Any]:
    """How the bars of series ``index`` are filled and outlined."""
    return {"facecolor": look.colour(index), "edgecolor": look.text, "linewidth": 0.5, "hatch": hatch(index)}


def plainly(look: Look) -> dict[str, Any]:
    """How the bars of a rest are filled, that is no series."""
    return {"facecolor": look.grid, "edgecolor": look.text, "linewidth": 0.5}


def line(colour: str, label: str, shape: str = "", dashes: Any = "solid") -> Any:
    """A legend's entry for a line."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, label=plain(label), marker=shape, linestyle=dashes)
