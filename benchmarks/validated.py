"""Hold `cifar-ray plan` against runs that are made after it has predicted them.

    python benchmarks/validated.py probe      # short runs of each model alone and with two workers on one node
    python benchmarks/validated.py predict    # from these alone, what a step takes in every cell; then commit the file
    python benchmarks/validated.py run        # train the cells, in rounds; goes on where it was interrupted
    python benchmarks/validated.py compare    # the table

Measured: a median error of 5.4 % and at most 22 % in the 33 cells that were not probed (each the mean of two repeats;
two cores of an AMD EPYC, family 26, model 2).

A cell is a model, a strategy, a topology and the rate of the links between nodes. All of a model's cells have one
global batch, in fp32. The cells are those of the committed predictions, a fixed part of the whole cross: every pair of
model and strategy, model and topology, strategy and topology, rate and strategy, rate and topology stands in it at least
twice, if it does in the cross. With one worker all strategies train alike, so that ``1x1`` stands once for each model.

What an exchange costs the workers themselves is fitted to the probe's all_reduce and send_recv, which is in no cell,
and of gather_scatter to its own runs. Workers are forked and held to equal shares of a CPU at any number of
workers; nodes are network namespaces, see forked.py. A worker that has waited computes faster at first, since the
kernel enforces shares at its ticks, 4 ms apart: 5 ms of work take a quarter less. So passes have many ticks.

Nothing is fitted to a cell: 1x1 is the probe's own run again, and so is 1x2 with all but ``ddp`` and ``local_sgd``,
which the table therefore counts apart. ``run`` refuses predictions that are not committed. A cell whose own repeats
differ by more than 10 % is not counted. Needs root, Linux with iproute2, an idle machine of 2 CPUs, and CIFAR-10.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import exchanged
import forked
import record

from cifar_ray.config.topology import Topology, parse
from cifar_ray.planning import link as links
from cifar_ray.planning import measured, model, probing
from cifar_ray.planning.link import Link
from cifar_ray.planning.model import Means
from cifar_ray.tracking.study import Run
from cifar_ray.training import probe as passes

MODELS = {"vgg11": 64, "resnet": 512, "simple_cnn": 4096, "vit": 64}
"""Images of a step."""
PROBES = ("all_reduce", "send_recv", "gather_scatter")
"""Strategies of the probe's runs."""
GROUPS = (MODELS, {}, ("1x1", "1x2", "2x1", "2x2", "4x1"), ("300mbit", "1gbit", "none"))
"""Rows of the table by each field of a cell; strategies are those of the predictions."""
FOLDER = record.ROOT / "benchmarks" / "validation"
SHARE = 0.45
SYNC_EVERY = 4
PROBED = 2  # runs of each kind in the probe, in turn
REPEATS, ROUNDS = 2, 4
"""A repeat of a cell is the mean of every second round, since this machine's own speed moves from minute to minute."""
SPREAD = 10  # by how much the repeats of a cell may differ, in %
LEAST_STEPS, LEAST_S, MOST_S = 6, 4.0, 40.0
"""Steps, and their seconds, that a run should have."""
EPOCH = 50_000  # images


class Cell(NamedTuple):
    """One configuration."""

    model: str
    strategy: str
    topology: str
    rate: str

    @classmethod
    def of(cls, prediction: dict[str, Any]) -> Cell:
        """That of a prediction."""
        return cls(*(prediction[name] for name in cls._fields))

    @property
    def name(self) -> str:
        """Of the row."""
        return f"{self.model} {self.strategy} {self.topology}" + (f" {self.rate}" * (parse(self.topology).nodes > 1))

    @property
    def is_probed(self) -> bool:
        """Whether the probe has trained just this."""
        return self.topology == "1x1" or (self.topology == "1x2" and self.strategy not in ("ddp", "local_sgd"))


def words(name: str, strategy: str, images: int, steps: int) -> list[str]:
    """Of a training; a small learning rate, so that none diverges in its first steps."""
    found = ["--dataset", "cifar10", "--model", name, "--global-batch-size", str(images), "--precision", "fp32"]
    found += ["--epochs", "1", "--steps-per-epoch", str(steps), "--lr", "0.001", "--test-images", "100"]
    found += ["--device", "cpu", "--cpus-per-worker", "1", "--strategy", strategy]
    return [*found, "--strategy-options.sync-every", str(SYNC_EVERY)] if strategy == "local_sgd" else found


def steps_of(step_s: float, images: int, strategy: str = "") -> int:
    """Steps of a run, an epoch at most; the first does not count, and local SGD ends with an average."""
    steps = min(max(LEAST_STEPS, math.ceil(LEAST_S / step_s)), int(MOST_S / step_s), EPOCH // images - 1)
    steps = max(steps, SYNC_EVERY)
    return 1 + (steps // SYNC_EVERY * SYNC_EVERY if strategy == "local_sgd" else steps)


def now() -> str:
    """The moment, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write(path: Path, found: Any) -> None:
    """Replace a file of JSON at once."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def step_s(metrics: Any) -> float:
    """Seconds of a step, of a run's figures."""
    return metrics["time/iteration_mean_s"]


def probe(folder: Path) -> None:
    """Train each model with the images per worker that its cells have: alone, and with two workers on one node."""
    with forked.nodes(SHARE) as nodes:

        def train(name: str, strategy: str, workers: int, images: int, steps: int) -> Run:
            trial = forked.train(nodes, Topology(1, workers), "none", words(name, strategy, images, steps), 300)
            print(f"{name} 1x{workers} {strategy}, {images} images: {1000 * step_s(trial.metrics):.1f} ms", flush=True)
            return trial

        runs = []
        for name, images in MODELS.items():
            one = step_s(train(name, "all_reduce", 1, images // 4, 5).metrics) / (images // 4)
            sizes = [("all_reduce", 1, images // parts) for parts in (1, 2, 4)]
            sizes += [("all_reduce", 2, images // 2), *((other, 2, images) for other in PROBES)]
            runs += [(name, *of, steps_of(one * of[2] / of[1], of[2])) for of in sizes]
        trials = [dataclasses.asdict(train(*each)) for each in runs * PROBED]
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "probe.json", {"commit": record.commit(), "moment": now(), "trials": trials})


def predict(folder: Path) -> None:
    """What a step takes in each cell that can be planned, from the probe alone."""
    probed = json.loads((folder / "probe.json").read_text())
    trials = [Run(**trial) for trial in probed["trials"]]
    ready: dict[tuple[str, ...], passes.Gradients] = {}
    predictions: list[dict[str, Any]] = []
    for cell in map(Cell.of, json.loads((FOLDER / "predictions.json").read_text())["cells"]):
        runs, _ = measured.of_trials([each for each in trials if each.model == cell.model])
        topology = parse(cell.topology)
        config = forked.resolved(words(cell.model, cell.strategy, MODELS[cell.model], 1), topology)
        if cell[:2] not in ready:
            ready[cell[:2]] = passes.readiness(config, "fp32", 16, 1)
        work = probing.work_of(config, ready[cell[:2]], runs.device)
        link = Link(math.inf) if cell.rate == "none" else links.parse(cell.rate)
        planned = model.plan(runs, work, [topology], Means(link=link, host=exchanged.host(runs, work)))
        if planned.skipped:
            print(f"{cell.name} is left out: {planned.skipped[cell.topology]}", flush=True)
            continue
        span = planned.rows[0].step_s
        steps = steps_of(span.mid, MODELS[cell.model], cell.strategy)
        predictions.append({**cell._asdict(), **dataclasses.asdict(span), "steps": steps})
        print(f"{cell.name}: {1000 * span.mid:.1f} ms ({1000 * span.low:.1f} to {1000 * span.high:.1f})", flush=True)
    found = {"commit": record.commit(), "moment": now(), "probe": {key: probed[key] for key in ("commit", "moment")}}
    write(folder / "predictions.json", {**found, "cells": predictions})


def committed(path: Path) -> str:
    """The commit that has a file as it is; empty when none has."""
    git = ["git", "-C", str(path.parent)]
    if subprocess.run([*git, "status", "--porcelain", "--", path.name], capture_output=True, text=True).stdout:
        return ""
    log = [*git, "log", "-1", "--format=%h %cI", "--", path.name]
    return subprocess.run(log, capture_output=True, text=True).stdout.strip()


def run(folder: Path, rounds: int, dry: bool) -> None:
    """Train what has not been trained yet: every cell once, then every cell again."""
    predictions, runs = folder / "predictions.json", folder / "runs.json"
    commit = committed(predictions)
    if not commit and not dry:
        sys.exit(f"{predictions} must be committed before anything is run")
    done = json.loads(runs.read_text()) if runs.exists() else {"runs": []}
    planned = [(Cell.of(each), each) for each in json.loads(predictions.read_text())["cells"]]
    with forked.nodes(SHARE) as nodes:
        for turn in range(rounds):
            made = {(of["cell"], of["predicted_s"]) for of in done["runs"] if of["round"] == turn}
            lacking = [cell for cell, each in planned if (cell.name, each["mid"]) not in made]
            models = {cell.model for cell in lacking}  # each with one worker is trained beside them, too
            for cell, each in planned:
                if cell not in lacking and not (cell.topology == "1x1" and cell.model in models):
                    continue
                train = words(cell.model, cell.strategy, MODELS[cell.model], each["steps"])
                load, limit_s = os.getloadavg()[0], 60 + 4 * each["steps"] * each["mid"]
                trial = forked.train(nodes, parse(cell.topology), cell.rate, train, limit_s)
                took = {"cell": cell.name, "round": turn, "predicted_s": each["mid"], "step_s": step_s(trial.metrics)}
                told = {"predictions": commit, "moment": now(), "load": load, "metrics": trial.metrics}
                done["runs"].append({**took, **told})
                write(runs, done)
                error = 100 * (each["mid"] / took["step_s"] - 1)
                print(
                    f"round {turn + 1}: {cell.name}: {1000 * took['step_s']:.1f} ms, error {error:+.1f} %", flush=True
                )


class Compared(NamedTuple):
    """A cell's prediction, and its repeats, in seconds."""

    cell: Cell
    low: float
    mid: float
    high: float
    took: list[float]  # of each repeat
    alone: float  # predicted for one worker
    times: float  # as a multiple of the step of one worker in the same round, the mean of the rounds

    @property
    def error(self) -> float:
        """In %."""
        return 100 * (self.mid / statistics.mean(self.took) - 1)

    @property
    def error_of_times(self) -> float:
        """Of the step as a multiple of one worker's, in %; the machine's own speed is not in it."""
        return 100 * (self.mid / self.alone / self.times - 1)

    @property
    def is_steady(self) -> bool:
        """Whether its repeats differ little enough."""
        return 100 * (max(self.took) - min(self.took)) / statistics.mean(self.took) <= SPREAD


def summary(what: str, compared: list[Compared], error: Callable[[Compared], float]) -> record.Row:
    """The errors of some cells as one line."""
    within = sum(each.low <= statistics.mean(each.took) <= each.high for each in compared)
    note = f"n is of cells; {within} of the means lie in the predicted range"
    return record.Row(what, exchanged.AIM, exchanged.errors(map(error, compared)), len(compared), note)


def compare(folder: Path, dry: bool) -> None:
    """The table; the raw figures have every cell."""
    predictions, runs = (json.loads((folder / f"{name}.json").read_text()) for name in ("predictions", "runs"))
    made, compared = runs["runs"], []
    alone = {each["model"]: each["mid"] for each in predictions["cells"] if each["topology"] == "1x1"}

    def beside(cell: Cell, of: dict[str, Any]) -> float:
        """The seconds of a step of one worker in the run that was nearest in time."""
        name, when = f"{cell.model} all_reduce 1x1", datetime.fromisoformat(of["moment"])
        ones = [one for one in made if one["cell"] == name]
        return step_s(min(ones, key=lambda one: abs(datetime.fromisoformat(one["moment"]) - when))["metrics"])

    for each in predictions["cells"]:
        cell = Cell.of(each)
        of_cell = [of for of in made if (of["cell"], of["predicted_s"]) == (cell.name, each["mid"])]
        repeats = [[of["step_s"] for of in of_cell if of["round"] % REPEATS == at] for at in range(REPEATS)]
        if took := [statistics.mean(repeat) for repeat in repeats if repeat]:
            times = statistics.mean(of["step_s"] / beside(cell, of) for of in of_cell)
            compared.append(Compared(cell, each["low"], each["mid"], each["high"], took, alone[cell.model], times))
    counted = [each for each in compared if each.is_steady and len(each.took) > 1]
    unknown = [each for each in counted if not each.cell.is_probed]
    left = sum(not each.is_steady for each in compared)
    rows = [summary("all cells that count", counted, lambda each: each.error)]
    most, apart = f"at most {len(compared) // 5}", f"{left} of {len(compared)}"
    rows.append(record.Row("cells whose own repeats differ too much", most, apart, len(compared)))
    if unknown:
        what = "those that were not probed"
        rows.append(summary(what, unknown, lambda each: each.error))
        what += ", as multiples of one worker's step in the same minutes"
        rows.append(summary(what, unknown, lambda each: each.error_of_times))
    strategies = dict.fromkeys(each.cell.strategy for each in compared)  # those that were planned then
    for at, value in ((at, value) for at, of in enumerate(GROUPS) for value in of or strategies):
        if found := [each for each in unknown if each.cell[at] == value]:
            rows.append(summary(value, found, lambda each: each.error))
    sources = sorted({of["predictions"] for of in made})
    raw = {"predictions": sources, "cells": [{**of._asdict(), "cell": of.cell.name} for of in compared]}
    record.save("validated", "A step as `cifar-ray plan` predicted it before it was run", rows, raw, dry=dry)


def main() -> None:
    """Do one of the four."""
    parser = record.parser(__doc__, rounds=ROUNDS)
    parser.add_argument("verb", choices=("probe", "predict", "run", "compare"))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="(%(default)s)")
    given = parser.parse_args()
    if given.verb == "run":
        run(given.folder, given.rounds, given.dry)
    elif given.verb == "compare":
        compare(given.folder, given.dry)
    else:
        {"probe": probe, "predict": predict}[given.verb](given.folder)


if __name__ == "__main__":
    main()
