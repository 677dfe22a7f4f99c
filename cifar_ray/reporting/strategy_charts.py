"""The charts of a study of several strategies: which there are data for."""

from __future__ import annotations

from collections.abc import Callable

from cifar_ray.reporting import aggregate, measures, strategies, strategy_bars, strategy_lines, style
from cifar_ray.reporting.aggregate import Measure
from cifar_ray.reporting.contents import Chart
from cifar_ray.reporting.groups import having, of_unequal_work, over_seeds, panels
from cifar_ray.reporting.measures import ACCURACY, LOSS, SECONDS_PER_ITERATION, TRAINING_TIME, Figure
from cifar_ray.reporting.strategies import Names
from cifar_ray.tracking.study import Study

Best = Callable[..., float]


def charts(study: Study) -> list[Chart]:
    """What a study has data for; finished runs alone count, and what was not measured is left out."""
    called = strategies.names(study, aggregate.configurations(study))
    found = [
        _bars(
            study,
            called,
            SECONDS_PER_ITERATION,
            "s_per_iteration_by_strategy",
            "Seconds per iteration by strategy",
            "Mean seconds of an optimizer step in steady state, a group for every topology; shorter is better."
            + _paces(study),
            "seconds per iteration",
        ),
        _lines(
            study,
            called,
            SECONDS_PER_ITERATION.measure,
            "s_per_iteration_by_{key}",
            "Seconds per iteration by number of {word}",
            "Mean seconds of an optimizer step in steady state, a line for every strategy. Where several topologies "
            "have as many {word}, the line goes through the fastest." + _paces(study),
            "seconds per iteration",
            min,
        ),
        _lines(
            study,
            called,
            measures.IMAGES_PER_S.measure,
            "scaling",
            "Training speed by number of {word}",
            "Images trained on per second in steady state, all workers together, a line for every strategy.",
            "images per second",
            max,
        ),
        _bars(
            study,
            called,
            TRAINING_TIME,
            "training_time",
            "Training time by strategy",
            "Seconds of training of a whole run, without start-up, evaluation and checkpoints; shorter is better.",
            "training time (s)",
        ),
        _by_rank(study, called, LOSS, "test_loss_by_rank", "Test loss", "test loss"),
        _by_rank(study, called, ACCURACY, "test_accuracy_by_rank", "Test accuracy", "test accuracy (%)"),
        _steps(study, called),
    ]
    return [chart for chart in found if chart is not None]


def _bars(study: Study, called: Names, figure: Figure, key: str, title: str, caption: str, label: str) -> Chart | None:
    found = panels(study, having(figure.measure))
    if not found:
        return None
    caption += over_seeds(one for panel in found for one in panel.configurations)
    caption += of_unequal_work(found) if figure.equal_work else ""
    return style.chart(key, title, caption, strategy_bars.by_topology, called, found, figure, label)


def _lines(
    study: Study, called: Names, measure: Measure, key: str, title: str, caption: str, label: str, best: Best
) -> Chart | None:
    """A line for every strategy; ``{word}`` in the words is what grows, such as ``workers``."""
    found = panels(study, having(measure))
    found = [panel for panel in found if len({one.devices for one in panel.configurations}) > 1]
    if not found:
        return None
    word, _ = strategies.counted([one for panel in found for one in panel.configurations])
    key, title, caption = (text.format(word=word, key=word.lower()) for text in (key, title, caption))
    return style.chart(key, title, caption, strategy_lines.by_count, called, found, measure, label, best)


def _by_rank(study: Study, called: Names, figure: Figure, key: str, title: str, label: str) -> Chart | None:
    found = panels(study, having(figure.measure))
    if not found:
        return None
    ranks = range(max(one.world_size for panel in found for one in panel.configurations))
    each = [measures.of_rank(figure, rank).measure for rank in ranks]
    by_rank = any(having(measure)(one) for panel in found for one in panel.configurations for measure in each)
    caption = "After the last epoch, over all test images; a group for every topology." + of_unequal_work(found)
    if by_rank:
        title += " by strategy and rank"
        caption += (
            " A point is a rank's own replica, with its own batch-norm statistics, where the strategy has them, else "
            "the model that all ranks share; the stroke is the run's figure."
        )
        return style.chart(key, title, caption, strategy_bars.by_rank, called, found, figure.measure, each, label)
    title += " by strategy"
    return style.chart(key, title, caption, strategy_bars.by_topology, called, found, figure, label)


def _steps(study: Study, called: Names) -> Chart | None:
    found = panels(study, lambda one: any(having(part.measure)(one) for part in measures.STEP_PARTS))
    caption = (
        "Milliseconds of a mean iteration by what it is spent on. Communication is what the backward pass does not "
        "hide; a part that was not measured by itself is in what is not split."
    )
    if any(strategies.own_paces(panel.configurations) for panel in found):
        caption += " Where asynchronous ranks have a pace each, a bar is only the mean over them of what was measured."
    title = "Where a step's time goes"
    return style.chart("step", title, caption, strategy_bars.steps, called, found) if found else None


def _paces(study: Study) -> str:
    asynchronous = strategies.own_paces(aggregate.configurations(study))
    return " That of asynchronous strategies is by images/s of all ranks, waits included." if asynchronous else ""
