"""Charts made of bars, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cifar_ray.reporting import aggregate, style
from cifar_ray.reporting.aggregate import Configuration, Measure
from cifar_ray.reporting.groups import Panel, place, places
from cifar_ray.reporting.style import Look
from cifar_ray.tracking.study import Study, Trial

_PHASES = {
    "startup": "start-up",
    "data": "data",
    "training": "training",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "other": "other",
}
_MOST_WRITTEN = 9  # more figures above the bars of one panel would run into each other
_MOST_CLASSES = 20


def grouped(look: Look, study: Study, panels: Sequence[Panel], measure: Measure, label: str) -> Any:
    """A group of bars for every topology with one bar for every batch size, as means over the seeds.

    Args:
        look: colours.
        study: says which batch size stays along a series.
        panels: what is drawn, one panel each.
        measure: the figure of one run.
        label: of the axis, with the unit.
    """
    batches = sorted({aggregate.column(study, found) for panel in panels for found in panel.configurations})
    most = max(len(places(panel.configurations)) for panel in panels) * len(batches)
    columns = 3 if most <= _MOST_WRITTEN else 2 if most <= 2 * _MOST_WRITTEN else 1
    width = {3: 3.4, 2: 5.0, 1: 9.5}[columns]
    figure, axes = style.panels([panel.title for panel in panels], columns, width, 3.0)
    for panel, ax in zip(panels, axes):
        names = places(panel.configurations)
        for index, batch in enumerate(batches):
            found = [one for one in panel.configurations if aggregate.column(study, one) == batch]
            _series(look, ax, found, names, measure, index, len(batches), most)
        style.name_places(ax, names, width)
        ax.set_ylabel(label)
        ax.set_xlabel("nodes x workers per node")
        ax.margins(y=0.14)
        ax.set_ylim(bottom=0)
    style.legend(
        figure,
        [style.patch(style.filled(look, index), f"{batch} images") for index, batch in enumerate(batches)],
        "global batch" if study.hold == "global_batch" else "batch per worker",
    )
    return figure


def _series(
    look: Look,
    ax: Any,
    found: Sequence[Configuration],
    names: Sequence[str],
    measure: Measure,
    index: int,
    count: int,
    most: int,
) -> None:
    width = 0.8 / count
    statistics = [(names.index(place(one)), one.statistic(measure)) for one in found]
    known = [(at, statistic) for at, statistic in statistics if statistic is not None]
    if not known:
        return
    centres = [at + (index - (count - 1) / 2) * width for at, _ in known]
    spread = [statistic.std or 0.0 for _, statistic in known]
    bars = ax.bar(
        centres, [statistic.mean for _, statistic in known], min(width, 0.5) * 0.94, **style.filled(look, index)
    )
    tops = [statistic.mean + std for (_, statistic), std in zip(known, spread)]
    several = [number for number, (_, statistic) in enumerate(known) if statistic.std is not None]
    if several:
        ax.errorbar(
            [centres[n] for n in several],
            [known[n][1].mean for n in several],
            [spread[n] for n in several],
            fmt="none",
            ecolor=look.text,
            elinewidth=1.1,
            capsize=3,
        )
    if most <= _MOST_WRITTEN:
        for bar, top, (_, statistic) in zip(bars, tops, known):
            ax.annotate(
                style.short(statistic.mean),
                (bar.get_x() + bar.get_width() / 2, top),
                (0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=8,
            )


def where_time_went(look: Look, study: Study, panels: Sequence[Panel]) -> Any:
    """A bar for every configuration, stacked from the seconds of its phases: means over the seeds."""
    counts = [len(panel.configurations) for panel in panels]
    height = sum(0.32 * count + 0.75 for count in counts) + 0.9
    figure = style.sheet(9.5, height)
    rows = figure.add_gridspec(len(panels), 1, height_ratios=[count + 1 for count in counts])
    batch = "global batch" if study.hold == "global_batch" else "batch"
    for number, panel in enumerate(panels):
        ax = figure.add_subplot(rows[number])
        ax.set_title(style.plain(panel.title), loc="left")
        ax.grid(axis="x")
        labels = [f"{place(one)}, {batch} {aggregate.column(study, one)}" for one in panel.configurations]
        ends = [0.0] * len(labels)
        for index, phase in enumerate(_PHASES):
            for at, one in enumerate(panel.configurations):
                statistic = one.statistic(aggregate.metric(f"time/{phase}_s"))
                if statistic is not None:
                    ax.barh(at, statistic.mean, 0.7, ends[at], **style.filled(look, index))
                    ends[at] += statistic.mean
        for at, end in enumerate(ends):
            style.value(ax, end, at, f"{style.short(end)} s", bold=False)
        ax.set_yticks(range(len(labels)), [style.plain(label) for label in labels])
        ax.set_ylim(len(labels) - 0.4, -0.6)  # the first at the top
        ax.set_xlim(0, max(ends) * 1.09 or 1)
    ax.set_xlabel("time (s)")
    style.legend(figure, [style.patch(style.filled(look, index), name) for index, name in enumerate(_PHASES.values())])
    return figure


def confusion(look: Look, trial: Trial) -> Any:
    """True classes down, predicted classes across; the share of each row as colour, the images as numbers."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    counts = np.array(trial.confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    few = len(counts) <= _MOST_CLASSES
    names = [style.plain(name) for name in trial.class_names] or [str(number) for number in range(len(counts))]
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
