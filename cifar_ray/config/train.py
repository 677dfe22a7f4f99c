"""What one run is: every choice a person can make, with what each may be.

``TrainConfig`` is the one source of the command line's flags and help, of the keys of a YAML file, and of the
parameters that MLflow shows. It composes the options that their owners declare.
"""

from __future__ import annotations

import re
from dataclasses import fields

from pydantic.dataclasses import dataclass

from cifar_ray.config import files, limits
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.limits import Limits
from cifar_ray.config.model import Model, Task, usual
from cifar_ray.config.optimisation import Batch, Optimisation, OptimizerText, ScheduleText
from cifar_ray.config.option import check_choices, is_folder, path_of
from cifar_ray.config.schema import NO_OTHERS, Count, NotNegative, Positive, Share, plainly
from cifar_ray.config.sections import AugmentName, Data, Placement, Tracking
from cifar_ray.config.strategy import Strategy
from cifar_ray.config.topology import Topology, parse_range
from cifar_ray.config.topology import parse as parse_topology


@plainly
@dataclass(frozen=True, config=NO_OTHERS)
class TrainConfig(Tracking, Limits, Strategy, Placement, Batch, Optimisation, Model, Task, Data):
    """Train one model on one topology."""

    # What a person may choose is declared by its owners, which are listed from the last section to the first.

    def __post_init__(self) -> None:
        """Name the usual model where none is, the largest topology of an elastic run, and the batch as a global one."""
        if not self.model:
            object.__setattr__(self, "model", usual(self.dataset, self.image_column))
        if self.elastic is not None:
            largest = str(parse_range(self.elastic)[1])
            if self.topology not in (TrainConfig.topology, largest):
                raise ConfigError("topology", f"is chosen by --elastic {self.elastic}; give one of the two")
            object.__setattr__(self, "topology", largest)
        object.__setattr__(self, "global_batch_size", _global_batch(self))
        _check(self)

    @property
    def placement(self) -> Topology:
        return parse_topology(self.topology)

    @property
    def world_size(self) -> int:
        """Workers in all."""
        return self.placement.world_size

    @property
    def model_name(self) -> str:
        """The model as a part of names: of runs, and so of folders."""
        return self.model.replace(":", ".")

    @property
    def dataset_name(self) -> str:
        """The data set as a part of names; of a folder, the folder's name."""
        name = self.dataset
        if is_folder(name):
            name = path_of(name).rstrip("/").rpartition("/")[2]
        return re.sub("[^A-Za-z0-9._-]", ".", name).lstrip(".") or "images"

    @property
    def model_key(self) -> tuple[str, ...]:
        """What tells the model from others: its name, options and weights to start from."""
        options = (f"{name}={value}" for name, value in sorted(self.model_options.items()))
        return self.model, *options, f"{self.model_source} {self.weights}"


@plainly
@dataclass(frozen=True, kw_only=True, config=NO_OTHERS)
class ResolvedConfig(TrainConfig):
    """A run with the global batch and the model's recipe filled in; ``recipe.resolve`` makes it."""

    augment: AugmentName
    global_batch_size: Count
    optimizer: OptimizerText
    lr: Positive
    momentum: Share
    weight_decay: NotNegative
    schedule: ScheduleText
    warmup_epochs: NotNegative
    label_smoothing: Share
    base_batch: Count

    def share(self, workers: int) -> int:
        """The part of a global batch of each of so many workers, in each of its micro-batches."""
        return self.global_batch_size // (workers * self.accumulate)

    @property
    def images_per_worker(self) -> int:
        """A worker's share at the topology that is asked for: what ``batch_size`` is a way of saying."""
        return self.share(self.world_size)


FUNCTIONS = tuple(field.name.removesuffix("_source") for field in fields(TrainConfig) if field.name.endswith("_source"))
"""Fields of TrainConfig that may be a function of the user's own, whose file is recorded."""


def _check(config: TrainConfig) -> None:
    epochs, unfreeze, gpus = config.epochs, config.unfreeze_epoch, config.gpus_per_worker
    if config.warmup_epochs is not None and config.warmup_epochs > epochs:
        raise ConfigError("warmup_epochs", f"must be at most epochs ({epochs}), got {config.warmup_epochs:g}")
    if unfreeze is not None and not (config.freeze and 2 <= unfreeze <= epochs):
        rule = f"must be 2 or more, at most epochs ({epochs}), and given with --freeze"
        raise ConfigError("unfreeze_epoch", f"{rule}, got {unfreeze}")
    for key in files.ADDRESSES:
        files.check_address(key, getattr(config, key))
    if config.local_nodes > 1 and config.address is not None:
        raise ConfigError("local_nodes", "starts nodes on this machine and cannot go with --address")
    limits.check(config)
    if gpus < 1 and (config.topology != "1x1" or config.device == "cpu"):
        raise ConfigError("gpus_per_worker", f"must be 1 with several workers and on CPUs, got {gpus:g}")
    if gpus > 1 and (config.strategy != "data_parallel" or gpus % 1):
        raise ConfigError("gpus_per_worker", f"must be 1 or less, or a whole number for data_parallel, got {gpus:g}")
    if config.patience is not None and config.per_rank_test:
        raise ConfigError("patience", "cannot go with --per-rank-test, which must know the last epoch before it ends")
    check_choices(config)


def _global_batch(config: TrainConfig) -> int | None:
    """The samples of an optimizer step, however they are given; None where the model's recipe says it."""
    ways, images = config.world_size * config.accumulate, config.global_batch_size
    if config.batch_size is None:
        if images is not None and images % ways:
            rule = f"must be a multiple of workers x accumulation ({config.world_size} x {config.accumulate})"
            raise ConfigError("global_batch_size", f"{rule}, such as {max(images // ways, 1) * ways}, got {images}")
        return images
    whole = config.batch_size * ways
    if images not in (None, whole):
        product = f"{config.batch_size} x {config.world_size} x {config.accumulate} = {whole}"
        rule = f"must be batch size x workers x accumulation ({product})"
        raise ConfigError("global_batch_size", f"{rule}, got {images}; give one of the two")
    return whole
