"""A pass of the built-in models on this processor with its convolutions computed in every way.

    python benchmarks/convolutions.py                              # about 2 minutes on 2 cores
    python benchmarks/convolutions.py --rounds 1 --only simple_cnn:64 --dry

Measured: the chosen way takes 0.56 of the CPU time of `channels_last` with `vgg11`, 0.75 with `resnet50`, 0.76 with
`resnet18`, and as long with `simple_cnn` and `resnet` (n = 3, a Xeon with AMX, family 6, model 167).

CPU seconds of one thread, least of interleaved repeats, with the images of a micro-batch, in bfloat16. ``chosen`` is
what a run decides in this place (:mod:`cifar_ray.training.arithmetic`).
"""

from __future__ import annotations

import dataclasses
from functools import partial

import record
import torch
from throughput import TARGETS, configure

from cifar_ray.config.model import USUAL
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import arithmetic, recipe

CELLS = [f"{model}:64" for model in TARGETS if model != "vit"]


def row(cell: str, rounds: int) -> tuple[record.Row, dict[str, object]]:
    """The line of one model, and its seconds of a forward and backward pass in each way."""
    config, device = recipe.resolve(configure(cell, 1)), torch.device("cpu")
    asked = dataclasses.replace(config, precision="bf16")
    chosen = arithmetic.choose(asked, Worker(), arithmetic.LEAST_STEPS).convolutions
    passes = {
        name: partial(arithmetic.timed_pass(config, config.images_per_worker, name, device), "bf16")
        for name in arithmetic.ways(config)
    }
    seconds = dict(zip(passes, map(list, arithmetic.in_turn([*passes.values()], rounds, rounds))))
    least = {name: 1000 * min(times) for name, times in seconds.items()}
    measured = f"{least[chosen] / least[USUAL]:.2f} of channels_last"
    note = f"chosen: {chosen}; " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in least.items())
    raw = {"chosen": chosen, "seconds": seconds}
    return record.Row(cell.replace(":", ", batch "), "", measured, len(seconds[USUAL]), note), raw


def main() -> None:
    """Measure every cell and save the rows."""
    parser = record.parser(__doc__, rounds=5)
    parser.add_argument("--only", default=",".join(CELLS), help="MODEL:BATCH, separated by commas")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {cell: row(cell, given.rounds) for cell in given.only.split(",")}
    raw = {cell: of for cell, (_, of) in found.items()}
    title = "Convolutions and matrix products"
    record.save("convolutions", title, [line for line, _ in found.values()], raw, dry=given.dry)


if __name__ == "__main__":
    main()
