"""Make a small set of images with masks, without a network: scikit-learn's digits on textured grounds.

    python make_masks.py digits_masks
    cifar-ray train --dataset masks:digits_masks --model unet --augment crop --epochs 5

from this folder. Each of 2,000 images of 32x32 pixels shows one or two digits, 16 pixels high, lighter or darker than
the waves of two colours and the noise behind them. A mask has the number of each pixel's class: 0 is the ground, 1 to
10 are the digits 0 to 9, and 255, which does not count, is the edge of a digit. Every fifth image is for the test; no
digit that somebody has written is in both halves. The same numbers make the same files.

``--baseline`` trains a logistic regression on the pixels, each with its colour and those of the 8 around it, and prints
its test figures: what can be told without a look at shapes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SIDE, DIGIT, IGNORED = 32, 16, 255
NAMES = ("ground", *map(str, range(10)))
_TEST_EVERY = 5
_INK, _EDGE = 0.55, 0.3  # of the darkest a digit can be: its pixels, and those at its edge


def ground(random: np.random.Generator) -> np.ndarray:
    """Waves between two colours: float64, (SIDE, SIDE, 3), from 0 to 1."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    angle, length, phase = random.uniform(0, np.pi), random.uniform(4, 14), random.uniform(0, 2 * np.pi)
    wave = np.sin(2 * np.pi * (rows * np.sin(angle) + columns * np.cos(angle)) / length + phase)
    dark, light = random.uniform(0.1, 0.9, (2, 3))
    return dark + (light - dark) * (wave[..., None] + 1) / 2


def picture(random: np.random.Generator, glyphs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An image, uint8 (SIDE, SIDE, 3), and its mask, uint8 (SIDE, SIDE)."""
    image, mask = ground(random), np.zeros((SIDE, SIDE), dtype=np.uint8)
    shade = random.uniform(0.8, 1, 3) if image.mean() < 0.5 else random.uniform(0, 0.2, 3)
    for _ in range(random.integers(1, 3)):
        number = random.integers(len(glyphs))
        glyph = Image.fromarray(np.uint8(glyphs[number] * (255 / 16))).resize((DIGIT, DIGIT), Image.Resampling.BICUBIC)
        ink = np.asarray(glyph)[..., None] / 255
        top, left = random.integers(0, SIDE - DIGIT + 1, 2)
        place = np.s_[top : top + DIGIT, left : left + DIGIT]
        image[place] += ink * (shade - image[place])
        inside, edge = ink[..., 0] >= _INK, ink[..., 0] >= _EDGE
        mask[place] = np.where(inside, labels[number] + 1, np.where(edge, IGNORED, mask[place]))
    noisy = image + random.normal(0, 0.04, image.shape)
    return np.uint8(np.clip(noisy, 0, 1) * 255), mask


def make(root: Path, count: int = 2000, seed: int = 0) -> None:
    """Write that many images with their masks below ``root``."""
    digits = load_digits()
    is_test = np.random.default_rng(0).permutation(len(digits.images)) % _TEST_EVERY == 0
    for half, rows in (("train", ~is_test), ("test", is_test)):
        for kind in ("images", "masks"):
            (root / half / kind).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            if (number % _TEST_EVERY == 0) == (half == "test"):
                random = np.random.default_rng([seed, number])
                image, mask = picture(random, digits.images[rows], digits.target[rows])
                Image.fromarray(image).save(root / half / "images" / f"{number:05}.png")
                Image.fromarray(mask).save(root / half / "masks" / f"{number:05}.png")
    (root / "classes.txt").write_text("\n".join(NAMES) + "\n")


def features(root: Path, half: str) -> tuple[np.ndarray, np.ndarray]:
    """The colours of each pixel that counts and of the 8 around it, (N, 27), and its class."""
    found, classes = [], []
    for path in sorted((root / half / "images").iterdir()):
        image, mask = (np.asarray(Image.open(root / half / kind / path.name)) for kind in ("images", "masks"))
        padded = np.pad(image / 255, ((1, 1), (1, 1), (0, 0)), mode="edge")
        around = np.concatenate([padded[r : r + SIDE, c : c + SIDE] for r in range(3) for c in range(3)], axis=2)
        found.append(around[mask != IGNORED])
        classes.append(mask[mask != IGNORED])
    return np.concatenate(found), np.concatenate(classes)


def baseline(root: Path) -> dict[str, float]:
    """The test figures of a logistic regression on single pixels and their neighbours."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import confusion_matrix

    pixels, classes = features(root, "train")
    kept = np.random.default_rng(0).permutation(len(pixels))[:200_000]
    model = LogisticRegression(max_iter=200).fit(pixels[kept], classes[kept])
    tested, true = features(root, "test")
    counts = confusion_matrix(true, model.predict(tested), labels=range(len(NAMES)))
    right, every = counts.diagonal(), counts.sum(0) + counts.sum(1)
    return {"miou": float((right / (every - right)).mean()), "pixel_accuracy": float(right.sum() / counts.sum())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000, help="images (2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--baseline", action="store_true", help="also train a logistic regression on pixels")
    asked = parser.parse_args()
    make(asked.folder, asked.count, asked.seed)
    print(f"{asked.folder}: {asked.count:,} images with masks of {len(NAMES)} classes")
    if asked.baseline:
        print(", ".join(f"{name} {value:.1%}" for name, value in baseline(asked.folder).items()))
