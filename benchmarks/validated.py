"""Hold `cifar-ray plan` against runs that are made after it has predicted them.

    python benchmarks/validated.py probe      # short runs of each model alone and with two workers on one node
    python benchmarks/validated.py predict    # from these alone, what a step takes in every cell; then commit the file
    python benchmarks/validated.py run        # train the cells, in rounds; goes on where it was interrupted
    python benchmarks/validated.py compare    # the table

A cell is a model, a strategy, a topology and the rate of the links between nodes. All of a model's cells have one
global batch, in fp32. Of the whole cross (``--all``), a fixed part is run: every pair of model and strategy, model and
topology, strategy and topology, rate and strategy, rate and topology stands in it at least twice, if it does in the
cross. With one worker all strategies train alike, so that ``1x1`` stands once for each model.

What an exchange costs the workers themselves is fitted to the probe's all_reduce and send_recv, which is in no cell,
and of gather_scatter to its own runs. Workers are forked and held to equal shares of a CPU at any number of
workers; nodes are network namespaces, see forked.py. A worker that has waited computes faster at first, since the
kernel enforces shares at its ticks, 4 ms apart: 5 ms of work take a quarter less. So passes have many ticks.

Nothing is fitted to a cell: 1x1 is the probe's own run again, and so is 1x2 with all but ``ddp`` and ``local_sgd``,
which the table therefore counts apart. ``run`` refuses predictions that are not committed. A cell whose own repeats
differ by more than 10 % is listed and not counted. Needs root, Linux with iproute2, an idle machine of 2 CPUs, and
CIFAR-10.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections import Counter
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
STRATEGIES = ("ddp", "all_reduce", "gather_scatter", "local_sgd")
PROBES = ("all_reduce", "send_recv", "gather_scatter")
"""Strategies of the probe's runs."""
TOPOLOGIES = ("1x1", "1x2", "2x1", "2x2", "4x1")
RATES = ("300mbit", "1gbit", "none")
SHARE = 0.45
SYNC_EVERY = 4
PROBED = 2
"""Runs of each kind in the probe, in turn."""
REPEATS, ROUNDS = 2, 4
"""A repeat of a cell is the mean of every second round, since this machine's own speed moves from minute to minute."""
COVERED = 2
"""How often each pair stands in the part that is run."""
MEDIAN, LARGEST, SPREAD = 10, 25, 10
"""In %: errors that half of the predictions, and none, may exceed; and by how much the runs of a cell may differ."""
LEAST_STEPS, LEAST_S, MOST_S = 6, 4.0, 40.0
"""Steps, and their seconds, that a run should have."""
EPOCH = 50_000
"""Images."""
STARTUP_S = 6.0
"""Of a run, about, to say how long all of them take."""


class Cell(NamedTuple):
    """One configuration."""

    model: str
    strategy: str
    topology: str
    rate: str

    @property
    def name(self) -> str:
        """Of the row."""
        return f"{self.model} {self.strategy} {self.topology}" + (f" {self.rate}" * (parse(self.topology).nodes > 1))

    @property
    def is_probed(self) -> bool:
        """Whether the probe has trained just this."""
        return self.topology == "1x1" or (self.topology == "1x2" and self.strategy not in ("ddp", "local_sgd"))

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """What is to be covered."""
        found = {(self.model, self.strategy), (self.model, self.topology), (self.strategy, self.topology)}
        if parse(self.topology).nodes > 1:
            found |= {(self.rate, self.strategy), (self.rate, self.topology)}
        return found


def cells(is_all: bool) -> list[Cell]:
    """The whole cross, or the part that covers its pairs: always the cell that covers most that is still lacking."""
    every = [
        cell
        for cell in itertools.starmap(Cell, itertools.product(MODELS, STRATEGIES, TOPOLOGIES, RATES))
        if (cell.topology != "1x1" or cell.strategy == "all_reduce")
        and (parse(cell.topology).nodes > 1 or cell.rate == "none")
    ]
    if is_all:
        return every
    left = random.Random(0).sample(every, len(every))
    lacking = {
        pair: min(count, COVERED) for pair, count in Counter(pair for cell in every for pair in cell.pairs).items()
    }
    chosen = []
    while any(lacking.values()):
        best = max(left, key=lambda cell: sum(lacking[pair] > 0 for pair in cell.pairs))
        left.remove(best)
        chosen.append(best)
        for pair in best.pairs:
            lacking[pair] = max(lacking[pair] - 1, 0)
    return sorted(chosen, key=every.index)


def words(name: str, strategy: str, images: int, steps: int) -> list[str]:
    """Of a training; a small learning rate, so that none diverges in its first steps."""
    found = ["--dataset", "cifar10", "--model", name, "--global-batch-size", str(images), "--precision", "fp32"]
    found += ["--epochs", "1", "--steps-per-epoch", str(steps), "--lr", "0.001", "--test-images", "100"]
    found += ["--device", "cpu", "--cpus-per-worker", "1", "--strategy", strategy]
    return [*found, "--strategy-options.sync-every", str(SYNC_EVERY)] if strategy == "local_sgd" else found


def steps_of(step_s: float, images: int, strategy: str = "") -> int:
    """Steps of a run, an epoch at most; the first does not count, and local SGD ends with an average."""
    steps = max(
        min(max(LEAST_STEPS, math.ceil(LEAST_S / step_s)), int(MOST_S / step_s), EPOCH // images - 1), SYNC_EVERY
    )
    return 1 + (steps // SYNC_EVERY * SYNC_EVERY if strategy == "local_sgd" else steps)


def now() -> str:
    """The moment, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write(path: Path, found: Any) -> None:
    """Replace a file of JSON at once."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def probe(folder: Path, names: list[str], strategies: list[str]) -> None:
    """Train each model with the images per worker that its cells have: alone, and with two workers on one node.

    What runs of other models and strategies have told stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, trials = folder / "probe.json", []
    if path.exists():
        former = [Run(**trial) for trial in json.loads(path.read_text())["trials"]]
        trials = [each for each in former if each.model not in names or each.strategy not in strategies]
    with forked.nodes(SHARE) as groups:

        def train(name: str, strategy: str, workers: int, images: int, steps: int) -> Run:
            trial = forked.train(groups, Topology(1, workers), "none", words(name, strategy, images, steps), 300)
            print(f"{name} 1x{workers} {strategy}, {images} images: {1000 * step_s(trial.metrics):.1f} ms", flush=True)
            return trial

        runs = []
        for name in names:
            images = MODELS[name]
            one = step_s(train(name, "all_reduce", 1, images // 4, 5).metrics) / (images // 4)
            sizes = [("all_reduce", 1, images // parts) for parts in (1, 2, 4)]
            sizes += [("all_reduce", 2, images), ("all_reduce", 2, images // 2)]
            sizes += [(other, 2, images) for other in PROBES[1:]]
            runs += [(name, *of, steps_of(one * of[2] / of[1], of[2])) for of in sizes if of[0] in strategies]
        for each in runs * PROBED:
            trials.append(train(*each))
    write(
        path,
        {"commit": record.commit(), "moment": now(), "trials": list(map(dataclasses.asdict, trials))},
    )


def step_s(metrics: Any) -> float:
    """Seconds of a step, of a run's figures."""
    return metrics["time/iteration_mean_s"]


def predict(folder: Path, names: list[str], strategies: list[str], is_all: bool) -> None:
    """What a step takes in each cell of these models and strategies, from the probe alone; others stay as they were."""
    probed = json.loads((folder / "probe.json").read_text())
    trials = [Run(**trial) for trial in probed["trials"]]
    ready: dict[tuple[str, str], passes.Gradients] = {}
    path, former = folder / "predictions.json", {}
    if path.exists():
        former = {Cell(*(of[name] for name in Cell._fields)): of for of in json.loads(path.read_text())["cells"]}
    predictions: list[dict[str, Any]] = []
    for cell in cells(is_all):
        if cell.model not in names or cell.strategy not in strategies:
            predictions += [former[cell]] if cell in former else []
            continue
        of_model = [each for each in trials if each.model == cell.model]
        runs, _ = measured.of_trials(of_model)
        topology = parse(cell.topology)
        config = forked.resolved(words(cell.model, cell.strategy, MODELS[cell.model], 1), topology)
        if cell[:2] not in ready:
            ready[cell[:2]] = passes.readiness(config, of_model[0].params.get("precision", "fp32"), 16, 1)
        work = probing.work_of(config, ready[cell[:2]], runs.device)
        link = Link(math.inf) if cell.rate == "none" else links.parse(cell.rate)
        planned = model.plan(runs, work, [topology], Means(link=link, host=exchanged.host(runs, work)))
        if planned.skipped:
            sys.exit(f"{cell.name}: {planned.skipped[cell.topology]}")
        span = planned.rows[0].step_s
        steps = steps_of(span.mid, MODELS[cell.model], cell.strategy)
        predictions.append({**cell._asdict(), **dataclasses.asdict(span), "steps": steps})
        print(f"{cell.name}: {1000 * span.mid:.1f} ms ({1000 * span.low:.1f} to {1000 * span.high:.1f})", flush=True)
    found = {"commit": record.commit(), "moment": now(), "probe": {key: probed[key] for key in ("commit", "moment")}}
    write(path, {**found, "cells": predictions})
    minutes = sum(each["steps"] * each["mid"] + STARTUP_S for each in predictions) / 60
    print(f"{len(predictions)} cells; a round of all takes about {minutes:.0f} minutes; commit {path}")


def committed(path: Path) -> str:
    """The commit that has a file as it is; empty when none has."""
    git = ["git", "-C", str(path.parent)]
    if subprocess.run([*git, "status", "--porcelain", "--", path.name], capture_output=True, text=True).stdout:
        return ""
    return subprocess.run(
        [*git, "log", "-1", "--format=%h %cI", "--", path.name], capture_output=True, text=True
    ).stdout.strip()


def run(folder: Path, rounds: int, dry: bool) -> int:
    """Train what has not been trained yet: every cell once, then every cell again."""
    predictions, runs = folder / "predictions.json", folder / "runs.json"
    commit = committed(predictions)
    if not commit and not dry:
        sys.exit(f"{predictions} must be committed before anything is run")
    done = json.loads(runs.read_text()) if runs.exists() else {"runs": []}
    failed = 0
    planned = [(Cell(*(of[name] for name in Cell._fields)), of) for of in json.loads(predictions.read_text())["cells"]]

    def left(turn: int) -> list[tuple[Cell, dict[str, Any]]]:
        """What a round has still to train, and beside it each of these models with one worker."""
        lacking = [
            cell
            for cell, each in planned
            if all(of["round"] != turn for of in of_prediction(done["runs"], cell, each["mid"]))
        ]
        models = {cell.model for cell in lacking}
        return [of for of in planned if of[0] in lacking or (of[0].topology == "1x1" and of[0].model in models)]

    with forked.nodes(SHARE) as groups:
        for turn, (cell, each) in ((number, of) for number in range(rounds) for of in left(number)):
            train = words(cell.model, cell.strategy, MODELS[cell.model], each["steps"])
            load, limit_s = os.getloadavg()[0], 60 + 4 * each["steps"] * each["mid"]
            try:
                trial = forked.train(groups, parse(cell.topology), cell.rate, train, limit_s)
            except ChildProcessError as problem:
                failed += 1
                print(f"{cell.name}: {problem}", flush=True)
                continue
            took = {"cell": cell.name, "round": turn, "predicted_s": each["mid"], "step_s": step_s(trial.metrics)}
            told = {"predictions": commit, "moment": now(), "load": load, "metrics": trial.metrics}
            done["runs"].append({**took, **told})
            write(runs, done)
            error = 100 * (each["mid"] / took["step_s"] - 1)
            print(f"round {turn + 1}: {cell.name}: {1000 * took['step_s']:.1f} ms, error {error:+.1f} %", flush=True)
    return int(failed > 0)


def of_prediction(runs: list[dict[str, Any]], cell: Cell, mid: float) -> list[dict[str, Any]]:
    """The runs of a cell that were made after just this had been predicted."""
    return [of for of in runs if (of["cell"], of["predicted_s"]) == (cell.name, mid)]


def beside(runs: list[dict[str, Any]], cell: Cell, moment: str) -> float:
    """The seconds of a step of one worker in the run that was nearest in time."""
    when = datetime.fromisoformat(moment)
    alone = [of for of in runs if of["cell"] == cell._replace(strategy="all_reduce", topology="1x1").name]
    return min(alone, key=lambda of: abs(datetime.fromisoformat(of["moment"]) - when))["step_s"]


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
    def spread(self) -> float:
        """By how much the repeats differ, in %."""
        return 100 * (max(self.took) - min(self.took)) / statistics.mean(self.took)


def summary(what: str, compared: list[Compared], error: Callable[[Compared], float]) -> record.Row:
    """The errors of some cells as one line."""
    errors = sorted(abs(error(each)) for each in compared)
    within = sum(each.low <= statistics.mean(each.took) <= each.high for each in compared)
    return record.Row(
        what,
        f"median <= {MEDIAN} %, largest <= {LARGEST} %",
        f"median {statistics.median(errors):.1f} %, largest {errors[-1]:.1f} %",
        len(errors),
        f"n is of cells; {within} of the means lie in the predicted range",
    )


def line(of: Compared) -> record.Row:
    """One cell."""
    took = statistics.mean(of.took)
    note = f"error {of.error:+.1f} %; its repeats differ by {of.spread:.1f} %" + "; not counted" * (of.spread > SPREAD)
    predicted = f"{of.mid:.4f} s ({of.low:.4f} to {of.high:.4f})"
    return record.Row(of.cell.name, f"predicted {predicted}", f"{took:.4f} s", len(of.took), note)


def compare(folder: Path, dry: bool) -> None:
    """The table."""
    predictions, runs = (json.loads((folder / f"{name}.json").read_text()) for name in ("predictions", "runs"))
    compared = []
    alone = {each["model"]: each["mid"] for each in predictions["cells"] if each["topology"] == "1x1"}
    for each in predictions["cells"]:
        cell = Cell(*(each[name] for name in Cell._fields))
        of_cell = of_prediction(runs["runs"], cell, each["mid"])
        repeats = [[of["step_s"] for of in of_cell if of["round"] % REPEATS == at] for at in range(REPEATS)]
        if took := [statistics.mean(repeat) for repeat in repeats if repeat]:
            times = statistics.mean(of["step_s"] / beside(runs["runs"], cell, of["moment"]) for of in of_cell)
            compared.append(Compared(cell, each["low"], each["mid"], each["high"], took, alone[cell.model], times))
    counted = [each for each in compared if each.spread <= SPREAD and len(each.took) > 1]
    groups = {"all cells that count": counted}
    groups["those that were not probed"] = [each for each in counted if not each.cell.is_probed]
    strategies = dict.fromkeys(each.cell.strategy for each in compared)  # those that were planned then
    for at, values in enumerate((MODELS, strategies, TOPOLOGIES, RATES)):
        groups |= {value: [of for of in counted if of.cell[at] == value and not of.cell.is_probed] for value in values}
    made = [summary(what, of, lambda each: each.error) for what, of in groups.items() if of]
    if unknown := groups["those that were not probed"]:
        what = "those that were not probed, as multiples of one worker's step in the same minutes"
        made.insert(2, summary(what, unknown, lambda each: each.error_of_times))
    left = sum(each.spread > SPREAD for each in compared)
    apart = f"{left} of {len(compared)}"
    made.insert(
        1, record.Row("cells whose own repeats differ too much", f"at most {len(compared) // 5}", apart, len(compared))
    )
    made += map(line, compared)
    title = "A step as `cifar-ray plan` predicted it before it was run"
    raw = {
        "predictions": sorted({of["predictions"] for of in runs["runs"]}),
        "cells": [{**of._asdict(), "cell": of.cell.name} for of in compared],
    }
    record.save("validated", title, made, raw, dry=dry)


def main() -> int:
    """Do one of the four."""
    parser = record.parser(__doc__)
    parser.add_argument("verb", choices=("probe", "predict", "run", "compare"))
    parser.add_argument("--folder", type=Path, default=record.ROOT / "benchmarks" / "validation", help="(%(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="to probe and to predict (%(default)s)")
    parser.add_argument("--strategies", help="to probe or to predict (all)")
    parser.add_argument("--all", action="store_true", help="predict the whole cross, not a part of it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each cell (%(default)s)")
    given = parser.parse_args()
    names = given.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--models may have {', '.join(MODELS)}; not {', '.join(unknown)}")
    try:
        if given.verb == "run":
            return run(given.folder, given.rounds, given.dry)
        if given.verb == "probe":
            probe(given.folder, names, given.strategies.split(",") if given.strategies else list(PROBES))
        elif given.verb == "predict":
            predict(given.folder, names, (given.strategies or ",".join(STRATEGIES)).split(","), given.all)
        else:
            compare(given.folder, given.dry)
    except forked.network.Refused as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
