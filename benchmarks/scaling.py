"""What more workers give: DDP against as many workers that have nothing to do with one another, in turn.

    python benchmarks/scaling.py                                                  # about 15 minutes on 2 cores
    python benchmarks/scaling.py --rounds 1 --steps 2 --model simple_cnn --dry    # does it work?

Measured: `resnet18` at 1x2 reaches 0.95 of two independent runs with as many images each, and 0.91 with twice as many
(n = 3, two cores of an AMD EPYC).

All workers of a machine share its memory, its caches and, as hyper-threads, its cores: W independent runs at once,
each with its share of the CPUs, are what the machine has to give, and an efficiency is DDP's images per second over
theirs. Weak scaling is 64 images for each worker in both; strong scaling is a global batch of 128 against runs that
have 128 images each. Every figure is of the training loop under torchrun on real CIFAR-10, over some steps between two
barriers; start-up, evaluation and checkpoints are in none.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import partial
from typing import Any

import record
import torch.distributed as dist
from throughput import Enough, Observer, train

from cifar_ray.config.train import TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware, recipe

BATCH = 64
WARM_UP_STEPS = 2


class Window:
    """Times some steps of all workers: from a barrier after the first ones to its own last one."""

    def __init__(self, steps: int) -> None:
        self._left, self._steps = steps + WARM_UP_STEPS, steps
        self._begin = self.step_s = 0.0

    def step(self, ends_epoch: bool = False) -> None:
        """After each step; raises :class:`Enough` after the last one."""
        self._left -= 1
        if self._left == self._steps:
            dist.barrier()
            self._begin = time.perf_counter()
        if self._left == 0:
            self.step_s = (time.perf_counter() - self._begin) / self._steps
            raise Enough


def worker(given: argparse.Namespace) -> None:
    """One worker under torchrun; rank 0 prints the images per second of all."""
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    together = given.process == "ddp"
    config = TrainConfig(
        model=given.model,
        batch_size=given.batch,
        topology=f"1x{count}" if together else "1x1",
        precision=given.precision,
        cpus_per_worker=hardware.allowed_cpus() // given.workers,
    )
    window = Window(given.steps)
    train(recipe.resolve(config), Observer(window), Worker(rank, count, rank) if together else Worker())
    every: list[Any] = [None] * count
    dist.all_gather_object(every, given.batch / window.step_s)
    if rank == 0:
        print(json.dumps([sum(every)]))
    dist.destroy_process_group()


def launched(given: argparse.Namespace, kind: str, count: int, batch: int) -> float:
    """What ``count`` workers have found."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", __file__]
    words = ["--process", kind, "--batch", str(batch), "--model", given.model, "--steps", str(given.steps)]
    words += ["--precision", given.precision, "--workers", str(given.workers)]
    return record.answers([*launch, *words])[-1][0]


def rows(given: argparse.Namespace, found: dict[str, list[float]]) -> list[record.Row]:
    """The lines of the table."""
    n, workers, model = given.rounds, given.workers, f"{given.model}, {given.precision}"
    middle = record.medians(found)
    note = f"{record.spread(found['apart'])} against {record.spread(found['alone'])} images/s: what the machine leaves"
    what = f"{model}: {workers} independent runs at once over one alone"
    made = [record.Row(what, "", f"{middle['apart'] / middle['alone']:.2f} times", n, note)]
    for kind, ceiling, each, target in (
        ("weak", "apart", BATCH, ">= 0.95"),
        ("strong", "apart, whole batch", BATCH * workers, ">= 0.9"),
    ):
        note = f"{record.spread(found['ddp'])} images/s with {BATCH} for each worker against "
        note += f"{record.spread(found[ceiling])} of independent runs with {each} each"
        ratio = f"{middle['ddp'] / middle[ceiling]:.2f}"
        made.append(record.Row(f"{model}, 1x{workers} DDP, {kind} scaling", target, ratio, n, note))
    return made


def main() -> None:
    """Measure, and save the rows."""
    parser = record.parser(__doc__, rounds=5)
    parser.add_argument("--model", default="resnet18", help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=6, help="of a measurement, after the first ones (%(default)s)")
    parser.add_argument("--precision", default="bf16", help="fp32 or bf16 (%(default)s)")
    parser.add_argument("--process", choices=("apart", "ddp"), help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=BATCH, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        worker(given)
        return
    kinds = {
        "alone": partial(launched, given, "apart", 1, BATCH),
        "apart": partial(launched, given, "apart", given.workers, BATCH),
        "ddp": partial(launched, given, "ddp", given.workers, BATCH),
        "apart, whole batch": partial(launched, given, "apart", given.workers, BATCH * given.workers),
    }
    found = record.in_turn(given.rounds, kinds)
    title = "Several workers against independent ones on the same machine"
    record.save("scaling", title, rows(given, found), found, dry=given.dry)


if __name__ == "__main__":
    main()
