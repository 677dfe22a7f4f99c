"""Four kinds of charts: bars or dots, stacked bars, lines, and a matrix; for a light and a dark page."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from cifar_ray.reporting.contents import Chart, Draw, Theme
from cifar_ray.tracking import drawing
from cifar_ray.tracking.drawing import plain

_HATCHES = ("", "////", "--", "xxxx", "\\\\\\\\", "||||", "++++")  # dots would make an SVG ten times as large
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)))
_CHARACTER = 0.085  # mean width in inches
_HANDLE = 0.9  # width of a legend's entry beside its label, in inches
_LINE = 0.22  # height of a legend's line in inches
_ROW = 0.3  # height of a row of bars in inches
_MOST_WRITTEN = 9  # more figures above the bars of one panel would run into each other
_MARKERS_PER_LINE = 10
_DOTS_PER_INCH = 160
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


class Look(NamedTuple):
    """The colours of a page and of what is drawn on it: ``full`` is that of the largest share in a matrix."""

    page: str
    text: str
    grid: str
    full: str
    colours: tuple[str, ...]

    def bar(self, index: int) -> dict[str, Any]:
        """How the bars of series ``index`` are filled, so that they are known without their colour; -1 is a rest."""
        plainly = {"facecolor": self.grid, "edgecolor": self.text, "linewidth": 0.5}
        hatch = _HATCHES[(index + index // len(_HATCHES)) % len(_HATCHES)]  # there are as many colours
        return plainly if index < 0 else plainly | {"facecolor": self.colour(index), "hatch": hatch}

    def line(self, colour: int, shape: int) -> dict[str, Any]:
        marker, dashes = _MARKERS[shape % len(_MARKERS)], _DASHES[shape % len(_DASHES)]
        return {"color": self.colour(colour), "marker": marker, "linestyle": dashes}

    def colour(self, index: int) -> str:
        return self.colours[index % len(self.colours)]


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


class Bar(NamedTuple):
    """A bar or a dot: the names of its place and of its series, the mean, and the deviation or None."""

    place: str
    series: str
    mean: float
    std: float | None


class Line(NamedTuple):
    """One line: numbers of its colour and of its shape, its points, their deviations, and a dotted line's heights."""

    label: str
    colour: int
    shape: int
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()
    ideal: Sequence[float] = ()


def settings(look: Look) -> AbstractContextManager[None]:
    """Context manager: give figures this look, and make SVG files the same every time, with their text as text."""
    coloured = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    clear = ("figure.facecolor", "savefig.facecolor", "axes.facecolor", "legend.facecolor")
    # The font comes with matplotlib: every machine draws the same.
    font = {"font.family": "DejaVu Sans", "font.size": 10}
    titles = {"axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlepad": 8}
    axes = {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
    grid = {"grid.color": look.grid, "grid.linewidth": 0.7}
    lines = {"hatch.linewidth": 0.7, "lines.linewidth": 1.6, "lines.markersize": 5}
    legend = {"legend.frameon": False, "legend.labelcolor": look.text}
    # Type 42 is TrueType: publishers refuse Type 3.
    files = {"svg.fonttype": "none", "svg.hashsalt": "cifar-ray", "pdf.fonttype": 42}
    colours = dict.fromkeys(coloured, look.text) | dict.fromkeys(clear, "none")
    return drawing.settings({**colours, **font, **titles, **axes, **grid, **lines, **legend, **files})


def drawn(paint: Callable[..., Any], *args: Any) -> Draw:
    """``paint`` as a chart's ``draw``: it is called with the look of a theme, within its settings."""

    def draw(theme: Theme) -> Any:
        with settings(LOOKS[theme]):
            return paint(LOOKS[theme], *args)

    return draw


def bars(look: Look, panels: Mapping[str, Sequence[Bar]], series: Sequence[str], axis: str, dots: bool) -> Any:
    """A group for every place with a bar or a dot for every series: means over the seeds, with their spread.

    With ``dots``, the axis shows their range, the same in every panel; bars begin at 0.
    """
    most = max(len({bar.place for bar in shown}) for shown in panels.values()) * len(series)
    columns, width = (3, 3.4) if most <= _MOST_WRITTEN else (2, 5.0) if most <= 2 * _MOST_WRITTEN else (1, 9.5)
    step = 0.8 / len(series)
    figure, every = panel_axes(list(panels), columns, width, share=dots)
    for shown, axes in zip(panels.values(), every):
        places = list(dict.fromkeys(bar.place for bar in shown))
        for bar in shown:
            index = series.index(bar.series)
            x = places.index(bar.place) + (index - (len(series) - 1) / 2) * step
            error = {"yerr": bar.std, "ecolor": look.text, "elinewidth": 1.1, "capsize": 3}
            if dots:
                axes.errorbar(x, bar.mean, **error, **look.line(index, index) | {"linestyle": "none"})
            else:
                axes.bar(x, bar.mean, min(step, 0.5) * 0.94, **look.bar(index))
                axes.errorbar(x, bar.mean, fmt="none", **error)
            if most <= _MOST_WRITTEN:
                top = (x, bar.mean + (bar.std or 0.0))
                above = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 8}
                axes.annotate(_short(bar.mean), top, (0, 5), **above)
        name_places(axes, places, width)
        axes.set(xlabel="nodes x workers per node", ylabel=axis)
        axes.margins(y=0.14)
        if not dots:
            axes.set_ylim(bottom=0)
    if dots:
        handles = [handle(name, **look.line(at, at) | {"linestyle": "none"}) for at, name in enumerate(series) if name]
    else:
        handles = [_patch(name, look.bar(at)) for at, name in enumerate(series) if name]
    add_legend(figure, handles)
    return figure


def stacked(
    look: Look, panels: Mapping[str, Mapping[str, Mapping[str, float]]], parts: Sequence[str], axis: str
) -> Any:
    """A lying bar for every row of a panel, stacked from its parts by name; ``not split`` is a rest."""
    figure = sheet(9.5, sum(_ROW * len(rows) + 0.75 for rows in panels.values()) + 0.9)
    heights = [len(rows) + 1.5 for rows in panels.values()]
    every = figure.subplots(len(panels), height_ratios=heights, squeeze=False)[:, 0]
    fills = {name: look.bar(-1 if name == "not split" else at) for at, name in enumerate(parts)}
    unit = axis[axis.rindex("(") + 1 : -1]
    for axes, (title, rows) in zip(every, panels.items()):
        axes.set_title(plain(title), loc="left")
        axes.grid(axis="x")
        for at, lengths in enumerate(rows.values()):
            end = 0.0
            for name in (name for name in parts if name in lengths):
                axes.barh(at, lengths[name], 0.7, end, **fills[name])
                end += lengths[name]
            text = f"{_short(end)} {unit}"
            axes.annotate(text, (end, at), (4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_yticks(range(len(rows)), list(map(plain, rows)))
        axes.set_ylim(len(rows) - 0.4, -0.6)  # the first at the top
        axes.set_xlim(0, max(sum(lengths.values()) for lengths in rows.values()) * 1.1 or 1)
    axes.set_xlabel(axis)
    add_legend(figure, [_patch(name, fill) for name, fill in fills.items()])
    return figure


def lines(look: Look, panels: Sequence[tuple[str, Sequence[Line]]], labels: tuple[str, str], share: bool) -> Any:
    """Lines with their spread over the seeds; the ``labels`` are those of the two axes."""
    columns = 2 if len(panels) in (2, 4) else 3
    figure, every = panel_axes([title for title, _ in panels], columns, 3.4, share=share)
    handles: dict[str, Any] = {}
    for (_, shown), axes in zip(panels, every):
        for line in shown:
            kind = look.line(line.colour, line.shape)
            axes.plot(line.x, line.y, markevery=max(1, len(line.x) // _MARKERS_PER_LINE), **kind)
            if any(line.spread):
                low, high = zip(*((y - std, y + std) for y, std in zip(line.y, line.spread)))
                axes.fill_between(line.x, low, high, color=kind["color"], alpha=0.2, linewidth=0)
            if line.ideal:
                axes.plot(line.x, line.ideal, color=kind["color"], linestyle=":", linewidth=1.2)
            handles.setdefault(line.label, handle(line.label, **kind))
        axes.set(xlabel=labels[0], ylabel=labels[1])
    handles.pop("", None)
    if any(line.ideal for _, shown in panels for line in shown):
        ideal = "ideal: n times the workers, n times the speed"
        handles[ideal] = handle(ideal, color=look.text, linestyle=":")
    add_legend(figure, list(handles.values()))
    return figure


def matrix(look: Look, counts: Sequence[Sequence[int]], names: Sequence[str], unit: str) -> Any:
    """A confusion matrix in the colours of this look."""
    return drawing.matrix(counts, names, unit, look.page, look.full, look.text)


def save(chart: Chart, folder: Path, pdf: bool = False) -> list[Path]:
    """Write ``KEY.png`` and ``KEY.svg``, on white and with the title in them, and ``KEY.pdf`` without; return paths."""
    figure, look = chart.draw("light"), LOOKS["light"]
    pages: list[tuple[str, dict[str, Any]]] = [("png", {"dpi": _DOTS_PER_INCH}), ("svg", {"metadata": _NO_METADATA})]
    with settings(look):
        if pdf:
            figure.savefig(folder / f"{chart.key}.pdf", metadata=dict.fromkeys(("Creator", "Producer", "CreationDate")))
        figure.suptitle(plain(chart.title), fontsize=12)
        for kind, how in pages:
            figure.savefig(folder / f"{chart.key}.{kind}", facecolor=look.page, **how)
    return [folder / f"{chart.key}.{kind}" for kind in ("png", "svg", *["pdf"] * pdf)]


def svg(chart: Chart, theme: Theme) -> str:
    """The chart as an ``svg`` element for a page of this theme.

    Its ids begin with the chart's key and the theme, so that several can stand in one page.
    """
    figure, written, prefix = chart.draw(theme), io.StringIO(), f"{chart.key}-{theme}-"
    with settings(LOOKS[theme]):
        figure.savefig(written, format="svg", metadata=_NO_METADATA)
    text = written.getvalue()
    text = text[text.index("<svg") :]  # a page has no place for the XML heading
    # A style element would hold for the whole page; these two properties are inherited instead.
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = text.replace("<svg ", '<svg style="stroke-linejoin: round; stroke-linecap: butt" ', 1)
    # Only within tags: the same characters may stand in a text, where they are no id.
    ids = r'(\bid="|href="#|url\(#)'
    return re.sub(r"<[^>]+>", lambda tag: re.sub(ids, rf"\g<1>{prefix}", tag[0]), text).strip()


def sheet(width: float, height: float) -> Any:
    """An empty figure of this size in inches, whose parts make room for each other."""
    from matplotlib.figure import Figure  # without pyplot there is no global state and no window

    figure: Any = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.04, hspace=0.06)
    return figure


def panel_axes(titles: Sequence[str], columns: int, width: float, *, share: bool) -> tuple[Any, list[Any]]:
    """A figure of equal panels, so many inches wide, that wrap into rows; they may share the vertical axis."""
    columns = min(columns, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = sheet(max(width * columns, 5.0), 3.0 * rows + 0.6)
    every: list[Any] = []
    for number, title in enumerate(titles):
        beside = every[0] if every and share else None
        every.append(figure.add_subplot(rows, columns, number + 1, sharey=beside))
        every[-1].set_title(plain(title))
        every[-1].grid(axis="y")
    return figure, every


def add_legend(figure: Any, handles: Sequence[Any]) -> None:
    """Below the panels, where it covers no data; the figure grows by its rows, and long labels wrap."""
    if not handles:
        return
    width, height = figure.get_size_inches()
    labels = [textwrap.wrap(handle.get_label(), int((width - _HANDLE) / _CHARACTER)) for handle in handles]
    for handle, wrapped in zip(handles, labels):
        handle.set_label("\n".join(wrapped))
    widest = _HANDLE + _CHARACTER * max(len(line) for wrapped in labels for line in wrapped)
    columns = min(len(handles), max(1, int(width / widest)))
    more = math.ceil(sum(map(len, labels)) / columns) - 1
    figure.set_size_inches(width, height + more * _LINE)
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, handlelength=3.2)


def name_places(axes: Any, names: Sequence[str], width: float) -> None:
    """Names below the groups of bars of a panel that is ``width`` inches wide, slanted where there is no room."""
    is_wide = len(names) * (max(map(len, names)) + 2) * _CHARACTER > width
    slanted = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if is_wide else {}
    axes.set_xticks(range(len(names)), [plain(name) for name in names], **slanted)
    axes.set_xlim(-0.6, len(names) - 0.4)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def handle(label: str, **kind: Any) -> Any:
    """A legend's entry for a line or for points."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=plain(label), **kind)


def _patch(label: str, fill: Mapping[str, Any]) -> Any:
    from matplotlib.patches import Patch

    return Patch(label=plain(label), **fill)
