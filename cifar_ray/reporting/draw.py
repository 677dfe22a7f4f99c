"""The kinds of charts: bars or dots, stacked bars, lines, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cifar_ray.reporting import style
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.measures import Figure
from cifar_ray.reporting.names import Names
from cifar_ray.reporting.style import Look
from cifar_ray.tracking import drawing
from cifar_ray.tracking.study import Trial

_MOST_WRITTEN = 9  # more figures above the bars of one panel would run into each other
_MOST_CLASSES = 20
_MARKERS_PER_LINE = 10
_MOST_LINEAR = 8  # with a larger ratio, those with few workers would lie on each other
_MOST_FLATTENING = 4  # ratio of the largest loss to that of later epochs on a linear axis
_ROW = 0.3  # height of a row in inches


class Panel(NamedTuple):
    """One picture of a chart with several: its title, and what is drawn in it, from few workers to many."""

    title: str
    configurations: Sequence[Configuration]


class Line(NamedTuple):
    """One line.

    Attributes:
        label: for the legend; equal labels have one entry.
        look: numbers of its colour and of its shape: marker and dashes.
        x: where its points are.
        y: how high they are.
        spread: standard deviation of every point; empty for none.
        ideal: the heights of a dotted line of the same colour; empty for none.
    """

    label: str
    look: tuple[int, int]
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()
    ideal: Sequence[float] = ()


def grouped(look: Look, names: Names, panels: Sequence[Panel], figure: Figure, dots: bool) -> Any:
    """A group for every topology with a bar or a dot for every series: means over the seeds, with their spread.

    Args:
        look: colours.
        names: names the series.
        panels: what is drawn, one panel each.
        figure: the figure; its title names the axis.
        dots: dots on an axis that shows their range, the same in every panel; else bars from 0.
    """
    series = _series(names, panels)
    most = max(len(_topologies(panel)) for panel in panels) * len(series)
    columns, width = (3, 3.4) if most <= _MOST_WRITTEN else (2, 5.0) if most <= 2 * _MOST_WRITTEN else (1, 9.5)
    shown, axes = style.panels([panel.title for panel in panels], columns, width, 3.0, share=dots)
    step = 0.8 / len(series)
    for panel, ax in zip(panels, axes):
        places = _topologies(panel)
        for one in panel.configurations:
            found, index = one.statistic(figure.measure), series.index(names.series(one))
            if found is None:
                continue
            x = places.index(one.topology) + (index - (len(series) - 1) / 2) * step
            error = {"yerr": found.std, "ecolor": look.text, "elinewidth": 1.1, "capsize": 3}
            if dots:
                ax.errorbar(x, found.mean, **error, **style.dotted(look, index))
            else:
                ax.bar(x, found.mean, min(step, 0.5) * 0.94, **style.filled(look, index))
                ax.errorbar(x, found.mean, fmt="none", **error)
            if most <= _MOST_WRITTEN:
                top = (x, found.mean + (found.std or 0.0))
                words = style.short(found.mean)
                ax.annotate(words, top, (0, 5), textcoords="offset points", ha="center", va="bottom", fontsize=8)
        style.name_places(ax, places, width)
        ax.set(xlabel="nodes x workers per node", ylabel=figure.title)
        ax.margins(y=0.14)
        if not dots:
            ax.set_ylim(bottom=0)
    make = style.point if dots else lambda look, index, label: style.patch(style.filled(look, index), label)
    style.legend(shown, [make(look, index, name) for index, name in enumerate(series) if name])
    return shown


def stacked(look: Look, names: Names, panels: Sequence[Panel], parts: Mapping[str, Figure], whole: str) -> Any:
    """A bar for every configuration, stacked from its parts: means over the seeds.

    Args:
        look: colours.
        names: names the rows.
        panels: what is drawn, one panel each.
        parts: the figures by their names; the last is a rest if it is called ``not split``.
        whole: of the axis, with the unit.
    """
    counts = [len(panel.configurations) for panel in panels]
    shown = style.sheet(9.5, sum(_ROW * count + 0.75 for count in counts) + 0.9)
    rows = shown.add_gridspec(len(panels), 1, height_ratios=[count + 1.5 for count in counts])
    fills = [style.plainly(look) if name == "not split" else style.filled(look, at) for at, name in enumerate(parts)]
    (unit,) = {figure.unit for figure in parts.values()}
    for number, panel in enumerate(panels):
        ax = shown.add_subplot(rows[number])
        ax.set_title(drawing.plain(panel.title), loc="left")
        ax.grid(axis="x")
        ends = [0.0] * len(panel.configurations)
        for at, one in enumerate(panel.configurations):
            for fill, figure in zip(fills, parts.values()):
                if (found := one.statistic(figure.measure)) is not None:
                    ax.barh(at, found.mean, 0.7, ends[at], **fill)
                    ends[at] += found.mean
            style.value(ax, ends[at], at, f"{style.short(ends[at])}{unit}")
        ax.set_yticks(range(len(ends)), [drawing.plain(names.row(one)) for one in panel.configurations])
        ax.set_ylim(len(ends) - 0.4, -0.6)  # the first at the top
        ax.set_xlim(0, max(ends) * 1.1 or 1)
    ax.set_xlabel(whole)
    style.legend(shown, [style.patch(fill, name) for fill, name in zip(fills, parts)])
    return shown


def lines(look: Look, panels: Sequence[tuple[str, Sequence[Line]]], labels: tuple[str, str], share: bool) -> Any:
    """Lines with their spread over the seeds.

    Args:
        look: colours.
        panels: the title and the lines of each.
        labels: of the two axes, with units.
        share: whether all panels have one vertical axis.
    """
    columns = 2 if len(panels) in (2, 4) else 3
    shown, axes = style.panels([title for title, _ in panels], columns, 3.4, 3.0, share=share)
    handles: dict[str, Any] = {}
    for (_, drawn), ax in zip(panels, axes):
        for line in drawn:
            colour, kind = look.colour(line.look[0]), {"marker": style.marker(line.look[1])}
            kind["linestyle"] = style.dash(line.look[1])
            ax.plot(line.x, line.y, color=colour, markevery=max(1, len(line.x) // _MARKERS_PER_LINE), **kind)
            if any(line.spread):
                low, high = zip(*((y - std, y + std) for y, std in zip(line.y, line.spread)))
                ax.fill_between(line.x, low, high, color=colour, alpha=0.2, linewidth=0)
            if line.ideal:
                ax.plot(line.x, line.ideal, color=colour, linestyle=":", linewidth=1.2)
            handles.setdefault(line.label, style.line(colour, line.label, kind["marker"], kind["linestyle"]))
        ax.set(xlabel=labels[0], ylabel=labels[1])
    if any(line.ideal for _, drawn in panels for line in drawn):
        handles["ideal"] = style.line(look.text, "ideal: n times the workers, n times the speed", "", ":")
    style.legend(shown, [handle for label, handle in handles.items() if label])
    return shown


def by_workers(look: Look, panels: Sequence[tuple[Panel, Sequence[Line]]], word: str) -> Any:
    """Images per second against the number of workers, with what would be ideal."""
    shown = lines(look, [(panel.title, drawn) for panel, drawn in panels], (word, "Images/s"), share=False)
    for (panel, _), ax in zip(panels, shown.axes):
        ticks: dict[int, list[str]] = {}
        for one in panel.configurations:
            tops = ticks.setdefault(one.devices, [])
            tops += [one.topology] if one.topology not in tops else []
        if max(ticks) > _MOST_LINEAR * min(ticks):
            ax.set_xscale("log", base=2)
            ax.set_yscale("log", base=2)
            ax.yaxis.set_major_formatter("{x:g}")
        else:
            ax.set_xlim(0, max(ticks) * 1.08)
            ax.set_ylim(bottom=0)
        ax.set_xticks(list(ticks), ["\n".join([str(count), *tops]) for count, tops in ticks.items()])
        ax.minorticks_off()
    return shown


def by_epoch(look: Look, panels: Sequence[tuple[str, Sequence[Line]]]) -> Any:
    """Losses after every epoch; on a logarithmic axis where a first one would flatten all others."""
    shown = lines(look, panels, ("epoch", "cross-entropy loss"), share=True)
    later = [y for _, drawn in panels for line in drawn for y in line.y[1:]]
    every = [y for _, drawn in panels for line in drawn for y in line.y]
    for ax in shown.axes:
        ax.xaxis.get_major_locator().set_params(integer=True)
        if later and min(every) > 0 and max(every) > _MOST_FLATTENING * max(later):
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter("")
    return shown


def confusion(look: Look, trial: Trial) -> Any:
    """True classes down, predicted classes across; the share of each row as colour, the images as numbers."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    counts = np.array(trial.confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    few = len(counts) <= _MOST_CLASSES
    names = [drawing.plain(name) for name in trial.class_names] or [str(number) for number in range(len(counts))]
    side = 2.6 + 0.48 * len(counts) if few else 9.0
    figure = style.sheet(side + 1.2, side)
    ax = figure.add_subplot()
    colours = LinearSegmentedColormap.from_list("shares", [look.page, look.full])
    mesh = ax.pcolormesh(shares, cmap=colours, vmin=0, vmax=1, rasterized=not few)
    ax.set(aspect="equal", xlabel="predicted class", ylabel="true class")
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(True)
    bar: Any = figure.colorbar(mesh, ax=ax, label="share of the true class's images", fraction=0.046)
    bar.solids.set_edgecolor("face")  # else the page shines through between its steps
    if few:
        middles = [number + 0.5 for number in range(len(names))]
        ax.set_xticks(middles, names, rotation=45, ha="right", rotation_mode="anchor")
        ax.set_yticks(middles, names)
        ax.tick_params(length=0)
        for (row, column), count in np.ndenumerate(counts):
            colour = look.page if shares[row, column] > 0.5 else look.text
            ax.text(column + 0.5, row + 0.5, f"{count}", ha="center", va="center", color=colour, fontsize=8)
    return figure


def _series(names: Names, panels: Sequence[Panel]) -> list[str]:
    return list(dict.fromkeys(names.series(one) for panel in panels for one in panel.configurations))


def _topologies(panel: Panel) -> list[str]:
    return list(dict.fromkeys(one.topology for one in panel.configurations))
