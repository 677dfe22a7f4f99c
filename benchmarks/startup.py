"""Time that is not training: commands' help, `cifar-ray train` and a sweep beside torchrun and their own training.

    python benchmarks/startup.py --repeat 5 --sweeps 3        # about 25 minutes on 2 cores
    python benchmarks/startup.py --repeat 1 --sweeps 1 --dry  # does it work?

Four measurements on scikit-learn's digits: the help of every command; the wall time of one epoch at 1x1 under
`cifar-ray train` and under torchrun, in turn, split at the lines that the commands print; images per second of some
300 steps of resnet under both, in turn (batch 64, two threads, steady state as docs/exactness.md defines it); and the
quick start's sweep and report, with an empty home folder, where training is the time in which at least one cell
trains. Before the first counted run, both launchers run once: then the store exists and files are in memory.
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
    output = "".join(said)
    if status != 0:
        sys.exit(f"{' '.join(words)} has failed:\n{output}")
    return {**found, part: now - since, "wall": now - before}, output


def helps(repeat: int) -> dict[str, Any]:
    """Wall and CPU seconds of the help of every command."""
    found: dict[str, Any] = {}
    for _ in range(repeat):
        for name in ("", *COMMANDS):
            words = [*CIFAR_RAY, *([name] if name else []), "--help"]
            before, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
            spent = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime
            found.setdefault(name or "cifar-ray", []).append({"wall_s": time.perf_counter() - before, "cpu_s": cpu})
    return found


def commands(repeat: int, home: str) -> dict[str, list[dict[str, float]]]:
    """Seconds by part of one epoch of digits under both launchers, in turn."""
    found: dict[str, list[dict[str, float]]] = {"cifar-ray": [], "torchrun": []}
    for number in range(repeat + 1):
        with tempfile.TemporaryDirectory() as storage:
            ours, output = run([*CIFAR_RAY, "train", *ONE_EPOCH, "--storage", storage], home, PARTS)
            ours |= {f"time/{name}_s": float(s) for name, s in re.findall(r"^(\w+) +([\d.]+) s$", output, re.MULTILINE)}
            theirs, _ = run([*TORCHRUN, *ONE_EPOCH, "--storage", storage], home, TORCHRUN_PARTS)
        if number > 0:
            found["cifar-ray"].append(ours)
            found["torchrun"].append(theirs)
            print(f"one epoch: cifar-ray {ours['wall']:.1f} s, torchrun {theirs['wall']:.1f} s", flush=True)
    return found


def steady(repeat: int, home: str) -> dict[str, list[float]]:
    """Images per second in steady state under both launchers, in turn."""
    found: dict[str, list[float]] = {"cifar-ray": [], "torchrun": []}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as storage:
            words = [*STEPS, "--precision", "fp32", "--storage", storage]
            for kind, pattern, command in (
                ("torchrun", r"images_per_s ([\d.]+)", [*TORCHRUN, *words]),
                ("cifar-ray", r"throughput +([\d,]+) images/s", [*CIFAR_RAY, "train", *words, "--log-models", "none"]),
            ):
                pace = re.findall(pattern, run(command, home)[1])[-1]
                found[kind].append(float(pace.replace(",", "")))
        print(
            "steady state:", ", ".join(f"{kind} {paces[-1]:,.0f} images/s" for kind, paces in found.items()), flush=True
        )
    return found


def sweeps(repeat: int) -> list[dict[str, float]]:
    """Wall seconds of the quick start's sweep and report, and those of the sweep in which a cell trains."""
    found = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as home:
            swept = run([*CIFAR_RAY, "sweep", SWEEP, "--name", "quick"], home)[0]["wall"]
            reported = run([*CIFAR_RAY, "report", "quick", "--out", "report"], home)[0]["wall"]
            training = trained(f"sqlite:///{home}/.cifar_ray/mlflow.db")
        found.append({"sweep_s": swept, "report_s": reported, "training_s": training})
        print(f"sweep {swept:.0f} s, of which {training:.0f} s of training; report {reported:.1f} s", flush=True)
    return found


def trained(uri: str) -> float:
    """Seconds in which at least one run of a store trained, evaluated or wrote a checkpoint."""
    from mlflow import MlflowClient

    client, spans = MlflowClient(uri), []
    for run in client.search_runs([one.experiment_id for one in client.search_experiments()]):
        figures = run.data.metrics
        if "time/wall_s" in figures:
            begun, end = run.info.start_time / 1000, run.info.start_time / 1000 + figures["time/wall_s"]
            before, after = figures["time/startup_s"] + figures["time/data_s"], figures["time/other_s"]
            spans.append((begun + before, end - after))
    total, reached = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total


def median(values: Sequence[dict[str, float]], name: str) -> float:
    """The median of one figure."""
    return statistics.median(one[name] for one in values)


def listed(values: Sequence[dict[str, float]], parts: dict[str, str]) -> str:
    """The median of each part, in words."""
    return ", ".join(f"{part} {median(values, part):.1f}" for part in parts.values())


def rows(raw: dict[str, Any]) -> list[record.Row]:
    """The table."""
    found = []
    slowest = max(raw["help"], key=lambda name: median(raw["help"][name], "wall_s"))
    times = raw["help"][slowest]
    note = f"the slowest, {slowest}; {median(times, 'cpu_s'):.2f} s of CPU time"
    found.append(record.Row("help of every command", "< 0.5 s", f"{median(times, 'wall_s'):.2f} s", len(times), note))
    ours, theirs = raw["train"]["cifar-ray"], raw["train"]["torchrun"]
    ratio = median(ours, "wall") / median(theirs, "wall")
    note = f"cifar-ray {median(ours, 'wall'):.1f} s: {listed(ours, PARTS)}; torchrun {median(theirs, 'wall'):.1f} s: "
    note += listed(theirs, TORCHRUN_PARTS)
    found.append(
        record.Row(
            "one epoch of digits at 1x1, wall time against torchrun",
            "<= 1.5 times",
            f"{ratio:.2f} times",
            len(ours),
            note,
        )
    )
    paces = {kind: statistics.median(values) for kind, values in raw["steady"].items()}
    note = ", ".join(
        f"{kind} {paces[kind]:,.0f} ({min(values):,.0f} to {max(values):,.0f}) images/s"
        for kind, values in raw["steady"].items()
    )
    found.append(
        record.Row(
            "images/s of resnet, batch 64, two threads, against torchrun",
            ">= 0.98 times",
            f"{paces['cifar-ray'] / paces['torchrun']:.2f} times",
            len(raw["steady"]["torchrun"]),
            note,
        )
    )
    if swept := raw["sweeps"]:
        shares = [1 - one["training_s"] / one["sweep_s"] for one in swept]
        note = f"sweep {median(swept, 'sweep_s'):.0f} s, a cell trains in {median(swept, 'training_s'):.0f} s of them"
        found.append(
            record.Row(
                "sweep of the quick start, outside training",
                "<= 33 %",
                f"{statistics.median(shares):.0%}",
                len(swept),
                note,
            )
        )
        whole = statistics.median(one["sweep_s"] + one["report_s"] for one in swept)
        note = f"report {median(swept, 'report_s'):.1f} s"
        found.append(record.Row("quick start after installation", "<= 120 s", f"{whole:.0f} s", len(swept), note))
    return found


def main() -> None:
    """Measure everything, and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="measurements of each")
    parser.add_argument("--sweeps", type=int, default=3, help="sweeps; 0 for none")
    given = parser.parse_args()
    raw: dict[str, Any] = {"help": helps(given.repeat)}
    with tempfile.TemporaryDirectory() as home:
        raw["train"] = commands(given.repeat, home)
        raw["steady"] = steady(given.repeat, home)
    raw["sweeps"] = sweeps(given.sweeps)
    record.save("startup", "Time before, beside and after training", rows(raw), raw, dry=given.dry)


if __name__ == "__main__":
    main()
