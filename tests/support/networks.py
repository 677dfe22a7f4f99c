"""Unusual but legal networks, one per kind, for ``--model tests.support.networks:build --model-options.kind KIND``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Row(nn.Module):
    """Layers one after the other, which ``stages`` lists."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def stages(self) -> list[nn.Module]:
        """The layers in order."""
        return list(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Experts(nn.Module):
    """Each image goes to one of two experts, so a step may leave out one, and a third is for images that never come.

    The latest result stays an attribute, as that of an attention that is to be drawn.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dark, self.bright, self.spare = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        bright = x.detach()[:, 0] > 0.4
        y = torch.zeros_like(x)
        for expert, mine in ((self.dark, ~bright), (self.bright, bright), (self.spare, bright & ~bright)):
            if mine.any():
                y = y.index_put((mine.nonzero()[:, 0],), expert(x[mine]))
        self.latest = y
        return y


class ForFew(nn.Module):
    """A layer for two images at most, as many as a model is checked with before the start."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.few, self.always = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.always(x)
        return self.few(x) if len(x) <= 2 else x


class Scaled(nn.Module):
    """A parameter that multiplies."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(value)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).real


class Counting(nn.Module):
    """A buffer that every training pass replaces by another tensor, of the images that it has seen.

    It takes part in the result. Another buffer is a view in which all numbers are one, and one is no state.
    """

    seen: Tensor
    ones: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("ones", torch.ones(()).expand(16))
        self.register_buffer("cache", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + x.detach().mean()
        self.cache = 0.01 * self.seen * self.ones
        return x * (1 + self.cache)


class Noting(nn.Linear):
    """State that is in no buffer."""

    def get_extra_state(self) -> Any:
        """It would go into a checkpoint."""
        return {"seen": 1}

    def set_extra_state(self, state: Any) -> None:
        """It would come from one."""


class Forgets(nn.Module):
    """``stages`` leaves out what the forward pass has between the layers."""

    def __init__(self, pixels: int, classes: int, between: str) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(pixels, 16), nn.Linear(16, classes), between

    def stages(self) -> list[nn.Module]:
        """Two layers."""
        return [nn.Flatten(), self.first, self.second]

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images.flatten(1))
        x = x.relu() if self.between == "relu" else nn.functional.dropout(x, 0.5, self.training)
        return self.second(x)


def build(image_size: int, channels: int, classes: int, kind: str) -> nn.Module:
    pixels, width = channels * image_size**2, 16
    first, last = nn.Linear(pixels, width), nn.Linear(width, classes)
    if kind in ("relu", "dropout"):
        return Forgets(pixels, classes, kind)
    middle: list[nn.Module] = [nn.Linear(width, width), nn.ReLU()]
    if kind == "tied":
        other = nn.Linear(width, width)
        other.weight = middle[0].weight  # type: ignore[assignment]
        middle += [nn.Linear(width, width), nn.ReLU(), other, nn.ReLU()]
    elif kind == "norm":
        norm = nn.BatchNorm1d(width)
        middle = [norm, nn.ReLU(), nn.Linear(width, width), norm, nn.ReLU()]
    elif kind == "state":
        middle = [Noting(width, width), nn.ReLU()]
    else:
        middle = {
            "sometimes": [nn.Sigmoid(), Experts(width)],
            "few": [ForFew(width)],
            "scalar": [*middle, Scaled(torch.tensor(1.0))],
            "complex": [*middle, Scaled(torch.ones(width, dtype=torch.complex64))],
            "buffer": [*middle, Counting()],
            "early": [Counting(), *middle],
            "plain": middle,
        }[kind]
    return Row(nn.Flatten(), first, nn.ReLU(), *middle, last)
