"""Seconds of training to an accuracy on CIFAR-10, with `--model speednet` and all cores.

    python benchmarks/time_to_accuracy.py --epochs 3 --target 85.5 --within 300 --seeds 3     # about 10 minutes
    python benchmarks/time_to_accuracy.py --epochs 12 --target 94 --within 900 --seeds 3      # about 50 minutes
    python benchmarks/time_to_accuracy.py --epochs 3 --target 85.5 --within 300 --seeds 3 --topology 2x2

A run is `python -m cifar_ray.training`, the loop without Ray and MLflow, for a number of epochs that is fixed
beforehand; its accuracy is that after the last one, and its seconds are `time/training_s` (docs/exactness.md): neither
start-up, with the whitening, nor evaluations are in them. `speednet` looks at each test image and its mirror image.
"""

from __future__ import annotations

import statistics

import record
import training


def main() -> None:
    """Train every seed and save the row."""
    parser = record.parser(__doc__)
    parser.add_argument("--epochs", type=int, required=True, help="epochs of a run")
    parser.add_argument("--target", type=float, required=True, help="accuracy to reach in %%")
    parser.add_argument("--within", type=float, required=True, help="seconds to reach it in")
    parser.add_argument("--seeds", type=int, default=3, help="runs")
    parser.add_argument("--topology", default="1x1", help="workers, which share this machine's CPUs (%(default)s)")
    parser.add_argument("--precision", default="bf16", help="fp32 or bf16 (%(default)s)")
    given = parser.parse_args()
    runs = []
    for seed in range(given.seeds):
        words = ["--model", "speednet", "--epochs", str(given.epochs), "--seed", str(seed)]
        runs.append(found := training.run([*words, "--precision", given.precision], given.topology))
        print(f"seed {seed}: {100 * found['test/accuracy']:.2f} % in {found['time/training_s']:.0f} s", flush=True)
    accuracies = [100 * run["test/accuracy"] for run in runs]
    seconds = [run["time/training_s"] for run in runs]
    row = record.Row(
        what=f"speednet, {given.topology}, {given.epochs} epochs",
        target=f"{given.target:g} % in {given.within:g} s",
        measured=f"{record.percent(accuracies)} in {statistics.mean(seconds):.0f} s",
        n=given.seeds,
        note=f"{given.precision}; {min(seconds):.0f} to {max(seconds):.0f} s; "
        f"{statistics.mean(r['images_per_s'] for r in runs):,.0f} images/s",
    )
    where = "" if given.topology == "1x1" else f" at {given.topology}"
    title = f"Time to {given.target:g} % on CIFAR-10{where}"
    record.save(f"time_to_{given.target:g}{where.replace(' ', '_')}", title, [row], runs, dry=given.dry)


if __name__ == "__main__":
    main()
