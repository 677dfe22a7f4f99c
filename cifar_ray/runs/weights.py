"""The weights of ``--weights``: found once, in the driver."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cifar_ray import data, models
from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, brief, one_of, suggestion
from cifar_ray.config.option import TEXT, library_of
from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data.datasets import CONSTANTS
from cifar_ray.models import libraries
from cifar_ray.runs import use
from cifar_ray.training import initial_weights
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.errors import CheckpointError

_BEST = ":best"


def find_weights(config: ResolvedConfig, store: str, note: Callable[[str], None]) -> tuple[bytes, str, str]:
    """Read the weights that a config names, and say how much of its model they fit.

    Args:
        config: whose ``weights`` are given.
        store: tracking URI that has the run, if it is one.
        note: called with sentences for a person.

    Returns:
        Their content as a safetensors file, its SHA-256, and the encoding
        (:class:`cifar_ray.data.Dataset`) that they were trained with, where the config's data need one: that of texts,
        whose numbers mean nothing by another tokenizer.

    Raises:
        ConfigError: when there are no such weights, or they are another model's.
    """
    weights, encoding = _read(config, store, note)
    model = models.outline(config, data.facts(config))
    weights = initial_weights.named_alike(weights, model)
    content, digest = initial_weights.pack(weights)
    note(initial_weights.compared(model, weights, config))
    return content, digest, encoding


def _read(config: ResolvedConfig, store: str, note: Callable[[str], None]) -> tuple[dict[str, Tensor], str]:
    text, model = str(config.weights), config.model
    if path := files.existing("weights", text):
        if config.dataset.startswith(TEXT):
            note(f"weights of {path}: a file has no tokenizer; only the same training texts number words alike")
        return initial_weights.read(path), ""
    library, name = libraries.find(model) if library_of(model) else (None, "")
    known = library.weights(name) if library else ()
    if library and text in known:
        constants = library.pixels(name, text)
        if (theirs := next((way for way in CONSTANTS if CONSTANTS[way] == constants), "other")) != config.normalise:
            note(f"weights of {text}: trained with pixels normalised by {theirs} constants (--normalise)")
        spec = data.facts(config)
        return libraries.fetch(model, text, spec.image_size, spec.shape[0], config.model_options), ""
    try:
        which: WhichCheckpoint = "best" if text.endswith(_BEST) else "last"
        snapshot = use.find_checkpoint(text.removesuffix(_BEST), which, store, note).snapshot
    except (ConfigError, CheckpointError) as error:
        rest = f", a file or {one_of(known)} of {model}" if known else f" or a file ({model} comes without weights)"
        raise ConfigError(
            "weights", f"must be a run{rest}, got {brief(text)}: {error}{suggestion(text, known)}"
        ) from None
    if differing := _differing(config, snapshot):
        note(f"weights of {text}: {differing}")
    return snapshot.weights, _encoding(config, snapshot)


def _encoding(config: ResolvedConfig, theirs: Snapshot) -> str:
    """The tokenizer of the run whose weights a run of texts starts from; empty of other data."""
    if not theirs.encoding or not data.facts(config).vocabulary:
        return ""
    if theirs.config.text != config.text:
        rule = "must be those of a run with the same --text options, whose tokenizer is taken"
        raise ConfigError("weights", f"{rule}; {config.weights} has {theirs.config.text}")
    return theirs.encoding


def _differing(config: ResolvedConfig, theirs: Snapshot) -> str:
    """What a person should know of the run whose weights another starts from; empty where that is nothing."""
    if theirs.config.normalise != config.normalise:
        return f"trained with --normalise {theirs.config.normalise}"
    is_same = theirs.config.dataset_name == config.dataset_name
    if is_same and (theirs.config.val_share or 0) < (config.val_share or 0):
        return "may have been trained on this run's validation images, whose figures may be too good"
    return ""
