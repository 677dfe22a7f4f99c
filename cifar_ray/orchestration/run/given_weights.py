"""The weights of ``--weights``: found once, in the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from cifar_ray import data, models
from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, brief, one_of, suggestion
from cifar_ray.config.option import library_of
from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.models import libraries
from cifar_ray.orchestration.run import results
from cifar_ray.training import initial_weights
from cifar_ray.training.errors import CheckpointError

_BEST = ":best"


def find(config: ResolvedConfig, store: str, note: Callable[[str], None]) -> tuple[ResolvedConfig, bytes]:
    """Read the weights that a config names, and say how much of its model they fit.

    Args:
        config: whose ``weights`` are given.
        store: tracking URI that has the run, if it is one.
        note: called with sentences for a person.

    Returns:
        The config with their digest, and their content as a safetensors file.

    Raises:
        ConfigError: when there are no such weights, or they are another model's, or not those of the config's digest.
    """
    config, weights = _read(config, store, note)
    content, digest = initial_weights.pack(weights)
    if config.weights_digest not in (None, digest):
        raise ConfigError(
            "weights",
            f"must be those that the run began with, and {config.weights} has others now; undo that, or give --weights",
        )
    note(initial_weights.compared(models.outline(config, data.spec(config)), weights, config))
    return replace(config, weights_digest=digest), content


def _read(config: ResolvedConfig, store: str, note: Callable[[str], None]) -> tuple[ResolvedConfig, dict[str, Tensor]]:
    text, model = str(config.weights), config.model
    if path := files.existing("weights", text):
        return replace(config, weights=str(path)), initial_weights.read(path)
    known = libraries.weights(model) if library_of(model) else ()
    if text in known:
        spec = data.spec(config)
        return config, libraries.fetch(model, text, spec.image_size, spec.channels, config.model_options)
    try:
        which: WhichCheckpoint = "best" if text.endswith(_BEST) else "last"
        found = results.find_checkpoint(text.removesuffix(_BEST), which, store, note)
    except (ConfigError, CheckpointError) as error:
        what = f"a run, a file or {one_of(known)} of {model}" if known else "a run or a file"
        raise ConfigError("weights", f"must be {what}, got {brief(text)}: {error}{suggestion(text, known)}") from None
    return config, found.snapshot.weights
