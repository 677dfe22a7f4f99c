"""What an epoch's evaluation and checkpoint cost beside its steps.

    python benchmarks/pauses.py --rounds 5                                        # about 20 minutes on 2 cores
    python benchmarks/pauses.py --rounds 1 --steps 3 --model simple_cnn --dry    # does it work?

Each run trains a few steps of real CIFAR-10 under torchrun, evaluates all 10,000 test images and writes a checkpoint, as
at the end of every epoch. The steps are scaled to a whole epoch of 50,000 images; evaluation and checkpoint are as
measured. Both launch a topology of one worker with all CPUs and of two that share them.
"""

from __future__ import annotations

import argparse
import statistics

import record
import training

from cifar_ray.data import SPECS

GLOBAL_BATCH = 128
TARGET = 0.05


def run(given: argparse.Namespace, workers: int) -> dict[str, float]:
    """Seconds of a whole epoch's steps, of an evaluation and of a checkpoint."""
    words = ["--model", given.model, "--epochs", "1", "--steps-per-epoch", str(given.steps)]
    words += ["--global-batch-size", str(GLOBAL_BATCH), "--precision", given.precision]
    times = training.run(words, f"1x{workers}")
    steps = SPECS["cifar10"].train_size // GLOBAL_BATCH
    return {
        "steps": steps * times["time/iteration_mean_s"],
        "evaluation": times["time/evaluation_s"],
        "checkpoint": times["time/checkpoint_s"],
    }


def row(given: argparse.Namespace, workers: int, part: str, runs: list[dict[str, float]]) -> record.Row:
    """The line of one topology and one part, or of both parts."""
    parts = part.split(" and ")
    shares = [sum(one[name] for name in parts) / sum(one.values()) for one in runs]
    seconds = statistics.median(sum(one[name] for name in parts) for one in runs)
    epoch = statistics.median(one["steps"] for one in runs)
    return record.Row(
        f"{given.model}, 1x{workers}: {part}",
        f"< {TARGET:.0%} of an epoch" if len(parts) > 1 else "",
        f"{statistics.median(shares):.2%} ({min(shares):.2%} to {max(shares):.2%})",
        len(runs),
        f"{seconds:.2f} s beside {epoch:,.0f} s of steps in {given.precision}"
        + ("; evaluations are in float32, as the saved model is used" if "evaluation" in parts else ""),
    )


def main() -> None:
    """Measure, and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each topology")
    parser.add_argument("--model", default="resnet18", help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="steps of a run, of which the first is not counted")
    parser.add_argument("--precision", default="bf16", help="fp32 or bf16 (%(default)s)")
    given = parser.parse_args()
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for turn in range(given.rounds):
        for workers, runs in found.items():
            runs.append(run(given, workers))
            print(f"round {turn + 1}, 1x{workers}: {runs[-1]}", flush=True)
    parts = ("evaluation", "checkpoint", "evaluation and checkpoint")
    rows = [row(given, workers, part, runs) for workers, runs in found.items() for part in parts]
    record.save("pauses", "Evaluation and checkpoint as a share of an epoch", rows, found, dry=given.dry)


if __name__ == "__main__":
    main()
