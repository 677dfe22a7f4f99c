"""From what a person asked for to what is done: every default made explicit."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import typing
from collections.abc import Iterator
from typing import Any

from cifar_ray import data, models, strategies, tasks
from cifar_ray.config import errors, runfile, schema, topology
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import is_function, is_own, library_of
from cifar_ray.config.sections import MIXING, MOVING, AugmentName
from cifar_ray.config.topology import Topology
from cifar_ray.config.train import FUNCTIONS, ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset, DatasetSpec, arrays
from cifar_ray.models import own as own_models
from cifar_ray.models.architecture import Recipe
from cifar_ray.tasks import choosing, imports
from cifar_ray.training import checks, freezing, optimizer, own

LONGEST_WARMUP = 0.25
"""Share of a run that a model's own warm-up takes at most."""


def resolve(config: TrainConfig, chooser: str = "") -> ResolvedConfig:
    """Fill in the global batch, the model's recipe and the share for validation; what was given stays.

    The result is its own resolution, and starting from it repeats the run.

    Args:
        config: what to do.
        chooser: what is to choose between it and other runs, such as ``--scheduler asha``; empty when nothing is.

    Raises:
        ConfigError: when model, data set and batch do not go together.
    """
    config = dataclasses.replace(config, val_share=_val_share(config, chooser))
    if is_own(config.dataset) and not config.images.classes:
        images = data.look(config)
        config = dataclasses.replace(config, dataset=data.absolute(config.dataset), images=images)
    spec = data.spec(config)
    checks.task(config, spec)
    recipe = _recipe(config)
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)}
    values |= {name: value for name, value in recipe.items() if values[name] is None}
    values["task"] = None if config.task == tasks.usual(config) else config.task  # the data set's own
    values["augment"] = _augment(config, spec)
    values["cpus_per_worker"] = config.cpus_per_worker or strategies.of(config).cpus
    values |= {"batch_size": None, "global_batch_size": _global_batch(config)}
    values |= {"model_options": models.complete(config, spec), "strategy_options": strategies.complete(config)}
    for name in FUNCTIONS:
        if is_function(values[name]) and getattr(config, f"{name}_source") is None:
            values[f"{name}_source"] = imports.source(values[name], name)
    resolved = ResolvedConfig(**values)
    outputs = tasks.spec(resolved).outputs(spec.num_classes, spec.image_size)
    if is_own(config.model):
        own_models.check(resolved, spec, outputs)
    elif is_own(config.dataset) and spec.inputs == "images":
        checks.side(resolved, spec)
    else:
        models.outline(resolved, spec)  # refuses options that do not go together
    freezing.check(resolved, spec)
    own.check(resolved, functools.partial(optimizer.build, config=resolved))
    checks.sizes(resolved, spec, "batch_size" if config.global_batch_size is None else "global_batch_size")
    strategy = strategies.of(resolved)
    strategy.check(resolved)
    if is_own(config.model):
        own_models.check_strategy(resolved, spec, strategy.cannot)
    if resolved.precision == "fp16":
        checks.fp16(resolved, spec)
    if resolved.compile:
        checks.compiled(resolved)
    if resolved.elastic is not None and not strategy.synchronous:
        raise ConfigError(
            "elastic",
            f"needs a strategy whose workers take every step together, so that all stop after the same one; "
            f"those of {resolved.strategy} do not",
        )
    found = models.recipe(resolved)
    if found is not None and found.lookahead and not strategy.synchronous:
        raise ConfigError(
            "strategy",
            f"must be one whose workers take every step together for --model {config.model}, whose recipe averages "
            f"weights over steps, got {config.strategy}",
        )
    if strategy.at_once(resolved) == 1:
        checks.single_image(resolved)
    return resolved


def _val_share(config: TrainConfig, chooser: str) -> float | None:
    """The share of the training images that is kept for validation: as given, or for what is to choose; None for none.

    Raises:
        ConfigError: when it is refused to what is to choose, or to data that has validation images, or the test is
            to choose beside these.
    """
    chooser = chooser or (f"--log-models {config.log_models}" if config.keeps_best else "")
    chooser = chooser or (f"--patience {config.patience}" if config.patience is not None else "")
    is_known = config.images.classes > 0
    has_own = config.images.val > 0 and not config.val_share if is_known else data.has_validation(config)
    if config.choose_by == "test" and (has_own or config.val_share):
        raise ConfigError("choose_by", "must be val where there are validation images, whose figure chooses")
    if has_own and config.val_share == 0:
        raise ConfigError("val_share", f"is for data without validation images, and {config.dataset} has some")
    if has_own or not chooser or config.choose_by == "test":
        return config.val_share or None
    if config.val_share == 0:
        raise ConfigError(
            "val_share",
            f"must be above 0 for {chooser}, which chooses by the validation figure; --choose-by test takes the test "
            "figure instead",
        )
    return config.val_share or choosing.DEFAULT_SHARE


def notes(config: TrainConfig, asked: TrainConfig) -> Iterator[str]:
    """Notes on what a resolved config has that nobody asked for, or can hardly want."""
    if config.val_share is not None and asked.val_share is None:
        yield (
            f"note: {config.val_share:.0%} of the training {tasks.spec(config).unit} are kept for validation, since "
            "something is chosen (--val-share sets the share)"
        )
    if config.freeze and config.weights is None and not is_function(config.model):  # one's own may read weights
        yield "note: --freeze keeps random weights as they are: --weights says which weights to start from"


_OF_IMAGES = {"augment": (None, "none"), "normalise": ("dataset",)}
"""Options that are for images alone -> the values that they may have with other inputs."""


def _augment(config: TrainConfig, spec: DatasetSpec) -> str:
    """How training images vary: as asked for, or as usual for the task and the data set."""
    task = tasks.of(config)
    has_classes = task.spec.names == "classes"
    if config.class_weights != "none" and (is_own(config.task) or not has_classes):
        raise ConfigError("class_weights", f"is for tasks of classes, and the task is {config.task or task.spec.name}")
    if config.label_smoothing and not (is_own(config.task) or has_classes):
        raise ConfigError("label_smoothing", f"is for tasks of classes, and the task is {task.spec.name}")
    if spec.inputs != "images":
        if unfit := next((key for key, usual in _OF_IMAGES.items() if getattr(config, key) not in usual), ""):
            raise ConfigError(unfit, f"is for images, and {config.dataset} has {spec.inputs}")
        return "none"
    usual = "crop_flip" if spec.flip else "crop"
    chosen = config.augment or (usual if has_classes else "none")
    names = typing.get_args(AugmentName)
    if chosen == "crop_flip" and not spec.flip:
        others = errors.one_of([name for name in names if name != "crop_flip"])
        raise ConfigError(
            "augment",
            f"must be {others} for {spec.name}, whose classes a mirror image does not show, got crop_flip",
        )
    if config.class_weights != "none" and chosen in MIXING:
        raise ConfigError("class_weights", f"must be left out with --augment {chosen}, whose images are of two classes")
    if task.spec.answer == "masks" and chosen not in MOVING:
        raise ConfigError(
            "augment", f"must be {errors.one_of(MOVING)} for masks, which vary with their images, got {chosen}"
        )
    if chosen in MIXING and not (task.spec.answer == "classes" and task.target == "labels"):
        others = errors.one_of([name for name in names if name not in MIXING])
        raise ConfigError(
            "augment", f"must be {others} for {config.task or task.spec.name}, which has no labels to mix, got {chosen}"
        )
    return chosen


def _recipe(config: TrainConfig) -> dict[str, Any]:
    """What the model learns with where nothing else is given, by field: its recipe for the optimizer."""
    recipes: dict[str, Recipe] = {recipe.optimizer: recipe for recipe in models.of(config.model).recipes}
    default = next(iter(recipes))
    chosen = config.optimizer or default
    if chosen not in recipes and (config.lr is None or config.weight_decay is None):
        raise ConfigError(
            "optimizer",
            f"must come with --lr and --weight-decay where it is {chosen}, which {config.model} has no "
            f"recipe for; its own is {default}",
        )
    found = recipes.get(chosen, recipes[default])
    warmup = min(found.warmup_epochs, LONGEST_WARMUP * config.epochs)
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    defaults = {name: value for name, value in dataclasses.asdict(found).items() if name in names}
    return {**defaults, "optimizer": chosen, "warmup_epochs": warmup}


def _global_batch(config: TrainConfig) -> int:
    """The global batch, however it was given."""
    ways = config.world_size * config.accumulate
    if config.batch_size is not None:
        return config.batch_size * ways
    images: int = config.global_batch_size or _recipe(config)["base_batch"]
    if images % ways:
        example = max(images // ways, 1)
        raise ConfigError(
            "global_batch_size",
            f"must be given where its default of {images} {tasks.spec(config).unit} cannot be shared equally by "
            f"{config.world_size} workers x {config.accumulate} micro-batches, such as --global-batch-size "
            f"{example * ways} or --batch-size {example}",
        )
    return images


def at(config: ResolvedConfig, wanted: Topology) -> ResolvedConfig:
    """A resolved config on another topology; the global batch stays what it was.

    Raises:
        ConfigError: when the workers cannot share the global batch.
    """
    return resolve(runfile.merge(config, {"topology": str(wanted)}))


def widest(config: ResolvedConfig) -> ResolvedConfig:
    """A resolved config as it would be begun again: an elastic one at its largest topology."""
    return config if config.elastic is None else at(config, topology.parse_range(config.elastic)[1])


_ALWAYS = ("dataset", "task", "model", "epochs", "global_batch_size", "topology", "seed")
_NEVER = (
    *runfile.WHERE,
    "device",
    "cpus_follow",
    "images",
    "weights_digest",
    "class_weights_counts",
    "convolutions",
    *(f"{name}_source" for name in FUNCTIONS),
)  # the device is that of the machine


def command(config: ResolvedConfig) -> str:
    """The ``cifar-ray train`` command that does what a resolved ``config`` does.

    Only what differs from the defaults and the model's recipe is spelled out, and always what tells runs apart.
    """
    config = widest(config)
    usual = resolve(
        TrainConfig(
            dataset=config.dataset,
            images=config.images,
            task=config.task,
            model=config.model,
            model_options=config.model_options if is_own(config.model) else {},
            global_batch_size=config.global_batch_size,
        )
    )
    strategy_defaults = strategies.complete(TrainConfig(strategy=config.strategy))
    learns = {**_recipe(config), "optimizer": usual.optimizer}  # what the run's own optimizer and epochs come with
    defaults = {**schema.flatten(schema.to_plain(usual)), **learns}
    defaults |= {f"strategy_options.{name}": value for name, value in schema.plain(strategy_defaults).items()}
    has_recipe = config.optimizer in {recipe.optimizer for recipe in models.of(config.model).recipes}
    always = _ALWAYS if has_recipe else (*_ALWAYS, "lr", "weight_decay")
    words = ["cifar-ray train"]
    for key, value in schema.flatten(schema.to_plain(config)).items():
        is_option = key.partition(".")[0] in ("model_options", "strategy_options", "optimizer_options")
        is_own_option = key.startswith("optimizer_options.") or (is_own(config.model) and key.startswith("model_"))
        if key.partition(".")[0] in _NEVER or (key not in always and not is_own_option and value == defaults[key]):
            continue
        if isinstance(value, bool) and not is_option:
            words.append(errors.flag_of(key) if value else errors.flag_of(f"no_{key}"))
        elif value is not None:
            values = list(map(str, value)) if isinstance(value, list) else [str(value)]
            values = [",".join(values)] if is_option else values
            words.append(" ".join([errors.flag_of(key), *map(shlex.quote, values)]))
    return " ".join(words)


def placed(config: ResolvedConfig, device: str, cpus: int) -> ResolvedConfig:
    """``config`` with its device, ``cpu`` or ``cuda``, and the CPUs of each worker decided; a number given stays.

    Raises:
        ConfigError: when it needs the other device.
    """
    if config.sync_batchnorm and device != "cuda":
        raise ConfigError("sync_batchnorm", "needs GPUs; torch has no CPU version of it")
    if config.sync_batchnorm and library_of(config.model) == "timm":  # torch would put a norm alone in their place
        raise ConfigError("sync_batchnorm", f"must be off for {config.model}, which may fuse norm and activation")
    decided = dataclasses.replace(
        config,
        device=typing.cast(Any, device),
        gpus_per_worker=config.gpus_per_worker if device == "cuda" else max(config.gpus_per_worker, 1.0),
        cpus_per_worker=config.cpus_per_worker or cpus,
        cpus_follow=config.cpus_follow or config.cpus_per_worker is None,
    )
    strategies.of(decided).check(decided)
    return decided


def computing(config: ResolvedConfig, precision: str, convolutions: str) -> ResolvedConfig:
    """``config`` with its precision and its convolutions decided."""
    return dataclasses.replace(
        config, precision=typing.cast(Any, precision), convolutions=typing.cast(Any, convolutions)
    )


def with_images(config: ResolvedConfig, dataset: Dataset) -> ResolvedConfig:
    """``config`` with what was found in a data set of the user's own, which has been read, and with class counts.

    Raises:
        ConfigError: when these are not the images that the run began with, or validation has left too few.
    """
    if config.class_weights != "none":
        config = _weighted(config, dataset)
    if not is_own(config.dataset):
        checks.sizes(config, dataset.spec)
        return config
    images = arrays.described(dataset)
    if config.images.digest not in (None, images.digest):
        raise ConfigError(
            "dataset",
            f"must have the {tasks.spec(config).unit} that the run began with, and those of {config.dataset} have "
            "changed since; undo that, or begin a new run",
        )
    checks.sizes(config, dataset.spec)
    return dataclasses.replace(config, images=images)


def _weighted(config: ResolvedConfig, dataset: Dataset) -> ResolvedConfig:
    """``config`` with the class counts that its class weights follow from."""
    counts = dataset.class_counts
    if empty := [label for label, count in enumerate(counts) if not count]:
        missing = dataset.class_names[empty[0]]
        raise ConfigError("class_weights", f"must be none where a class has no training pixels, as {missing} has none")
    if config.class_weights_counts not in (None, counts):
        raise ConfigError("class_weights", "must be of the training images that the run began with, which have changed")
    return dataclasses.replace(config, class_weights_counts=counts)
