"""Whether a larger batch or more workers cost accuracy, with the learning rate scaled and warmed up.

    cifar-ray sweep examples/paper_grid.yaml --seeds 3          # about eight hours on 2 cores
    cifar-ray export paper_grid --out paper_grid.json
    python benchmarks/batch_size.py paper_grid.json

16 and 64 images per worker, at 1x1 and at 2x2, for the same epochs of real CIFAR-10: global batches from 16 to 256.
Each run is compared with that of 16 images at 1x1 that has its seed. Several files are read as one study, in which
``docs/studies`` has every run. No figure here is a time.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import record

from cifar_ray.config.topology import parse
from cifar_ray.reporting import exported
from cifar_ray.tracking.study import Trial

CELLS = [("1x1", 16), ("1x1", 64), ("2x2", 16), ("2x2", 64)]
WITHIN = 1.0
"""Points of accuracy that a cell may lose."""
Accuracies = dict[tuple[str, int], dict[int, float]]
"""Topology and images per worker -> seed -> test accuracy in %."""


def accuracies(trials: list[Trial], model: str) -> Accuracies:
    """The finished runs of one model."""
    found: Accuracies = {cell: {} for cell in CELLS}
    for trial in trials:
        cell = (trial.topology, trial.batch_size)
        if trial.finished and trial.model == model and cell in found:
            found[cell][trial.seed] = 100 * trial.metrics["test/accuracy"]
    return found


def rows(subject: str, found: Accuracies) -> list[record.Row]:
    """A line for each cell, beside one worker with 16 images."""
    made = []
    for topology, batch in CELLS:
        here, base = found[topology, batch], found[CELLS[0]]
        gained = [accuracy - base[seed] for seed, accuracy in here.items() if seed in base]
        if not gained:
            continue
        spread = f" +- {statistics.stdev(here.values()):.2f}" if len(here) > 1 else ""
        note = f"global batch {batch * parse(topology).world_size}"
        if (topology, batch) != CELLS[0]:
            note += (
                f"; {statistics.mean(gained):+.2f} points ({min(gained):+.2f} to {max(gained):+.2f}) beside 16 at 1x1"
            )
        made.append(
            record.Row(
                f"{subject}, {topology}, {batch} per worker",
                f"at most {WITHIN:g} point lost" if (topology, batch) != CELLS[0] else "",
                f"{statistics.mean(here.values()):.2f}{spread} %",
                len(here),
                note,
            )
        )
    return made


def main() -> None:
    """Read the runs and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="studies that `cifar-ray export` has written")
    given = parser.parse_args()
    trials = [trial for file in given.files for trial in exported.read(file).trials if trial.measure != "times"]
    made, raw = [], []
    for model, epochs in dict.fromkeys((trial.model, trial.params["epochs"]) for trial in trials):
        found = accuracies(trials, model)
        made += rows(f"{model}, {epochs} epochs", found)
        raw += [[model, *cell, seed, value] for cell, seeds in found.items() for seed, value in seeds.items()]
    record.save("batch_size", "Accuracy on CIFAR-10 with larger batches and more workers", made, raw, dry=given.dry)


if __name__ == "__main__":
    main()
