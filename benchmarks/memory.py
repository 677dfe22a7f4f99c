"""Peak memory of a worker for each model: Python, torch, a training step, an evaluation and a checkpoint.

    python benchmarks/memory.py         # about 5 minutes on 2 cores

One worker under Ray trains some steps of real CIFAR-10 with 64 images each, evaluates and writes a checkpoint. The
figure is `peak_memory_mib`, the most that the worker had of the machine's memory, with the data set, which all workers
of a node share.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

import record

from cifar_ray.config.model import ModelName


def peak(model: str) -> float:
    """MiB of one run's worker."""
    words = ["--model", model, "--batch-size", "64", "--epochs", "1", "--steps-per-epoch", "5", "--lr", "0.001"]
    with tempfile.TemporaryDirectory() as folder:
        places = ["--storage", folder, "--tracking-uri", f"sqlite:///{Path(folder) / 'mlflow.db'}"]
        words += ["--precision", "bf16", "--json", *places]
        done = subprocess.run(
            [sys.executable, "-m", "cifar_ray.cli", "train", *words], check=True, stdout=subprocess.PIPE
        )
    return json.loads(done.stdout)["metrics"]["peak_memory_mib"]


def main() -> None:
    """Run every model and save its row."""
    parser = record.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=typing.get_args(ModelName), help="models")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each")
    given = parser.parse_args()
    raw = {model: [peak(model) for _ in range(given.rounds)] for model in given.models}
    rows = [
        record.Row(model, "", f"{statistics.median(peaks):,.0f} MiB", given.rounds, "batch 64, bf16")
        for model, peaks in raw.items()
    ]
    record.save("memory", "Peak memory of one worker", rows, raw, dry=given.dry)


if __name__ == "__main__":
    main()
