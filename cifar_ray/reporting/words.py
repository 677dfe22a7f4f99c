"""What a study comes to, and what to beware of, in sentences made from its figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from cifar_ray.reporting import aggregate, measures, peers, strategies, strategy_words
from cifar_ray.reporting.aggregate import Configuration, Statistic
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.entries import noise, outcome
from cifar_ray.reporting.measures import ACCURACY, TRAINING_TIME, Figure
from cifar_ray.tracking.study import Study

_MOST_LISTED = 5
_IMAGES_PER_S = replace(measures.IMAGES_PER_S, unit=" images/s")
_Found = tuple[Configuration, Statistic]


def summary(study: Study, among: Sequence[Configuration], price: Price | None) -> list[str]:
    """What was found, model by model: the fastest, the most accurate, the cheapest, and what speed cost.

    Args:
        study: the runs.
        among: the study's configurations, as :func:`aggregate.configurations` has them.
        price: of one node; None leaves costs out.
    """
    kinds = dict.fromkeys((one.model, one.dataset) for one in among)
    sentences = []
    for model, dataset in kinds:
        of_kind = [one for one in among if (one.model, one.dataset) == (model, dataset)]
        devices = list(dict.fromkeys(one.device for one in of_kind if one.finished))
        if not devices:
            sentences.append(f"{model} on {dataset}: no run has finished, so there is nothing to compare yet.")
        for device in devices:  # what one device does faster than another is no matter of the configuration
            title = f"{model} on {dataset}" + (f", {device}" if device and len(devices) > 1 else "")
            of_device = [one for one in of_kind if one.device == device]
            sentences += [f"{title}: {said}" for said in _about(study, of_device, price)]
    return sentences


def _about(study: Study, among: Sequence[Configuration], price: Price | None) -> list[str]:
    unequal = peers.difference(among)
    speed = _IMAGES_PER_S if unequal else TRAINING_TIME
    speeds, accuracies = _figures(among, speed), _figures(among, ACCURACY)
    if not speeds and not accuracies:
        return ["runs have finished, but recorded neither training times nor accuracies."]
    said = []
    if unequal:
        why = "and a difference in accuracy may come from the amount of training"
        said.append(f"{unequal}, so they are ranked by images/s, {why}.")
    fastest = _best(speeds, speed)[0] if speeds else None
    if speeds:
        said.append(_fastest(study, speeds, speed))
    if accuracies:
        top = _top(accuracies, fastest)
        said.append(f"most accurate is {_name(study, top[0])}, with {ACCURACY.text(top[1])} of the test images right.")
    if price is not None:
        cost = measures.cost_of_training(price) if unequal else measures.cost_of_run(price)
        if costs := _figures(among, cost):
            low = _best(costs, cost)
            per = "per 1,000 images" if unequal else "a run"
            said.append(f"cheapest is {_name(study, low[0])}, with {cost.text(low[1])} {per} on {price.machine}.")
    if fastest is not None and len(accuracies) > 1 and not unequal:
        said += _trade(study, fastest, accuracies)
    return said + strategy_words.sentences(study, among)


def _top(accuracies: Sequence[_Found], fastest: Configuration | None) -> _Found:
    """The most accurate; of several that are equal, the fastest where it is one of them."""
    most = max(found[1].mean for found in accuracies)
    equal = [found for found in accuracies if math.isclose(found[1].mean, most, rel_tol=1e-9)]
    return next((found for found in equal if found[0] is fastest), equal[0])


def _best(found: Sequence[_Found], figure: Figure) -> _Found:
    return (max if figure.better == "high" else min)(found, key=lambda one: one[1].mean)


def _figures(among: Sequence[Configuration], figure: Figure) -> list[_Found]:
    return [(one, found) for one in among if (found := one.statistic(figure.measure)) is not None]


def _name(study: Study, one: Configuration) -> str:
    if study.hold == "global_batch":
        return f"{one.row} with global batch {one.global_batch_size}"
    return f"{one.row} with batch {one.batch_size} per worker (global batch {one.global_batch_size})"


def _fastest(study: Study, speeds: Sequence[_Found], figure: Figure) -> str:
    low, high = (pick(speeds, key=lambda found: found[1].mean) for pick in (min, max))
    best, worst = (high, low) if figure.better == "high" else (low, high)
    sentence = f"fastest is {_name(study, best[0])}, with {figure.text(best[1])}"
    sentence += " of training" if figure is TRAINING_TIME else ""
    if len(speeds) == 1 or low[1].mean <= 0:
        return f"{sentence}."

    def times(other: _Found) -> str:
        slow, fast = sorted((other[1].mean, best[1].mean))
        return f"{fast / slow:.2f} times as fast as"

    sentence += f", {times(worst)} the slowest, {_name(study, worst[0])}"
    place = aggregate.column(study, best[0])
    alone = [
        found
        for found in speeds
        if found[0].devices == 1
        and aggregate.column(study, found[0]) == place
        and found[0].kind == best[0].kind
        and strategies.may_be_base(found[0], best[0])
    ]
    alone.sort(key=lambda found: found[0].others != best[0].others)
    if alone and alone[0][0] not in (best[0], worst[0]):
        of = strategies.strategy(alone[0][0]) if strategies.compared([one for one, _ in speeds]) else ""
        sentence += f", and {times(alone[0])} 1x1"
        sentence += f"{f' of {of}' if of else ''} with the same batch"
    return f"{sentence}."


def _trade(study: Study, fastest: Configuration, accuracies: Sequence[_Found]) -> list[str]:
    """What the fastest configuration gave up in accuracy, and whether that can be told from noise."""
    top = _top(accuracies, fastest)
    own = next((found for found in accuracies if found[0] is fastest), None)
    if own is None:
        return []
    if top[0] is fastest:
        return ["the fastest is also the most accurate: its speed cost no accuracy."]
    lost = top[1].mean - own[1].mean
    figures = f"{ACCURACY.text(own[1])} against {ACCURACY.text(top[1])} of {_name(study, top[0])}"
    return [
        f"for its speed the fastest gives up {lost:.2f} percentage points of accuracy ({figures}); "
        f"{noise(own[1], top[1], ACCURACY)}.",
        _batches(fastest, top[0]),
    ]


def _batches(fastest: Configuration, top: Configuration) -> str:
    low, high = top.global_batch_size, fastest.global_batch_size
    if low == high:
        return f"the global batch of both is the same, {high}."
    settings = {key: _shared(key, (fastest, top)) for key in ("lr", "lr_scaling")}
    rate = ", ".join(f"{key} {value}" for key, value in settings.items() if value)
    rule = f" ({rate} for both)" if rate else ""
    return f"the global batch is {high} images for the fastest and {low} for the most accurate{rule}."


def _shared(key: str, among: Sequence[Configuration]) -> str:
    values = {trial.params.get(key, "") for one in among for trial in one.finished}
    return values.pop() if len(values) == 1 else ""


def warnings(study: Study) -> list[str]:
    """What a reader must know before believing a figure."""
    return [
        *study.cautions,
        *_unfinished(study),
        *_not_a_clusters(study),
        *_side_by_side(study),
        *_mixed(study),
        *_outliers(study),
        *_single(study),
    ]


def _unfinished(study: Study) -> list[str]:
    counts = Counter(trial.status for trial in study.trials)
    done, asked = counts["FINISHED"], len(study.trials) - counts["SKIPPED"]
    said = []
    if study.run_id and study.status != "FINISHED":
        state = "still runs" if study.status == "RUNNING" else f"has ended as {study.status}"
        said.append(f"The sweep {state}: {done} of {asked} runs are finished.")
    elif counts["PENDING"] or counts["RUNNING"]:
        said.append(f"Not everything is done: {done} of {asked} runs are finished.")
    for status, verb in (("FAILED", "failed"), ("KILLED", "were ended early"), ("SKIPPED", "were skipped")):
        those = [trial for trial in study.trials if trial.status == status]
        if those:
            listed = "; ".join(outcome(trial) for trial in those[:_MOST_LISTED])
            more = f"; and {len(those) - _MOST_LISTED} more" if len(those) > _MOST_LISTED else ""
            said.append(f"{len(those)} of {len(study.trials)} runs {verb}: {listed}{more}.")
    return said


def _not_a_clusters(study: Study) -> list[str]:
    those = [trial for trial in study.trials if trial.finished and trial.tags.get("times_are_a_clusters") == "false"]
    if not those:
        return []
    finished = sum(trial.finished for trial in study.trials)
    share = "All times" if len(those) == finished else f"Times of {len(those)} of {finished} finished runs"
    return [
        f"{share} are not a cluster's: nodes or CPUs were only counted on one machine, "
        "so workers shared what they would each have had."
    ]


def _side_by_side(study: Study) -> list[str]:
    at_once = study.metrics.get("sweep/concurrency", 1.0)
    if at_once <= 1:
        return []
    return [f"Up to {at_once:.0f} runs went on at the same time and may have slowed each other down."]


def _mixed(study: Study) -> list[str]:
    """Figures side by side in one table that come from different programs or machines."""
    said = []
    finished = [trial for trial in study.trials if trial.finished]
    for tag, what in (
        ("mlflow.source.git.commit", "commits of the program"),
        ("cifar_ray.machine", "machines"),
        ("cifar_ray.hardware", "kinds of hardware"),
        ("version.torch", "versions of PyTorch"),
    ):
        values = list(dict.fromkeys(trial.tags[tag] for trial in finished if tag in trial.tags))
        if len(values) > 1:
            said.append(f"Runs of {len(values)} different {what} stand side by side: {'; '.join(values)}.")
    if any(trial.tags.get("mlflow.source.git.commit", "").endswith("-dirty") for trial in finished):
        said.append("Some runs were made by a program whose files differ from its commit (-dirty).")
    moved = [trial.name for trial in finished if "cifar_ray.earlier.topology" in trial.tags]
    if moved:
        said.append(f"Continued on another topology than they began with, so their times mix two: {', '.join(moved)}.")
    return said


def _outliers(study: Study) -> list[str]:
    found = peers.outliers(study.trials)
    said = [
        f"{one.trial.name} ended at {one.accuracy:.1f} % test accuracy, {one.below:.0f} points below the median of the "
        f"{one.peers} runs of {one.trial.model} on {one.trial.dataset} that trained as much: look at its "
        "settings and its loss curve, and train more seeds."
        for one in found[:_MOST_LISTED]
    ]
    if (more := len(found) - _MOST_LISTED) > 0:
        said.append(f"{more} more runs ended at an accuracy far below the median of theirs.")
    return said


def _single(study: Study) -> list[str]:
    among = [one for one in aggregate.configurations(study) if one.finished]
    single = sum(len(one.finished) == 1 for one in among)
    if not single:
        return []
    share = "Every configuration was" if single == len(among) else f"{single} of {len(among)} configurations were"
    return [f"{share} run once (n=1): small differences may be chance, and there is no standard deviation."]
