"""Seconds of training to an accuracy on CIFAR-10, with `--model speednet` and all cores.

    python benchmarks/time_to_accuracy.py      # about 50 minutes on 2 cores

Measured: 94.14 +- 0.13 % in 604 s of training (n = 3 seeds, two cores of an AMD EPYC, family 26, model 2).

A run is `python -m cifar_ray.training`, the loop without Ray and MLflow, for a number of epochs that is fixed
beforehand; its accuracy is that after the last one, and its seconds are `time/training_s` (docs/exactness.md): neither
start-up, with the whitening, nor evaluations are in them. `speednet` looks at each test image and its mirror image.
"""

from __future__ import annotations

import statistics

import record


def main() -> None:
    """Train every seed and save the row."""
    parser = record.parser(__doc__)
    parser.add_argument("--epochs", type=int, default=12, help="epochs of a run (%(default)s)")
    parser.add_argument("--target", type=float, default=94, help="accuracy to reach in %% (%(default)s)")
    parser.add_argument("--within", type=float, default=900, help="seconds to reach it in (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs (%(default)s)")
    given = parser.parse_args()
    words = ["--model", "speednet", "--epochs", str(given.epochs), "--precision", "bf16", "--seed"]
    runs = [record.train([*words, str(seed)]) for seed in range(given.seeds)]
    accuracies = [100 * run["test/accuracy"] for run in runs]
    deviation = f" +- {statistics.stdev(accuracies):.2f}" if len(runs) > 1 else ""
    seconds = [run["time/training_s"] for run in runs]
    row = record.Row(
        f"speednet, 1x1, {given.epochs} epochs",
        f"{given.target:g} % in {given.within:g} s",
        f"{statistics.mean(accuracies):.2f}{deviation} % in {statistics.mean(seconds):.0f} s",
        given.seeds,
        f"bf16; {min(seconds):.0f} to {max(seconds):.0f} s; {statistics.mean(r['images_per_s'] for r in runs):,.0f} images/s",
    )
    record.save(f"time_to_{given.target:g}", f"Time to {given.target:g} % on CIFAR-10", [row], runs, dry=given.dry)


if __name__ == "__main__":
    main()
