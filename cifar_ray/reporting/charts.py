"""The charts of a report: which there are data for."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from PIL import Image

from cifar_ray import tasks
from cifar_ray.reporting import draw, figures, scaling, task
from cifar_ray.reporting.contents import Chart, Draw
from cifar_ray.reporting.draw import Line, Look
from cifar_ray.reporting.figures import NOT_SPLIT, PARTS, PHASE_TIMES, TRAINING_TIME, Figure, Statistic
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.reporting.names import Names, titled
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.tracking import drawing
from cifar_ray.tracking.drawing import plain
from cifar_ray.tracking.study import Run

_T = TypeVar("_T")
Panel = Mapping[Configuration, _T]
"""Configurations from few workers to many, and what is drawn of each."""

_MOST_TOGETHER = 3  # series; with more, each topology has a panel of its own
_COLUMNS, _WIDTH, _WORDS, _LETTERS = 8, 1.25, 0.55, 16  # images beside each other; inches of one, of its words
_SEEDS = "Means over the seeds, with one standard deviation."


@dataclass(frozen=True, eq=False)
class View:
    """A study as all its charts show it: a series has one colour in them."""

    runs: Runs

    @cached_property
    def names(self) -> Names:
        return Names(self.runs.configurations)

    @cached_property
    def finished(self) -> list[Configuration]:
        return sorted(self.runs.finished, key=lambda config: config.size)

    @cached_property
    def series(self) -> list[str]:
        """Names of the series, in the order of their colours."""
        return list(dict.fromkeys(map(self.names.series, self.finished)))

    def colour(self, config: Configuration) -> int:
        """The number of its series, and so of its colour."""
        return self.series.index(self.names.series(config))

    def panels(self, read: Callable[[Configuration], _T | None]) -> dict[str, Panel[_T]]:
        """A panel for every model, data set and device, with finished configurations and what is ``read`` of each."""
        values = {config: value for config in self.finished if (value := read(config))}
        groups = titled(self.runs.configurations, values.get)
        return {
            title: {config: values[config] for config in values if config in group} for title, group in groups.items()
        }


def charts(runs: Runs) -> list[Chart]:
    """The charts that a study has data for; finished runs alone count, and what was not measured is left out.

    The two that matter most come first: speed and the primary figure.
    """
    view, of, primary = View(runs), runs.task.spec.primary, runs.task.primary
    epoch = "chosen" if any(CHOSEN_EPOCH in trial.metrics for trial in runs.study.trials) else "last"
    better = "higher" if of.better == "max" else "lower"
    learned = f"On the test {runs.task.spec.unit} after the {epoch} epoch; {better} is better."
    speed, time = _scaling(view), _bars(view, TRAINING_TIME, "training_time", "Training time", "Lower is better.")
    phases = "Seconds of one run by phase, of those that were measured."
    step = "Of a mean iteration; communication is what the backward pass does not hide."
    shown = [
        speed or time,
        _bars(view, primary, primary.key.removesuffix("_percent"), f"Test {of.noun}", learned),
        time if speed else None,
        _by_time(view),
        _losses(view),
        _stacked(view, PHASE_TIMES, "phases", "Where the time went", "time (s)", phases),
        _stacked(view, (*PARTS, NOT_SPLIT), "step", "Where a step's time goes", "time of an iteration (ms)", step),
        confusion(runs),
        _mistakes(runs),
    ]
    return [chart for chart in shown if chart is not None]


def _bars(view: View, figure: Figure, key: str, title: str, caption: str) -> Chart | None:
    """A figure of every configuration, in groups by topology.

    Bars begin at 0. Figures of what was learned are dots, whose axis shows their range, the same in every panel.
    """
    shown = view.panels(lambda config: config.statistic(figure))
    if not shown:
        return None
    dots = figure.of is not None
    colours = sorted({view.colour(config) for panel in shown.values() for config in panel})
    step = 0.8 / len(colours)
    groups = max(len({config.topology for config in panel}) for panel in shown.values())
    width = max(3.4, 0.25 * groups * len(colours))  # inches

    def paint(look: Look, axes: Any, panel: Panel[Statistic]) -> None:
        places = list(dict.fromkeys(config.topology for config in panel))
        for config, (mean, std, *_) in panel.items():
            colour = view.colour(config)
            x = places.index(config.topology) + (colours.index(colour) - (len(colours) - 1) / 2) * step
            name = plain(view.series[colour])
            axes.errorbar(x, mean, std, fmt="none", ecolor=look.text, elinewidth=1.1)
            if dots:
                axes.plot(x, mean, label=name, **look.line(colour, colour) | {"linestyle": "none"})
            else:
                axes.bar(x, mean, min(step, 0.5) * 0.94, label=name, **look.bar(colour))
        draw.name_places(axes, places, width)
        axes.set(xlabel="nodes x workers per node", ylabel=figure.title)
        axes.margins(y=0.14)
        if not dots:
            axes.set_ylim(bottom=0)

    return Chart(key, title, f"{caption} {_SEEDS}", draw.panels(shown, paint, width, share=dots))


def _stacked(view: View, parts: Sequence[Figure], key: str, title: str, axis: str, caption: str) -> Chart | None:
    """A lying bar for every configuration, stacked from the parts of a time, the last of which is a rest."""
    shown = view.panels(lambda config: any(config.statistic(part) for part in parts[:-1]))
    colours = list(dict.fromkeys(map(_part, (*PHASE_TIMES[:-1], *PARTS))))  # of one word one, in both charts

    def paint(look: Look, axes: Any, panel: Panel[bool]) -> None:
        ends = [0.0] * len(panel)
        for part in parts:
            fill = look.part(colours.index(_part(part)) if part is not parts[-1] else -1)
            for at, config in enumerate(panel):
                if (statistic := config.statistic(part)) is not None:
                    axes.barh(at, statistic.mean, 0.7, ends[at], label=_part(part), **fill)
                    ends[at] += statistic.mean
        for at, end in enumerate(ends):
            axes.annotate(parts[0].text(end), (end, at), (4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_yticks(range(len(panel)), [plain(view.names.row(config)) for config in panel])
        axes.set_ylim(len(panel) - 0.4, -0.6)  # the first at the top
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x")
        axes.set_xlabel(axis)

    height = 0.3 * max(map(len, shown.values()), default=0) + 1.0  # inches
    return Chart(key, title, caption, draw.panels(shown, paint, 9.5, height=height)) if shown else None


def _part(figure: Figure) -> str:
    """What a part of a time is called: ``start-up``."""
    return figure.title.partition(" (")[0].lower()


def _scaling(view: View) -> Chart | None:
    """Speed by number of workers, where several were measured; of topologies with as many workers, the fastest."""
    throughput = view.runs.task.throughput
    shown = view.panels(lambda config: config.statistic(throughput))
    shown = {title: panel for title, panel in shown.items() if len({config.devices for config in panel}) > 1}
    word = scaling.unit([config for panel in shown.values() for config in panel])

    def paint(look: Look, axes: Any, panel: Panel[Statistic]) -> None:
        rows = [(c.devices, c.topology, view.colour(c), speed.mean, speed.std or 0.0) for c, speed in panel.items()]
        table = pd.DataFrame(rows, columns=["workers", "topology", "colour", "mean", "std"])
        fastest = table.sort_values("mean").drop_duplicates(["colour", "workers"], keep="last").sort_values("workers")
        for colour, speeds in fastest.groupby("colour"):
            line = Line(view.series[colour], colour, colour, speeds.workers, speeds["mean"], speeds["std"])
            line.paint(look, axes)
            ideal = speeds["mean"].iloc[0] * speeds.workers / speeds.workers.iloc[0]
            axes.plot(speeds.workers, ideal, color=look.text, linestyle=":", linewidth=1.2)
        ticks = table.groupby("workers").topology.unique()
        axes.set_xlim(0, max(ticks.index) * 1.08)
        axes.set_ylim(bottom=0)
        axes.set_xticks(ticks.index, ["\n".join([f"{count}", *names]) for count, names in ticks.items()])
        axes.set(xlabel=f"{word} (nodes x workers per node)", ylabel=throughput.title)

    caption = f"Of all {word} together, in steady state. Dotted: perfect scaling from the fewest. {_SEEDS}"
    return Chart("scaling", f"Speed by number of {word}", caption, draw.panels(shown, paint)) if shown else None


def _lines(view: View, read: Callable[[Run], Mapping[Any, float]]) -> dict[str, list[Line]]:
    """By the titles of panels, a line for every curve that is ``read`` and has two points: means over the seeds.

    Where there are many series, each topology has a panel of its own; else topologies differ in the lines' shapes.
    """

    def curve(config: Configuration) -> tuple[Any, ...] | None:
        # where, how high, and the standard deviations, as far as every seed's curve goes
        seeds = [list(points.items()) for trial in config.finished if (points := read(trial))]
        length = min(map(len, seeds), default=0)
        if length < 2:
            return None
        table = np.array([points[:length] for points in seeds])  # by run, point, and x or y
        return (*table.mean(axis=0).T, table[:, :, 1].std(axis=0, ddof=1) if len(seeds) > 1 else ())

    apart = len(view.series) > _MOST_TOGETHER
    topologies = list(dict.fromkeys(config.topology for config in view.finished))
    lines: dict[str, list[Line]] = {}
    for title, panel in view.panels(curve).items():
        for config, points in panel.items():
            name, label, colour = title, view.names.row(config), view.colour(config)
            shape = topologies.index(config.topology)
            if apart:
                name, label, shape = f"{title}, {config.topology}", view.series[colour], colour
            lines.setdefault(name, []).append(Line(label, colour, shape, *points))
    return lines


def _line_panels(shown: Mapping[str, Sequence[Line]], over: str, title: str, *, is_loss: bool) -> Draw:
    """Panels of lines; those of losses have one vertical axis, and both of a model stand side by side."""
    values = [y for lines in shown.values() for line in lines for y in line.y]

    def paint(look: Look, axes: Any, lines: Sequence[Line]) -> None:
        for line in lines:
            line.paint(look, axes)
        axes.set(xlabel=over, ylabel=title)
        axes.xaxis.get_major_locator().set_params(integer=is_loss)
        if is_loss:
            draw.unflatten(axes, values)

    return draw.panels(shown, paint, 4.0 if is_loss else 3.4, share=is_loss)


def _by_time(view: View) -> Chart | None:
    """The primary figure after every epoch, at the seconds trained until then."""
    of, primary, measured = view.runs.task.spec.primary, view.runs.task.primary, view.runs.measured_on.capitalize()
    shown = _lines(view, _timed)
    key, title = f"{primary.key.removesuffix('_percent')}_by_time", f"{measured} {of.noun} against training time"
    caption = f"After every epoch, by the seconds of training until then. {_SEEDS}"
    drawn = _line_panels(shown, "training time (s)", primary.title, is_loss=False)
    return Chart(key, title, caption, drawn) if shown else None


def _timed(trial: Run) -> Mapping[float, float]:
    spent, values = figures.by_step(trial, "epoch_s"), task.by_epoch(trial)
    if set(spent) != set(range(1, len(spent) + 1)):
        return {}
    scale, until = 100 if trial.task.primary.percent else 1, accumulate(spent[epoch] for epoch in sorted(spent))
    return {seconds: scale * values[epoch] for epoch, seconds in enumerate(until, 1) if epoch in values}


def _losses(view: View) -> Chart | None:
    """Losses by epoch; where no run has two epochs, by step."""
    unit, loss, measured = view.runs.task.spec.unit, view.runs.task.spec.loss, view.runs.measured_on
    training = _lines(view, lambda trial: figures.by_step(trial, "train/epoch_loss"))
    after = _lines(view, lambda trial: figures.by_step(trial, tasks.LOSS.on(trial.measured_on)))
    by_epoch = {
        f"{title}: {of} loss": lines[title]
        for title in {**training, **after}
        for of, lines in (("training", training), (measured, after))
        if title in lines
    }
    if by_epoch:
        caption = f"Means over the training {unit} of every epoch, and over the {measured} {unit} after it."
        return Chart("loss", "Loss by epoch", caption, _line_panels(by_epoch, "epoch", loss, is_loss=True))
    by_step = _lines(view, lambda trial: figures.by_step(trial, "train/loss"))
    caption = "Training loss of the steps that were logged, the mean over the ranks."
    drawn = _line_panels(by_step, "optimizer step", loss, is_loss=True)
    return Chart("loss", "Loss by step", caption, drawn) if by_step else None


def confusion(runs: Runs) -> Chart | None:
    """The confusion matrix of the best finished run that has one."""
    if (shown := best(runs)) is None:
        return None
    (run, named), unit = shown, runs.task.spec.confused
    caption = f"Test {unit} of {run.dataset} by true and predicted class: {named}. Those on the diagonal are right."
    matrix = run.confusion or [], run.class_names, unit
    drawn = draw.drawn(lambda look: drawing.matrix(*matrix, look.page, look.full, look.text))
    return Chart("confusion", "Confusion matrix of the best run", caption, drawn)


def _mistakes(runs: Runs) -> Chart | None:
    """The test images that the same run got wrong most surely."""
    if (shown := best(runs)) is None or not (wrong := [one for one in shown[0].mistakes if "png" in one]):
        return None
    run, named = shown

    def paint(_: Look) -> Any:
        rows, columns = -(-len(wrong) // _COLUMNS), min(len(wrong), _COLUMNS)
        page = draw.sheet(_WIDTH * columns, (_WIDTH + _WORDS) * rows)
        for number, record in enumerate(wrong, 1):
            axes = page.add_subplot(rows, columns, number)
            axes.imshow(Image.open(io.BytesIO(base64.b64decode(record["png"]))), interpolation="none")
            axes.set_axis_off()
            words = [record["true"], f"as {record['predicted']}", f"{100 * record['probability']:.2f} %"]
            axes.set_title("\n".join(plain(word[:_LETTERS]) for word in words), fontsize=8, fontweight="normal")
        return page

    caption = (
        f"Test images of {run.dataset} taken for another class with the highest probability: {named}. Above each: its "
        "class, the one it was taken for, and that one's probability."
    )
    return Chart("mistakes", "Images most surely wrong", caption, draw.drawn(paint))


def best(runs: Runs) -> tuple[Run, str] | None:
    """The best finished run that has a confusion matrix, and how it was chosen, in words."""
    trials = [trial for trial in runs.study.trials if trial.finished and trial.confusion]
    of, primary = runs.task.spec.primary, runs.task.primary
    chooser = runs.task.chooser(trials)
    known = [(of.rank(value), trial) for trial in trials if (value := chooser.measure(trial)) is not None]
    if not known:
        return None
    _, run = max(known, key=lambda ranked: ranked[0])
    chosen = " by validation" if chooser is not primary else ", chosen on the test set" * (len(known) > 1)
    return run, f"{run.model}, {run.name}, the best finished run{chosen} ({primary.text(primary.measure(run) or 0.0)})"
