"""How far `cifar-ray plan` is from what committed studies have measured; nothing is trained.

    python benchmarks/planned.py

Measured: errors of a step between a median of 1.5 and 6.5 % and at most 15 % (runs with n = 5); whole runs at 2x2 miss
by a median of 16 % (gradients' readiness of an AMD EPYC, family 26, model 2).

The studies ran on an emulated cluster: five runs in turn, each worker with 0.45 of a CPU, links shaped by ``tc``. A
prediction is held against the mean of the runs. Of VGG-11, the passes are those of the same study's runs whose passes
hide nothing, and what an exchange costs the workers is that of the study with unshaped links.
Of the other models the passes are those of one worker alone, and what an exchange costs the workers is VGG-11's: so
nothing of the predicted topologies goes in. Gradients' readiness is measured by this script, with one thread.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import exchanged
import record

from cifar_ray.config import flags, runfile, schema
from cifar_ray.config.topology import parse
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.planning import link as links
from cifar_ray.planning import measured, model, probing
from cifar_ray.planning.link import Link
from cifar_ray.planning.model import Means, Work
from cifar_ray.reporting import exported
from cifar_ray.tracking.study import Run
from cifar_ray.training import probe, recipe

UNSHAPED = "vgg11_group_report_unshaped/vgg11_times_none.json"
VGG = {
    "1gbit": "vgg11_group_report_1gbit/vgg11_times_1gbit.json",
    "10gbit": "vgg11_group_report_10gbit/vgg11_times_10gbit.json",
}
OTHERS = ("resnet50_multi_gpu_times/resnet50_times.json", "rangoju_katneni_2025/paper_times.json")


class Compared(NamedTuple):
    """A prediction in seconds, and the mean of the runs."""

    name: str
    low: float
    mid: float
    high: float
    took: float


def study(name: str) -> list[Run]:
    """The runs of a committed study."""
    return list(exported.read(record.ROOT / "docs" / "studies" / name).trials)


def training(trial: Run) -> ResolvedConfig:
    """The training of a run, by its recorded command."""
    words = shlex.split(trial.tags["cifar_ray.command"])[2:]
    asked = schema.to_plain(runfile.load(None, flags.parse(TrainConfig, words, "cifar-ray train")))
    changes = {"topology": "1x1", "batch_size": None, "global_batch_size": trial.global_batch_size}
    return recipe.resolve(runfile.load(None, {**asked, **changes, "steps_per_epoch": None}))


def works(trials: list[Run]) -> dict[tuple[str, ...], tuple[Work, list[Run]]]:
    """The work of each configuration, whatever the seed, and its runs."""
    alike: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for trial in trials:
        sizes = (str(trial.batch_size), trial.params["accumulate"], trial.params.get("bucket_cap_mb", ""))
        alike[trial.strategy, trial.topology, *sizes].append(trial)
    readiness = probe.readiness(training(trials[0]), trials[0].params.get("precision", "fp32"), 16, 1)
    return {key: (probing.work_of(training(runs[0]), readiness, "cpu"), runs) for key, runs in alike.items()}


def compare(
    trials: list[Run], passes: list[Run], link: str, host: Callable[[Work], Link | None]
) -> tuple[list[Compared], list[Compared]]:
    """A step, and the whole run as the runs were, of each configuration of several workers."""
    known, _ = measured.of_trials(passes)
    steps: list[Compared] = []
    wholes: list[Compared] = []
    for key, (work, runs) in works(trials).items():
        topology = parse(runs[0].topology)
        if topology.world_size == 1:
            continue
        work = replace(work, steps=int(runs[0].params["steps_per_epoch"]))
        row = model.plan(known, work, [topology], Means(link=links.parse(link), host=host(work))).rows[0]
        for span, metric, into in ((row.step_s, "time/iteration_mean_s", steps), (row.total_s, "time/wall_s", wholes)):
            took = statistics.mean(run.metrics[metric] for run in runs)
            into.append(Compared(" ".join(key), span.low, span.mid, span.high, took))
    return steps, wholes


def row(what: str, compared: list[Compared]) -> record.Row:
    """The errors of some predictions as one line."""
    within = sum(each.low <= each.took <= each.high for each in compared)
    note = f"{len(compared)} predictions; {within} of the means lie in the predicted range"
    found = exchanged.errors(100 * (each.mid / each.took - 1) for each in compared)
    return record.Row(what, exchanged.AIM, found, 5, note)


def main() -> None:
    """Predict, compare and save the rows."""
    given = record.parser(__doc__).parse_args()
    unshaped = study(UNSHAPED)
    without_network, _ = measured.of_trials(unshaped)
    (vgg, _), *_ = works(unshaped).values()

    def host(work: Work) -> Link | None:
        return exchanged.host(without_network, work, Link(math.inf))

    of_vgg = host(replace(vgg, exchange=replace(vgg.exchange, strategy="ddp")))
    raw, runs = {}, []
    for link, name in VGG.items():
        what = f"vgg11 over {link}: ddp with four sizes of buckets, all_reduce, gather_scatter, send_recv; 2x1, 4x1"
        raw[what], _ = compare(study(name), study(name), link, host)
    for name in OTHERS:
        kinds: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for trial in study(name):
            kinds[trial.model, trial.params.get("model_options.stem", "")].append(trial)
        for (of, stem), trials in kinds.items():
            alone = [trial for trial in trials if trial.world_size == 1]
            what = f"{of}{f' ({stem} stem)' * (stem == 'cifar')} over 1gbit: ddp; 1x2, 2x2"
            raw[what], wholes = compare(trials, alone, "1gbit", lambda _: of_vgg)
            runs += wholes
    for nodes in (1, 2):
        what = f"whole runs of 40 to 240 s, start-up included: the models with one worker's passes, at {nodes}x2"
        raw[what] = [each for each in runs if f" {nodes}x2 " in each.name]
    title = "A step as `cifar-ray plan` predicts it, and as it was measured"
    record.save("planned", title, [row(what, of) for what, of in raw.items()], raw, dry=given.dry)


if __name__ == "__main__":
    main()
