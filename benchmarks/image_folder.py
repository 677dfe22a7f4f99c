"""Images per second from a folder of JPEG files, beside torchvision's ImageFolder with a DataLoader.

    python benchmarks/image_folder.py       # about 5 minutes on 2 cores

20,000 training images of CIFAR-10, enlarged to 128x128, are written as JPEG files. Both sides deliver every image once
at 32x32, cropped, mirrored and normalised, in batches of 64, and nothing is computed with them. ImageFolder decodes in
two worker processes in every epoch; `--dataset folder:PATH` decodes before the first one, and later has arrays.
"""

from __future__ import annotations

import statistics
import tempfile
import time
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

IMAGES, TESTS, SIDE, BATCH, WORKERS = 20_000, 100, 128, 64, 2


def write(root: Path) -> None:
    """The folder of JPEG files."""
    cifar = data.load("cifar10")
    for half, split, count in (("train", cifar.train, IMAGES), ("test", cifar.test, TESTS)):
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
    loader = DataLoader(folder, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True)
    begin, seen = time.perf_counter(), 0
    for images, _ in loader:
        seen += len(images)
    return seen / (time.perf_counter() - begin)


def ours(root: Path, decoded: Path) -> tuple[float, float]:
    """Images per second of the first epoch, with decoding, and of the next."""
    begin = time.perf_counter()
    asked = TrainConfig(dataset=f"folder:{root}", batch_size=BATCH, data_dir=str(decoded))
    config = recipe.resolve(asked)
    dataset = data.read(config)
    loader = TrainLoader(config, Decided.asked(config), dataset, DataShard(), torch.device("cpu"))
    rates = []
    for epoch in range(2):
        seen = 0
        for step in range(loader.steps_per_epoch):
            for micro_batch in loader.micro_batches(epoch, step):
                seen += len(micro_batch.images)
        rates.append(seen / (time.perf_counter() - begin))
        begin = time.perf_counter()
    return rates[0], rates[1]


def _spread(rates: list[float]) -> str:
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def main() -> None:
    """Measure both in turn and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each")
    given = parser.parse_args()
    raw: dict[str, list[float]] = {"usual": [], "first": [], "next": []}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "images"
        write(root)
        for turn in range(given.rounds):
            raw["usual"].append(usual(root))
            first, later = ours(root, Path(folder) / f"decoded{turn}")
            raw["first"].append(first)
            raw["next"].append(later)
            print(" ".join(f"{name} {rates[-1]:,.0f} images/s" for name, rates in raw.items()), flush=True)
    theirs = statistics.median(raw["usual"])
    rows = [
        record.Row(
            f"{IMAGES:,} JPEG files of {SIDE}x{SIDE}, {what}",
            ">= 1.0 times",
            f"{statistics.median(raw[name]) / theirs:.1f} times",
            given.rounds,
            f"{_spread(raw[name])} against {_spread(raw['usual'])} images/s",
        )
        for name, what in (("first", "first epoch, with decoding"), ("next", "every later epoch"))
    ]
    record.save("image_folder", "Images from a folder of JPEG files", rows, raw, dry=given.dry)


if __name__ == "__main__":
    main()
