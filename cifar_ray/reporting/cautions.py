"""What a reader must know before believing a report's figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from cifar_ray.config.limits import PATIENCE
from cifar_ray.reporting import audit, chance, scaling
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.figures import TRAINING_TIME
from cifar_ray.reporting.frame import ORIGIN, Runs
from cifar_ray.reporting.names import shortened
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


def cautions(runs: Runs, price: Price | None = None) -> list[str]:
    """What a reader must know before believing a figure; ``price`` is that of one node, if costs are shown."""
    study, finished = runs.study, [trial for trial in runs.study.trials if trial.finished]
    return [
        *study.cautions,
        *_unfinished(study),
        *_left_out(runs, finished),
        *_smaller(runs, finished),
        *_copied(runs, finished),
        *_unequal(runs),
        *_held_rate(runs),
        *_times(study, finished, price),
        *_mixed(finished),
        *_impossible(runs),
        *_outliers(runs),
        *_single(runs),
    ]


def _of(count: int, every: Sequence[object]) -> str:
    return "All" if count == len(every) else f"{count} of {len(every)}"


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


def _left_out(runs: Runs, finished: list[Run]) -> Iterator[str]:
    learned = runs.task.spec.primary.noun
    shared = sum(trial.gpus_per_worker < 1 and trial.params.get("device") == "cuda" for trial in finished)
    counts = [sum(not trial.timed for trial in finished) - shared, sum(not trial.learned for trial in finished)]
    for count, what, other in zip(counts, (learned, "times"), ("their times are", f"{learned} is")):
        if count:
            yield f"{_of(count, finished)} finished runs were made for their {what} alone: {other} left out."
    if shared:
        those = _of(shared, finished)
        yield f"{those} finished runs shared GPUs: their times are each other's, and are in no speed, scaling or cost."


def _smaller(runs: Runs, finished: list[Run]) -> Iterator[str]:
    """Runs of fewer epochs or test images than others have."""
    if count := sum(trial.tags.get(STOPPED_BY_TAG) == PATIENCE for trial in finished):
        those = _of(count, finished)
        yield f"{those} finished runs ended by --patience before their last epoch: their times are of fewer epochs."
    tested = [trial.params.get("test_images", "None") for trial in finished if trial.learned]
    for images, count in Counter(tested).items():
        if images != "None":
            unit = runs.task.spec.unit
            yield f"{count} of {len(tested)} finished runs were evaluated on {images} test {unit} only."


def _copied(runs: Runs, finished: list[Run]) -> Iterator[str]:
    """Samples that are equal, as the model gets them, in two parts of the data."""
    unit = runs.task.spec.unit
    for part, name, others in (("test", "test", "training or validation"), ("val", "validation", "training")):
        names = f"data.{part}_copies", f"data.{part}_size"
        for (copies, size), count in Counter(tuple(map(trial.params.get, names)) for trial in finished).items():
            if copies not in (None, "0"):
                yield (
                    f"In {count} of {len(finished)} finished runs, {copies} of {size} {name} {unit} are copies of "
                    f"{others} {unit}: their figures may be too good."
                )


def _unequal(runs: Runs) -> Iterator[str]:
    """Runs named one by one, of several models or data sets, that trained on different numbers of images."""
    if runs.study.run_id or runs.study.axes or len({(config.model, config.dataset) for config in runs.finished}) < 2:
        return  # reports compare within a model and data set, and say there how the work differs
    differences = (chance.unequal_work(runs.configurations, figure) for figure in (TRAINING_TIME, runs.task.primary))
    if unequal := next(filter(None, differences), ""):
        learned = runs.task.spec.primary.noun
        yield f"{unequal[0].upper()}{unequal[1:]}, so do not compare their seconds, costs and {learned}."


def _held_rate(runs: Runs) -> list[str]:
    """Learning rates that did not follow the global batch."""
    study, learned = runs.study, runs.task.spec.primary.noun
    short = shortened(study)
    kinds: dict[tuple[str, ...], dict[int, set[str]]] = {}
    for trial in study.trials:
        if trial.finished and trial.learned and trial.params.get("lr_scaling", "none") == "none":
            rates = kinds.setdefault((trial.model, trial.dataset, trial.strategy), {})
            rates.setdefault(trial.global_batch_size, set()).add(trial.params.get("lr", ""))
    warnings = []
    for (model, dataset, _), by_batch in kinds.items():
        for rate in sorted(set.union(*by_batch.values()) - {""}):
            sizes = sorted(size for size, rates in by_batch.items() if rate in rates)
            searched = min(len(by_batch[sizes[0]]), len(by_batch[sizes[-1]])) > 1
            if sizes[-1] >= _HELD * sizes[0] and not searched:
                warnings.append(
                    f"{model} on {dataset}: the learning rate {short.get(('lr', rate), rate)} was the same for global "
                    f"batches of {sizes[0]} to {sizes[-1]}, so {learned} may differ by the rate that suits each. With "
                    "--lr-scaling sqrt or linear, the rate follows the batch."
                )
    return list(dict.fromkeys(warnings))


def _times(study: Sweep, finished: list[Run], price: Price | None) -> Iterator[str]:
    """Times that are not a cluster's, or of runs that trained side by side, or not of the machine with the price."""
    timed = [trial for trial in finished if trial.timed and not trial.changed]
    if count := sum(trial.tags.get("times_are_a_clusters") == "false" for trial in timed):
        share = "All runs" if count == len(timed) else f"{count} of {len(timed)} runs"
        yield f"{share} shared the cores of one machine. Their times say nothing about a cluster."
    at_once = study.metrics.get("sweep/concurrency", 1.0)
    if at_once > 1:
        yield f"Up to {at_once:.0f} runs trained at the same time and may have slowed each other down."
    devices = [trial.params["device"] for trial in finished if "device" in trial.params]
    if price is not None and (others := sum(not price.suits(device) for device in devices)):
        has, used = ("a GPU", "CPUs") if price.gpu else ("no GPU", "GPUs")
        yield (
            f"{price.machine} has {has}, but {others} of {len(finished)} runs were computed on {used}: "
            f"their costs at {price.usd_per_hour:g} USD per hour are not what the runs would cost there."
        )


def _mixed(finished: list[Run]) -> Iterator[str]:
    """Figures side by side in one table that come from different programs or machines."""
    timed = [trial for trial in finished if trial.timed]
    for tag, what in _SIDE_BY_SIDE.items():
        those = timed if tag == HARDWARE_TAG else finished
        values = list(dict.fromkeys(trial.tags[tag] for trial in those if tag in trial.tags))
        if len(values) > 1:
            yield f"Runs of {len(values)} different {what} stand side by side: {'; '.join(values)}."
    if any(trial.tags.get(ORIGIN["commit"], "").endswith("-dirty") for trial in finished):
        yield "Some runs were made by a program whose files differ from its commit (-dirty)."
    moved = [f"{trial.name} ({' and '.join(trial.changed)})" for trial in timed if trial.changed]
    if moved:
        yield f"These runs changed while they trained, so their times are left out: {', '.join(moved)}."


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
    for run in far.head(_MOST_LISTED).itertuples():
        yield (
            f"{run.name} ended at {shown.text(run.value)} test {of.noun}, {figure.difference(run.by, 0)} {side} the "
            f"median of the {run.peers} runs of its configuration: look at its loss curve, and train more seeds."
        )
    if (more := len(far) - _MOST_LISTED) > 0:
        yield f"{more} more runs ended far {side} the median {of.noun} of their configuration."


def _single(runs: Runs) -> Iterator[str]:
    if single := sum(1 in config.counts for config in runs.finished):
        every, verb = len(runs.finished), "was" if single == 1 else "were"
        share = "Every configuration was" if single == every else f"{single} of {every} configurations {verb}"
        yield f"{share} run once (n=1): differences may be chance, and there is no standard deviation."
