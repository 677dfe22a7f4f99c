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
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from cifar_ray.config.errors import ConfigError, first_line
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.training import checkpoint
from cifar_ray.training.errors import CheckpointError

_LEAST = 0.5
"""Share of the model's parameters below which the weights are those of another model."""

_NAMED = 5  # layers that a sentence names
_WITHIN = ("state_dict", "model")  # where training scripts keep a state dict beside other things


def read(path: Path) -> dict[str, Tensor]:
    """The state dict in a file: safetensors, or what ``torch.save`` has written.

    Raises:
        ConfigError: when it holds anything else, among it code, or cannot be read.
    """
    try:
        if path.suffix == ".safetensors":
            return safetensors.load(path.read_bytes())
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise ConfigError(
            "weights", f"must be a state dict of tensors, which loads without executing code; {path} holds more or else"
        ) from None
    except Exception as error:  # on content that is not what it should be, the readers raise whatever comes
        raise ConfigError("weights", f"must be a file that can be read; {path}: {first_line(error)}") from None
    if isinstance(state, Mapping):
        state = next((state[name] for name in _WITHIN if isinstance(state.get(name), Mapping)), state)
    if not isinstance(state, Mapping) or not all(isinstance(name, str) and _is_plain(state[name]) for name in state):
        raise ConfigError("weights", f"must be a state dict, names of parameters with dense tensors; {path} is none")
    state = {name.replace("_orig_mod.", ""): value for name, value in state.items()}  # torch.compile wraps modules
    consume_prefix_in_state_dict_if_present(state, "module.")  # of a model that DDP wrapped
    return state


def _is_plain(value: object) -> bool:
    """Whether it is a tensor that safetensors can store."""
    if not isinstance(value, Tensor):
        return False
    return value.layout is torch.strided and not value.is_quantized and not value.is_meta


def pack(weights: Mapping[str, Tensor]) -> tuple[bytes, str]:
    """Weights as a safetensors file, and its SHA-256; equal weights make equal files."""
    content = safetensors.save(checkpoint.apart(weights))
    return content, hashlib.sha256(content).hexdigest()


def load(model: nn.Module, config: ResolvedConfig, content: bytes) -> None:
    """Set what a model has in common with the weights of ``config`` that :func:`pack` made; the rest stays.

    Raises:
        CheckpointError: when they are not those that the run began with.
    """
    if hashlib.sha256(content).hexdigest() != config.weights_digest:
        raise CheckpointError("the weights that the run starts from are damaged: their SHA-256 is not the config's")
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
    more = f" and {len(layers) - _NAMED} more layers" if len(layers) > _NAMED else ""
    rest = f"; randomly initialised: {', '.join(layers[:_NAMED])}{more}" if layers else ""
    return f"weights of {config.weights}: {share:.1%} of the parameters{rest}"


def _fitting(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of layers that all have the model's shapes: a bias is of no use beside another weight."""
    own = model.state_dict()
    shared = {name: value for name, value in weights.items() if name in own}
    others = {_layer(name) for name, value in shared.items() if own[name].shape != value.shape}
    return {name: value for name, value in shared.items() if _layer(name) not in others}


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or name
