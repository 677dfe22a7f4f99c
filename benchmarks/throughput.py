"""Images per second of training: cifar_ray's loop against the script that people would write, in turn.

    python benchmarks/throughput.py --rounds 5                       # about 25 minutes on 2 cores
    python benchmarks/throughput.py --rounds 5 --only resnet:64,vit:64
    python benchmarks/throughput.py --rounds 3 --isa avx2            # as on a processor without AVX-512
    python benchmarks/throughput.py --rounds 5 --precision fp32      # both in float32

The script is the usual one: torchvision's data set, a DataLoader with 2 workers, PIL transforms, float32, contiguous
memory, ``.item()`` in every step, torch's default of one thread for each core. Ours is :func:`cifar_ray.training.loop.fit`
on one worker with as many threads, at ``--precision auto`` if no other is given; start-up, evaluation and checkpoints are in neither. Both
train the same model with the same optimizer on real CIFAR-10, from where ``cifar-ray train`` looks for it. Every
measurement is a process of its own that trains for some seconds after its first steps. In each round the processor's
best bfloat16 or float32 matrix product is timed as well: the share of the machine is the arithmetic of our steps, as
PyTorch counts it (forward and backward, without the optimizer), over that.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record
import torch
from torch import nn

from cifar_ray import data, models
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware, recipe
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import EpochRecord, Launch, Row, SavedCheckpoint, Started, Traced
from cifar_ray.training.setup import prepare

TARGETS = {"simple_cnn": 4.0, "resnet": 3.0, "resnet18": 3.0, "vgg11": 3.0, "vit": 1.5, "resnet50": 1.8}
RECIPE = "speednet:1024"
CELLS = [*(f"{model}:{batch}" for model in TARGETS for batch in (16, 64)), RECIPE]
WARM_UP_STEPS, LEAST_STEPS = 3, 4
EPOCHS = 1000
"""More than a measurement lasts."""
PRODUCT_SIZE = 2048


class Enough(Exception):  # noqa: N818
    """The measurement is over."""


class Pace:
    """Counts steps for some seconds, without the first ones of each epoch and what comes between epochs."""

    def __init__(self, seconds: float, device: torch.device) -> None:
        self._seconds, self._device = seconds, device
        self._before, self._before_s = 0, 0.0  # steps of earlier epochs, and their seconds
        self._steps, self._begin = -WARM_UP_STEPS, 0.0
        self.step_s = 0.0

    def step(self, ends_epoch: bool = False) -> None:
        """After each step; raises :class:`Enough` once the time is over."""
        self._steps += 1
        if self._steps == 0:
            self._begin = self._now()
        steps, seconds = self._before + self._steps, self._before_s + time.perf_counter() - self._begin
        enough = self._steps > 0 and steps >= LEAST_STEPS and seconds >= self._seconds
        if enough or ends_epoch:
            if self._steps > 0:
                self._before, self._before_s = steps, self._before_s + self._now() - self._begin
            self._steps = -WARM_UP_STEPS
        if enough:
            self.step_s = self._before_s / self._before
            raise Enough

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


class Observer:
    """Ends the loop after some seconds of steps."""

    precision = computed = ""
    steps_per_epoch = 0

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def started(self, event: Started) -> None:
        self.precision, self.steps_per_epoch = event.decided.precision, event.steps_per_epoch
        self.computed = ", ".join(filter(None, (self.precision, event.decided.convolutions)))

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        self._pace.step(self.steps_per_epoch > 0 and step % self.steps_per_epoch == 0)

    def epoch_done(self, record: EpochRecord) -> None:
        pass

    def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
        pass

    def traced(self, event: Traced) -> None:
        pass


def ours(config: TrainConfig, seconds: float, device: torch.device) -> dict[str, Any]:
    """Seconds of a step in our loop, and what it computed with."""
    resolved = dataclasses.replace(recipe.resolve(config), epochs=EPOCHS)
    observer = Observer(pace := Pace(seconds, device))
    with tempfile.TemporaryDirectory() as folder:
        try:
            dataset = data.load(config.dataset)
            worker, launch = Worker(device=device), Launch(time.time(), 0.0)
            fit(prepare(resolved, Decided.asked(resolved), dataset, Path(folder), worker, launch), observer)
        except Enough:
            pass
    return {"step_s": pace.step_s, "computed": observer.computed}


def usual(config: TrainConfig, seconds: float, device: torch.device) -> dict[str, Any]:
    """Seconds of a step in the usual script."""
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import CIFAR10

    torch.backends.cudnn.conv.fp32_precision = "tf32"  # PyTorch's default, which ours has turned off in this process
    resolved, spec = recipe.resolve(config), data.SPECS["cifar10"]
    transform = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(spec.mean, spec.std),
        ]
    )
    train = CIFAR10(data.folder(None), train=True, transform=transform)
    pinned = device.type == "cuda"
    loader = DataLoader(
        train, resolved.images_per_worker, shuffle=True, num_workers=2, drop_last=True, pin_memory=pinned
    )
    model = models.build(resolved, spec).to(device).train()
    if resolved.optimizer == "adamw":
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=resolved.lr, weight_decay=resolved.weight_decay)
    else:
        options = {"momentum": 0.9, "nesterov": True, "weight_decay": resolved.weight_decay}
        optimizer = torch.optim.SGD(model.parameters(), lr=resolved.lr, **options)
    criterion = nn.CrossEntropyLoss(label_smoothing=resolved.label_smoothing)
    pace, running = Pace(seconds, device), 0.0
    try:
        while True:
            for images, labels in loader:
                images, labels = images.to(device), labels.to(device)
                optimizer.zero_grad()
                loss = criterion(model(images), labels)
                loss.backward()
                optimizer.step()
                running += loss.item()
                pace.step()
    except Enough:
        return {"step_s": pace.step_s}


def best_product(device: torch.device) -> float:
    """Operations per second of a matrix product in bfloat16 or float32, whichever is faster; the best of eleven."""
    # At full size, a type that the processor has no instructions for takes minutes.
    fastest = max((torch.float32, torch.bfloat16), key=lambda dtype: _product(device, dtype, PRODUCT_SIZE // 4, 5))
    return _product(device, fastest, PRODUCT_SIZE, 11)


def _product(device: torch.device, dtype: torch.dtype, size: int, times: int) -> float:
    one, best = torch.randn(size, size, device=device).to(dtype), 0.0
    for _ in range(times):
        begin = time.perf_counter()
        one @ one
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - begin))
    return best


def operations(config: TrainConfig) -> int:
    """Floating-point operations of a step's forward and backward pass, as PyTorch's counter has them."""
    from torch.utils.flop_counter import FlopCounterMode

    spec = data.SPECS["cifar10"]
    with torch.device("meta"):
        model = models.build(recipe.resolve(config), spec)
        images = torch.empty(config.batch_size or 1, *spec.shape)
    with FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    return counter.get_total_flops()


def in_a_process(kind: str, cell: str, given: argparse.Namespace) -> dict[str, Any]:
    """One measurement in a process of its own."""
    env = dict(os.environ)
    if given.isa == "avx2":
        env |= {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    words = [sys.executable, __file__, "--process", kind, "--only", cell, "--seconds", str(given.seconds)]
    words += ["--device", given.device, "--precision", given.precision]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{kind} {cell} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def in_this_process(kind: str, cell: str, given: argparse.Namespace) -> dict[str, Any]:
    """What :func:`in_a_process` asks for."""
    device, threads = torch.device(given.device), hardware.allowed_cpus()
    torch.set_num_threads(threads)
    if kind == "product":
        return {"flops": best_product(device)}
    config = configure(cell, threads, given.precision)
    return {"ours": ours, "usual": usual}[kind](config, given.seconds, device)


def configure(cell: str, threads: int, precision: Any = "auto") -> TrainConfig:
    """The run of one cell, such as ``resnet:64``."""
    model, batch = cell.split(":")
    return TrainConfig(model=model, batch_size=int(batch), cpus_per_worker=threads, precision=precision)


def measure(given: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every cell with its figures, once its rounds are done."""
    for cell in given.only.split(","):
        found: dict[str, Any] = {"usual": [], "ours": [], "product": [], "computed": []}
        for _ in range(given.rounds):
            for kind in ("usual", "ours"):
                answer = in_a_process(kind, cell, given)
                found[kind].append(int(cell.split(":")[1]) / answer["step_s"])
            found["computed"].append(answer["computed"])
            found["product"].append(in_a_process("product", cell, given)["flops"])
        yield cell, found


def spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def share(cell: str, found: dict[str, Any]) -> float:
    """The arithmetic of our steps over that of the best matrix product, the median of the rounds."""
    per_image = operations(configure(cell, 1)) / int(cell.split(":")[1])
    return statistics.median(pace * per_image / product for pace, product in zip(found["ours"], found["product"]))


def row(cell: str, found: dict[str, Any], given: argparse.Namespace) -> record.Row:
    """The line of one cell."""
    model, batch = cell.split(":")
    ratio = statistics.median(found["ours"]) / statistics.median(found["usual"])
    goal = TARGETS.get(model, 1.0) if given.isa == "native" and given.precision == "auto" else 1
    return record.Row(
        what=f"{model}, batch {batch}",
        target=f">= {goal} times",
        measured=f"{ratio:.2f} times",
        n=given.rounds,
        note=f"{spread(found['ours'])} against {spread(found['usual'])} images/s; {'/'.join(sorted(set(found['computed'])))}; "
        f"{share(cell, found):.0%} of the best matrix product ({statistics.median(found['product']) / 1e9:,.0f} GFLOP/s)",
    )


def main() -> None:
    """Measure every cell and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of steps in a measurement")
    parser.add_argument("--only", default=",".join(CELLS), help="MODEL:BATCH, separated by commas")
    parser.add_argument("--isa", choices=("native", "avx2"), default="native", help="instructions that may be used")
    parser.add_argument("--precision", choices=("auto", "fp32"), default="auto", help="of ours")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--process", choices=("usual", "ours", "product"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        print(json.dumps(in_this_process(given.process, given.only, given)))
        return
    suffix = f"_{given.isa}" * (given.isa != "native") + f"_{given.precision}" * (given.precision != "auto")
    title = "Throughput of one worker against the usual script" + ", AVX2 only" * (given.isa == "avx2")
    title += ", float32" * (given.precision == "fp32")
    rows, raw = [], {}
    for cell, found in measure(given):
        raw[cell] = found
        rows.append(row(cell, found, given))
        if cell == RECIPE:
            what = f"{RECIPE.replace(':', ', batch ')}, share of the best matrix product"
            rows.append(record.Row(what, ">= 70%", f"{share(cell, found):.0%}", given.rounds))
        # After every cell: all of them take an hour where only AVX2 may be used.
        record.save(f"throughput{suffix}", title, rows, raw, torch.device(given.device), dry=given.dry)


if __name__ == "__main__":
    main()
