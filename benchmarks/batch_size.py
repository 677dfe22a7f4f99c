"""Whether a larger batch or more workers cost accuracy, with the learning rate scaled and warmed up.

    python benchmarks/batch_size.py --keep runs.jsonl       # about six hours on 2 cores; continues after Ctrl-C
    python benchmarks/batch_size.py --dry --seeds 1 --models simple_cnn

16 and 64 images per worker, at 1x1 and at 2x2, for the same epochs of real CIFAR-10: global batches from 16 to 256.
Every run has its model's recipe and `--lr-scaling`, and is compared with 16 images at 1x1, seed by seed. The workers
are torchrun's, of one thread each; two agents on this machine stand for two nodes, which changes times and not
accuracies. No figure here is a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import record
import training

from cifar_ray.config.topology import parse

SHAPES = {"vit": {"dim": 96, "depth": 4}}
"""A ViT that trains in minutes: 0.2 of the default's arithmetic."""
EPOCHS = {"simple_cnn": 5, "resnet": 10, "vit": 5}
"""Of every run of a model."""
CELLS = [("1x1", 16), ("1x1", 64), ("2x2", 16), ("2x2", 64)]
WITHIN = 1.0
"""Points of accuracy that a cell may lose."""
Runs = dict[str, float]
"""``MODEL TOPOLOGY BATCH SEED SCALING EPOCHS`` -> test accuracy in %."""


def rows(runs: Runs, given: argparse.Namespace) -> list[record.Row]:
    """A line for each cell, beside one worker with 16 images."""
    found = []
    for model in given.models:
        base = accuracies(runs, given, model, *CELLS[0])
        for topology, batch in CELLS:
            here = accuracies(runs, given, model, topology, batch)
            gained = [mine - other for mine, other in zip(here, base, strict=True)]
            spread = f" +- {statistics.stdev(here):.2f}" if len(here) > 1 else ""
            found.append(
                record.Row(
                    f"{named(model)}, {EPOCHS[model]} epochs, {topology}, {batch} per worker",
                    f"at most {WITHIN:g} point lost" if (topology, batch) != CELLS[0] else "",
                    f"{statistics.mean(here):.2f}{spread} %",
                    len(here),
                    f"global batch {batch * parse(topology).world_size}; {statistics.mean(gained):+.2f} points "
                    f"({min(gained):+.2f} to {max(gained):+.2f}) beside 16 at 1x1",
                )
            )
    return found


def named(model: str) -> str:
    """A model with the shape that it has here."""
    shape = ", ".join(f"{name} {value}" for name, value in SHAPES.get(model, {}).items())
    return f"{model} ({shape})" if shape else model


def key(given: argparse.Namespace, model: str, topology: str, batch: int, seed: int) -> str:
    """The name of one run."""
    return f"{model} {topology} {batch} {seed} {given.lr_scaling} {EPOCHS[model]}"


def accuracies(runs: Runs, given: argparse.Namespace, model: str, topology: str, batch: int) -> list[float]:
    """One cell's, by seed."""
    return [runs[key(given, model, topology, batch, seed)] for seed in range(given.seeds)]


def main() -> None:
    """Train what is not kept yet, all cells of one seed first, and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=list(EPOCHS), choices=list(EPOCHS), help="models")
    parser.add_argument("--seeds", type=int, default=3, help="runs of a cell")
    parser.add_argument("--lr-scaling", default="sqrt", help="none, sqrt or linear, from the recipe's 128 images")
    parser.add_argument("--keep", type=Path, help="file that keeps finished runs, and is read first")
    given = parser.parse_args()
    runs: Runs = {}
    commits: set[str] = set()
    if given.keep is not None and given.keep.exists():
        kept = [json.loads(line) for line in given.keep.read_text().splitlines()]
        runs, commits = {name: accuracy for name, accuracy, _ in kept}, {commit for *_, commit in kept}
    for seed in range(given.seeds):
        for model in given.models:
            for topology, batch in CELLS:
                name = key(given, model, topology, batch, seed)
                if name in runs:
                    continue
                shape = [f"--{model}.{option}={value}" for option, value in SHAPES.get(model, {}).items()]
                words = ["--model", model, *shape, "--epochs", str(EPOCHS[model]), "--seed", str(seed)]
                words += ["--batch-size", str(batch), "--lr-scaling", given.lr_scaling, "--cpus-per-worker", "1"]
                runs[name] = 100 * training.run(words, topology)["test/accuracy"]
                print(f"{name}: {runs[name]:.2f} %", flush=True)
                if given.keep is not None:
                    with given.keep.open("a") as file:
                        file.write(json.dumps([name, runs[name], record.commit()]) + "\n")
    found = rows(runs, given)
    title = "Accuracy on CIFAR-10 with larger batches and more workers"
    raw = {"accuracies": runs, "commits": sorted(commits | {record.commit()})}
    of = "" if given.models == list(EPOCHS) else f"_{'_'.join(given.models)}"
    record.save(f"batch_size{of}", title, found, raw, dry=given.dry)


if __name__ == "__main__":
    main()
