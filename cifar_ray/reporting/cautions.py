"""What a reader must know before believing a report's figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from cifar_ray.config.limits import PATIENCE
from cifar_ray.reporting import audit, scaling
from cifar_ray.reporting.frame import ORIGIN, Runs
from cifar_ray.reporting.tables import outcome
from cifar_ray.tracking.study import HARDWARE_TAG, STOPPED_BY_TAG, STOPPED_TAG, Run, Sweep

_MOST_LISTED = 5
_HELD = 4
"""Factor in the global batch from which a learning rate that stays is a caution."""
_FAR = 3.5
"""Modified z-score (0.6745 times the distance to the median, over the median absolute deviation) from which
Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993), call a value an outlier. Unlike a standard deviation,
it holds with a few runs, as the outlier does not widen it; of fewer than three runs none is one."""
_LEAST_SHARE = 0.05
"""By how much an outlier is worse than the median at the least: equal runs would make any other one far. Of a share,
percentage points; of other figures, a share of the median."""
_ONE_RUN = 0.05
"""What chance may add to the speed-up of single runs, as a share of it; of several, their spread says."""
_BAD_ENDS = {
    "FAILED": "failed",
    "KILLED": "{} ended early",
    "STOPPED": "{} stopped by a limit and left out",
    "SKIPPED": "{} skipped",
    "PENDING": "{} deleted or lost",
}
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
    done = f"{counts['FINISHED']} of {len(study.trials) - counts['SKIPPED']} runs are finished"
    if study.run_id and study.status != "FINISHED":
        yield f"The sweep is {study.status}: {done}."
    elif counts["PENDING"] or counts["RUNNING"]:
        yield f"Not everything is done: {done}."
    for status, verb in _BAD_ENDS.items():
        those = [trial for trial in study.trials if trial.status == status and (trial.reason or status != "PENDING")]
        if study.search is not None:  # its page says which ones its scheduler has stopped
            those = [trial for trial in those if STOPPED_TAG not in trial.tags]
        if those:
            be = "was" if len(those) == 1 else "were"
            listed = "; ".join(map(outcome, those[:_MOST_LISTED]))
            more = f"; and {len(those) - _MOST_LISTED} more" if len(those) > _MOST_LISTED else ""
            yield f"{len(those)} of {len(study.trials)} runs {verb.format(be)}: {listed}{more}."


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
    for part, name, others in (("test", "test", "training or validation"), ("val", "validation", "training")):
        if (copies := trial.params.get(f"data.{part}_copies", "0")) != "0":
            size = trial.params.get(f"data.{part}_size")
            yield f"have copies of {others} {unit} in the {name} ({copies} of {size}): their figures may be too good"
    if trial.timed and trial.changed:
        yield f"changed their {' and '.join(trial.changed)} while they trained: their times are left out"
    elif trial.timed and trial.tags.get("times_are_a_clusters") == "false":
        yield "shared the cores of one machine: their times say nothing about a cluster"


def _held_rate(runs: Runs) -> Iterator[str]:
    """Learning rates that did not follow the global batch."""
    for (model, dataset), trials in runs.sections.items():
        those = [trial for trial in trials if trial.finished and trial.learned]
        those = [trial for trial in those if trial.params.get("lr_scaling", "none") == "none"]
        rates, sizes = {trial.params.get("lr", "") for trial in those}, [trial.global_batch_size for trial in those]
        if len(rates) == 1 and max(sizes) >= _HELD * min(sizes):
            yield (
                f"{model} on {dataset}: the learning rate {rates.pop()} was the same for global batches of "
                f"{min(sizes)} to {max(sizes)}, so {runs.task.spec.primary.noun} may differ by the rate that suits "
                "each. With --lr-scaling sqrt or linear, the rate follows the batch."
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
            yield f"Runs of {len(values)} different {what} stand side by side: {'; '.join(values)}."
    if any(trial.tags.get(ORIGIN["commit"], "").endswith("-dirty") for trial in finished):
        yield "Some runs were made by a program whose files differ from its commit (-dirty)."


def _impossible(runs: Runs) -> list[str]:
    """Figures of these runs that cannot be right."""
    shares = [figure for figure in runs.task.spec.figures if figure is runs.task.spec.primary or figure.macro]
    claims = []
    for trial in (trial for trial in runs.study.trials if trial.finished):
        figures = {share.name: [trial.metrics[share.metric]] for share in shares if share.metric in trial.metrics}
        # Of some test images, classes need not have as many each.
        whole = trial.params.get("test_images", "None") == "None"
        claims.append(audit.Claim(trial.name, trial.dataset if whole else "", figures))
    for config in runs.configurations:
        compared = scaling.ratio(config, runs.configurations)
        if compared is not None and compared.reference.devices == 1:
            mean, std, *_ = compared.speed_up
            label = ", ".join(trial.name for trial in config.finished)
            noise = _ONE_RUN * mean if std is None else 2 * std
            claims.append(audit.Claim(label, "", {}, config.strategy, config.devices, mean, noise))
    return [f"{claim.label} cannot be right: {fault}." for claim in claims for fault in audit.faults(claim)]


def outliers(runs: Runs) -> Any:
    """The frame's rows of runs whose primary figure is far worse than the median of ``peers`` runs, and by how much."""
    figure = runs.task.primary
    measured = [figure.known(trial) if trial.finished else None for trial in runs.study.trials]
    values = pd.Series(measured, dtype=float).dropna()
    groups = values.groupby(runs.frame.configuration)
    median = groups.transform("median")
    by = median - values if figure.better == "high" else values - median
    deviation = by.abs().groupby(runs.frame.configuration).transform("median")
    least = _LEAST_SHARE * (100.0 if runs.task.spec.primary.percent else median.abs())
    far = by[(by >= least) & (0.6745 * by > _FAR * deviation)].index
    peers = groups.transform("size")
    rows = runs.frame.loc[far].assign(value=values[far], by=by[far], peers=peers[far])
    return rows.sort_values("configuration", kind="stable")


def _outliers(runs: Runs) -> Iterator[str]:
    far, of, figure = outliers(runs), runs.task.spec.primary, runs.task.primary
    side = "below" if figure.better == "high" else "above"
    shown = replace(figure, digits=1) if of.percent else figure
    for run in far.itertuples():
        yield (
            f"{run.name} ended at {shown.text(run.value)} test {of.noun}, {figure.difference(run.by, 0)} {side} the "
            f"median of the {run.peers} runs of its configuration: look at its loss curve, and train more seeds."
        )


def _single(runs: Runs) -> Iterator[str]:
    if single := sum(1 in config.counts for config in runs.finished):
        every, verb = len(runs.finished), "was" if single == 1 else "were"
        share = "Every configuration was" if single == every else f"{single} of {every} configurations {verb}"
        yield f"{share} run once (n=1): differences may be chance, and there is no standard deviation."
