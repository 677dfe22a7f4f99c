"""Where a step's time goes on the CPU, by PyTorch operator: what bounds a throughput.

    python benchmarks/operators.py                        # about 2 minutes on 2 cores
    python benchmarks/operators.py --only resnet:64 --dry

The loop of benchmarks/throughput.py runs for some steps under PyTorch's profiler. A share is an operator's own time,
without that of the operators that it calls, over that of all operators; with several threads it is the calling
thread's. The profiler slows small operators, so shares are given and no times.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import record
import torch
from throughput import CELLS, EPOCHS, Enough, Observer, configure
from torch.profiler import ProfilerActivity, profile

from cifar_ray import data
from cifar_ray.config.decided import Decided
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware, recipe
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import Launch
from cifar_ray.training.setup import prepare

WARM_UP_STEPS, STEPS, SHOWN = 5, 10, 5


class Traced:
    """Traces some steps, after the first ones."""

    def __init__(self) -> None:
        self._left = WARM_UP_STEPS + STEPS
        self.profiler = profile(activities=[ProfilerActivity.CPU])

    def step(self, ends_epoch: bool = False) -> None:
        """After each step; raises :class:`Enough` after the last one."""
        self._left -= 1
        if self._left == STEPS:
            self.profiler.__enter__()
        if self._left == 0:
            self.profiler.__exit__(None, None, None)
            raise Enough


def shares(cell: str) -> tuple[str, dict[str, float]]:
    """The precision of a cell, and the share of each operator, largest first."""
    torch.set_num_threads(threads := hardware.allowed_cpus())
    config = dataclasses.replace(recipe.resolve(configure(cell, threads)), epochs=EPOCHS)
    traced = Traced()
    observer = Observer(traced)
    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        dataset, launch = data.load(config.dataset), Launch(time.time(), 0.0)
        fit(prepare(config, Decided.asked(config), dataset, Path(folder), Worker(), launch), observer)
    own: Counter[str] = Counter()
    for event in traced.profiler.key_averages():
        if event.key.startswith(("aten::", "mkldnn")):
            own[event.key.removeprefix("aten::")] += event.self_cpu_time_total
    return observer.computed, {name: spent / own.total() for name, spent in own.most_common()}


def main() -> None:
    """Trace every cell and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--only", default=",".join(CELLS), help="MODEL:BATCH, separated by commas")
    given = parser.parse_args()
    rows, raw = [], {}
    for cell in given.only.split(","):
        precision, raw[cell] = shares(cell)
        most = list(raw[cell].items())[:SHOWN]
        model, batch = cell.split(":")
        first, *others = (f"{name} {share:.0%}" for name, share in most)
        rows.append(record.Row(f"{model}, batch {batch}", "", first, 1, f"{precision}; then {', '.join(others)}"))
    record.save("operators", "Where a step's time goes, by operator", rows, raw, dry=given.dry)


if __name__ == "__main__":
    main()
