"""What networks of texts have in common: an embedding, layers over the tokens, the largest of each feature and a head.

A batch of texts is as long as its longest one, and shorter ones end in zeros. What a text is given must not depend on
how many, so each layer is told which positions are the text's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from cifar_ray.models.architecture import Recipe
from cifar_ray.models.vit import Method

RECIPES = (Recipe(optimizer="adamw", lr=3e-3, weight_decay=0.01, warmup_epochs=0.5, base_batch=32),)


def positions(tokens: Tensor) -> Tensor:
    """Which positions of tokens (B, T) are of the text, a prefix of each row; bool (B, T).

    A text without a word has one position, its first zero, so that there is something to pool.
    """
    lengths = (tokens != 0).sum(1, keepdim=True).clamp(min=1)
    return torch.arange(tokens.shape[1], device=tokens.device) < lengths


def largest(x: Tensor, mask: Tensor) -> Tensor:
    """The largest of each feature over a text's positions; (B, T, dim) to (B, dim)."""
    return x.masked_fill(~mask[..., None], -torch.inf).amax(1)


class TextNetwork(nn.Module):
    """Tokens (B, T), 0 after a text's end, to logits (B, num_classes), whatever the number of zeros.

    Args:
        embedding: makes (B, T, dim) of tokens.
        body: layers that are called with x (B, T, dim) and the mask of :func:`positions`.
        head: makes logits of the largest of each feature over a text, (B, dim).
    """

    def __init__(self, embedding: nn.Module, body: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.body = nn.ModuleList(body)
        self.head = head

    def forward(self, tokens: Tensor) -> Tensor:
        mask, x = positions(tokens), self.embedding(tokens)
        for layer in self.body:
            x = layer(x, mask)
        return self.head(largest(x, mask))


def layers(model: TextNetwork) -> list[nn.Module]:
    """The embedding, the layers of the body, and the pool with the head; they hand on the mask as a last feature."""

    def embed(tokens: Tensor) -> Tensor:
        return _joined(model.embedding(tokens), positions(tokens))

    def inner(layer: nn.Module, joined: Tensor) -> Tensor:
        x, mask = _parted(joined)
        return _joined(layer(x, mask), mask)

    def read(joined: Tensor) -> Tensor:
        return model.head(largest(*_parted(joined)))

    body = (Method(partial(inner, layer), layer=layer) for layer in model.body)
    return [Method(embed, embedding=model.embedding), *body, Method(read, head=model.head)]


def _joined(x: Tensor, mask: Tensor) -> Tensor:
    return torch.cat([x, mask[..., None].to(x.dtype)], dim=-1)


def _parted(joined: Tensor) -> tuple[Tensor, Tensor]:
    return joined[..., :-1].contiguous(), joined[..., -1] > 0
