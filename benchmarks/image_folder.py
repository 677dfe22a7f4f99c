"""Images per second from a folder of JPEG files, beside torchvision's ImageFolder with a DataLoader.

    python benchmarks/image_folder.py       # about 5 minutes on 2 cores
    python benchmarks/image_folder.py --rounds 1 --images 2000 --dry

Measured: 1.6 times in the first epoch, with decoding, and 14.9 times in every later one (n = 3, two cores of an AMD
EPYC).

Training images of CIFAR-10, enlarged to 128x128, are written as JPEG files. Both sides deliver every image once at
32x32, cropped, mirrored and normalised, in batches of 64, and nothing is computed with them. ImageFolder decodes in two
worker processes in every epoch; `--dataset folder:PATH` decodes before the first one, and later has arrays.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import record
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from cifar_ray import TrainConfig, data
from cifar_ray.config.decided import Decided
from cifar_ray.data.loader import DataShard, TrainLoader
from cifar_ray.training import recipe

TESTS, SIDE, BATCH, WORKERS = 100, 128, 64, 2


def write(root: Path, images: int) -> None:
    """The folder of JPEG files."""
    cifar = data.load("cifar10")
    for half, split, count in (("train", cifar.train, images), ("test", cifar.test, TESTS)):
        for index in range(count):
            folder = root / half / cifar.spec.names[split["labels"][index]]
            folder.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(split.inputs[index]).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            image.save(folder / f"{index:05}.jpg", quality=90)


def usual(root: Path) -> float:
    """Images per second of one epoch as most scripts read them."""
    steps = [transforms.Resize(32), transforms.CenterCrop(32), transforms.RandomCrop(32, padding=4)]
    steps += [transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.25,) * 3)]
    folder = ImageFolder(str(root / "train"), transforms.Compose(steps))
    begin = time.perf_counter()
    seen = sum(len(images) for images, _ in DataLoader(folder, BATCH, True, num_workers=WORKERS, drop_last=True))
    return seen / (time.perf_counter() - begin)


def ours(root: Path) -> tuple[float, float]:
    """Images per second of the first epoch, with decoding, and of the next."""
    rates = []
    with tempfile.TemporaryDirectory(dir=root.parent) as decoded:
        begin = time.perf_counter()
        config = recipe.resolve(TrainConfig(dataset=f"folder:{root}", batch_size=BATCH, data_dir=decoded))
        loader = TrainLoader(config, Decided.asked(config), data.read(config), DataShard(), torch.device("cpu"))
        for epoch in range(2):
            steps = range(loader.steps_per_epoch)
            seen = sum(len(each.images) for step in steps for each in loader.micro_batches(epoch, step))
            rates.append(seen / (time.perf_counter() - begin))
            begin = time.perf_counter()
    return rates[0], rates[1]


def main() -> None:
    """Measure both in turn and save the rows."""
    parser = record.parser(__doc__, rounds=3)
    parser.add_argument("--images", type=int, default=20_000, help="files (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(root := Path(folder) / "images", given.images)
        found = record.in_turn(given.rounds, {"usual": partial(usual, root), "ours": partial(ours, root)})
    raw = {"usual": found["usual"], "first": [a for a, _ in found["ours"]], "next": [b for _, b in found["ours"]]}
    middle, rows = record.medians(raw), []
    for name, what in (("first", "first epoch, with decoding"), ("next", "every later epoch")):
        note = f"{record.spread(raw[name])} against {record.spread(raw['usual'])} images/s"
        what = f"{given.images:,} JPEG files of {SIDE}x{SIDE}, {what}"
        measured = f"{middle[name] / middle['usual']:.1f} times"
        rows.append(record.Row(what, ">= 1.0 times", measured, given.rounds, note))
    record.save("image_folder", "Images from a folder of JPEG files", rows, raw, dry=given.dry)


if __name__ == "__main__":
    main()
