"""Whether a larger batch or more workers cost accuracy, with the learning rate scaled and warmed up.

    cifar-ray sweep examples/paper_grid.yaml --seeds 3          # about 13 hours on 2 slow cores
    cifar-ray export paper_grid --out paper_grid.json
    python benchmarks/batch_size.py paper_grid.json

16 and 64 images per worker, at 1x1 and at 2x2, for the same epochs of real CIFAR-10: global batches from 16 to 256.
Each run is compared with that of 16 images at 1x1 that has its seed. The runs of several files count together; those of
docs/measurements/performance.md are in docs/studies/rangoju_katneni_2025. No figure here is a time.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import record

from cifar_ray.config.topology import parse
from cifar_ray.reporting import exported
from cifar_ray.tracking.study import Run

CELLS = [("1x1", 16), ("1x1", 64), ("2x2", 16), ("2x2", 64)]
WITHIN = 1.0
"""Points of accuracy that a cell may lose."""
Accuracies = dict[tuple[str, int], dict[int, float]]
"""Topology and images per worker -> seed -> test accuracy in %."""


def subject(trial: Run) -> str:
    """What a run trained and how long."""
    shape = (
        f" (dim {trial.params['model_options.dim']}, depth {trial.params['model_options.depth']})"
        if trial.model == "vit"
        else ""
    )
    return f"{trial.model}{shape}, {trial.params['epochs']} epochs"


def accuracies(trials: list[Run]) -> Accuracies:
    """Those of the seeds that were trained with 16 images at 1x1, too."""
    found: Accuracies = {cell: {} for cell in CELLS}
    for trial in trials:
        cell = (trial.topology, trial.batch_size)
        if cell in found:
            found[cell][trial.seed] = 100 * trial.metrics["test/accuracy"]
    return {
        cell: {seed: value for seed, value in seeds.items() if seed in found[CELLS[0]]} for cell, seeds in found.items()
    }


def rows(words: str, found: Accuracies) -> list[record.Row]:
    """A line for each cell, beside one worker with 16 images."""
    made = []
    for topology, batch in CELLS:
        here, base = found[topology, batch], found[CELLS[0]]
        if not here:
            continue
        gained = [accuracy - base[seed] for seed, accuracy in here.items()]
        note = f"global batch {batch * parse(topology).world_size}"
        if (topology, batch) != CELLS[0]:
            between = f" ({min(gained):+.2f} to {max(gained):+.2f})" if len(gained) > 1 else ""
            note += f"; {statistics.mean(gained):+.2f} points{between} beside 16 at 1x1"
        made.append(
            record.Row(
                f"{words}, {topology}, {batch} per worker",
                f"at most {WITHIN:g} point lost" if (topology, batch) != CELLS[0] else "",
                record.percent(here.values()),
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
    trials = exported.together([exported.read(file) for file in given.files]).trials
    by_subject: dict[str, list[Run]] = {}
    for trial in trials:
        if trial.finished and trial.measure != "times":
            by_subject.setdefault(subject(trial), []).append(trial)
    made, raw = [], {}
    for words, runs in by_subject.items():
        made += rows(words, accuracies(runs))
        raw[words] = [
            [
                run.name,
                100 * run.metrics["test/accuracy"],
                run.tags["mlflow.source.git.commit"],
                run.tags["cifar_ray.hardware"],
            ]
            for run in runs
        ]
    record.save("batch_size", "Accuracy on CIFAR-10 with larger batches and more workers", made, raw, dry=given.dry)


if __name__ == "__main__":
    main()
