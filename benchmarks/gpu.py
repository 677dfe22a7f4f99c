"""What a GPU does: images per second against the usual script, and the tests that need one.

    python benchmarks/gpu.py                                                       # under 8 minutes
    python benchmarks/gpu.py --device cpu --seconds 0.5 --rounds 1 --only simple_cnn:64   # does it work?

Needs no Ray and no MLflow, only torch, torchvision, torchmetrics, safetensors, filelock, pydantic, scikit-learn and
pytest. What a machine without a network lacks of them can be carried along as wheels:

    pip download --only-binary=:all: --python-version 3.12 --dest wheels pydantic    # where there is a network
    pip install --no-index --find-links wheels pydantic                              # on the machine with the GPU

Where CIFAR-10 is not there, random images of its shape and number take its place, which are as fast. The usual script
is that of throughput.py, in float32; ours has the whole data set and the augmentation on the GPU. Rounds go over all
cells, so that a busier minute is everybody's, and no round begins after ``--limit-s`` seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import record
import throughput
import torch
import torchvision.datasets
from PIL import Image

from cifar_ray import data
from cifar_ray.config.train import TrainConfig
from cifar_ray.data.datasets import Dataset, Split

CELLS = [f"{model}:{batch}" for model in throughput.TARGETS for batch in (64, 512)]
KINDS = ("usual", "bf16", "fp32")
TESTS = record.ROOT / "tests" / "integration" / "test_gpu.py"


def make_up_images() -> None:
    """Have random images stand in for CIFAR-10, for our loop and for torchvision's class."""
    spec, random = data.SPECS["cifar10"], np.random.default_rng(0)

    def split(size: int) -> Split:
        images = random.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
        return Split(images, random.integers(0, spec.num_classes, size))

    made = Dataset(spec, split(spec.train_size), split(spec.test_size), tuple("0123456789"), "random")

    class Random(torch.utils.data.Dataset[Any]):
        """As torchvision's CIFAR10 does it: an array, and an image made of a part of it."""

        def __init__(self, root: Any, train: bool, transform: Any) -> None:
            self._transform = transform

        def __len__(self) -> int:
            return len(made.train.labels)

        def __getitem__(self, index: int) -> Any:
            return self._transform(Image.fromarray(made.train.images[index])), int(made.train.labels[index])

    data.load = lambda *_: made
    torchvision.datasets.CIFAR10 = Random  # type: ignore[assignment, misc]


def pace(kind: str, cell: str, given: argparse.Namespace) -> float:
    """Images per second of one measurement."""
    device, (model, batch) = torch.device(given.device), cell.split(":")
    config = TrainConfig(model=model, batch_size=int(batch))  # type: ignore[arg-type]
    if kind == "usual":
        found = throughput.usual(config, given.seconds, device)
    else:
        found = throughput.ours(dataclasses.replace(config, precision=kind), given.seconds, device)  # type: ignore[arg-type]
    return int(batch) / found["step_s"]


def measure(given: argparse.Namespace) -> tuple[dict[str, dict[str, list[float]]], list[float]]:
    """Images per second by cell and kind, and the best matrix products."""
    begin, device = time.monotonic(), torch.device(given.device)
    found: dict[str, dict[str, list[float]]] = {}
    products = []
    for turn in range(given.rounds):
        products.append(throughput.best_product(device))
        for cell in given.only.split(","):
            for kind in KINDS:
                if time.monotonic() - begin > given.limit_s:
                    print(f"no more time in round {turn + 1}", flush=True)
                    return found, products
                found.setdefault(cell, {}).setdefault(kind, []).append(pace(kind, cell, given))
                print(f"round {turn + 1}, {cell}, {kind}: {found[cell][kind][-1]:,.0f} images/s", flush=True)
    return found, products


def row(cell: str, found: dict[str, list[float]], product: float) -> record.Row:
    """The line of one cell."""
    model, batch = cell.split(":")
    middle = {kind: statistics.median(values) for kind, values in found.items()}
    fastest = max(("bf16", "fp32"), key=lambda kind: middle[kind])
    config = TrainConfig(model=model, batch_size=int(batch))  # type: ignore[arg-type]
    share = middle[fastest] * throughput.operations(config) / int(batch) / product
    figures = ", ".join(f"{kind} {throughput.spread(values)}" for kind, values in found.items())
    return record.Row(
        f"{model}, batch {batch}, {fastest}",
        ">= 1 times",
        f"{middle[fastest] / middle['usual']:.2f} times",
        min(map(len, found.values())),
        f"images/s: {figures}; {share:.1%} of the best matrix product ({product / 1e12:,.1f} TFLOP/s)",
    )


def tested(given: argparse.Namespace) -> record.Row:
    """What the tests for a GPU say, in a process of their own."""
    words = [sys.executable, "-m", "pytest", "--noconftest", "-q", "-m", "gpu", str(TESTS)]
    dry = {"CIFAR_RAY_GPU_DRY_RUN": "1"} if given.device == "cpu" else {}
    env = {**os.environ, **dry, "PYTHONPATH": str(record.ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, cwd=record.ROOT, env=env)
    print(done.stdout[-6000:], flush=True)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr.strip()[-200:]
    return record.Row("tests of what holds on a GPU", "all pass", last.strip("= "), 1, "`pytest -m gpu`")


def main() -> None:
    """Test, measure, and save the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to see that it works")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each")
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds of steps in a measurement")
    parser.add_argument("--limit-s", type=float, default=330.0, help="seconds after which no measurement begins")
    parser.add_argument("--only", default=",".join(CELLS), help="MODEL:BATCH, separated by commas")
    given = parser.parse_args()
    lines = [tested(given)]
    if not data.present("cifar10", None):
        make_up_images()
    found, products = measure(given)
    complete = {cell: kinds for cell, kinds in found.items() if len(kinds) == len(KINDS)}
    lines += [row(cell, kinds, statistics.median(products)) for cell, kinds in complete.items()]
    for line in lines:
        print(f"{line.what}: {line.measured}; {line.note}", flush=True)
    raw = {"images_per_s": found, "products": products}
    print(record.save("gpu", "One GPU against the usual script", lines, raw, torch.device(given.device)))


if __name__ == "__main__":
    main()
