"""Vision Transformer for small images.

Sources: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words" (patch embedding, [CLS] token, learned
positions, pre-norm blocks); Huang et al. 2016 (stochastic depth); Rangoju and Katneni 2025, "ViT".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.schema import Count, Share
from cifar_ray.models.architecture import Architecture, Recipe

RECIPES = (Recipe(optimizer="adamw", lr=1e-3, weight_decay=0.05, warmup_epochs=1.0, label_smoothing=0.1),)

PLAIN_TOKENS = 300
"""Tokens up to which attention on a CPU in bfloat16 is two matrix products and a softmax: PyTorch's fused CPU kernel
computes its backward pass element by element. Forward and backward for 64 images of 65 tokens took 5.9 ms of CPU time
against 41.9, and 14.2 against 43.8 for 16 of 257 (medians, n = 5, one thread of an AMD EPYC); in float32 the two are
equal. The products keep every score, T x T for each head and image, which the fused kernel does not."""


class SelfAttention(nn.Module):
    """Multi-head self-attention; (B, T, dim) to (B, T, dim). A mask (B, T) is False where no token looks."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = None if mask is None else mask[:, None, None]
        if qkv.device.type == "cpu" and qkv.dtype == torch.bfloat16 and tokens <= PLAIN_TOKENS:
            scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
            scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
            mixed = F.dropout(scores.softmax(-1), dropout) @ value
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, seen, dropout)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class Block(nn.Module):
    """Pre-norm transformer block; a sample skips each half with chance ``skip`` in training."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float, skip: float) -> None:
        super().__init__()
        self.skip = skip
        self.norm1 = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads, dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self._maybe_skip(self.attention(self.norm1(x), mask))
        return x + self._maybe_skip(self.mlp(self.norm2(x)))

    def _maybe_skip(self, branch: Tensor) -> Tensor:
        if not self.training or self.skip == 0:
            return branch
        kept = torch.rand(len(branch), 1, 1, device=branch.device) >= self.skip
        return branch * (kept / (1 - self.skip)).to(branch.dtype)


Dim = Annotated[Count, "Embedding size; a multiple of the number of heads"]
Depth = Annotated[Count, "Transformer blocks"]
Heads = Annotated[Count, "Attention heads"]
MlpRatio = Annotated[Count, "Width of a block's hidden layer as a multiple of dim"]
Skip = Annotated[Share, "Probability of skipping the last block for a sample; it rises linearly from 0 at the first"]
Dropout = Annotated[Share, "Dropout rate after the embedding, in attention and in the MLP"]


def check_heads(dim: int, heads: int) -> None:
    """Refuse a width that attention heads cannot share."""
    if dim % heads:
        raise ConfigError("model_options.dim", f"must be a multiple of model_options.heads ({heads}), got {dim}")


class VisionTransformer(nn.Module):
    """Images (B, C, H, W) to logits (B, classes), read off the [CLS] token; the keywords are the model's options.

    Raises:
        ConfigError: when sizes do not divide each other.
    """

    def __init__(
        self,
        image_size: int,
        channels: int,
        classes: int,
        *,
        patch_size: Annotated[Count, "Side of a square patch in pixels"] = 4,
        dim: Dim = 192,
        depth: Depth = 6,
        heads: Heads = 3,
        mlp_ratio: MlpRatio = 2,
        dropout: Dropout = 0.0,
        stochastic_depth: Skip = 0.1,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            problem = f"must divide the image's side of {image_size}, got {patch_size}"
            raise ConfigError("model_options.patch_size", problem)
        check_heads(dim, heads)
        patches = (image_size // patch_size) ** 2
        self.patchify = nn.Conv2d(channels, dim, patch_size, patch_size)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.zeros(1, patches + 1, dim))
        self.dropout = nn.Dropout(dropout)
        skips = [stochastic_depth * layer / max(depth - 1, 1) for layer in range(depth)]
        self.blocks = nn.Sequential(*(Block(dim, heads, mlp_ratio * dim, dropout, skip) for skip in skips))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        nn.init.trunc_normal_(self.cls, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.read(self.blocks(self.embed(images)))

    def embed(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to tokens (B, T, dim), [CLS] first."""
        patches = self.patchify(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(patches), -1, -1), patches], dim=1)
        return self.dropout(tokens + self.positions)

    def read(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T, dim) to logits (B, num_classes)."""
        return self.head(self.norm(tokens[:, 0]))


class Method(nn.Module):
    """A method of a model as a layer, which has the modules and parameters that the method uses."""

    def __init__(self, method: Callable[[Tensor], Tensor], **uses: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self._method = method
        for name, used in uses.items():
            setattr(self, name, used)

    def forward(self, x: Tensor) -> Tensor:
        return self._method(x)


def layers(model: VisionTransformer) -> list[nn.Module]:
    """The embedding, the blocks and the head."""
    embedding = Method(
        model.embed, patchify=model.patchify, cls=model.cls, positions=model.positions, dropout=model.dropout
    )
    return [embedding, *model.blocks, Method(model.read, norm=model.norm, head=model.head)]


MODEL = Architecture(VisionTransformer, RECIPES, layers)
