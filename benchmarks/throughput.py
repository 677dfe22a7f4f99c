"""Images per second of training: cifar_ray's loop against the script that people would write, in turn.

    python benchmarks/throughput.py                                        # about 25 minutes on 2 cores
    python benchmarks/throughput.py --only resnet:64,vit:64
    python benchmarks/throughput.py --rounds 1 --seconds 0.5 --only simple_cnn:64 --dry    # does it work?

Measured, with batches of 64: `simple_cnn` 4.5, `vit` 2.8, `resnet` 2.3, `vgg11` 2.3, `resnet18` 2.2 and `resnet50` 2.2
times the script's images per second (n = 5, two cores of an AMD EPYC, family 26, model 2).

The script is the usual one: torchvision's data set, a DataLoader with 2 workers, PIL transforms, float32, contiguous
memory, ``.item()`` in every step, torch's default of one thread for each core. Ours is :func:`cifar_ray.training.loop.fit`
on one worker with as many threads, at ``--precision auto``; start-up, evaluation and checkpoints are in neither. Both
train the same model with the same optimizer on real CIFAR-10. Every measurement is a process of its own that trains for
some seconds after its first steps. In each round the processor's best bfloat16 or float32 matrix product is timed as
well: the share of the machine is the arithmetic of our steps, as PyTorch counts it (forward and backward, without the
optimizer), over that.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
from torch import nn

from cifar_ray import data, models
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware, recipe
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import Launch, Outcome, Row, Started
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
    """Tells a pace of every step of the loop."""

    def __init__(self, pace: Any) -> None:
        self._pace, self._steps_per_epoch = pace, 0
        self.computed = ""

    def started(self, event: Started) -> None:
        self._steps_per_epoch = event.steps_per_epoch
        self.computed = ", ".join(filter(None, (event.decided.precision, event.decided.convolutions)))

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        self._pace.step(self._steps_per_epoch > 0 and step % self._steps_per_epoch == 0)

    def _ignore(self, event: Any) -> None:
        pass

    epoch_done = checkpoint_ready = traced = _ignore


def train(config: ResolvedConfig, observer: Observer, place: Worker) -> Outcome | None:
    """Train in this process to the end, or until a pace has enough."""
    dataset, launch = data.load(config.dataset), Launch(time.time(), 0.0)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Enough):
        return fit(prepare(config, Decided.asked(config), dataset, Path(folder), place, launch), observer)
    return None


def ours(config: TrainConfig, seconds: float, device: torch.device) -> tuple[float, str]:
    """Images per second of our loop, and what it computed with."""
    resolved = dataclasses.replace(recipe.resolve(config), epochs=EPOCHS)
    observer = Observer(pace := Pace(seconds, device))
    train(resolved, observer, Worker(device=device))
    return resolved.images_per_worker / pace.step_s, observer.computed


def usual(config: TrainConfig, seconds: float, device: torch.device) -> tuple[float, str]:
    """Images per second of the usual script."""
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import CIFAR10

    torch.backends.cudnn.conv.fp32_precision = "tf32"  # PyTorch's default, which ours has turned off in this process
    resolved, spec = recipe.resolve(config), data.SPECS["cifar10"]
    steps = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    transform = transforms.Compose([*steps, transforms.Normalize(spec.mean, spec.std)])
    images_of = CIFAR10(data.folder(None), train=True, transform=transform)
    batch, pinned = resolved.images_per_worker, device.type == "cuda"
    loader = DataLoader(images_of, batch, shuffle=True, num_workers=2, drop_last=True, pin_memory=pinned)
    model = models.build(resolved, spec).to(device).train()
    if resolved.optimizer == "adamw":
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=resolved.lr, weight_decay=resolved.weight_decay)
    else:
        options = {"momentum": 0.9, "nesterov": True, "weight_decay": resolved.weight_decay}
        optimizer = torch.optim.SGD(model.parameters(), lr=resolved.lr, **options)
    criterion = nn.CrossEntropyLoss(label_smoothing=resolved.label_smoothing)
    pace, running = Pace(seconds, device), 0.0
    with contextlib.suppress(Enough):
        while True:
            for images, labels in loader:
                images, labels = images.to(device), labels.to(device)
                optimizer.zero_grad()
                loss = criterion(model(images), labels)
                loss.backward()
                optimizer.step()
                running += loss.item()
                pace.step()
    return batch / pace.step_s, "fp32"


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


def operations(cell: str) -> float:
    """Floating-point operations of an image's forward and backward pass, as PyTorch's counter has them."""
    from torch.utils.flop_counter import FlopCounterMode

    config, spec = recipe.resolve(configure(cell, 1)), data.SPECS["cifar10"]
    with torch.device("meta"):
        model = models.build(config, spec)
        images = torch.empty(config.images_per_worker, *spec.shape)
    with FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    return counter.get_total_flops() / config.images_per_worker


def configure(cell: str, threads: int | None = None) -> TrainConfig:
    """The run of one cell, such as ``resnet:64``."""
    model, batch = cell.split(":")
    return TrainConfig(model=model, batch_size=int(batch), cpus_per_worker=threads)


def in_a_process(kind: str, cell: str, given: argparse.Namespace) -> Any:
    """One measurement in a process of its own."""
    words = [__file__, "--process", kind, "--only", cell, "--seconds", str(given.seconds), "--device", given.device]
    return record.answers(words)[-1]


def in_this_process(given: argparse.Namespace) -> list[Any]:
    """What :func:`in_a_process` asks for."""
    device, threads = torch.device(given.device), hardware.allowed_cpus()
    torch.set_num_threads(threads)
    if given.process == "product":
        return [best_product(device)]
    return list((ours if given.process == "ours" else usual)(configure(given.only, threads), given.seconds, device))


def measure(cell: str, given: argparse.Namespace) -> dict[str, list[Any]]:
    """The figures of a cell."""
    kinds = {kind: partial(in_a_process, kind, cell, given) for kind in ("usual", "ours", "product")}
    found = record.in_turn(given.rounds, kinds)
    return {kind: [each[0] for each in of] for kind, of in found.items()} | {"computed": [c for _, c in found["ours"]]}


def rows(cell: str, found: dict[str, list[Any]]) -> list[record.Row]:
    """The line of one cell; the share of the machine has its own where it has a target."""
    model, batch = cell.split(":")
    middle = record.medians({kind: found[kind] for kind in ("ours", "usual", "product")})
    share = statistics.median(pace * operations(cell) / one for pace, one in zip(found["ours"], found["product"]))
    note = f"{record.spread(found['ours'])} against {record.spread(found['usual'])} images/s; "
    note += f"{'/'.join(sorted(set(found['computed'])))}; {share:.0%} of the best matrix product "
    note += f"({middle['product'] / 1e9:,.0f} GFLOP/s)"
    what, n = f"{model}, batch {batch}", len(found["ours"])
    ratio = f"{middle['ours'] / middle['usual']:.2f} times"
    made = [record.Row(what, f">= {TARGETS.get(model, 1.0)} times", ratio, n, note)]
    if cell == RECIPE:
        made.append(record.Row(f"{what}, share of the best matrix product", ">= 70%", f"{share:.0%}", n))
    return made


def main() -> None:
    """Measure every cell and save the rows."""
    parser = record.parser(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of steps in a measurement (%(default)s)")
    parser.add_argument("--only", default=",".join(CELLS), help="MODEL:BATCH, separated by commas")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--process", choices=("usual", "ours", "product"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        print(json.dumps(in_this_process(given)))
        return
    raw = {cell: measure(cell, given) for cell in given.only.split(",")}
    lines = [row for cell, found in raw.items() for row in rows(cell, found)]
    title = "Throughput of one worker against the usual script"
    record.save("throughput", title, lines, raw, torch.device(given.device), dry=given.dry)


if __name__ == "__main__":
    main()
