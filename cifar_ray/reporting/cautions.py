"""What a reader must know before believing a report's figures."""

from __future__ import annotations

from collections import Counter

from cifar_ray.reporting import aggregate, audit, peers, scaling
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.measures import ACCURACY, TRAINING_TIME
from cifar_ray.reporting.names import shortened
from cifar_ray.reporting.tables import outcome
from cifar_ray.tracking.study import HARDWARE_TAG, Study

_MOST_LISTED = 5
_HELD = 4
"""Factor in the global batch from which a learning rate that stays is a caution."""
_ONE_RUN = 0.05
"""What chance may add to the speed-up of single runs, as a share of it; of several, their spread says."""


def cautions(study: Study, price: Price | None = None) -> list[str]:
    """What a reader must know before believing a figure.

    Args:
        study: the runs.
        price: of one node, if costs are shown.
    """
    return [
        *study.cautions,
        *_unfinished(study),
        *_left_out(study),
        *_of_few_images(study),
        *_of_another_machine(study, price),
        *_unequal(study),
        *_held_rate(study),
        *_not_a_clusters(study),
        *_side_by_side(study),
        *_mixed(study),
        *_impossible(study),
        *_outliers(study),
        *_single(study),
    ]


def _unfinished(study: Study) -> list[str]:
    counts = Counter(trial.status for trial in study.trials)
    done, asked = counts["FINISHED"], len(study.trials) - counts["SKIPPED"]
    said = []
    if study.run_id and study.status != "FINISHED":
        said.append(f"The sweep {study.state}: {done} of {asked} runs are finished.")
    elif counts["PENDING"] or counts["RUNNING"]:
        said.append(f"Not everything is done: {done} of {asked} runs are finished.")
    for status, verb in (
        ("FAILED", "failed"), ("KILLED", "{} ended early"), ("SKIPPED", "{} skipped"), ("PENDING", "{} deleted or lost")
    ):  # fmt: skip
        those = [trial for trial in study.trials if trial.status == status and (trial.reason or status != "PENDING")]
        if those:
            be = "was" if len(those) == 1 else "were"
            listed = "; ".join(outcome(trial) for trial in those[:_MOST_LISTED])
            more = f"; and {len(those) - _MOST_LISTED} more" if len(those) > _MOST_LISTED else ""
            said.append(f"{len(those)} of {len(study.trials)} runs {verb.format(be)}: {listed}{more}.")
    return said


def _left_out(study: Study) -> list[str]:
    """Runs of which some figures are not shown."""
    finished = [trial for trial in study.trials if trial.finished]
    said = []
    for measure, what, other in (("accuracy", "accuracies", "their times are"), ("times", "times", "accuracies are")):
        if count := sum(trial.measure == measure for trial in finished):
            those = "All" if count == len(finished) else f"{count} of {len(finished)}"
            said.append(f"{those} finished runs were made for their {what} alone: {other} left out.")
    return said


def _of_few_images(study: Study) -> list[str]:
    those = [trial for trial in study.trials if trial.finished and trial.measure != "times"]
    counted = Counter(trial.params.get("test_images", "None") for trial in those)
    return [
        f"{runs} of {len(those)} finished runs were evaluated on {images} test images only."
        for images, runs in counted.items()
        if images != "None"
    ]


def _of_another_machine(study: Study, price: Price | None) -> list[str]:
    """A price of a GPU machine on seconds of CPUs, or the other way round."""
    if price is None:
        return []
    finished = [trial for trial in study.trials if trial.finished]
    others = sum(trial.params.get("device") not in (price.device, None) for trial in finished)
    if not others:
        return []
    has, used = ("a GPU", "CPUs") if price.gpu else ("no GPU", "GPUs")
    return [
        f"{price.machine} has {has}, but {others} of {len(finished)} runs were computed on {used}: "
        f"their costs at {price.usd_per_hour:g} USD per hour are not what the runs would cost there."
    ]


def _unequal(study: Study) -> list[str]:
    """Runs named one by one, of several models or data sets, that trained on different numbers of images."""
    among = aggregate.configurations(study)
    if study.run_id or study.axes or len({(one.model, one.dataset) for one in among if one.finished}) < 2:
        return []  # reports compare within a model and data set, and say there how the work differs
    differences = (peers.difference(among, figure) for figure in (TRAINING_TIME, ACCURACY))
    found = next(filter(None, differences), "")
    return [f"{found[0].upper()}{found[1:]}, so do not compare their seconds, costs and accuracies."] if found else []


def _held_rate(study: Study) -> list[str]:
    """Learning rates that did not follow the global batch."""
    short = shortened(study)
    found: dict[tuple[str, ...], dict[int, set[str]]] = {}
    for trial in study.trials:
        if trial.finished and trial.measure != "times" and trial.params.get("lr_scaling", "none") == "none":
            rates = found.setdefault((trial.model, trial.dataset, trial.strategy), {})
            rates.setdefault(trial.global_batch_size, set()).add(trial.params.get("lr", ""))
    said = []
    for (model, dataset, _), by_batch in found.items():
        for rate in sorted(set.union(*by_batch.values()) - {""}):
            sizes = sorted(size for size, rates in by_batch.items() if rate in rates)
            searched = min(len(by_batch[sizes[0]]), len(by_batch[sizes[-1]])) > 1
            if sizes[-1] >= _HELD * sizes[0] and not searched:
                named = short.get(("lr", rate), rate)
                said.append(
                    f"{model} on {dataset}: the learning rate {named} was the same for global batches of {sizes[0]} to "
                    f"{sizes[-1]}, so accuracies may differ by the rate that suits each. With --lr-scaling sqrt or "
                    "linear, the rate follows the batch."
                )
    return list(dict.fromkeys(said))


def _not_a_clusters(study: Study) -> list[str]:
    timed = [trial for trial in study.trials if trial.finished and trial.measure != "accuracy" and not trial.changed]
    those = [trial for trial in timed if trial.tags.get("times_are_a_clusters") == "false"]
    if not those:
        return []
    finished = len(timed)
    share = "All runs" if len(those) == finished else f"{len(those)} of {finished} runs"
    return [f"{share} shared the cores of one machine. Their times say nothing about a cluster."]


def _side_by_side(study: Study) -> list[str]:
    at_once = study.metrics.get("sweep/concurrency", 1.0)
    if at_once <= 1:
        return []
    return [f"Up to {at_once:.0f} runs trained at the same time and may have slowed each other down."]


def _mixed(study: Study) -> list[str]:
    """Figures side by side in one table that come from different programs or machines."""
    said = []
    finished = [trial for trial in study.trials if trial.finished]
    timed = [trial for trial in finished if trial.measure != "accuracy"]
    for tag, what in (
        ("mlflow.source.git.commit", "commits of the program"),
        ("cifar_ray.machine", "machines"),
        (HARDWARE_TAG, "kinds of hardware"),
        ("version.torch", "versions of PyTorch"),
    ):
        those = timed if tag == HARDWARE_TAG else finished
        values = list(dict.fromkeys(trial.tags[tag] for trial in those if tag in trial.tags))
        if len(values) > 1:
            said.append(f"Runs of {len(values)} different {what} stand side by side: {'; '.join(values)}.")
    if any(trial.tags.get("mlflow.source.git.commit", "").endswith("-dirty") for trial in finished):
        said.append("Some runs were made by a program whose files differ from its commit (-dirty).")
    moved = [f"{trial.name} ({' and '.join(trial.changed)})" for trial in timed if trial.changed]
    if moved:
        said.append(f"These runs changed while they trained, so their times are left out: {', '.join(moved)}.")
    return said


def _impossible(study: Study) -> list[str]:
    """What of these runs' own figures cannot be right."""
    names = ("accuracy", "precision", "recall", "f1", "specificity")
    claims = []
    for trial in (trial for trial in study.trials if trial.finished):
        figures = {name: [trial.metrics[f"test/{name}"]] for name in names if f"test/{name}" in trial.metrics}
        # Of some test images, classes need not have as many each.
        whole = trial.params.get("test_images", "None") == "None"
        claims.append(audit.Claim(trial.name, trial.dataset if whole else "", figures))
    among = aggregate.configurations(study)
    for one in among:
        compared = scaling.ratio(study, one, among)
        if compared is not None and compared.reference.devices == 1:
            label = ", ".join(trial.name for trial in one.finished)
            ratio = compared.speed_up
            noise = _ONE_RUN * ratio.mean if ratio.std is None else 2 * ratio.std
            claims.append(audit.Claim(label, "", {}, one.strategy, one.devices, ratio.mean, noise))
    return [f"{claim.label} cannot be right: {fault}." for claim in claims for fault in audit.faults(claim)]


def _outliers(study: Study) -> list[str]:
    found = peers.outliers(aggregate.configurations(study))
    said = [
        f"{one.trial.name} ended at {one.accuracy:.1f} % test accuracy, {one.below:.0f} points below the median of the "
        f"{one.peers} runs of its configuration: look at its loss curve, and train more seeds."
        for one in found[:_MOST_LISTED]
    ]
    if (more := len(found) - _MOST_LISTED) > 0:
        said.append(f"{more} more runs ended far below the median accuracy of their configuration.")
    return said


def _single(study: Study) -> list[str]:
    among = [one for one in aggregate.configurations(study) if one.finished]
    single = sum(1 in one.counts for one in among)
    if not single:
        return []
    verb = "was" if single == 1 else "were"
    share = "Every configuration was" if single == len(among) else f"{single} of {len(among)} configurations {verb}"
    return [f"{share} run once (n=1): differences may be chance, and there is no standard deviation."]
