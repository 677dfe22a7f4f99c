"""A small network with a shortcut around every block."""

from __future__ import annotations

from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions that learn what to add to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.layers(x)).relu()


def build(image_size: int, channels: int, classes: int, width: int = 16, depth: int = 2) -> nn.Module:
    """``depth`` blocks of ``width`` filters on a quarter of the image's side."""
    stem = nn.Conv2d(channels, width, 4, stride=4)
    side = image_size // 4
    return nn.Sequential(
        stem, *(Block(width) for _ in range(depth)), nn.Flatten(), nn.Linear(width * side * side, classes)
    )
