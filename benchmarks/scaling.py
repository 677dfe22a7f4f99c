"""What more workers give: DDP against as many workers that have nothing to do with one another, in turn.

    python benchmarks/scaling.py --rounds 5                                       # about 25 minutes on 2 cores
    python benchmarks/scaling.py --rounds 1 --steps 2 --model simple_cnn --dry    # does it work?

All workers of a machine share its memory, its caches and, as hyper-threads, its cores: W independent runs at once,
each with its share of the CPUs, are what the machine has to give, and an efficiency is DDP's images per second over
theirs. Weak scaling is 64 images for each worker in both; strong scaling is a global batch of 128 against runs that
have 128 images each. Every figure is of the training loop under torchrun on real CIFAR-10, over some steps between two
barriers; start-up, evaluation and checkpoints are in none.

Overlap is read from PyTorch's profiler: the time in which an all-reduce is under way while gradients are still being
computed, over all the time in which one is under way, from its start to its end as gloo reports them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import record
import torch.distributed as dist
from throughput import Enough, Observer, spread
from torch.profiler import ProfilerActivity, profile

from cifar_ray import data
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware, recipe
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import Launch
from cifar_ray.training.setup import prepare

BATCH = 64
WARM_UP_STEPS = 2
CHOICES = {
    "buckets of 5 MiB": {"bucket_cap_mb": 5.0},
    "gradients as bf16 (--strategy-options.comm-hook bf16)": {"strategy_options": {"comm_hook": "bf16"}},
    "gloo with 1 thread": {"gloo_threads": 1},
    "gloo with 4 threads": {"gloo_threads": 4},
}
"""What is compared with DDP as it is: buckets of 25 MiB, float32, gloo's own 2 threads."""


class Window:
    """Times some steps of all workers: from a barrier after the first ones to its own last one."""

    def __init__(self, steps: int, profiler: Any) -> None:
        self._left, self._steps, self._profiler = steps + WARM_UP_STEPS, steps, profiler
        self._begin = 0.0
        self.step_s = 0.0

    def step(self, ends_epoch: bool = False) -> None:
        """After each step; raises :class:`Enough` after the last one."""
        self._left -= 1
        if self._left == self._steps:
            dist.barrier()
            self._profiler.__enter__()
            self._begin = time.perf_counter()
        if self._left == 0:
            self.step_s = (time.perf_counter() - self._begin) / self._steps
            self._profiler.__exit__(None, None, None)
            raise Enough


def worker(given: argparse.Namespace) -> None:
    """One worker under torchrun: prints its seconds per step, and its overlap when it is traced."""
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options = json.loads(given.options)
    _join(rank, count, options.pop("gloo_threads", None))
    together = given.process != "apart"
    config = TrainConfig(
        model=given.model,
        batch_size=given.batch,
        topology=f"1x{count}" if together else "1x1",
        precision=given.precision,
        cpus_per_worker=hardware.allowed_cpus() // given.workers,
        **options,
    )
    profiler: Any = profile(activities=[ProfilerActivity.CPU]) if given.process == "traced" else nullcontext()
    window = Window(given.steps, profiler)
    place = Worker(rank, count, rank) if together else Worker()
    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        resolved, dataset, launch = recipe.resolve(config), data.load("cifar10"), Launch(time.time(), 0)
        fit(prepare(resolved, Decided.asked(resolved), dataset, Path(folder), place, launch), Observer(window))
    found = {"step_s": window.step_s}
    if given.process == "traced":
        found["hidden"] = hidden(profiler)
    every: list[Any] = [None] * count
    dist.all_gather_object(every, found)
    if rank == 0:
        print(json.dumps(every))
    dist.destroy_process_group()


def _join(rank: int, count: int, threads: int | None) -> None:
    """The process group; gloo's number of threads is not among the options of ``init_process_group``."""
    if threads is not None:

        def create(store: dist.Store, rank: int, size: int, timeout: Any) -> Any:
            options = dist.ProcessGroupGloo._Options()
            options._threads, options._timeout = threads, timeout
            options._devices = [dist.ProcessGroupGloo.create_default_device()]
            return dist.ProcessGroupGloo(store, rank, size, options)

        dist.Backend.register_backend("gloo_threads", create, devices=["cpu"])
    dist.init_process_group("gloo" if threads is None else "gloo_threads")


def hidden(profiler: Any) -> float:
    """The share of the all-reduces' time in which gradients were still being computed."""
    exchanges, gradients = [], []
    for event in profiler.profiler.kineto_results.events():
        span = event.start_ns(), event.start_ns() + event.duration_ns()
        if event.name() == "gloo:all_reduce":
            exchanges.append(span)
        elif event.name().startswith("autograd::engine::evaluate_function"):
            gradients.append(span)
    exchanging = _union(exchanges)
    both = length(exchanging) + length(_union(gradients)) - length(_union(exchanges + gradients))
    return both / length(exchanging)


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same time without overlaps, in order."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def length(spans: list[tuple[int, int]]) -> int:
    """Nanoseconds in all."""
    return sum(end - begin for begin, end in spans)


def launched(given: argparse.Namespace, kind: str, count: int, batch: int, options: Any = None) -> list[dict[str, Any]]:
    """What ``count`` workers found, each by itself."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", __file__]
    words = ["--process", kind, "--batch", str(batch), "--model", given.model, "--steps", str(given.steps)]
    words += ["--precision", given.precision, "--workers", str(given.workers), "--options", json.dumps(options or {})]
    done = subprocess.run([*launch, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{kind} with {count} workers failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def pace(found: list[dict[str, Any]], batch: int) -> float:
    """Images per second of all workers."""
    return sum(batch / one["step_s"] for one in found)


def measure(given: argparse.Namespace) -> dict[str, list[float]]:
    """Images per second of every kind of run, round after round, and the share that is hidden."""
    found: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)
        print(f"{name}: {value:,.2f}", flush=True)

    for turn in range(given.rounds):
        print(f"round {turn + 1}", flush=True)
        add("alone", pace(launched(given, "apart", 1, BATCH), BATCH))
        add("apart", pace(launched(given, "apart", given.workers, BATCH), BATCH))
        add("ddp", pace(launched(given, "ddp", given.workers, BATCH), BATCH))
        add(
            "apart, whole batch",
            pace(launched(given, "apart", given.workers, BATCH * given.workers), BATCH * given.workers),
        )
        for name, options in CHOICES.items():
            add(name, pace(launched(given, "ddp", given.workers, BATCH, options), BATCH))
        add("hidden", statistics.mean(one["hidden"] for one in launched(given, "traced", given.workers, BATCH)))
    return found


def rows(given: argparse.Namespace, found: dict[str, list[float]]) -> list[record.Row]:
    """The lines of the table."""
    n, workers, model = given.rounds, given.workers, f"{given.model}, {given.precision}"
    middle = {name: statistics.median(values) for name, values in found.items()}
    made = [
        record.Row(
            f"{model}: {workers} independent runs at once over one alone",
            "",
            f"{middle['apart'] / middle['alone']:.2f} times",
            n,
            f"{spread(found['apart'])} against {spread(found['alone'])} images/s: what the machine leaves",
        )
    ]
    for kind, ceiling, target in (("weak", "apart", 0.95), ("strong", "apart, whole batch", 0.9)):
        each = BATCH if kind == "weak" else BATCH * workers
        made.append(
            record.Row(
                f"{model}, 1x{workers} DDP, {kind} scaling",
                f">= {target}",
                f"{middle['ddp'] / middle[ceiling]:.2f}",
                n,
                f"{spread(found['ddp'])} images/s with {BATCH} for each worker against {spread(found[ceiling])} of independent "
                f"runs with {each} each",
            )
        )
    hidden_share = f"{middle['hidden']:.0%} ({min(found['hidden']):.0%} to {max(found['hidden']):.0%})"
    made.append(
        record.Row(f"{model}: all-reduce time behind the backward pass", "", hidden_share, n, "by the profiler")
    )
    for name in CHOICES:
        ratio = f"{middle[name] / middle['ddp']:.2f} times"
        made.append(record.Row(f"{model}, DDP with {name}", "", ratio, n, "against DDP as it is, on one machine"))
    return made


def main() -> None:
    """Measure, and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--model", default="resnet18", help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="(%(default)s)")
    parser.add_argument(
        "--steps", type=int, default=6, help="steps of a measurement, after the first ones (%(default)s)"
    )
    parser.add_argument("--precision", default="bf16", help="fp32 or bf16 (%(default)s)")
    parser.add_argument("--process", choices=("apart", "ddp", "traced"), help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=BATCH, help=argparse.SUPPRESS)
    parser.add_argument("--options", default="{}", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        worker(given)
        return
    found = measure(given)
    title = "Several workers against independent ones on the same machine"
    record.save("scaling", title, rows(given, found), found, dry=given.dry)


if __name__ == "__main__":
    main()
