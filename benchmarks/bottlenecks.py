"""How often `cifar-ray explain` names what really slows a run, how often it names what does not, and what it costs.

    python benchmarks/bottlenecks.py                       # all of it, about 25 minutes on 2 idle cores
    python benchmarks/bottlenecks.py --only quiet          # false alarms: 5 runs of each topology with nothing slow
    python benchmarks/bottlenecks.py --only stopped,link --slowed 3 --dry
    python benchmarks/bottlenecks.py --only overhead --before ../at-an-earlier-commit

Measured: each case named in 10 of 10 runs, no false alarm in 20 quiet ones; the marks of a step take 5.0 us (median of
n = 1,000; two cores of an AMD EPYC, family 26, model 2).

The workers are forked, each of one thread, over gloo; nodes are network namespaces with links that ``tc`` shapes, see
forked.py, which needs root. Every case slows one thing by about ``--slower`` of a step:

- ``stopped``: rank 1 is stopped and continued (SIGSTOP, SIGCONT) 20 times in a second, so that it has a share of a CPU;
- ``competitor``: a busy loop on the CPU to which rank 1 is bound, at a lower priority (nice 5: a quarter of the CPU);
- ``loader``: rank 1 sleeps before it makes its part of a batch;
- ``loaders``: every rank does;
- ``link``: the link between two nodes has so low a rate that the gradients take as long.

``overhead`` times the marks of a step alone, and images/s of simple_cnn with and without them, in turn, with
``--before``. Quiet runs say something of a machine that is idle: the load is kept with the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import forked  # before torch
import record
import torch

from cifar_ray import data, models
from cifar_ray.config.topology import parse
from cifar_ray.config.train import TrainConfig
from cifar_ray.data.loader import TrainLoader
from cifar_ray.training.bottleneck import explain
from cifar_ray.training.clock import Clock
from cifar_ray.training.observer import Outcome
from cifar_ray.training.rank_times import PARTS

QUIET = ("1x1", "1x2", "2x1", "2x2")
CASES = {"stopped": "1x2", "competitor": "1x2", "loader": "1x2", "loaders": "1x2", "link": "2x1"}
WANTED = {"stopped": ("slow rank", [1]), "competitor": ("slow rank", [1]), "loader": ("slow data", [1])}
WANTED |= {"loaders": ("slow data", []), "link": ("slow link", [])}
ALARMS = ("slow rank", "slow data", "slow link")
_PERIOD_S = 0.05


def begin(rank: int, folder: Path, sleeps: dict[int, float], is_bound: bool) -> None:
    """What a worker does first: make its batches slowly, say when it makes one, and keep to one CPU."""
    if is_bound:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    micro_batches = TrainLoader.micro_batches

    def slowly(self: TrainLoader, epoch: int, step: int) -> Any:
        if not (begun := folder / f"pid{rank}").exists():
            begun.write_text(str(os.getpid()))
        time.sleep(sleeps.get(rank, 0.0))
        return micro_batches(self, epoch, step)

    TrainLoader.micro_batches = slowly  # type: ignore[method-assign]


def tell(outcome: Outcome) -> dict[str, Any]:
    """The verdict on a run, and what it says of the machine."""
    assert outcome.steps is not None
    found = {"verdict": asdict(explain(outcome.steps)), "step_s": outcome.times["time/iteration_mean_s"]}
    return found | {"cpu_wait": [rank.cpu_wait for rank in outcome.steps.ranks]}


@contextlib.contextmanager
def beside(work: Callable[..., None], *args: Any) -> Iterator[None]:
    """Context manager: a process that does something until it is killed."""
    process = multiprocessing.get_context("fork").Process(target=work, args=args, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def stop(folder: Path, share: float) -> None:
    """Stop rank 1 for a share of the time from its first step on."""
    while not (begun := folder / "pid1").exists() or not begun.read_text():
        time.sleep(0.1)
    pid = int(begun.read_text())
    with contextlib.suppress(ProcessLookupError):
        while True:
            time.sleep((1 - share) * _PERIOD_S)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(share * _PERIOD_S)
            os.kill(pid, signal.SIGCONT)


def compete() -> None:
    """Keep the second CPU busy, at a lower priority."""
    os.nice(5)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[1]})
    while True:
        pass


def train(nodes: forked.Nodes, given: argparse.Namespace, topology: str, case: str, step_s: float) -> dict[str, Any]:
    """One run with one thing slow, or none: its verdict, and the load of the machine before it.

    ``step_s`` is that of a step undisturbed.
    """
    longer_s, load = given.slower * step_s, os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, sleeps, rate = Path(name), {}, "none"
        if case == "stopped":
            stack.enter_context(beside(stop, folder, given.slower / (1 + given.slower)))
        elif case == "competitor":
            stack.enter_context(beside(compete))
        elif case in ("loader", "loaders"):
            sleeps = dict.fromkeys(range(2) if case == "loaders" else [1], longer_s)
        elif case == "link":
            rate = f"{round(8 * gradient_bytes(given) / longer_s)}bit"
        words = ["--dataset", given.dataset, "--model", given.model, "--epochs", str(given.epochs), "--steps-per-epoch"]
        words += [str(given.steps), "--global-batch-size", str(given.images), "--cpus-per-worker", "1"]
        words += ["--precision", "fp32", "--device", "cpu", "--test-images", "100"]
        first = partial(begin, folder=folder, sleeps=sleeps, is_bound=case == "competitor")
        told = forked.run(nodes, parse(topology), rate, words, 300, tell, first)
    return told | {"load": load}


def gradient_bytes(given: argparse.Namespace) -> int:
    """Bytes of all gradients of the model."""
    model = models.build(TrainConfig(model=given.model, dataset=given.dataset), data.SPECS[given.dataset])
    return 4 * sum(parameter.numel() for parameter in model.parameters())


def measure(nodes: forked.Nodes, given: argparse.Namespace) -> tuple[list[record.Row], dict[str, Any]]:
    """All runs in turn, a round of every case after the other."""
    found: dict[str, list[dict[str, Any]]] = {}
    quiet = QUIET if "quiet" in given.only else ()
    cases = [case for case in CASES if case in given.only]
    undisturbed = {}
    for topology in {CASES[case] for case in cases}:
        undisturbed[topology] = train(nodes, given, topology, "", 0.0)["step_s"]
    turns = [(f"quiet {topology}", topology, "", given.quiet) for topology in quiet]
    turns += [(case, CASES[case], case, given.slowed) for case in cases]
    for turn in range(max(given.quiet, given.slowed)):
        for name, topology, case, times in turns:
            if turn < times:
                run = train(nodes, given, topology, case, undisturbed.get(topology, 0.0))
                found.setdefault(name, []).append(run)
                verdict = run["verdict"]
                print(f"{name}: {verdict['kind']}: {verdict['sentence']} (load {run['load']:.1f})", flush=True)
    return [row(name, runs, given) for name, runs in found.items()], found


def row(name: str, runs: list[dict[str, Any]], given: argparse.Namespace) -> record.Row:
    """How often the verdict was right; for quiet runs, how often it named something that was not there."""
    verdicts = [(run["verdict"]["kind"], list(run["verdict"]["ranks"])) for run in runs]
    kinds = ", ".join(
        f"{kind} {sum(of == kind for of, _ in verdicts)}" for kind in dict.fromkeys(of for of, _ in verdicts)
    )
    loads = [run["load"] for run in runs]
    step = 1000 * statistics.median(run["step_s"] for run in runs)
    note = f"{kinds}; a step of {step:.0f} ms; load {min(loads):.1f} to {max(loads):.1f}"
    if name.startswith("quiet"):
        alarms = sum(kind in ALARMS for kind, _ in verdicts)
        return record.Row(f"{name}: false alarms", "0", str(alarms), len(runs), note)
    right = sum(verdict == WANTED[name] for verdict in verdicts)
    what, target = f"{name}, {given.slower:.0%} slower ({CASES[name]})", f"{-(-9 * len(runs) // 10)} of {len(runs)}"
    return record.Row(what, target, f"named in {right}", len(runs), note)


def overhead(given: argparse.Namespace) -> tuple[list[record.Row], dict[str, Any]]:
    """The marks of a step alone, and images/s of two checkouts in turn."""
    clock, taken, count = Clock(torch.device("cpu"), 0.0), [], 1000
    clock.start()
    for _ in range(count):
        begun = time.perf_counter()
        for part in PARTS:
            clock.mark(part)
        clock.lap()
        clock.mark("other")
        taken.append(1e6 * (time.perf_counter() - begun))
    begun = time.perf_counter()
    clock.stop()
    reading = 1e6 * (time.perf_counter() - begun) / count
    total = [mark + reading for mark in taken]
    middle, high = statistics.median(total), statistics.quantiles(total, n=20)[-1]
    measured = f"median {middle:.1f}, 95th percentile {high:.1f} us"
    rows = [record.Row("marks of a step and their reading", "20 us", measured, count, f"reading {reading:.1f} us")]
    raw: dict[str, Any] = {"us": total}
    if given.before is not None:
        roots = {"before": given.before.resolve(), "now": record.ROOT}
        rates = record.in_turn(given.pairs, {name: partial(images_per_s, root) for name, root in roots.items()})
        ratios = [now / before for before, now in zip(rates["before"], rates["now"])]
        before, now = record.medians(rates).values()
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        note = f"medians {before:,.0f} and {now:,.0f} images/s"
        rows.append(record.Row("images/s of simple_cnn, 1x1, now by before", "1", spread, given.pairs, note))
        raw["images_per_s"] = rates
    return rows, raw


def images_per_s(root: Path) -> float:
    """Throughput of simple_cnn on digits with the program of a checkout."""
    words = ["--dataset", "digits", "--model", "simple_cnn", "--epochs", "40", "--cpus-per-worker", "1"]
    words += ["--precision", "fp32", "--test-images", "10"]
    return record.train(words, root, OMP_NUM_THREADS="1")["images_per_s"]


def main() -> None:
    """Measure, print, and leave nothing behind."""
    parser = record.parser(__doc__)
    everything = ["quiet", *CASES, "overhead"]
    parser.add_argument("--only", default=",".join(everything), help="which of %(default)s")
    parser.add_argument("--quiet", type=int, default=5, help="runs of each topology with nothing slow (%(default)s)")
    parser.add_argument("--slowed", type=int, default=10, help="runs of each case (%(default)s)")
    parser.add_argument("--slower", type=float, default=0.25, help="share by which a step gets longer (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps of an epoch (%(default)s)")
    parser.add_argument("--images", type=int, default=128, help="per step (%(default)s)")
    for name, default in (("epochs", 1), ("dataset", "cifar10"), ("model", "resnet")):
        parser.add_argument(f"--{name}", type=type(default), default=default, help="(%(default)s)")
    parser.add_argument("--before", type=Path, help="an earlier checkout, for images/s in turn")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each checkout (%(default)s)")
    given = parser.parse_args()
    given.only = given.only.split(",")
    if unknown := [name for name in given.only if name not in everything]:
        parser.error(f"--only may have {', '.join(everything)}; not {', '.join(unknown)}")
    if "overhead" in given.only:
        record.save("overhead", "What the times of every rank cost a step", *overhead(given), dry=given.dry)
    if set(given.only) - {"overhead"}:
        with forked.nodes() as nodes:
            rows, raw = measure(nodes, given)
        record.save("bottlenecks", "What bounds a run: how often it is named", rows, raw, dry=given.dry)


if __name__ == "__main__":
    main()
