"""Charts of strategies against the number of workers or nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cifar_ray.reporting import strategies, style
from cifar_ray.reporting.aggregate import Configuration, Measure
from cifar_ray.reporting.groups import Panel
from cifar_ray.reporting.strategies import Names
from cifar_ray.reporting.style import Look

_MOST_LINEAR = 10  # with a larger ratio, the small ones would lie on each other


def by_count(
    look: Look,
    called: Names,
    panels: Sequence[Panel],
    measure: Measure,
    label: str,
    best: Callable[..., float],
) -> Any:
    """A line for every strategy through the best of its means at every number of workers or nodes.

    Args:
        look: colours.
        called: names the strategies.
        panels: what is drawn, by model.
        measure: the figure of one run.
        label: of the vertical axis, with the unit.
        best: ``min`` or ``max``, which picks from several topologies with as many workers.
    """
    every = [one for panel in panels for one in panel.configurations]
    names = called.among(every)
    word, count = strategies.counted(every)
    columns, width = (1, 9.0) if len(panels) == 1 else (2, 4.8)
    figure, axes = style.panels([panel.title for panel in panels], columns, width, 4.4 if columns == 1 else 3.4)
    for panel, ax in zip(panels, axes):
        values = []
        for index, name in enumerate(names):
            points = _points([one for one in panel.configurations if called.of(one) == name], measure, count, best)
            values += list(points.values())
            ax.plot(
                list(points),
                list(points.values()),
                color=look.colour(index),
                marker=style.marker(index),
                linestyle=style.dash(index),
            )
        ticks: dict[int, list[str]] = {}
        for one in panel.configurations:
            tops = ticks.setdefault(count(one), [])
            tops += [one.topology] if one.topology not in tops else []
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(ticks), ["\n".join([str(number), *tops]) for number, tops in ticks.items()])
        if max(values) > _MOST_LINEAR * min(values) > 0:
            ax.set_yscale("log")
            ax.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
            ax.yaxis.set_major_formatter("{x:,.6g}")
        else:
            ax.set_ylim(bottom=0)
        ax.minorticks_off()
        ax.set(xlabel=f"{word} (nodes x workers per node)", ylabel=label)
    handles = [
        style.line(look.colour(index), name, style.marker(index), style.dash(index)) for index, name in enumerate(names)
    ]
    style.legend(figure, handles)
    return figure


def _points(
    among: Sequence[Configuration],
    measure: Measure,
    count: Callable[[Configuration], int],
    best: Callable[..., float],
) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for one in among:
        if (statistic := one.statistic(measure)) is not None:
            found.setdefault(count(one), []).append(statistic.mean)
    return {number: best(values) for number, values in sorted(found.items())}
