"""Charts of strategies whose bars and points lie in rows, so that the names of many can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cifar_ray.reporting import entries, measures, strategies, style
from cifar_ray.reporting.aggregate import Configuration, Measure
from cifar_ray.reporting.groups import Panel
from cifar_ray.reporting.measures import Figure
from cifar_ray.reporting.strategies import Names
from cifar_ray.reporting.style import Look

_ROW = 0.3  # height of a row in inches
_WIDTH = 2.9  # of a panel in inches, without the names
_PARTS = (*measures.STEP_PARTS, measures.NOT_SPLIT)


def by_topology(look: Look, called: Names, panels: Sequence[Panel], shown: Figure, label: str) -> Any:
    """A panel for every topology, in which every strategy has a bar: means over the seeds.

    Args:
        look: colours.
        called: names the strategies.
        panels: what is drawn, by model.
        shown: the figure; the best one of a panel is set in bold, where there is a best.
        label: of the axis, with the unit.
    """
    figure, drawn, names = _rows(called, panels, label, _ROW)
    furthest = 0.0
    for ax, found in drawn:
        measured = [(at, one, one.statistic(shown.measure)) for at, one in _placed(names, found)]
        known = [(at, s, s.n < len(one.finished)) for at, one, s in measured if s is not None]
        better = strategies.better(shown, list(found.values()))
        best = entries.best([(statistic.mean, partial) for _, statistic, partial in known], better)
        for at, statistic, partial in known:
            end = statistic.mean + (statistic.std or 0.0)
            ax.barh(at, statistic.mean, 0.68, **style.filled(look, 0))
            if statistic.std is not None:
                ax.errorbar(statistic.mean, at, xerr=statistic.std, fmt="none", ecolor=look.text, capsize=3)
            style.value(ax, end, at, style.short(statistic.mean), bold=statistic.mean == best and not partial)
            furthest = max(furthest, end)
        for at in set(range(len(names))) - {at for at, _, _ in known}:
            style.value(ax, 0, at, "no figure", bold=False)
    for ax, _ in drawn:
        ax.set_xlim(0, furthest * 1.25 or 1)  # the same in every panel, with room for the longest bar's figure
    return figure


def by_rank(
    look: Look, called: Names, panels: Sequence[Panel], whole: Measure, each: Sequence[Measure], label: str
) -> Any:
    """A panel for every topology, in which every strategy has a point for each of its ranks.

    Args:
        look: colours.
        called: names the strategies.
        panels: what is drawn, by model.
        whole: the figure of the run, a stroke.
        each: the same figure of every rank.
        label: of the axis, with the unit.
    """
    figure, drawn, names = _rows(called, panels, label, 1.3 * _ROW)
    values: list[float] = []
    for ax, found in drawn:
        for name, one in found.items():
            at = names.index(name)
            for rank, measure in enumerate(each[: one.world_size]):
                statistic = one.statistic(measure)
                if statistic is not None:
                    height = at + 0.66 * ((rank + 0.5) / one.world_size - 0.5)  # equal ones beside each other
                    ax.plot(statistic.mean, height, **style.dotted(look, rank))
                    values.append(statistic.mean)
            run = one.statistic(whole)
            if run is not None:
                ax.plot([run.mean, run.mean], [at - 0.4, at + 0.4], color=look.text, linewidth=1.4)
                values.append(run.mean)
        for line in range(1, len(names)):
            ax.axhline(line - 0.5, color=look.grid, linewidth=0.5)
    room = 0.06 * (max(values) - min(values)) or 0.1
    for ax, found in drawn:
        ax.set_xlim(min(values) - room, max(values) + room)
        for at in (names.index(name) for name in set(names) - set(found)):
            style.value(ax, min(values) - room, at, "no figure", bold=False)
    most = max(one.world_size for _, found in drawn for one in found.values())
    stroke = style.line(look.text, "of the run")
    style.legend(figure, [stroke, *(style.point(look, rank, f"rank {rank}") for rank in range(min(most, len(each))))])
    return figure


def steps(look: Look, called: Names, panels: Sequence[Panel]) -> Any:
    """A bar for every strategy, stacked from the parts of its iteration in ms; a panel for every topology."""
    parts = list(_apart(panels))
    names = called.among(one for panel in panels for one in panel.configurations)
    figure = style.sheet(9.5, sum(_ROW * len(found) + 0.75 for _, found in parts) + 1.0)
    grid = figure.add_gridspec(len(parts), 1, height_ratios=[len(found) + 1.5 for _, found in parts])
    first, furthest = None, 0.0
    for number, (title, found) in enumerate(parts):
        ax = first = figure.add_subplot(grid[number], sharex=first)
        ax.set_title(style.plain(title), loc="left")
        ax.grid(axis="x")
        found = sorted(found, key=lambda one: names.index(called.of(one)))
        for at, one in enumerate(found):
            end = 0.0
            for index, part in enumerate(_PARTS):
                statistic = one.statistic(part.measure)
                if statistic is not None:
                    ax.barh(at, statistic.mean, 0.7, end, **_fill(look, index))
                    end += statistic.mean
            style.value(ax, end, at, f"{style.short(end)} ms", bold=False)
            furthest = max(furthest, end)
        _name_rows(ax, [called.of(one) for one in found])
    assert first is not None
    first.set_xlim(0, furthest * 1.12 or 1)
    first.set_xlabel("time of an iteration (ms)")
    style.legend(figure, [style.patch(_fill(look, index), part.title.lower()) for index, part in enumerate(_PARTS)])
    return figure


def _fill(look: Look, index: int) -> dict[str, Any]:
    """What is not split stands back."""
    return style.plainly(look) if _PARTS[index] is measures.NOT_SPLIT else style.filled(look, index)


def _rows(
    called: Names, panels: Sequence[Panel], label: str, row: float
) -> tuple[Any, list[tuple[Any, dict[str, Configuration]]], list[str]]:
    """A figure, its panels with the configurations by their names, and the names, a row for each in every panel."""
    parts, names = list(_apart(panels)), called.among(one for panel in panels for one in panel.configurations)
    columns = min(len(parts), 2 if len(parts) == 4 else 3)
    figure, axes = style.panels([title for title, _ in parts], columns, _WIDTH, row * len(names) + 0.9)
    figure.set_figwidth(_WIDTH * columns + style.length(names))
    for number, ax in enumerate(axes):
        ax.grid(visible=False)
        ax.grid(axis="x")
        ax.set_xlabel(label)
        _name_rows(ax, names)
        ax.tick_params(axis="y", labelleft=number % columns == 0)
    found = [{called.of(one): one for one in configurations} for _, configurations in parts]
    return figure, list(zip(axes, found)), names


def _apart(panels: Sequence[Panel]) -> Iterator[tuple[str, list[Configuration]]]:
    """A part with a title for every topology of a panel, and for every number of GPUs that it has."""
    for panel in panels:
        for title in dict.fromkeys(map(strategies.where, panel.configurations)):
            found = [one for one in panel.configurations if strategies.where(one) == title]
            yield (f"{panel.title}: {title}" if len(panels) > 1 else title), found


def _placed(names: Sequence[str], found: Mapping[str, Configuration]) -> list[tuple[int, Configuration]]:
    return [(at, found[name]) for at, name in enumerate(names) if name in found]


def _name_rows(ax: Any, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), [style.plain(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)  # the first at the top
