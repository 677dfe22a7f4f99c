"""A bidirectional LSTM over words, the largest of each feature over a text, and a linear layer.

Sources: Hochreiter and Schmidhuber 1997, "Long Short-Term Memory"; Schuster and Paliwal 1997, "Bidirectional Recurrent
Neural Networks"; Conneau et al. 2017, "Supervised Learning of Universal Sentence Representations" (max over time).
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from cifar_ray.config.schema import Count, Share
from cifar_ray.models.architecture import Architecture
from cifar_ray.models.text_network import RECIPES, TextNetwork, layers

_IS_OLD_CPU = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")


class BothWays(nn.Module):
    """An LSTM from the first word on, and one from the last word back; (B, T, dim) to (B, T, 2 hidden).

    PyTorch's own bidirectional one begins in the padding, unless its input is a packed sequence, which
    ``torch.export`` does not take.
    """

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.forwards = nn.LSTM(dim, hidden, batch_first=True)
        self.backwards = nn.LSTM(dim, hidden, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.dropout(x)
        places = torch.arange(x.shape[1], device=x.device)
        turned = torch.where(mask, mask.sum(1, keepdim=True) - 1 - places, places)
        ahead, back = _run(self.forwards, x), _run(self.backwards, _at(x, turned))
        return torch.cat([ahead, _at(back, turned)], dim=-1)


def _run(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """What an LSTM gives, in float32 where a CPU without AVX-512 is to compute in bfloat16: oneDNN has none there."""
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu") or not _IS_OLD_CPU:
        return lstm(x)[0]
    with torch.autocast("cpu", enabled=False):
        return lstm(x.float())[0]


def _at(x: Tensor, places: Tensor) -> Tensor:
    """The rows (B, T, dim) at places (B, T); ``take_along_dim`` would fix the number of texts in ``torch.export``."""
    return x.gather(1, places[..., None].expand_as(x))


def build(
    vocabulary: int,
    length: int,
    classes: int,
    *,
    dim: Annotated[Count, "Embedding size"] = 128,
    hidden: Annotated[Count, "Hidden units per direction"] = 128,
    layers: Annotated[Count, "Bidirectional layers"] = 1,
    dropout: Annotated[Share, "Dropout rate before every layer"] = 0.3,
) -> nn.Module:
    """The network, whose keywords are its options."""
    sizes = [dim, *[2 * hidden] * layers]
    return TextNetwork(
        nn.Embedding(vocabulary, dim, padding_idx=0),
        [BothWays(size, hidden, dropout) for size in sizes[:-1]],
        nn.Sequential(nn.Dropout(dropout), nn.Linear(sizes[-1], classes)),
    )


MODEL = Architecture(build, RECIPES, layers, inputs="tokens")
