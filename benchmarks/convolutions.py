"""Each convolution of the built-in models on this processor: as the library has it, and as matrix products.

    python benchmarks/convolutions.py                              # about 2 minutes on 2 cores
    python benchmarks/convolutions.py --only vgg11:64 --dry

As a run decides it (:mod:`cifar_ray.training.arithmetic`): CPU seconds of one thread, medians of interleaved repeats,
with the images of a micro-batch, in the precision that the run chooses. A bare product is a matrix product of as many
operations, without the making of its columns or the adding of patches: what is left above it is the library's, or ours.
"""

from __future__ import annotations

from typing import Any

import record
import torch
from throughput import TARGETS, configure

from cifar_ray.config.model import PARTS
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import arithmetic, recipe

CELLS = [f"{model}:64" for model in TARGETS if model != "vit"]


def layers(cell: str, precision: str) -> dict[str, dict[str, Any]]:
    """Milliseconds of every shape's parts both ways, of bare products, and what would be chosen for it alone."""
    config, device = recipe.resolve(configure(cell, 1)), torch.device("cpu")
    count, found = config.images_per_worker, {}
    for shape, with_data in arithmetic.shapes(config, count, precision, device).items():
        seconds = dict(zip(arithmetic.WAYS, arithmetic.measure_parts(shape, count, precision, with_data)))
        parts = arithmetic.faster(seconds, with_data)
        bare = 1000 * seconds["weight", "product"] * (3 if with_data else 2)
        ms = {" ".join(way): 1000 * of for way, of in seconds.items()}
        found[str(shape)] = {**ms, "bare": bare, "chosen": " ".join(part for part in PARTS if part in parts)}
    return found


def row(cell: str, shape: str, ms: dict[str, Any]) -> record.Row:
    """The line of one shape."""
    library = sum(ms[f"{part} convolution"] for part in PARTS)
    parts = ", ".join(f"{part} {ms[f'{part} convolution']:.2f} or {ms[f'{part} product']:.2f}" for part in PARTS)
    return record.Row(
        what=f"{cell.split(':')[0]}, {shape}",
        target="",
        measured=ms["chosen"] or "convolution",
        n=arithmetic.PARTS_ROUNDS[0],
        note=f"{library:.2f} ms as a convolution, {ms['bare']:.2f} as bare products; {parts}; columns {ms['columns product']:.2f}",
    )


def main() -> None:
    """Measure every cell and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--only", default=",".join(CELLS), help="MODEL:BATCH, separated by commas")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, raw = [], {}
    for cell in given.only.split(","):
        model, batch = cell.split(":")
        choice = arithmetic.choose(recipe.resolve(configure(cell, 1)), Worker())
        raw[cell] = {"chosen": choice.convolutions, "layers": layers(cell, choice.precision)}
        rows.append(record.Row(f"{model}, batch {batch}", "", choice.words, 5, choice.measured))
        rows += [row(cell, shape, ms) for shape, ms in raw[cell]["layers"].items()]
    record.save("convolutions", "Convolutions and matrix products, by layer", rows, raw, dry=given.dry)


if __name__ == "__main__":
    main()
