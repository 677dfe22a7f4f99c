"""What one run is: every choice a person can make, with what each may be.

``TrainConfig`` is the one source of the command line's flags and help, of the keys of a YAML file, and of the
parameters that MLflow shows. It composes the options that their owners declare.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from pydantic import model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from cifar_ray.config import addresses, limits
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.limits import Limits
from cifar_ray.config.model import Model, usual
from cifar_ray.config.optimisation import Batch, Optimisation, OptimizerText, ScheduleText
from cifar_ray.config.option import check_choices, is_folder, path_of
from cifar_ray.config.schema import STRICT, Count, NotNegative, Positive, Share, plainly
from cifar_ray.config.sections import AugmentName, Data, Placement, Tracking
from cifar_ray.config.strategy import Strategy
from cifar_ray.config.task import Task
from cifar_ray.config.topology import Topology
from cifar_ray.config.topology import parse as parse_topology


@plainly
@dataclass(frozen=True, config=STRICT)
class TrainConfig(Tracking, Limits, Strategy, Placement, Batch, Optimisation, Model, Task, Data):
    """Train one model on one topology."""

    # What a person may choose is declared by its owners, which are listed from the last section to the first.

    @model_validator(mode="before")
    @classmethod
    def _with_usual_model(cls, values: Any) -> Any:
        """Name the model that is usual for the data set where none is named."""
        given = values.kwargs if isinstance(values, ArgsKwargs) else values
        if isinstance(given, dict) and "dataset" in given and "model" not in given:
            given = {**given, "model": usual(given["dataset"], given.get("image_column"))}
            return ArgsKwargs(values.args, given) if isinstance(values, ArgsKwargs) else given
        return values

    def __post_init__(self) -> None:
        _check(self)

    @property
    def placement(self) -> Topology:
        """The parsed topology."""
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
    def dataset_key(self) -> str:
        """What tells the data set from others, once it has been read: folders may be read in several sizes."""
        return self.images.digest or (f"{self.dataset} {self.val_share}" if self.val_share else self.dataset)

    @property
    def model_key(self) -> tuple[str, ...]:
        """What tells the model from others: its name, options and weights to start from."""
        options = (f"{name}={value}" for name, value in sorted(self.model_options.items()))
        return self.model, *options, f"{self.model_source} {self.weights} {self.weights_digest}"

    @property
    def validated(self) -> bool:
        """Whether there are validation images, once a data set of the user's own has been looked at."""
        return bool(self.val_share or self.images.val)

    @property
    def keeps_best(self) -> bool:
        """Whether the best of its checkpoints is asked for."""
        return self.log_models in ("best", "all")

    @property
    def cpus_reserved(self) -> int:
        """CPUs that each worker reserves, once the nodes are known; until then, the least that it needs."""
        return self.cpus_per_worker or 1

    @property
    def gpus_reserved(self) -> float:
        """GPUs that each worker reserves, once the device is decided."""
        return self.gpus_per_worker if self.device == "cuda" else 0

    @property
    def shares_gpu(self) -> bool:
        """Whether it has a part of a GPU, once the device is decided, so that its times are others', too."""
        return 0 < self.gpus_reserved < 1


@plainly
@dataclass(frozen=True, kw_only=True, config=STRICT)
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
    cpus_follow: bool = False
    """Whether ``cpus_per_worker`` was not given and follows from the nodes, so that other nodes may change it."""

    @property
    def images_per_worker(self) -> int:
        """A worker's share of a global batch, in each of its micro-batches: what ``batch_size`` is a way of saying."""
        return self.global_batch_size // (self.world_size * self.accumulate)


FUNCTIONS = tuple(field.name.removesuffix("_source") for field in fields(TrainConfig) if field.name.endswith("_source"))
"""Fields of TrainConfig that may be a function of the user's own, whose file is recorded."""


def _check(config: TrainConfig) -> None:
    if config.warmup_epochs is not None and config.warmup_epochs > config.epochs:
        raise ConfigError("warmup_epochs", f"must be at most epochs ({config.epochs}), got {config.warmup_epochs:g}")
    if config.unfreeze_epoch is not None:
        if not config.freeze:
            raise ConfigError("unfreeze_epoch", "is for --freeze, and nothing is frozen")
        if not 2 <= config.unfreeze_epoch <= config.epochs:
            raise ConfigError(
                "unfreeze_epoch",
                f"must be 2 or more, and at most epochs ({config.epochs}), got {config.unfreeze_epoch}",
            )
    for key in addresses.KEYS:
        addresses.check(key, getattr(config, key))
    if config.local_nodes > 1 and config.address is not None:
        raise ConfigError("local_nodes", "starts nodes on this machine and cannot go with --address")
    limits.check(config)
    if config.gpus_per_worker < 1:
        if config.topology != "1x1":
            raise ConfigError("gpus_per_worker", f"must be 1 where runs have several workers, got {config.topology}")
        if config.device == "cpu":
            raise ConfigError("gpus_per_worker", "is for GPUs and cannot go with --device cpu")
    if config.gpus_per_worker > 1 and config.strategy != "data_parallel":
        raise ConfigError("gpus_per_worker", f"must be 1 for --strategy {config.strategy}; data_parallel takes several")
    if config.gpus_per_worker > 1 and config.gpus_per_worker % 1:
        raise ConfigError("gpus_per_worker", f"must be a whole number or below 1, got {config.gpus_per_worker:g}")
    if config.patience is not None and config.per_rank_test:
        raise ConfigError(
            "patience", "cannot go with --per-rank-test, which must know before an epoch ends that it is the last"
        )
    _check_batch(config)
    check_choices(config)


def _check_batch(config: TrainConfig) -> None:
    if config.global_batch_size is None:
        return
    ways = config.world_size * config.accumulate
    if config.global_batch_size % ways:
        raise ConfigError(
            "global_batch_size",
            f"must be a multiple of workers x accumulation ({config.world_size} x {config.accumulate}), "
            f"got {config.global_batch_size}",
        )
    if config.batch_size is not None and config.batch_size * ways != config.global_batch_size:
        raise ConfigError(
            "global_batch_size",
            f"must be batch size x workers x accumulation "
            f"({config.batch_size} x {config.world_size} x {config.accumulate} = {config.batch_size * ways}), "
            f"got {config.global_batch_size}; give one of the two",
        )
