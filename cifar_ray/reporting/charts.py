"""The charts of a report: which there are data for."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from cifar_ray.reporting import aggregate, draw, measures, peers, scaling, style
from cifar_ray.reporting.aggregate import Configuration, Measure
from cifar_ray.reporting.contents import Chart
from cifar_ray.reporting.draw import Line, Panel
from cifar_ray.reporting.measures import ACCURACY, IMAGES_PER_S, ITERATION_TIME, TRAINING_TIME, Figure
from cifar_ray.reporting.names import Names, compared, title_of
from cifar_ray.tracking.study import Study, Trial

Curve = list[tuple[float, float]]
Read = Callable[[Trial], Curve]
_MOST_TOGETHER = 3  # series; with more, each topology has a panel of its own


def charts(study: Study) -> list[Chart]:
    """The charts that a study has data for; finished runs alone count, and what was not measured is left out.

    The two that matter most come first: speed and accuracy.
    """
    every = aggregate.configurations(study)
    names = Names.of(study, every)
    speed = _scaling(study, names) or _training_time(study, names)
    found = [
        speed,
        _grouped(
            study,
            names,
            ACCURACY,
            "accuracy",
            "Test accuracy",
            "Share of the test images classified correctly after the last epoch; higher is better. "
            "The axis shows the range of the figures, not all from 0.",
            dots=True,
        ),
        _training_time(study, names) if speed is None or speed.key != "training_time" else None,
        _grouped(
            study,
            names,
            ITERATION_TIME,
            "iteration",
            "Time per iteration",
            "Mean milliseconds of an optimizer step in steady state; shorter is better.",
        )
        if compared(every)
        else None,
        _accuracy_by_time(study, names),
        _losses(study, names),
        _stacked(
            study,
            names,
            "phases",
            "Where the time went",
            "Seconds of one run by phase. A phase that was not measured is left out of its bar.",
            measures.PHASES,
            "time (s)",
        ),
        _stacked(
            study,
            names,
            "step",
            "Where a step's time goes",
            "Milliseconds of a mean iteration by what it is spent on. Communication is what the backward pass does not "
            "hide; a part that was not measured by itself is in what is not split.",
            (*measures.STEP_PARTS, measures.NOT_SPLIT),
            "time of an iteration (ms)",
        ),
        _confusion(study),
    ]
    return [chart for chart in found if chart is not None]


def panels(study: Study, shown: Callable[[Configuration], bool]) -> list[Panel]:
    """A panel for every model, data set and device with configurations that are ``shown``, from few workers to many."""
    every = aggregate.configurations(study)
    title = title_of(every)
    found: dict[str, list[Configuration]] = {}
    for one in every:
        if one.finished and shown(one):
            found.setdefault(title(one), []).append(one)

    def size(one: Configuration) -> tuple[object, ...]:
        return one.devices, one.nodes, one.topology, aggregate.column(study, one)

    return [Panel(heading, sorted(group, key=size)) for heading, group in found.items()]


def _having(measure: Measure) -> Callable[[Configuration], bool]:
    return lambda one: one.statistic(measure) is not None


def _chart(key: str, title: str, caption: str, paint: Callable[..., Any], *given: Any) -> Chart:
    return Chart(key, title, caption, style.drawn(lambda look: paint(look, *given)))


def _training_time(study: Study, names: Names) -> Chart | None:
    caption = "Seconds of training of a whole run, without start-up, evaluation and checkpoints; lower is better."
    return _grouped(study, names, TRAINING_TIME, "training_time", "Training time", caption)


def _grouped(
    study: Study, names: Names, figure: Figure, key: str, title: str, caption: str, dots: bool = False
) -> Chart | None:
    found = panels(study, _having(figure.measure))
    if not found:
        return None
    caption += _spread(found) + (_unequal(found, figure) if figure.alike == "work" else "")
    return _chart(key, title, caption, draw.grouped, names, found, figure, dots)


def _spread(found: Sequence[Panel]) -> str:
    """What a caption says of several seeds, where a configuration has them."""
    several = any(max(one.counts) > 1 for panel in found for one in panel.configurations if one.finished)
    return " Means over the seeds; error bars and bands show one sample standard deviation." if several else ""


def _unequal(found: Sequence[Panel], figure: Figure) -> str:
    """What a caption says of figures that grow with the work, where that of a panel's runs is not equal."""
    for panel in found:
        if unequal := peers.difference(panel.configurations, figure):
            return f" {unequal[0].upper()}{unequal[1:]}, so these are not figures of equal work."
    return ""


def _stacked(
    study: Study, names: Names, key: str, title: str, caption: str, parts: Sequence[Figure], axis: str
) -> Chart | None:
    found = panels(study, lambda one: any(one.statistic(part.measure) for part in parts[:-1]))
    if not found:
        return None
    named = {re.sub(r" \(\w+\)$", "", part.title).lower(): part for part in parts}
    caption += _unequal(found, TRAINING_TIME) if key == "phases" else ""
    return _chart(key, title, caption, draw.stacked, names, found, named, axis)


def _scaling(study: Study, names: Names) -> Chart | None:
    """There is something to see where configurations with different numbers of workers were measured."""
    found = panels(study, _having(IMAGES_PER_S.measure))
    found = [panel for panel in found if len({one.devices for one in panel.configurations}) > 1]
    if not found:
        return None
    word = scaling.unit([one for panel in found for one in panel.configurations])
    series = list(dict.fromkeys(names.series(one) for panel in found for one in panel.configurations))
    drawn = [(panel, [_speeds(panel, names, name, at) for at, name in enumerate(series)]) for panel in found]
    drawn = [(panel, [line for line in drawn if line.x]) for panel, drawn in drawn]
    caption = (
        "Images trained on per second in steady state, all workers together, the fastest where several topologies "
        "have as many. Dotted: perfect scaling from the smallest configuration."
    )
    title = f"Speed by number of {word}"
    label = f"{word} (nodes x workers per node)"
    return _chart("scaling", title, caption + _spread(found), draw.by_workers, drawn, label)


def _speeds(panel: Panel, names: Names, series: str, at: int) -> Line:
    """The fastest configuration of a series with every number of workers."""
    fastest: dict[int, tuple[float, float]] = {}
    for one in panel.configurations:
        speed = one.statistic(IMAGES_PER_S.measure)
        if names.series(one) == series and speed is not None:
            fastest[one.devices] = max(fastest.get(one.devices, (0.0, 0.0)), (speed.mean, speed.std or 0.0))
    counts = sorted(fastest)
    speeds = [fastest[count][0] for count in counts]
    ideal = [speeds[0] * count / counts[0] for count in counts]
    return Line(series, (at, at), counts, speeds, [fastest[count][1] for count in counts], ideal)


def accuracy_by_time(trial: Trial) -> Curve:
    """Test accuracy in percent after every epoch, at the seconds trained until then; empty without either."""
    spent = aggregate.by_step(trial, "epoch_s")
    epochs = range(1, max(spent, default=0) + 1)
    if not spent or any(epoch not in spent for epoch in epochs):
        return []
    until = dict(zip(epochs, accumulate(spent[epoch] for epoch in epochs)))
    accuracy = aggregate.by_step(trial, "test/accuracy")
    return [(until[epoch], 100 * accuracy[epoch]) for epoch in epochs if epoch in accuracy]


def recorded(name: str) -> Read:
    """A metric by epoch or by step, as it counts; a curve is empty when it was not recorded."""
    return lambda trial: [(float(step), value) for step, value in sorted(aggregate.by_step(trial, name).items())]


def curve(one: Configuration, read: Read) -> tuple[list[float], list[float], list[float]]:
    """The means over the seeds, as far as every seed's curve goes: where, how high, and the standard deviations."""
    curves = [found for trial in one.finished if (found := read(trial))]
    points = list(zip(*curves))
    heights = [[y for _, y in seeds] for seeds in points]
    spread = [statistics.stdev(ys) if len(ys) > 1 else 0.0 for ys in heights]
    return [statistics.fmean(x for x, _ in seeds) for seeds in points], list(map(statistics.fmean, heights)), spread


def _lines(study: Study, names: Names, read: Read, fewest: int) -> list[tuple[str, list[Line]]]:
    """A line for every configuration with so many points: colours by topology, or by series where each has a panel."""
    found = panels(study, lambda one: len(curve(one, read)[0]) >= fewest)
    every = [one for panel in found for one in panel.configurations]
    series = list(dict.fromkeys(map(names.series, every)))
    topologies = list(dict.fromkeys(one.topology for one in every))
    if len(series) > _MOST_TOGETHER:
        return [
            (
                f"{panel.title}, {topology}",
                [
                    Line(names.series(one), (at := series.index(names.series(one)), at), *curve(one, read))
                    for one in panel.configurations
                    if one.topology == topology
                ],
            )
            for panel in found
            for topology in dict.fromkeys(one.topology for one in panel.configurations)
        ]
    return [
        (
            panel.title,
            [
                Line(
                    names.row(one),
                    (topologies.index(one.topology), series.index(names.series(one))),
                    *curve(one, read),
                )
                for one in panel.configurations
            ],
        )
        for panel in found
    ]


def _accuracy_by_time(study: Study, names: Names) -> Chart | None:
    found = _lines(study, names, accuracy_by_time, 2)
    if not found:
        return None
    caption = (
        "Test accuracy after every epoch against the seconds of training until then, evaluation and start-up "
        "aside; further up and to the left is better."
    ) + _spread(panels(study, _having(ACCURACY.measure)))
    labels = ("training time (s)", ACCURACY.title)
    title = "Test accuracy against training time"
    return _chart("accuracy_by_time", title, caption, draw.lines, found, labels, False)


def _losses(study: Study, names: Names) -> Chart | None:
    """The losses of those with several epochs; where none has several, of the steps of the only one."""
    parts = [
        (f"{title}: {words}", drawn)
        for words, name in (("training loss", "train/epoch_loss"), ("test loss", "test/loss"))
        for title, drawn in _lines(study, names, recorded(name), 2)
    ]
    parts.sort(key=lambda part: part[0].rsplit(":", 1)[0])  # both losses of a model side by side
    if not parts:
        return _losses_by_step(study, names)
    caption = (
        "Mean loss over the training images of every epoch, and over the test images after it. A test loss that "
        "rises while the training loss falls is overfitting."
    )
    return _chart("loss", "Loss by epoch", caption, draw.by_epoch, parts)


def _losses_by_step(study: Study, names: Names) -> Chart | None:
    found = _lines(study, names, recorded("train/loss"), 2)
    if not found:
        return None
    caption = "Mean over the ranks of the training loss of single steps, the ones that were logged."
    labels = ("optimizer step", "cross-entropy loss")
    return _chart("loss", "Loss by step", caption, draw.lines, found, labels, True)


def _confusion(study: Study) -> Chart | None:
    known = [trial for trial in study.trials if trial.finished and trial.confusion and "test/accuracy" in trial.metrics]
    if not known:
        return None
    best = max(known, key=lambda trial: trial.metrics["test/accuracy"])
    caption = (
        f"Test images of {best.dataset} by true and predicted class: {best.model}, {best.name}, the most accurate "
        f"finished run ({100 * best.metrics['test/accuracy']:.2f} %). Those on the diagonal are right."
    )
    return _chart("confusion", "Confusion matrix of the most accurate run", caption, draw.confusion, best)
