"""What a GPU does: images per second against the usual script, and speednet's time to 94 %.

    python benchmarks/gpu.py                                                       # under 8 minutes
    python benchmarks/gpu.py --device cpu --seconds 0.5 --rounds 1 --only simple_cnn:64 --dry   # does it work?

Measured: `resnet` 1.3 times the script with batches of 64 and 8.6 times with 512, `resnet50` 1.0 and 2.6 times; speednet's
13 epochs took 4.0 s (n = 1 in float32, 2 in bfloat16, 3 of speednet; random images; one NVIDIA H200 with 16 CPUs).

Needs no Ray and no MLflow, only torch, torchvision, safetensors, filelock, pydantic and scikit-learn. What a machine
without a network lacks of them can be carried along as wheels (`pip download`, `pip install --no-index --find-links`).

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
import time
from typing import Any

import numpy as np
import record
import throughput
import torch
import torchvision.datasets
from PIL import Image

from cifar_ray import data
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data.datasets import Dataset, Split
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import recipe

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


def pace(kind: str, cell: str, given: argparse.Namespace) -> float | str:
    """Images per second of one measurement, or why the card cannot do it."""
    device, config = torch.device(given.device), throughput.configure(cell)
    if kind in SCRIPTS:
        torch.backends.cuda.matmul.fp32_precision = "tf32" if kind == "tf32" else "ieee"
        return throughput.usual(config, given.seconds, device)[0]
    ways: dict[str, Any] = {"precision": "bf16", "compile": True} if kind == "compiled" else {"precision": kind}
    try:
        return throughput.ours(dataclasses.replace(config, **ways), given.seconds, device)[0]
    except ConfigError as error:
        return str(error)


def pace_all(kind: str, given: argparse.Namespace) -> None:
    """Print the best matrix product and, as long as there is time, each cell's images per second, as JSON."""
    begin, seen = time.monotonic(), set()
    print(json.dumps(["product", throughput.best_product(torch.device(given.device))]), flush=True)
    for cell in given.only.split(","):
        model = cell.partition(":")[0]
        if (kind != "compiled" or model not in seen) and time.monotonic() - begin <= given.limit_s:
            print(json.dumps([cell, pace(kind, cell, given)]), flush=True)
            torch.cuda.empty_cache()
        seen.add(model)


def time_speednet(given: argparse.Namespace) -> None:
    """Print seconds of training and test accuracy of speednet for each seed, as JSON."""
    config = TrainConfig(model="speednet", epochs=SPEEDNET_EPOCHS, precision="bf16")
    if given.device == "cpu":
        config = dataclasses.replace(config, epochs=1, steps_per_epoch=2, batch_size=16)
    for seed in range(1 if given.device == "cpu" else SPEEDNET_SEEDS):
        device, resolved = torch.device(given.device), recipe.resolve(dataclasses.replace(config, seed=seed))
        observer = throughput.Observer(throughput.Pace(float("inf"), device))
        outcome = throughput.train(resolved, observer, Worker(device=device))
        assert outcome is not None
        print(json.dumps([outcome.times["time/training_s"], outcome.metrics["test/accuracy"]]), flush=True)


def in_a_process(kind: str, given: argparse.Namespace, limit_s: float = 0.0) -> list[Any]:
    """What a process of its own prints, line by line."""
    words = [__file__, "--process", kind, "--device", given.device, "--only", given.only]
    return record.answers([*words, "--seconds", str(given.seconds), "--limit-s", str(limit_s)])


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
                print(f"round {turn + 1}, {kind}, {cell}: {value}", flush=True)
                if cell == "product":
                    products.append(value)
                elif not isinstance(value, str):
                    found.setdefault(cell, {}).setdefault(kind, []).append(value)
    return found, products


def row(cell: str, found: dict[str, list[float]], product: float) -> record.Row:
    """The line of one cell."""
    middle = record.medians(found)
    fastest = max((kind for kind in OURS if kind in middle), key=lambda kind: middle[kind])
    share = middle[fastest] * throughput.operations(cell) / product
    figures = ", ".join(f"{kind} {record.spread(found[kind])}" for kind in KINDS if kind in found)
    return record.Row(
        f"{cell.replace(':', ', batch ')}, {fastest}",
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
    parser = record.parser(__doc__, rounds=3)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to see that it works")
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
    product, runs = statistics.median(products), in_a_process("speednet", given)
    lines = [speednet_row(runs, product, given)]
    lines += [row(cell, of, product) for cell, of in found.items() if "usual" in of and not of.keys().isdisjoint(OURS)]
    raw = {"images_per_s": found, "products": products, "speednet": runs}
    record.save("gpu", "One GPU against the usual script", lines, raw, torch.device(given.device), dry=given.dry)


if __name__ == "__main__":
    main()
