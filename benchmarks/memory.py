"""Peak memory of a worker for each model: the process with Python, torch, the data set and a training step.

    python benchmarks/memory.py         # about 10 minutes on 2 cores

One worker with one thread under torchrun trains some steps of real CIFAR-10 with 64 images each, evaluates and writes a checkpoint.
The figure is `peak_memory_mib`, the most that the worker had of the machine's memory. It hardly depends on what else
runs.
"""

from __future__ import annotations

import statistics
import typing

import record
import training

from cifar_ray.config.train import ModelName


def main() -> None:
    """Run every model and save its row."""
    parser = record.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=typing.get_args(ModelName), help="models")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each")
    given = parser.parse_args()
    rows, raw = [], {}
    for model in given.models:
        words = [
            "--model",
            model,
            "--batch-size",
            "64",
            "--epochs",
            "1",
            "--steps-per-epoch",
            "5",
            "--cpus-per-worker",
            "1",
        ]
        peaks = [
            training.run([*words, "--precision", "bf16", "--lr", "0.001"])["peak_memory_mib"]
            for _ in range(given.rounds)
        ]
        raw[model] = peaks
        note = f"{min(peaks):,.0f} to {max(peaks):,.0f} MiB; 64 images, bf16"
        rows.append(record.Row(model, "", f"{statistics.median(peaks):,.0f} MiB", given.rounds, note))
        print(model, rows[-1].measured, flush=True)
    record.save("memory", "Peak memory of one worker", rows, raw, dry=given.dry)


if __name__ == "__main__":
    main()
