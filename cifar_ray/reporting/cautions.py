"""What a reader must know before believing a report's figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from cifar_ray.config.limits import PATIENCE
from cifar_ray.reporting import audit, scaling
from cifar_ray.reporting.frame import ORIGIN, Runs, short_commit
from cifar_ray.reporting.tables import outcome
from cifar_ray.tracking.study import HARDWARE_TAG, STOPPED_BY_TAG, STOPPED_TAG, Run, Sweep

_MOST_LISTED, _NOT_ENDED = 5, ("PENDING", "RUNNING")
_HELD = 4  # factor in the global batch from which a learning rate that stays is a caution
_FAR = 3.5
"""Modified z-score from which Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993), call a value an
outlier: 0.6745 times the distance to the median, over the median absolute deviation."""
_LEAST_SHARE = 0.05  # of the median, or of 100 %: by how much an outlier is worse at the least
_SIDE_BY_SIDE = {
    ORIGIN["commit"]: "commits of the program",
    ORIGIN["machine"]: "machines",
    HARDWARE_TAG: "kinds of hardware",
    "version.torch": "versions of PyTorch",
}


def cautions(runs: Runs) -> list[str]:
    """What a reader must know before believing a figure."""
    finished = [trial for trial in runs.study.trials if trial.finished]
    return [
        *runs.study.cautions,
        *_unfinished(runs.study),
        *_parts(runs, finished),
        *_held_rate(runs),
        *_mixed(runs.study, finished),
        *_impossible(runs),
        *_outliers(runs),
        *_single(runs),
    ]


def _unfinished(study: Sweep) -> Iterator[str]:
    counts = Counter(trial.status for trial in study.trials)
    if counts["PENDING"] or counts["RUNNING"] or (study.run_id and study.status != "FINISHED"):
        of = len(study.trials) - counts["SKIPPED"]
        yield f"Not everything is done: {counts['FINISHED']} of {of} runs are finished."
    bad = [trial for trial in study.trials if not trial.finished and (trial.reason or trial.status not in _NOT_ENDED)]
    bad = [trial for trial in bad if STOPPED_TAG not in trial.tags]  # by its scheduler, as a search's page says
    if bad:
        listed = "; ".join(map(outcome, sorted(bad, key=lambda trial: trial.status)[:_MOST_LISTED]))
        more = f"; and {len(bad) - _MOST_LISTED} more" if len(bad) > _MOST_LISTED else ""
        yield f"{len(bad)} of {len(study.trials)} runs did not finish: {listed}{more}."


def _parts(runs: Runs, finished: list[Run]) -> Iterator[str]:
    """What is true of some of the finished runs."""
    for fact, count in Counter(fact for trial in finished for fact in _facts(trial, runs)).items():
        yield f"{'All' if count == len(finished) else f'{count} of {len(finished)}'} finished runs {fact}."


def _facts(trial: Run, runs: Runs) -> Iterator[str]:
    """What a reader must know of a finished run, as the end of a sentence."""
    learned, unit = runs.task.spec.primary.noun, runs.task.spec.unit
    if trial.gpus_per_worker < 1 and trial.params.get("device") == "cuda":
        yield "shared GPUs: their times are each other's, and are in no speed, scaling or cost"
    elif not trial.timed:
        yield f"were made for their {learned} alone: their times are left out"
    if not trial.learned:
        yield f"were made for their times alone: {learned} is left out"
    elif (images := trial.params.get("test_images", "None")) != "None":
        yield f"were evaluated on {images} test {unit} only"
    if trial.tags.get(STOPPED_BY_TAG) == PATIENCE:
        yield "ended by --patience before their last epoch: their times are of fewer epochs"
    for part, name in (("test", "test"), ("val", "validation")):
        copies, size = (trial.params.get(f"data.{part}_{of}", "0") for of in ("copies", "size"))
        if copies != "0":
            yield f"have copies of training {unit} in the {name} ({copies} of {size}): their figures may be too good"
    if trial.timed and trial.changed:
        yield f"changed their {' and '.join(trial.changed)} while they trained: their times are left out"
    elif trial.timed and trial.tags.get("times_are_a_clusters") == "false":
        yield "shared the cores of one machine: their times say nothing about a cluster"


def _held_rate(runs: Runs) -> Iterator[str]:
    """Learning rates that did not follow the global batch."""
    for (model, dataset), trials in runs.sections.items():
        those = [
            run for run in trials if run.finished and run.learned and run.params.get("lr_scaling") in (None, "none")
        ]
        rates, sizes = {trial.params.get("lr", "") for trial in those}, [trial.global_batch_size for trial in those]
        if len(rates) == 1 and max(sizes) >= _HELD * min(sizes):
            yield (
                f"{model} on {dataset}: the learning rate was {rates.pop()} for global batches of {min(sizes)} to "
                f"{max(sizes)}; it may suit some better than others. --lr-scaling makes it follow the batch."
            )


def _mixed(study: Sweep, finished: list[Run]) -> Iterator[str]:
    """Figures side by side in one table that come from different programs or machines, or from runs at once."""
    at_once = study.metrics.get("sweep/concurrency", 1.0)
    if at_once > 1:
        yield f"Up to {at_once:.0f} runs trained at the same time and may have slowed each other down."
    for tag, what in _SIDE_BY_SIDE.items():
        those = [trial for trial in finished if trial.timed or tag != HARDWARE_TAG]
        values = list(dict.fromkeys(trial.tags[tag] for trial in those if tag in trial.tags))
        if len(values) > 1:
            shown = "; ".join(map(short_commit, values) if tag == ORIGIN["commit"] else values)
            yield f"Runs of {len(values)} different {what} stand side by side: {shown}."
    if any(trial.tags.get(ORIGIN["commit"], "").endswith("-dirty") for trial in finished):
        yield "Some runs were made by a program whose files differ from its commit (-dirty)."


def _impossible(runs: Runs) -> Iterator[str]:
    """Speed-ups of these runs that cannot be right."""
    for config in runs.configurations:
        compared = scaling.ratio(config, runs.configurations)
        if compared is not None and compared.reference.devices == 1:
            for fault in audit.too_fast(compared.speed_up.mean, config.devices, compared.speed_up.std or 0.0):
                yield f"{config.finished[0].name} cannot be right: {fault}."


def outliers(runs: Runs) -> Any:
    """The frame's rows of runs whose primary figure is far worse than the median of ``peers`` runs, and by how much."""
    figure = runs.task.primary
    values = pd.Series(runs.values(figure), dtype=float).where(runs.frame.finished)
    groups = values.groupby(runs.frame.configuration)
    median = groups.transform("median")
    by = median - values if figure.better == "high" else values - median
    deviation = by.abs().groupby(runs.frame.configuration).transform("median")
    least = _LEAST_SHARE * (100.0 if runs.task.spec.primary.percent else median.abs())
    rows = runs.frame.assign(value=values, by=by, peers=groups.transform("count"))
    return rows[(by >= least) & (0.6745 * by > _FAR * deviation)].sort_values("configuration", kind="stable")


def _outliers(runs: Runs) -> Iterator[str]:
    figure, noun = runs.task.primary, runs.task.spec.primary.noun
    side = "below" if figure.better == "high" else "above"
    for run in outliers(runs).itertuples():
        median = f"the median of the {run.peers} runs of its configuration"
        value, by = figure.text(run.value), figure.difference(run.by, 0)
        yield f"{run.name} ended at {value} test {noun}, {by} {side} {median}: look at its loss curve."


def _single(runs: Runs) -> Iterator[str]:
    if single := sum(1 in config.counts for config in runs.finished):
        yield f"{single} of {len(runs.finished)} configurations have one run: differences may be chance."
