"""``--compile``: the forward and backward pass of a model as torch.compile makes them, on GPUs as CUDA graphs.

A CUDA graph repeats the kernels of a pass with one launch, from and to the same memory. So a gradient lasts until the
next pass, and :class:`~cifar_ray.strategies.replicas.Replicas` copies one that is to be added to; and weights and
buffers stay where they are, as all that sets them copies into them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig

PASSES = 3
"""Passes after which nothing is left to set up: the first compiles, the second records CUDA graphs, the third is the
first to repeat them."""


_COMPILERS = ("torch._dynamo", "torch._inductor")


class Compiled(nn.Module):
    """The forward pass of ``model`` as one compiled graph, for images (B, C, H, W) that always have one shape.

    The model itself is not changed, so evaluations, which call it directly, do not depend on compilation. Random
    numbers are drawn as without it.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        torch.compiler.reset()  # it compiles eight networks in a process, whose graphs hold memory of the GPU
        options: dict[str, Any] = {"fallback_random": True, "triton.cudagraphs": device.type == "cuda"}
        self._graph = torch.compile(model, fullgraph=True, dynamic=False, options=options)

    def forward(self, images: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return self._graph(images)


@contextmanager
def refusing(config: TrainConfig) -> Iterator[None]:
    """Context manager: what torch.compile cannot do with the model becomes one sentence.

    Raises:
        ConfigError: with its reason, in short.
    """
    try:
        yield
    except Exception as error:
        is_compilers = any(kind.__module__.startswith(_COMPILERS) for kind in type(error).__mro__)
        if not config.compile or not (is_compilers or re.search("fail_on_recompile|CUDAGraphs", str(error))):
            raise
        places = imports.frames(getattr(error, "real_stack", None) or ())
        where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
        raise ConfigError(
            "compile", f"must be left out for --model {config.model}: {imports.described(error)}{where}"
        ) from None
