"""Weights that a run starts from: read without executing code, compared with the model, and loaded on every rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from cifar_ray.config.errors import ConfigError, first_line, some
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.training import checkpoint
from cifar_ray.training.errors import CheckpointError

_LEAST = 0.5
"""Share of the model's parameters below which the weights are those of another model."""

_USUAL = ("model", "state_dict", "model_state_dict")  # of several state dicts in a file, the one to take


def read(path: Path) -> dict[str, Tensor]:
    """The state dict in a file: safetensors, or what ``torch.save`` has written.

    Raises:
        ConfigError: when it holds anything else, among it code, or cannot be read.
    """
    try:
        if path.suffix == ".safetensors":
            return safetensors.load(path.read_bytes())
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on content that is not what it should be, the readers raise whatever comes
        why = "it holds more than tensors" if isinstance(error, UnpicklingError) else first_line(error)
        raise ConfigError("weights", f"must be a file that loads without executing code; {path}: {why}") from None
    if isinstance(state, Mapping) and not _is_state(state):  # a checkpoint, which has other things, too
        states: dict[Any, Any] = {name: value for name, value in state.items() if _is_state(value)}
        state = states.get(next(filter(states.get, states if len(states) == 1 else _USUAL), None))
    if not _is_state(state):
        raise ConfigError("weights", f"must be a state dict, names of parameters with tensors; {path} is none")
    return {name.replace("_orig_mod.", ""): value for name, value in state.items()}  # torch.compile wraps modules


def named_alike(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Weights by a model's names: without a prefix, such as ``module.`` of DDP, if more of the model fits so.

    Of prefixes that fit alike, the shortest counts, and then the first in the file.
    """
    own = {name: value.shape for name, value in model.state_dict().items()}
    parts = [name.split(".") for name in weights]
    every = ("".join(f"{part}." for part in each[:depth]) for each in parts for depth in range(len(each)))
    prefixes = dict.fromkeys(every)  # in the file's order, which no hash changes

    def fits(prefix: str) -> int:
        theirs = ((weights.get(prefix + name), shape) for name, shape in own.items())
        return sum(value is not None and value.shape == shape for value, shape in theirs)

    best = max(sorted(prefixes, key=len), key=fits)
    return {name.removeprefix(best): value for name, value in weights.items() if name.startswith(best)}


def _is_state(content: Any) -> bool:
    """Whether it is a mapping of names to tensors."""
    is_some = isinstance(content, Mapping) and bool(content)
    return is_some and all(isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items())


def pack(weights: Mapping[str, Tensor]) -> tuple[bytes, str]:
    """Weights as a safetensors file, and its SHA-256; equal weights make equal files."""
    content = safetensors.save(checkpoint.apart(weights))
    return content, hashlib.sha256(content).hexdigest()


def load(model: nn.Module, digest: str | None, content: bytes) -> None:
    """Set what a model has in common with the weights of that SHA-256 that :func:`pack` made; the rest stays.

    Raises:
        CheckpointError: when they are not those that the run began with.
    """
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError("the weights that the run starts from are damaged: their SHA-256 is another")
    model.load_state_dict(_fitting(model, safetensors.load(content)), strict=False)


def compared(model: nn.Module, weights: Mapping[str, Tensor], config: ResolvedConfig) -> str:
    """What of a model the weights set, as a sentence.

    Raises:
        ConfigError: when that is less than half of its parameters.
    """
    fitting = _fitting(model, weights)
    parameters = dict(model.named_parameters())
    fresh = [name for name in parameters if name not in fitting]
    total = sum(parameter.numel() for parameter in parameters.values())
    share = 1 - sum(parameters[name].numel() for name in fresh) / total
    if share < _LEAST:
        raise ConfigError(
            "weights",
            f"must fit at least half of the parameters of {config.model}; {config.weights} has {share:.1%} of them, by "
            "name and shape",
        )
    layers = list(dict.fromkeys(map(_layer, fresh)))
    rest = f"; randomly initialised: {some(layers)}" if layers else ""
    return f"weights of {config.weights}: {share:.1%} of the parameters{rest}"


def _fitting(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of layers that all have the model's shapes: a bias is of no use beside another weight."""
    own = model.state_dict()
    shared = {name: value for name, value in weights.items() if name in own}
    others = {_layer(name) for name, value in shared.items() if own[name].shape != value.shape}
    return {name: value for name, value in shared.items() if _layer(name) not in others}


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or name
