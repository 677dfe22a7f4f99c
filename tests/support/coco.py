"""Make a small data set in COCO's layout: images of rectangles, with the annotations of their instances.

    python -m tests.support.coco FOLDER

Each image has a colour of its own behind 0 to 3 rectangles of three categories, and perhaps a crowd.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CATEGORIES = {18: "dog", 1: "person", 44: "bottle"}
COLOURS = {1: (220, 40, 40), 18: (40, 220, 40), 44: (40, 40, 220)}
CROWD = (120, 120, 0)


def make(root: Path, train: int = 48, val: int = 16, year: str = "2017", seed: int = 0) -> None:
    """Write that many images, of 40 to 64 pixels, and their annotations below ``root``."""
    random = np.random.default_rng(seed)
    for part, count in (("train", train), ("val", val)):
        (root / f"{part}{year}").mkdir(parents=True, exist_ok=True)
        images, annotations = [], []
        for number in range(1, count + 1):
            width, height = (int(side) for side in random.integers(40, 65, 2))
            image = np.full((height, width, 3), random.integers(80, 180), np.uint8)
            rectangles = [rectangle(random, width, height) for _ in range(random.integers(0, 4))]
            # The largest first, so that the smallest is on top, as in the mask.
            for category, box in sorted(rectangles, key=lambda pair: -pair[1][2] * pair[1][3]):
                left, top, wide, high = box
                image[top : top + high, left : left + wide] = COLOURS[category]
                annotations.append(instance(len(annotations) + 1, number, category, outline(*box)))
            if number % 4 == 0:
                image[-8:] = CROWD
                counts = runs(np.arange(height)[:, None].repeat(width, 1) >= height - 8)
                crowd = {"size": [height, width], "counts": counts}
                annotations.append({**instance(len(annotations) + 1, number, 1, crowd), "iscrowd": 1})
            name = f"{number:012}.png"
            Image.fromarray(image).save(root / f"{part}{year}" / name)
            images.append({"id": number, "file_name": name, "width": width, "height": height})
        categories = [{"id": number, "name": name, "supercategory": "any"} for number, name in CATEGORIES.items()]
        write(root, part, year, {"images": images, "annotations": annotations, "categories": categories})


def rectangle(random: np.random.Generator, width: int, height: int) -> tuple[int, tuple[int, int, int, int]]:
    """A category, and left, top, width and height above the rows of the crowd."""
    wide, high = (int(side) for side in random.integers(6, 25, 2))
    left, top = int(random.integers(0, width - wide + 1)), int(random.integers(0, height - 8 - high + 1))
    return int(random.choice([*CATEGORIES])), (left, top, wide, high)


def outline(left: int, top: int, wide: int, high: int) -> list[list[float]]:
    """A rectangle as a polygon."""
    right, bottom = left + wide, top + high
    return [[float(at) for at in (left, top, right, top, right, bottom, left, bottom)]]


def runs(mask: np.ndarray) -> list[int]:
    """The lengths of a mask's runs of pixels down its columns, outside first, as COCO has those of crowds."""
    pixels = mask.ravel(order="F").astype(int)
    ends = np.flatnonzero(np.diff(pixels)) + 1
    lengths: list[int] = np.diff([0, *ends, pixels.size]).tolist()
    return [0, *lengths] if pixels[0] else lengths


def instance(number: int, image: int, category: int, segmentation: Any) -> dict[str, Any]:
    """An annotation."""
    return {"id": number, "image_id": image, "category_id": category, "segmentation": segmentation, "iscrowd": 0}


def path(root: Path, part: str, year: str = "2017") -> Path:
    """The file of a part's annotations."""
    return root / "annotations" / f"instances_{part}{year}.json"


def write(root: Path, part: str, year: str, content: Any) -> None:
    """Write annotations."""
    path(root, part, year).parent.mkdir(exist_ok=True)
    path(root, part, year).write_text(json.dumps(content))


if __name__ == "__main__":
    make(Path(sys.argv[1]), train=400, val=100)
