"""How far `cifar-ray plan` is from what committed studies have measured; nothing is trained.

    python benchmarks/planned.py

The studies ran on an emulated cluster: five runs in turn, each worker with 0.45 of a CPU, links shaped by ``tc``. A
prediction is that of a step; it is held against the mean of the runs. Of VGG-11, the passes are those of the same
study's runs whose passes hide nothing, and what an exchange costs the workers is that of the study with unshaped links.
Of the other models the passes are those of one worker alone, and what an exchange costs the workers is VGG-11's: so
nothing of the predicted topologies goes in. Gradients' readiness is measured by this script, with one thread.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import record

from cifar_ray.cli import plan
from cifar_ray.config.topology import parse
from cifar_ray.planning import link as links
from cifar_ray.planning import measured, model
from cifar_ray.planning.link import Link
from cifar_ray.planning.model import Means, Work
from cifar_ray.reporting import exported
from cifar_ray.tracking.study import Study, Trial
from cifar_ray.training import probe

STUDIES = Path(__file__).parents[1] / "docs" / "studies"
UNSHAPED = "vgg11_group_report_unshaped/vgg11_times_none.json"
VGG = {
    "1gbit": "vgg11_group_report_1gbit/vgg11_times_1gbit.json",
    "10gbit": "vgg11_group_report_10gbit/vgg11_times_10gbit.json",
}
OTHERS = ("resnet50_multi_gpu_times/resnet50_times.json", "rangoju_katneni_2025/paper_times.json")
MEDIAN, LARGEST = 10, 25
"""Errors in % that half of the predictions, and none, may exceed."""


def study(name: str) -> Study:
    """A committed study."""
    return exported.read(STUDIES / name)


def works(trials: list[Trial]) -> dict[tuple[str, ...], tuple[Work, list[Trial]]]:
    """The work of each configuration, whatever the seed, and its runs."""
    alike: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for trial in trials:
        sizes = (str(trial.batch_size), trial.params["accumulate"], trial.params.get("bucket_cap_mb", ""))
        key: tuple[str, ...] = (trial.strategy, trial.topology, *sizes)
        alike[key].append(trial)
    config = plan.training(trials[0])
    readiness = probe.readiness(config, 16, 1)
    return {key: (plan.work_of(plan.training(runs[0]), readiness, "cpu", runs[0]), runs) for key, runs in alike.items()}


def compare(
    trials: list[Trial], passes: list[Trial], link: str, host: Callable[[Work], Link | None]
) -> list[list[object]]:
    """Each configuration of several workers with the prediction, the mean of its runs, and the error in %."""
    known, _, _ = measured.of_study(Study("", passes, "", ""))
    lines: list[list[object]] = []
    for name, (work, runs) in works(trials).items():
        topology = parse(runs[0].topology)
        if topology.world_size == 1:
            continue
        row = model.plan(known, work, [topology], Means(link=links.parse(link), host=host(work))).rows[0]
        took = statistics.mean(run.metrics["time/iteration_mean_s"] for run in runs)
        within = row.step_s.low <= took <= row.step_s.high
        lines.append(
            [
                " ".join(name),
                row.step_s.low,
                row.step_s.mid,
                row.step_s.high,
                took,
                100 * (row.step_s.mid / took - 1),
                within,
            ]
        )
    return lines


def row(what: str, lines: list[list[object]], n: int) -> record.Row:
    """The errors of some predictions as one line."""
    errors = sorted(abs(float(str(line[5]))) for line in lines)
    within = sum(line[6] is True for line in lines)
    return record.Row(
        what,
        f"median <= {MEDIAN} %, largest <= {LARGEST} %",
        f"median {statistics.median(errors):.1f} %, largest {errors[-1]:.1f} %",
        n,
        f"{len(lines)} predictions; {within} of the means lie in the predicted range",
    )


def main() -> None:
    """Predict, compare and save the rows."""
    given = record.parser(__doc__).parse_args()
    unshaped = list(study(UNSHAPED).trials)
    without_network, _, _ = measured.of_study(study(UNSHAPED))
    (vgg, _), *_ = works(unshaped).values()

    def host(work: Work) -> Link | None:
        return model.host(without_network, work.exchange, Link(math.inf))

    made, raw = [], {}
    for link, name in VGG.items():
        trials = list(study(name).trials)
        what = f"vgg11 over {link}: ddp with four sizes of buckets, all_reduce, gather_scatter, send_recv; 2x1, 4x1"
        raw[what] = compare(trials, trials, link, host)
        made.append(row(what, raw[what], 5))
    for name in OTHERS:
        kinds: dict[tuple[str, str], list[Trial]] = defaultdict(list)
        for trial in study(name).trials:
            kinds[trial.model, trial.params.get("resnet50.stem", "")].append(trial)
        for (of, stem), trials in kinds.items():
            alone = [trial for trial in trials if trial.world_size == 1]
            what = f"{of}{f' ({stem} stem)' * (stem == 'cifar')} over 1gbit: ddp; 1x2, 2x2"
            raw[what] = compare(
                trials, alone, "1gbit", lambda _: host(replace(vgg, exchange=replace(vgg.exchange, strategy="ddp")))
            )
            made.append(row(what, raw[what], 5))
    record.save("planned", "A step as `cifar-ray plan` predicts it, and as it was measured", made, raw, dry=given.dry)


if __name__ == "__main__":
    main()
