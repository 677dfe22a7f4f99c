"""The weights of ``--weights``: found once, in the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from cifar_ray import data, models
from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, brief, one_of, suggestion
from cifar_ray.config.option import TEXT, library_of
from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data.datasets import CONSTANTS
from cifar_ray.models import libraries
from cifar_ray.orchestration.run import results
from cifar_ray.training import initial_weights
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.errors import CheckpointError

_BEST = ":best"


def find(config: ResolvedConfig, store: str, note: Callable[[str], None]) -> tuple[bytes, str, str]:
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
            note(
                f"weights of {path}: a file has no tokenizer; unless they were trained on the same texts, this "
                "run numbers words differently"
            )
        return initial_weights.read(path), ""
    library, name = libraries.find(model) if library_of(model) else (None, "")
    known = library.weights(name) if library else ()
    if text in known:
        spec = data.facts(config)
        if difference := _other_pixels(config, text):
            note(difference)
        return libraries.fetch(model, text, spec.image_size, spec.shape[0], config.model_options), ""
    try:
        which: WhichCheckpoint = "best" if text.endswith(_BEST) else "last"
        source = results.find_checkpoint(text.removesuffix(_BEST), which, store, note)
    except (ConfigError, CheckpointError) as error:
        what = f"a run, a file or {one_of(known)} of {model}" if known else "a run or a file"
        raise ConfigError("weights", f"must be {what}, got {brief(text)}: {error}{suggestion(text, known)}") from None
    for difference in _other_data(config, source.snapshot):
        note(difference)
    return source.snapshot.weights, _encoding(config, source.snapshot)


def _encoding(config: ResolvedConfig, theirs: Snapshot) -> str:
    """The tokenizer of the run whose weights a run of texts starts from; empty of other data."""
    if not theirs.encoding or not data.facts(config).vocabulary:
        return ""
    if theirs.config.text != config.text:
        rule = "must be those of a run with the same --text options, whose tokenizer is taken"
        raise ConfigError("weights", f"{rule}; {config.weights} has {theirs.config.text}")
    return theirs.encoding


def _other_pixels(config: ResolvedConfig, tag: str) -> str:
    """That the run normalises pixels in another way than the library did for its weights; empty when it does not."""
    library, name = libraries.find(config.model)
    theirs = library.pixels(name, tag)
    same = next((f"--normalise {known}" for known, constants in CONSTANTS.items() if constants == theirs), "")
    if same == f"--normalise {config.normalise}":
        return ""
    return f"weights of {tag}: trained with pixels normalised as {same or 'no --normalise'} does"


def _other_data(config: ResolvedConfig, theirs: Snapshot) -> Iterator[str]:
    """In what the images of a run differ from those of the run whose weights it starts from."""
    if theirs.config.normalise != config.normalise:
        yield f"weights of {config.weights}: trained with --normalise {theirs.config.normalise}"
    is_other = theirs.config.dataset_name != config.dataset_name
    if not is_other and (theirs.config.val_share or 0) < (config.val_share or 0):
        yield (
            f"weights of {config.weights}: may have been trained on images that this run keeps for validation, so "
            "that validation figures may be too good"
        )
    if is_other and len(theirs.spec.names) == data.facts(config).num_classes:
        yield (
            f"weights of {config.weights}: the head is kept, though it was trained for the "
            f"{len(theirs.spec.names)} classes of {theirs.config.dataset_name}"
        )
