"""Write scikit-learn's digits as image files: images/train/0/0001.png and so on, every seventh one into images/test."""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits


def main() -> None:
    """Write them into the working folder."""
    digits = load_digits()
    for index, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        folder = Path("images", "train" if index % 7 else "test", str(label))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * pixels / 16).astype("uint8")).save(folder / f"{index:04}.png")
    print(f"{index + 1:,} images in images/")


if __name__ == "__main__":
    main()
