"""Time that is not training: commands' help, `cifar-ray train` and a sweep beside torchrun and their own training.

    python benchmarks/startup.py                              # about 25 minutes on 2 cores
    python benchmarks/startup.py --rounds 1 --sweeps 0 --dry  # does it work?

Measured: help 0.29 s; one epoch of digits 1.55 times torchrun's wall time; 0.93 times its images per second (n = 5);
48 % of the quick start's sweep outside training, 91 s for it and its report (n = 3; two cores of an AMD EPYC).

Four measurements on scikit-learn's digits: the help of every command; the wall time of one epoch at 1x1 under
`cifar-ray train` and under torchrun, in turn, split at the lines that the commands print; images per second of some
300 steps of resnet under both, in turn (batch 64, two threads, steady state as docs/exactness.md defines it); and the
quick start's sweep and report, with an empty home folder, where training is a run's epochs, with evaluation and
checkpoints. Before the first counted run, both launchers run once: then the store exists and files are in memory.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import record

from cifar_ray.cli.main import COMMANDS

CIFAR_RAY = [sys.executable, "-m", "cifar_ray.cli"]
TORCHRUN = ["torchrun", "--nproc-per-node", "1", "-m", "cifar_ray.training"]
ONE_EPOCH = ["--dataset", "digits", "--epochs", "1"]
STEPS = ["--dataset", "digits", "--model", "resnet", "--batch-size", "64", "--epochs", "14", "--cpus-per-worker", "2"]
SWEEP = str(record.ROOT / "examples" / "digits_sweep.yaml")
# What follows each line of `cifar-ray train`, up to the next
PARTS = {
    "": "imports",
    "reading digits": "data",
    "starting Ray": "Ray, placement, MLflow",
    "starting the workers": "workers",
    "training on": "training and evaluation",
    "recording the result": "end of training, export, figures",
    "test accuracy": "shutdown",
}
TORCHRUN_PARTS = {"": "imports, data", "training ": "training and evaluation", "result:": "end"}


def run(words: Sequence[str], home: str, parts: dict[str, str] | None = None) -> tuple[dict[str, float], str]:
    """Run a command.

    Args:
        words: the command.
        home: its home folder.
        parts: first words of a line -> the part of its time that begins there; a line counts once.

    Returns:
        Seconds by part and in all (``wall``), and what the command printed.
    """
    environment = {**os.environ, "HOME": home, "PYTHONUNBUFFERED": "1"}
    before = time.perf_counter()
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=home
    )
    assert process.stdout is not None
    left = dict(parts or {"": "all"})
    part, since, found, said = left.pop(""), before, {}, []
    for line in process.stdout:
        said.append(line)
        begins = next((first for first in left if line.startswith(first)), None)
        if begins is not None:
            now = time.perf_counter()
            found[part] = now - since
            part, since = left.pop(begins), now
    status = process.wait()
    now = time.perf_counter()
    if status != 0:
        sys.exit(f"{' '.join(words)} has failed:\n{''.join(said)}")
    return {**found, part: now - since, "wall": now - before}, "".join(said)


def helped(name: str) -> dict[str, float]:
    """Wall and CPU seconds of the help of a command."""
    before, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [*CIFAR_RAY, *name.split()[1:], "--help"]
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime
    return {"wall_s": time.perf_counter() - before, "cpu_s": cpu}


def one_epoch(command: Sequence[str], parts: dict[str, str], home: str) -> dict[str, float]:
    """Seconds by part of one epoch of digits."""
    with tempfile.TemporaryDirectory() as storage:
        found, output = run([*command, *ONE_EPOCH, "--storage", storage], home, parts)
    return found | {f"time/{name}_s": float(s) for name, s in re.findall(r"^(\w+) +([\d.]+) s$", output, re.MULTILINE)}


def steady(command: Sequence[str], pattern: str, home: str) -> float:
    """Images per second in steady state."""
    with tempfile.TemporaryDirectory() as storage:
        output = run([*command, *STEPS, "--precision", "fp32", "--storage", storage], home)[1]
    return float(re.findall(pattern, output)[-1].replace(",", ""))


def swept() -> dict[str, float]:
    """Wall seconds of the quick start's sweep and report, and those of the sweep in which a cell trains."""
    with tempfile.TemporaryDirectory() as home:
        sweep = run([*CIFAR_RAY, "sweep", SWEEP, "--name", "quick"], home)[0]["wall"]
        report = run([*CIFAR_RAY, "report", "quick", "--out", "report"], home)[0]["wall"]
        training = trained(f"sqlite:///{home}/.cifar_ray/mlflow.db")
    return {"sweep_s": sweep, "report_s": report, "training_s": training}


def trained(uri: str) -> float:
    """Seconds of a store's only sweep in which a run was in its epochs, with evaluation and checkpoints; one at once."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    (sweep,) = client.search_runs(experiments, "metrics.`sweep/concurrency` = 1")
    return sum(sweep.data.metrics[f"sweep/{phase}_s"] for phase in ("training", "evaluation", "checkpoint"))


def median(values: Sequence[dict[str, float]], name: str) -> float:
    """The median of one figure."""
    return statistics.median(one[name] for one in values)


def rows(raw: dict[str, Any]) -> list[record.Row]:
    """The table."""
    helps, (ours, theirs), paces = raw["help"], raw["train"].values(), raw["steady"]
    slowest = max(helps, key=lambda name: median(helps[name], "wall_s"))
    wall, n = median(helps[slowest], "wall_s"), len(helps[slowest])
    note = f"the slowest, {slowest}; {median(helps[slowest], 'cpu_s'):.2f} s of CPU time"
    made = [record.Row("help of every command", "< 0.5 s", f"{wall:.2f} s", n, note)]

    ratio = median(ours, "wall") / median(theirs, "wall")
    parts = [
        f"{name} {median(values, 'wall'):.1f} s: " + ", ".join(f"{part} {median(values, part):.1f}" for part in parts)
        for name, values, parts in (
            ("cifar-ray", ours, PARTS.values()),
            ("torchrun", theirs, TORCHRUN_PARTS.values()),
        )
    ]
    what = "one epoch of digits at 1x1, wall time against torchrun"
    made.append(record.Row(what, "<= 1.5 times", f"{ratio:.2f} times", len(ours), "; ".join(parts)))

    middle = record.medians(paces)
    note = ", ".join(f"{kind} {record.spread(values)} images/s" for kind, values in paces.items())
    what = "images/s of resnet, batch 64, two threads, against torchrun"
    ratio = middle["cifar-ray"] / middle["torchrun"]
    made.append(record.Row(what, ">= 0.98 times", f"{ratio:.2f} times", len(paces["torchrun"]), note))
    if sweeps := raw["sweeps"]:
        share = statistics.median(1 - one["training_s"] / one["sweep_s"] for one in sweeps)
        note = f"sweep {median(sweeps, 'sweep_s'):.0f} s, a cell trains in {median(sweeps, 'training_s'):.0f} s of them"
        what = "sweep of the quick start, outside training"
        made.append(record.Row(what, "<= 33 %", f"{share:.0%}", len(sweeps), note))
        whole = statistics.median(one["sweep_s"] + one["report_s"] for one in sweeps)
        note = f"report {median(sweeps, 'report_s'):.1f} s"
        made.append(record.Row("quick start after installation", "<= 120 s", f"{whole:.0f} s", len(sweeps), note))
    return made


def main() -> None:
    """Measure everything, and save the rows."""
    parser = record.parser(__doc__, rounds=5)
    parser.add_argument("--sweeps", type=int, default=3, help="sweeps; 0 for none")
    given = parser.parse_args()
    names = ["cifar-ray", *(f"cifar-ray {name}" for name in COMMANDS)]
    raw: dict[str, Any] = {"help": record.in_turn(given.rounds, {name: partial(helped, name) for name in names})}
    train = [*CIFAR_RAY, "train"]
    with tempfile.TemporaryDirectory() as home:
        epochs = {
            "cifar-ray": partial(one_epoch, train, PARTS, home),
            "torchrun": partial(one_epoch, TORCHRUN, TORCHRUN_PARTS, home),
        }
        raw["train"] = {kind: found[1:] for kind, found in record.in_turn(given.rounds + 1, epochs).items()}
        paces = {
            "torchrun": partial(steady, TORCHRUN, r"images_per_s ([\d.]+)", home),
            "cifar-ray": partial(steady, [*train, "--log-models", "none"], r"throughput +([\d,]+) images/s", home),
        }
        raw["steady"] = record.in_turn(given.rounds, paces)
    raw["sweeps"] = record.in_turn(given.sweeps, {"sweep": swept})["sweep"]
    record.save("startup", "Time before, beside and after training", rows(raw), raw, dry=given.dry)


if __name__ == "__main__":
    main()
