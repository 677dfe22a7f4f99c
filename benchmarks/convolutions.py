"""A pass of the built-in models on this processor with its convolutions computed in every way.

    python benchmarks/convolutions.py                              # about 2 minutes on 2 cores
    python benchmarks/convolutions.py --only vgg11:64 --dry

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


def measured(cell: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of a forward and backward pass in each way."""
    config, device = recipe.resolve(configure(cell, 1)), torch.device("cpu")
    passes = {
        name: partial(arithmetic.timed_pass(config, config.images_per_worker, name, device), "bf16")
        for name in arithmetic.ways(config)
    }
    return dict(zip(passes, map(list, arithmetic.in_turn([*passes.values()], rounds, rounds))))


def row(cell: str, seconds: dict[str, list[float]], choice: arithmetic.Choice) -> record.Row:
    """The line of one model."""
    least = {name: 1000 * min(times) for name, times in seconds.items()}
    model, batch = cell.split(":")
    return record.Row(
        what=f"{model}, batch {batch}",
        target="",
        measured=f"{least[choice.convolutions] / least[USUAL]:.2f} of channels_last",
        n=len(seconds[USUAL]),
        note=f"chosen: {choice.convolutions}; " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in least.items()),
    )


def main() -> None:
    """Measure every cell and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--only", default=",".join(CELLS), help="MODEL:BATCH, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="repeats of each")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, raw = [], {}
    for cell in given.only.split(","):
        asked = dataclasses.replace(recipe.resolve(configure(cell, 1)), precision="bf16")
        choice = arithmetic.choose(asked, Worker(), arithmetic.LEAST_STEPS)
        raw[cell] = {"chosen": choice.convolutions, "seconds": measured(cell, given.rounds)}
        rows.append(row(cell, raw[cell]["seconds"], choice))
    record.save("convolutions", "Convolutions and matrix products", rows, raw, dry=given.dry)


if __name__ == "__main__":
    main()
