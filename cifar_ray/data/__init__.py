"""Images: which there are, who sees which of them and when, and how they are varied."""

from __future__ import annotations

import dataclasses

from cifar_ray.config.option import is_own
from cifar_ray.config.sections import Images
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import arrays, own, validation
from cifar_ray.data.datasets import SPECS, Dataset, DatasetSpec, Split, folder, load, present
from cifar_ray.data.decoded import Progress

__all__ = ["SPECS", "Dataset", "DatasetSpec", "Split", "folder", "load", "own", "present", "read", "spec"]


def spec(config: TrainConfig, images: Images | None = None) -> DatasetSpec:
    """The facts of a resolved config's data set; of one of the user's own, ``images`` once it has been read.

    Until then, they are what a first look has found. How many images validation takes from one of this package is known
    to a few images until it has been read.
    """
    if is_own(config.dataset):
        return arrays.spec(config.dataset, images or config.images)
    spec = SPECS[config.dataset]
    kept = round(spec.train_size * (config.val_share or 0.0))
    return dataclasses.replace(spec, train_size=spec.train_size - kept, val_size=kept)


def steps_per_epoch(config: ResolvedConfig, images: Images | None = None) -> int:
    """Optimizer steps in an epoch; arguments as of :func:`spec`."""
    # As order.steps_per_epoch has it, which is not imported here: it would bring torch to every command.
    return config.steps_per_epoch or spec(config, images).train_size // config.global_batch_size


def read(config: TrainConfig, progress: Progress = lambda done, total: None, encoding: str = "") -> Dataset:
    """Read a resolved config's data set.

    Args:
        config: names it.
        progress: called while images are decoded, or texts become tokens.
        encoding: of a data set that has one (:class:`Dataset`), that of a run; by default it is learned.

    Raises:
        ConfigError: as :func:`load` and :func:`cifar_ray.data.own.load`.
    """
    if is_own(config.dataset):
        return own.load(config, progress, encoding)
    dataset = load(config.dataset, config.data_dir)
    return validation.published(dataset, config.val_share) if config.val_share else dataset
