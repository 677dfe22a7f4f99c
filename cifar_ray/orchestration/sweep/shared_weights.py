"""The weights that a sweep's runs start from, each read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.run import given_weights
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial


def find(
    trials: Sequence[PlannedTrial],
    store: str,
    note: Callable[[str], None],
    datasets: Mapping[str, Dataset],
    known: dict[Any, ResolvedConfig | ConfigError],
) -> dict[str, bytes]:
    """Read the weights of every trial that has not begun; its config then has their digest.

    A trial whose weights cannot be found, or are another model's, loses its config and gets a reason.

    Args:
        trials: to be changed in place.
        store: as for :func:`given_weights.find`.
        note: as for :func:`given_weights.find`.
        datasets: those of the trials, which have been read, by ``dataset_key``; texts by a tokenizer of their own.
        known: what earlier calls have found, which is extended.

    Returns:
        Digest -> the weights as a safetensors file, of those that no earlier call has read.
    """
    contents: dict[str, bytes] = {}
    for trial in trials:
        if trial.config is None or trial.config.weights is None or trial.folder is not None:
            continue
        which = _kind(trial.config)
        if which not in known:
            try:
                read, content, encoding = given_weights.find(trial.config, store, note)
                if encoding and encoding != datasets[trial.config.dataset_key].encoding:
                    rule = "must be of a run with the same training texts in a sweep, whose runs share a tokenizer"
                    raise ConfigError("weights", f"{rule}; {trial.config.weights} has others")
                known[which], contents[str(read.weights_digest)] = read, content
            except ConfigError as error:
                known[which] = error
        found = known[which]
        if isinstance(found, ConfigError):
            trial.reason, trial.config = str(found), None
        else:
            trial.config = replace(trial.config, weights=found.weights, weights_digest=found.weights_digest)
    return contents


def _kind(config: ResolvedConfig) -> Any:
    """What decides which weights there are, and how much of them fits."""
    return config.weights, config.weights_digest, config.dataset_key, *config.model_key
