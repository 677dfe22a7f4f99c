"""The charts of a report: which there are data for, and how they become files and parts of a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

from cifar_ray.reporting import aggregate, bars, curves, strategies, strategy_charts, style
from cifar_ray.reporting.aggregate import Measure
from cifar_ray.reporting.contents import Chart, Theme
from cifar_ray.reporting.groups import Panel, having, line_panels, of_unequal_work, over_seeds, panels
from cifar_ray.tracking.study import Study, Trial

_DOTS_PER_INCH = 160
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_TRAINING = aggregate.metric("time/training_s")
_ACCURACY = aggregate.metric("test/accuracy", 100)


def charts(study: Study, paper: str | None) -> list[Chart]:
    """The charts that a study has data for; finished runs alone count, and what was not measured is left out.

    Args:
        study: the runs.
        paper: key of a published study that the report compares with. Its times and accuracies stand in the
            report's tables: they come from other hardware and are not drawn beside these.
    """
    several = strategies.compared(aggregate.configurations(study))
    first = strategy_charts.charts(study) if several else [_training_time(study), _accuracy(study), _scaling(study)]
    found = [
        *first,
        _accuracy_by_time(study),
        _losses(study, fewest=2 if several else 1),
        _where_time_went(study),
        _confusion(study),
    ]
    return [chart for chart in found if chart is not None]


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write ``KEY.png`` (160 dots per inch) and ``KEY.svg``, both on white, with the title in the picture.

    Returns:
        The two paths.
    """
    figure = chart.draw("light")
    look = style.LOOKS["light"]
    paths = [folder / f"{chart.key}.png", folder / f"{chart.key}.svg"]
    with style.settings(look):
        figure.suptitle(style.plain(chart.title), fontsize=12)
        figure.savefig(paths[0], dpi=_DOTS_PER_INCH, facecolor=look.page)
        figure.savefig(paths[1], facecolor=look.page, metadata=_NO_METADATA)
    return paths


def svg(chart: Chart, theme: Theme) -> str:
    """The chart as an ``svg`` element for a page of this theme.

    Its ids begin with the chart's key and the theme, so that several can stand in one page.
    """
    figure = chart.draw(theme)
    written = io.StringIO()
    with style.settings(style.LOOKS[theme]):
        figure.savefig(written, format="svg", metadata=_NO_METADATA)
    text = written.getvalue()
    text = text[text.index("<svg") :]  # a page has no place for the XML heading
    # A style element would hold for the whole page; these two properties are inherited instead.
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = text.replace("<svg ", '<svg style="stroke-linejoin: round; stroke-linecap: butt" ', 1)
    # Only within tags: the same characters may stand in a text, where they are no id.
    return re.sub(r"<[^>]+>", lambda tag: _prefixed(tag[0], f"{chart.key}-{theme}-"), text).strip()


def _prefixed(tag: str, prefix: str) -> str:
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", tag)


def _training_time(study: Study) -> Chart | None:
    return _by_batch(
        study,
        _TRAINING,
        "training_time",
        "Training time by topology and batch size",
        "Seconds of training of a whole run, without start-up, evaluation and checkpoints; lower is better.",
        "training time (s)",
    )


def _accuracy(study: Study) -> Chart | None:
    return _by_batch(
        study,
        _ACCURACY,
        "accuracy",
        "Test accuracy by topology and batch size",
        "Share of the test images classified correctly after the last epoch; higher is better.",
        "test accuracy (%)",
    )


def _by_batch(study: Study, measure: Measure, key: str, title: str, caption: str, label: str) -> Chart | None:
    """Bars of one figure, grouped by topology and batch size."""
    found = panels(study, having(measure))
    if not found:
        return None
    caption += over_seeds(aggregate.configurations(study)) + of_unequal_work(found)
    return style.chart(key, title, caption, bars.grouped, study, found, measure, label)


def _scaling(study: Study) -> Chart | None:
    """There is something to see where configurations with different numbers of workers were measured."""
    found = panels(study, having(aggregate.metric("images_per_s")))
    found = [panel for panel in found if len({one.devices for one in panel.configurations}) > 1]
    caption = (
        "Images trained on per second in steady state, all workers together. The dotted line is what the "
        "smallest configuration's speed would come to if every worker added as much."
    )
    title = f"Training speed by number of {strategies.unit([one for panel in found for one in panel.configurations])}"
    return style.chart("scaling", title, caption, curves.scaling, study, found) if found else None


def _accuracy_by_time(study: Study) -> Chart | None:
    found = line_panels(study, lambda one: bool(curves.mean(one, curves.accuracy_by_time)))
    parts = [(panel, panel.title, curves.accuracy_by_time) for panel in found]
    caption = (
        "Test accuracy after every epoch against the seconds of training until then, evaluation and start-up "
        "aside; further up and to the left is better."
    )
    labels = ("training time (s)", "test accuracy (%)")
    title = "Test accuracy against training time"
    return style.chart("accuracy_by_time", title, caption, curves.lines, study, parts, labels, 3) if found else None


def _losses(study: Study, fewest: int) -> Chart | None:
    """The losses of those with so many epochs: of many lines with one point there is nothing to see."""
    parts: list[tuple[Panel, str, Callable[[Trial], curves.Curve]]] = []
    for words, name in (("training loss", "train/epoch_loss"), ("test loss", "test/loss")):
        read = curves.by_epoch(name)
        found = line_panels(study, lambda one, read=read: len(curves.mean(one, read)) >= fewest)  # type: ignore[misc]
        parts += [(panel, f"{panel.title}: {words}", read) for panel in found]
    order = [panel.title for panel in line_panels(study, lambda _: True)]
    parts.sort(key=lambda part: order.index(part[0].title))  # both losses of a model side by side
    caption = (
        "Mean loss over the training images of every epoch, and over the test images after it. A test loss that "
        "rises while the training loss falls is overfitting."
    )
    labels = ("epoch", "cross-entropy loss")
    return style.chart("loss", "Loss by epoch", caption, curves.lines, study, parts, labels, 2) if parts else None


def _where_time_went(study: Study) -> Chart | None:
    found = panels(study, having(_TRAINING))
    caption = "Seconds of one run by phase. A phase that was not measured is left out of its bar."
    caption += of_unequal_work(found)
    title = "Where the time went"
    return style.chart("phases", title, caption, bars.where_time_went, study, found) if found else None


def _confusion(study: Study) -> Chart | None:
    known = [trial for trial in study.trials if trial.finished and trial.confusion and "test/accuracy" in trial.metrics]
    if not known:
        return None
    best = max(known, key=lambda trial: trial.metrics["test/accuracy"])
    caption = (
        f"Test images of {best.dataset} by true and predicted class: {best.model}, {best.name}, the most accurate "
        f"finished run ({100 * best.metrics['test/accuracy']:.2f} %). Those on the diagonal are right."
    )
    return style.chart("confusion", "Confusion matrix of the most accurate run", caption, bars.confusion, best)
