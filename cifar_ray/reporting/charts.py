"""The charts of a report: which there are data for."""

from __future__ import annotations

import base64
import io
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from PIL import Image

from cifar_ray import tasks
from cifar_ray.reporting import chance, draw, figures, scaling, task
from cifar_ray.reporting.contents import Chart
from cifar_ray.reporting.draw import Bar, Line, Look
from cifar_ray.reporting.figures import ITERATION_TIME, TRAINING_TIME, Figure
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.reporting.names import Names, compared, titled
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.tracking.drawing import MOST_CLASSES, plain
from cifar_ray.tracking.study import Run

Curve = list[tuple[float, float]]
Read = Callable[[Run], Curve]
_MOST_TOGETHER = 3  # series; with more, each topology has a panel of its own
_MOST_LINEAR = 8  # with a larger ratio, those with few workers would lie on each other
_MOST_FLATTENING = 4  # ratio of the largest loss to that of later epochs on a linear axis
_WORST_PAIRS = 5
_COLUMNS, _WIDTH, _WORDS, _LETTERS = 8, 1.25, 0.55, 16  # images beside each other; inches of one, of its words


class Panel(NamedTuple):
    """One picture of a chart with several: its title, and what is drawn in it, from few workers to many."""

    title: str
    configurations: Sequence[Configuration]


def charts(runs: Runs) -> list[Chart]:
    """The charts that a study has data for; finished runs alone count, and what was not measured is left out.

    The two that matter most come first: speed and the primary figure.
    """
    names = Names.of(runs.configurations)
    time, speed = _bars(runs, names, TRAINING_TIME, "training_time"), _scaling(runs, names)
    iterations = _bars(runs, names, ITERATION_TIME, "iteration") if compared(runs.configurations) else None
    shown = [
        speed or time,
        _bars(runs, names, runs.task.primary, _LEARNED),
        time if speed else None,
        iterations,
        _by_time(runs, names),
        _losses(runs, names),
        _stacked(runs, names, "phases", figures.PHASE_TIMES, "time (s)"),
        _stacked(runs, names, "step", (*figures.PARTS, figures.NOT_SPLIT), "time of an iteration (ms)"),
        confusion(runs),
        _mistakes(runs),
    ]
    return [chart for chart in shown if chart is not None]


_LEARNED, _BY_TIME = "{name}", "{name}_by_time"
_TEXTS = {
    "training_time": (
        "Training time",
        "Seconds of training of a whole run, without start-up, evaluation and checkpoints; lower is better.",
    ),
    _LEARNED: (
        "Test {of.noun}",
        "{of.title} over the test {unit} after the {epoch} epoch; {higher} is better. The axis shows the "
        "range of the figures, not all from 0.",
    ),
    "iteration": ("Time per iteration", "Mean milliseconds of an optimizer step in steady state; shorter is better."),
    "phases": (
        "Where the time went",
        "Seconds of one run by phase. A phase that was not measured is left out of its bar.",
    ),
    "step": (
        "Where a step's time goes",
        "Milliseconds of a mean iteration by what it is spent on. Communication is what the backward pass does not "
        "hide; a part that was not measured by itself is in what is not split.",
    ),
    _BY_TIME: (
        "{measured} {of.noun} against training time",
        "{measured} {of.noun} after every epoch against the seconds of training until then, evaluation and start-up "
        "aside; further {up} and to the left is better.",
    ),
}


def panels(runs: Runs, shown: Callable[[Configuration], object]) -> list[Panel]:
    """A panel for every model, data set and device with configurations that are ``shown``, from few workers to many."""
    groups = titled(runs.configurations, lambda config: config.finished and shown(config))
    return [Panel(title, sorted(group, key=lambda config: config.size)) for title, group in groups.items()]


def _chart(runs: Runs, key: str, more: str, paint: Callable[..., Any], *args: Any) -> Chart:
    of, unit = runs.task.spec.primary, runs.task.spec.unit
    higher, up = ("higher", "up") if of.better == "max" else ("lower", "down")
    chosen = any(CHOSEN_EPOCH in trial.metrics for trial in runs.study.trials)
    words = {"of": of, "unit": unit, "higher": higher, "up": up}
    words |= {"measured": runs.measured_on.capitalize(), "epoch": "chosen" if chosen else "last"}
    title, caption = (text.format(**words) for text in _TEXTS[key])
    name = key.format(name=runs.task.primary.key.removesuffix("_percent"))
    return Chart(name, title, caption + more, draw.drawn(paint, *args))


def _bars(runs: Runs, names: Names, figure: Figure, key: str) -> Chart | None:
    shown = panels(runs, lambda config: config.statistic(figure))
    if not shown:
        return None
    drawn = {
        panel.title: [
            Bar(config.topology, names.series(config), statistic.mean, statistic.std)
            for config in panel.configurations
            if (statistic := config.statistic(figure)) is not None
        ]
        for panel in shown
    }
    more = _spread(shown) + (_unequal(shown, figure) if figure.alike == "work" else "")
    series = list(dict.fromkeys(bar.series for bars in drawn.values() for bar in bars))
    return _chart(runs, key, more, draw.bars, drawn, series, figure.title, figure.of is not None)


def _spread(shown: Sequence[Panel]) -> str:
    """What a caption says of several seeds, where a configuration has them."""
    several = any(max(config.counts) > 1 for panel in shown for config in panel.configurations)
    return " Means over the seeds; error bars and bands show one sample standard deviation." if several else ""


def _unequal(shown: Sequence[Panel], figure: Figure) -> str:
    """What a caption says of figures that grow with the work, where that of a panel's runs is not equal."""
    unequal = next(filter(None, (chance.unequal_work(panel.configurations, figure) for panel in shown)), "")
    return f" {unequal[0].upper()}{unequal[1:]}, so these are not figures of equal work." if unequal else ""


def _stacked(runs: Runs, names: Names, key: str, parts: Sequence[Figure], axis: str) -> Chart | None:
    shown = panels(runs, lambda config: any(config.statistic(part) for part in parts[:-1]))
    if not shown:
        return None
    named = {re.sub(r" \(\w+\)$", "", part.title).lower(): part for part in parts}
    drawn = {
        panel.title: {
            names.row(config): {
                name: mean.mean for name, part in named.items() if (mean := config.statistic(part)) is not None
            }
            for config in panel.configurations
        }
        for panel in shown
    }
    more = _unequal(shown, TRAINING_TIME) if key == "phases" else ""
    return _chart(runs, key, more, draw.stacked, drawn, list(named), axis)


def _scaling(runs: Runs, names: Names) -> Chart | None:
    """There is something to see where configurations with different numbers of workers were measured."""
    throughput, counts = runs.task.throughput, runs.task.counts
    shown = panels(runs, lambda config: config.statistic(throughput))
    shown = [panel for panel in shown if len({config.devices for config in panel.configurations}) > 1]
    if not shown:
        return None
    every = [config for panel in shown for config in panel.configurations]
    series = list(dict.fromkeys(map(names.series, every)))
    drawn = [(panel, [_speeds(panel, names, name, at) for at, name in enumerate(series)]) for panel in shown]
    drawn = [(panel, [line for line in shown if line.x]) for panel, shown in drawn]
    word = scaling.unit(every)
    caption = (
        f"{counts} trained on per second in steady state, all workers together, the fastest where several topologies "
        f"have as many. Dotted: perfect scaling from the smallest configuration.{_spread(shown)}"
    )
    paint = draw.drawn(_by_workers, drawn, (f"{word} (nodes x workers per node)", throughput.title))
    return Chart("scaling", f"Speed by number of {word}", caption, paint)


def _speeds(panel: Panel, names: Names, series: str, at: int) -> Line:
    """The fastest configuration of a series with every number of workers."""
    fastest: dict[int, tuple[float, float]] = {}
    for config in panel.configurations:
        speed = config.statistic(config.runs.task.throughput)
        if names.series(config) == series and speed is not None:
            fastest[config.devices] = max(fastest.get(config.devices, (0.0, 0.0)), (speed.mean, speed.std or 0.0))
    counts = sorted(fastest)
    speeds = [fastest[count][0] for count in counts]
    ideal = [speeds[0] * count / counts[0] for count in counts]
    return Line(series, at, at, counts, speeds, [fastest[count][1] for count in counts], ideal)


def _by_workers(look: Look, drawn: Sequence[tuple[Panel, Sequence[Line]]], labels: tuple[str, str]) -> Any:
    """Throughput against the number of workers, with what would be ideal."""
    shown = draw.lines(look, [(panel.title, lines) for panel, lines in drawn], labels, share=False)
    for (panel, _), axes in zip(drawn, shown.axes):
        ticks: dict[int, dict[str, None]] = {}
        for config in panel.configurations:
            ticks.setdefault(config.devices, {})[config.topology] = None
        if max(ticks) > _MOST_LINEAR * min(ticks):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_xlim(0, max(ticks) * 1.08)
            axes.set_ylim(bottom=0)
        axes.set_xticks(list(ticks), ["\n".join([str(count), *topologies]) for count, topologies in ticks.items()])
        axes.minorticks_off()
    return shown


def by_time(trial: Run) -> Curve:
    """The primary figure after every epoch, at the seconds trained until then; empty without either."""
    of = trial.task.primary
    spent, values = figures.by_step(trial, "epoch_s"), task.by_epoch(trial)
    scale = 100 if of.percent else 1
    epochs = range(1, max(spent, default=0) + 1)
    if any(epoch not in spent for epoch in epochs):
        return []
    until = accumulate(spent[epoch] for epoch in epochs)
    return [(seconds, scale * values[epoch]) for epoch, seconds in zip(epochs, until) if epoch in values]


def loss_on(subset: tasks.Subset) -> Read:
    """The loss on these images after every epoch, of runs that are measured on them then."""
    read = recorded(tasks.LOSS.on(subset))
    return lambda trial: read(trial) if trial.measured_on == subset else []


def recorded(name: str) -> Read:
    """A metric by epoch or by step, as it counts; a curve is empty when it was not recorded."""
    return lambda trial: [(float(step), value) for step, value in sorted(figures.by_step(trial, name).items())]


def curve(config: Configuration, read: Read) -> tuple[list[float], list[float], list[float]]:
    """The means over the seeds, as far as every seed's curve goes: where, how high, and the standard deviations."""
    points = list(zip(*(points for trial in config.finished if (points := read(trial)))))
    heights = [[y for _, y in seeds] for seeds in points]
    spread = [statistics.stdev(ys) if len(ys) > 1 else 0.0 for ys in heights]
    return [statistics.fmean(x for x, _ in seeds) for seeds in points], list(map(statistics.fmean, heights)), spread


def _lines(runs: Runs, names: Names, read: Read) -> list[tuple[str, list[Line]]]:
    """A line for every curve of two points: colours by topology, or by series where each topology has a panel."""
    shown = panels(runs, lambda config: len(curve(config, read)[0]) > 1)
    every = [config for panel in shown for config in panel.configurations]
    series = list(dict.fromkeys(map(names.series, every)))
    topologies = list(dict.fromkeys(config.topology for config in every))
    apart = len(series) > _MOST_TOGETHER
    lines: dict[str, list[Line]] = {}
    for panel in shown:
        for config in panel.configurations:
            at = series.index(names.series(config))
            label, colour = (series[at], at) if apart else (names.row(config), topologies.index(config.topology))
            title = f"{panel.title}, {config.topology}" if apart else panel.title
            lines.setdefault(title, []).append(Line(label, colour, at, *curve(config, read)))
    return list(lines.items())


def _by_time(runs: Runs, names: Names) -> Chart | None:
    drawn = _lines(runs, names, by_time)
    more = _spread(panels(runs, lambda config: config.statistic(runs.task.primary)))
    labels = ("training time (s)", runs.task.primary.title)
    return _chart(runs, _BY_TIME, more, draw.lines, drawn, labels, False) if drawn else None


def _losses(runs: Runs, names: Names) -> Chart | None:
    """The losses of those with several epochs; where none has several, of the steps of the only one."""
    unit, loss, measured = runs.task.spec.unit, runs.task.spec.loss, runs.measured_on
    losses = {"training loss": recorded("train/epoch_loss")}
    losses |= {f"{name} loss": loss_on(subset) for subset, name in tasks.SUBSETS.items()}
    by_epoch = [
        (f"{title}: {words}", drawn) for words, read in losses.items() for title, drawn in _lines(runs, names, read)
    ]
    by_epoch.sort(key=lambda part: part[0].rsplit(":", 1)[0])  # both losses of a model side by side
    if by_epoch:
        caption = (
            f"Mean loss over the training {unit} of every epoch, and over the {measured} {unit} after it. A {measured} "
            "loss that rises while the training loss falls is overfitting."
        )
        return Chart("loss", "Loss by epoch", caption, draw.drawn(_by_epoch, by_epoch, ("epoch", loss)))
    by_step = _lines(runs, names, recorded("train/loss"))
    caption = "Mean over the ranks of the training loss of single steps, the ones that were logged."
    paint = draw.drawn(draw.lines, by_step, ("optimizer step", loss), True)
    return Chart("loss", "Loss by step", caption, paint) if by_step else None


def _by_epoch(look: Look, drawn: Sequence[tuple[str, Sequence[Line]]], labels: tuple[str, str]) -> Any:
    """Losses after every epoch; on a logarithmic axis where a first one would flatten all others."""
    shown = draw.lines(look, drawn, labels, share=True)
    every = [line.y for _, lines in drawn for line in lines]
    later = [y for heights in every for y in heights[1:]]
    least, most = min(map(min, every)), max(map(max, every))
    for axes in shown.axes:
        axes.xaxis.get_major_locator().set_params(integer=True)
        if least > 0 and most > _MOST_FLATTENING * max(later):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
    return shown


def confusion(runs: Runs) -> Chart | None:
    """The confusion matrix of the best finished run that has one."""
    if (shown := best(runs)) is None:
        return None
    run, named = shown
    unit = runs.task.spec.confused
    caption = (
        f"Test {unit} of {run.dataset} by true and predicted class: {named}. Those on the diagonal are right."
        f"{_confused(run)}"
    )
    paint = draw.drawn(draw.matrix, run.confusion, run.class_names, unit)
    return Chart("confusion", "Confusion matrix of the best run", caption, paint)


def _mistakes(runs: Runs) -> Chart | None:
    """The test images that the same run got wrong most surely."""
    if (shown := best(runs)) is None or not (wrong := [one for one in shown[0].mistakes if "png" in one]):
        return None
    run, named = shown
    caption = (
        f"Test images of {run.dataset} that were taken for another class with the highest probability: {named}. Above "
        "each stand its class, the one that it was taken for, and that one's probability."
    )
    return Chart("mistakes", "Images most surely wrong", caption, draw.drawn(_pictures, wrong))


def _pictures(_: Look, shown: Sequence[Mapping[str, Any]]) -> Any:
    """The images in rows that are about equally full, each with its true class above what it was taken for."""
    rows = -(-len(shown) // _COLUMNS)
    columns = -(-len(shown) // rows)
    figure = draw.sheet(_WIDTH * columns, (_WIDTH + _WORDS) * rows)
    for number, record in enumerate(shown, 1):
        axes = figure.add_subplot(rows, columns, number)
        axes.imshow(Image.open(io.BytesIO(base64.b64decode(record["png"]))), interpolation="none")
        axes.set_axis_off()
        words = [record["true"], f"as {record['predicted']}", f"{100 * record['probability']:.2f} %"]
        short = [word if len(word) <= _LETTERS else f"{word[: _LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}" for word in words]
        axes.set_title("\n".join(map(plain, short)), fontsize=8, fontweight="normal")
    return figure


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
    figure = primary.text(primary.measure(run) or 0.0)
    return run, f"{run.model}, {run.name}, the best finished run{chosen} ({figure})"


def _confused(trial: Run) -> str:
    """The classes most often taken for one another, where there are too many for numbers in the picture."""
    counts, names = trial.confusion or [], trial.class_names
    if len(counts) <= MOST_CLASSES:
        return ""
    pairs = [(row[other] + counts[other][one], one, other) for one, row in enumerate(counts) for other in range(one)]
    worst = [pair for pair in sorted(pairs, key=lambda pair: -pair[0])[:_WORST_PAIRS] if pair[0]]

    def told(count: int, *classes: int) -> str:
        names_of = [plain(names[label]).strip() if names else str(label) for label in sorted(classes)]
        return f"{' and '.join(names_of)} ({count:,} of {sum(sum(counts[label]) for label in classes):,})"

    return f" Most often taken for one another: {', '.join(told(*pair) for pair in worst)}." if worst else ""
