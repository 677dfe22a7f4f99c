"""What a GPU does: images per second against the usual script, and speednet's time to 94 %.

    python benchmarks/gpu.py                                                       # under 8 minutes
    python benchmarks/gpu.py --device cpu --seconds 0.5 --rounds 1 --only simple_cnn:64 --dry   # does it work?

Needs no Ray and no MLflow, only torch, torchvision, safetensors, filelock, pydantic and scikit-learn. What a machine
without a network lacks of them can be carried along as wheels:

    pip download --only-binary=:all: --python-version 3.12 --dest wheels pydantic    # where there is a network
    pip install --no-index --find-links wheels pydantic                              # on the machine with the GPU

Where CIFAR-10 is not there, random images of its shape and number take its place, which are as fast; speednet's row then
says what it took and not how accurate it is. The usual script is that of throughput.py, in float32, of which cuDNN
rounds to TF32 as PyTorch has it; ``tf32`` is the same with matrix products in TF32, too. Ours, with the whole data set
and the augmentation on the GPU, is measured with ``--precision`` bf16, fp16 and fp32, and ``compiled`` is bf16 with
``--compile``, of each model the first batch alone, since compiling takes long. In each round every kind has a process
of its own that goes over its cells, so that a busier minute is everybody's, and nothing begins after ``--limit-s``
seconds. What a card cannot do is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import record
import throughput
import torch
import torchvision.datasets
from PIL import Image

from cifar_ray import data
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data.datasets import Dataset, Split
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import recipe
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import Launch
from cifar_ray.training.setup import prepare

CELLS = [f"{model}:{batch}" for model in throughput.TARGETS for batch in (64, 512)]
SCRIPTS, OURS = ("usual", "tf32"), ("bf16", "fp32", "fp16", "compiled")
KINDS = ("usual", "bf16", "fp32", "fp16", "tf32", "compiled")
"""In the order of their turns; the one that takes longest is last."""
SPEEDNET_EPOCHS, SPEEDNET_SEEDS = 13, 3
RECORD_S, RECORD_FLOPS = 3.83, 312e12
"""airbench94's seconds to 94 %, uncompiled, and the dense bf16 FLOP/s of the A100 that it ran on."""


def make_up_images() -> None:
    """Have random images stand in for CIFAR-10, for our loop and for torchvision's class."""
    spec, random = data.SPECS["cifar10"], np.random.default_rng(0)

    def split(size: int) -> Split:
        images = random.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
        return Split({"images": images, "labels": random.integers(0, spec.num_classes, size)})

    made = Dataset(spec, split(spec.train_size), split(spec.test_size), tuple("0123456789"), "random")

    class Random(torch.utils.data.Dataset[Any]):
        """As torchvision's CIFAR10 does it: an array, and an image made of a part of it."""

        def __init__(self, root: Any, train: bool, transform: Any) -> None:
            self._transform = transform

        def __len__(self) -> int:
            return len(made.train["labels"])

        def __getitem__(self, index: int) -> Any:
            return self._transform(Image.fromarray(made.train.inputs[index])), int(made.train["labels"][index])

    data.load = lambda *_: made
    torchvision.datasets.CIFAR10 = Random  # type: ignore[assignment, misc]


def pace(kind: str, cell: str, given: argparse.Namespace) -> float:
    """Images per second of one measurement."""
    device, (model, batch) = torch.device(given.device), cell.split(":")
    config = TrainConfig(model=model, batch_size=int(batch))  # type: ignore[arg-type]
    if kind in SCRIPTS:
        torch.backends.cuda.matmul.fp32_precision = "tf32" if kind == "tf32" else "ieee"
        found = throughput.usual(config, given.seconds, device)
    else:
        ways: dict[str, Any] = {"precision": "bf16", "compile": True} if kind == "compiled" else {"precision": kind}
        found = throughput.ours(dataclasses.replace(config, **ways), given.seconds, device)
    return int(batch) / found["step_s"]


def cells_of(kind: str, given: argparse.Namespace) -> list[str]:
    """What is measured of a kind."""
    cells = given.only.split(",")
    first = {cell.partition(":")[0]: cell for cell in reversed(cells)}.values()
    return [cell for cell in cells if kind != "compiled" or cell in first]


def pace_all(kind: str, given: argparse.Namespace) -> None:
    """Print the best matrix product and, as long as there is time, each cell's images per second, as JSON."""
    begin = time.monotonic()
    print(json.dumps(["product", throughput.best_product(torch.device(given.device))]), flush=True)
    for cell in cells_of(kind, given):
        if time.monotonic() - begin > given.limit_s:
            return
        try:
            print(json.dumps([cell, pace(kind, cell, given)]), flush=True)
        except ConfigError as error:
            print(json.dumps([cell, str(error)]), flush=True)
        torch.cuda.empty_cache()


def time_speednet(given: argparse.Namespace) -> None:
    """Print seconds of training and test accuracy of speednet for each seed, as JSON."""
    config = TrainConfig(model="speednet", epochs=SPEEDNET_EPOCHS, precision="bf16")
    if given.device == "cpu":
        config = dataclasses.replace(config, epochs=1, steps_per_epoch=2, batch_size=16)
    for seed in range(1 if given.device == "cpu" else SPEEDNET_SEEDS):
        observer = throughput.Observer(throughput.Pace(float("inf"), torch.device(given.device)))
        with tempfile.TemporaryDirectory() as folder:
            resolved = recipe.resolve(dataclasses.replace(config, seed=seed))
            worker, launch = Worker(device=torch.device(given.device)), Launch(time.time(), 0.0)
            dataset = data.load("cifar10")
            state = prepare(resolved, Decided.asked(resolved), dataset, Path(folder), worker, launch)
            outcome = fit(state, observer)
        print(json.dumps([outcome.times["time/training_s"], outcome.metrics["test/accuracy"]]), flush=True)


def in_a_process(kind: str, given: argparse.Namespace, limit_s: float = 0.0) -> list[Any]:
    """What a process of its own prints, line by line."""
    words = [sys.executable, __file__, "--process", kind, "--device", given.device, "--only", given.only]
    words += ["--seconds", str(given.seconds), "--limit-s", str(limit_s)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{kind} failed:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def measure(given: argparse.Namespace) -> tuple[dict[str, dict[str, list[float]]], list[float]]:
    """Images per second by cell and kind, and the best matrix products."""
    begin = time.monotonic()
    found: dict[str, dict[str, list[float]]] = {}
    products = []
    for turn in range(given.rounds):
        for kind in KINDS:
            left = given.limit_s - (time.monotonic() - begin)
            if left <= 0:
                print(f"no more time in round {turn + 1}", flush=True)
                return found, products
            for cell, value in in_a_process(kind, given, left):
                if cell == "product":
                    products.append(value)
                    continue
                if isinstance(value, str):
                    print(f"{cell}, {kind}: {value}", flush=True)
                    continue
                found.setdefault(cell, {}).setdefault(kind, []).append(value)
                print(f"round {turn + 1}, {cell}, {kind}: {value:,.0f} images/s", flush=True)
    return found, products


def row(cell: str, found: dict[str, list[float]], product: float) -> record.Row:
    """The line of one cell."""
    model, batch = cell.split(":")
    middle = {kind: statistics.median(values) for kind, values in found.items()}
    fastest = max((kind for kind in OURS if kind in middle), key=lambda kind: middle[kind])
    config = TrainConfig(model=model, batch_size=int(batch))  # type: ignore[arg-type]
    share = middle[fastest] * throughput.operations(config) / int(batch) / product
    figures = ", ".join(f"{kind} {throughput.spread(found[kind])}" for kind in KINDS if kind in found)
    return record.Row(
        f"{model}, batch {batch}, {fastest}",
        ">= 1 times",
        f"{middle[fastest] / middle['usual']:.2f} times",
        min(map(len, found.values())),
        f"images/s: {figures}; {share:.1%} of the best matrix product ({product / 1e12:,.1f} TFLOP/s)",
    )


def speednet_row(runs: list[list[float]], product: float, given: argparse.Namespace) -> record.Row:
    """The line of speednet's time to 94 %."""
    seconds, accuracies = [one[0] for one in runs], [100 * one[1] for one in runs]
    reached = f"{statistics.mean(accuracies):.2f} % in " if data.present("cifar10", None) else ""
    return record.Row(
        f"speednet, {SPEEDNET_EPOCHS} epochs, bf16" if given.device != "cpu" else "speednet, 2 steps, bf16",
        f"94 % in {RECORD_S * RECORD_FLOPS / product:.1f} s",
        f"{reached}{statistics.median(seconds):.1f} s",
        len(runs),
        f"{min(seconds):.1f} to {max(seconds):.1f} s of training; the target is airbench94's {RECORD_S} s on an A100, "
        f"scaled by the matrix products ({RECORD_FLOPS / 1e12:,.0f} TFLOP/s of its data sheet)"
        + ("" if reached else "; random images, so no accuracy"),
    )


def main() -> None:
    """Measure, and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to see that it works")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of steps in a measurement")
    parser.add_argument("--limit-s", type=float, default=330.0, help="seconds after which no measurement begins")
    parser.add_argument("--only", default=",".join(CELLS), help="MODEL:BATCH, separated by commas")
    parser.add_argument("--process", choices=(*KINDS, "speednet"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        if not data.present("cifar10", None):
            make_up_images()
        time_speednet(given) if given.process == "speednet" else pace_all(given.process, given)
        return
    found, products = measure(given)
    product = statistics.median(products)
    runs = in_a_process("speednet", given)
    lines = [speednet_row(runs, product, given)]
    comparable = {
        cell: kinds for cell, kinds in found.items() if "usual" in kinds and not kinds.keys().isdisjoint(OURS)
    }
    lines += [row(cell, kinds, product) for cell, kinds in comparable.items()]
    raw = {"images_per_s": found, "products": products, "speednet": runs}
    record.save("gpu", "One GPU against the usual script", lines, raw, torch.device(given.device), dry=given.dry)


if __name__ == "__main__":
    main()
