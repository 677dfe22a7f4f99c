"""Charts made of lines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from cifar_ray.reporting import aggregate, strategies, style
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.groups import Panel, line_names
from cifar_ray.reporting.style import Look
from cifar_ray.tracking.study import Study, Trial

Curve = list[tuple[float, float]]
_SPEED = aggregate.metric("images_per_s")
_MARKERS_PER_LINE = 10
_MOST_LINEAR = 8  # with more, those with few workers would lie on each other


def accuracy_by_time(trial: Trial) -> Curve:
    """Test accuracy in percent after every epoch, at the seconds trained until then; empty without either."""
    spent = aggregate.by_step(trial, "epoch_s")
    epochs = range(1, max(spent, default=0) + 1)
    if not spent or any(epoch not in spent for epoch in epochs):
        return []
    until = dict(zip(epochs, accumulate(spent[epoch] for epoch in epochs)))
    accuracy = aggregate.by_step(trial, "test/accuracy")
    return [(until[epoch], 100 * accuracy[epoch]) for epoch in epochs if epoch in accuracy]


def by_epoch(name: str) -> Callable[[Trial], Curve]:
    """A metric after every epoch; a curve is empty when it was not recorded."""

    def read(trial: Trial) -> Curve:
        return [(float(step), value) for step, value in sorted(aggregate.by_step(trial, name).items())]

    return read


def mean(configuration: Configuration, read: Callable[[Trial], Curve]) -> Curve:
    """The curve through the means over the seeds, as far as every seed's curve goes."""
    curves = [curve for trial in configuration.finished if (curve := read(trial))]
    return [(statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points)) for points in zip(*curves)]


def lines(
    look: Look,
    study: Study,
    parts: Sequence[tuple[Panel, str, Callable[[Trial], Curve]]],
    labels: tuple[str, str],
    columns: int,
) -> Any:
    """A line for every configuration: colour and marker by topology or strategy, dashes by batch size.

    Args:
        look: colours.
        study: says which batch size counts.
        parts: for every panel what is in it, its title, and what reads a run's curve.
        labels: of the two axes, with units.
        columns: most panels in a row.
    """
    name, names = line_names(study, [panel for panel, _, _ in parts])
    batches = _batches(study, [panel for panel, _, _ in parts])
    width = 3.4 if columns == 3 else 4.8
    figure, axes = style.panels([title for _, title, _ in parts], columns, width, 3.0)
    for (panel, _, read), ax in zip(parts, axes):
        for one in panel.configurations:
            curve = mean(one, read)
            at = names.index(name(one))
            ax.plot(
                [x for x, _ in curve],
                [y for _, y in curve],
                color=look.colour(at),
                marker=style.marker(at),
                linestyle=style.dash(batches.index(aggregate.column(study, one))),
                markevery=max(1, len(curve) // _MARKERS_PER_LINE),
            )
        ax.set(xlabel=labels[0], ylabel=labels[1])
        ax.set_xlim(left=0)
        if labels[0] == "epoch":
            ax.xaxis.get_major_locator().set_params(integer=True)
    _same_range([(panel, ax) for (panel, _, _), ax in zip(parts, axes)])
    handles = [style.line(look.colour(at), label, style.marker(at)) for at, label in enumerate(names)]
    style.legend(figure, handles + _dashes(look, study, batches))
    return figure


def scaling(look: Look, study: Study, panels: Sequence[Panel]) -> Any:
    """Images per second against workers, one line for every batch size, and what would be ideal.

    A line joins the fastest configuration of every number of workers; the others are points of their own.
    """
    keys = list(dict.fromkeys(_line(study, one) for panel in panels for one in panel.configurations))
    keys.sort()
    figure, axes = style.panels([panel.title for panel in panels], 3, 3.4, 3.2)
    for panel, ax in zip(panels, axes):
        for index, key in enumerate(keys):
            alike = [one for one in panel.configurations if _line(study, one) == key]
            _speeds(look, ax, alike, index)
        ticks: dict[int, list[str]] = {}
        for one in panel.configurations:
            names = ticks.setdefault(one.devices, [])
            names += [one.topology] if one.topology not in names else []
        if max(ticks) > _MOST_LINEAR * min(ticks):
            ax.set_xscale("log", base=2)
            ax.set_yscale("log", base=2)
            ax.yaxis.set_major_formatter("{x:g}")
        else:
            ax.set_xlim(0, max(ticks) * 1.08)
            ax.set_ylim(bottom=0)
        ax.set_xticks(list(ticks), ["\n".join([str(count), *names]) for count, names in ticks.items()])
        word = strategies.unit(panel.configurations)
        ax.set(xlabel=f"{word} (nodes x workers per node)", ylabel="images per second")
    handles = [
        style.line(look.colour(index), f"{_batch_word(study)} {' '.join([str(batch), *others])}", style.marker(index))
        for index, (batch, others) in enumerate(keys)
    ]
    style.legend(figure, [*handles, style.line(look.text, "ideal: n times the workers, n times the speed", "", ":")])
    return figure


def _speeds(look: Look, ax: Any, alike: Sequence[Configuration], index: int) -> None:
    points = [(one.devices, found.mean) for one in alike if (found := one.statistic(_SPEED)) is not None]
    if not points:
        return
    fastest = {workers: max(speed for count, speed in points if count == workers) for workers, _ in sorted(points)}
    colour = look.colour(index)
    least, most = min(fastest), max(fastest)
    ax.plot([least, most], [fastest[least], fastest[least] * most / least], color=colour, linestyle=":", linewidth=1.2)
    ax.plot(list(fastest), list(fastest.values()), color=colour, linestyle=style.dash(index))
    ax.plot(*zip(*points), color=colour, marker=style.marker(index), linestyle="none")


def _line(study: Study, one: Configuration) -> tuple[int, tuple[str, ...]]:
    return aggregate.column(study, one), tuple(value for _, value in one.others)


def _batches(study: Study, panels: Sequence[Panel]) -> list[int]:
    return sorted({aggregate.column(study, one) for panel in panels for one in panel.configurations})


def _batch_word(study: Study) -> str:
    return "global batch" if study.hold == "global_batch" else "batch per worker"


def _dashes(look: Look, study: Study, batches: Sequence[int]) -> list[Any]:
    return [
        style.line(look.text, f"{_batch_word(study)} {batch}", "", style.dash(index))
        for index, batch in enumerate(batches)
    ]


def _same_range(drawn: Sequence[tuple[Panel, Any]]) -> None:
    """What is drawn of one model in several panels can be compared by its height."""
    ranges: dict[str, list[Any]] = {}
    for panel, ax in drawn:
        ranges.setdefault(panel.title, []).append(ax)
    for group in ranges.values():
        limits = [ax.get_ylim() for ax in group]
        low, high = min(low for low, _ in limits), max(high for _, high in limits)
        room = 0.05 * (high - low)  # a marker on the edge would be cut
        for ax in group:
            ax.set_ylim(low - room, high + room)
