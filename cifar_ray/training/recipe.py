"""From what a person asked for to what is done: every default made explicit, and what does not go together refused."""

from __future__ import annotations

import copy
import dataclasses
import functools
import shlex
import typing
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from cifar_ray import data, models, strategies, tasks
from cifar_ray.config import errors, files, imports, option, runfile, schema
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import OWN, SIZED, is_function, is_own, library_of
from cifar_ray.config.sections import MIXING, MOVING, AugmentName
from cifar_ray.config.strategy import SCALING
from cifar_ray.config.train import FUNCTIONS, ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset, Facts, modality, order
from cifar_ray.models import own as own_models
from cifar_ray.models.architecture import Recipe
from cifar_ray.tasks import choosing
from cifar_ray.training import freezing, optimizer, own

LONGEST_WARMUP = 0.25
"""Share of a run that a model's own warm-up takes at most."""

_PROFILED_FROM = 10  # steps of a run before the profiler starts, where an epoch has as many


def resolve(asked: TrainConfig, chooser: str = "", **known: str | None) -> ResolvedConfig:
    """Fill in the global batch, the model's recipe and the share for validation; what was given stays.

    The result is its own resolution, and starting from it repeats the run.

    Args:
        asked: what to do.
        chooser: what is to choose between it and other runs, such as ``--scheduler asha``; empty when nothing is.
        known: values of fields, in place of those that ``asked`` has; None for none.

    Raises:
        ConfigError: when model, data set and batch do not go together.
    """
    config = copy.copy(asked)  # a draft, whose values are checked together once all are there
    values = vars(config)
    values |= {name: value for name, value in known.items() if value is not None}
    values["dataset"] = data.absolute(config.dataset)
    values["text"] = data.complete(config)
    values["val_share"] = _val_share(config, chooser)
    values["task"] = None if config.task == tasks.usual(config) else config.task  # the data set's own
    spec = data.look(config)
    if config.weights is not None:  # a file; others are names
        values["weights"] = str(files.existing("weights", config.weights) or config.weights)
    _check_task(config, spec)
    if (config.stream or config.image_size != TrainConfig.image_size) and not modality.of(spec).varies:
        raise ConfigError("stream" if config.stream else "image_size", f"is for images, and {config.dataset} has none")
    recipe = _recipe(config)
    values["global_batch_size"] = config.global_batch_size or recipe["base_batch"]
    values |= {name: value for name, value in recipe.items() if values[name] is None}
    values["augment"] = _augment(config, spec)
    values["cpus_per_worker"] = config.cpus_per_worker or strategies.of(config).cpus
    values["model_options"] = models.complete(config, spec)
    values["strategy_options"] = strategies.complete(config)
    for name in FUNCTIONS:
        if is_function(values[name]) and values[f"{name}_source"] is None:
            values[f"{name}_source"] = imports.source(values[name], name)
    batch_option = "global_batch_size" if config.batch_size is None else "batch_size"
    fields = {field.name: values[field.name] for field in dataclasses.fields(TrainConfig)}
    resolved = ResolvedConfig(**{**fields, "batch_size": None})
    _check(resolved, spec, batch_option)
    return resolved


def _check(config: ResolvedConfig, spec: Facts, batch_option: str) -> None:
    """Refuse a resolved config whose parts do not go together; ``batch_option`` is the option that gave the batch."""
    outputs = tasks.spec(config, spec).outputs(spec.num_classes, spec.image_size)
    traits: dict[str, str] = {}
    if is_own(config.model):
        traits = own_models.check(config, spec, outputs)
    _check_shapes(config, spec)
    freezing.check(config, spec)
    own.check(config, functools.partial(optimizer.build, config=config))
    _check_sizes(config, spec, batch_option)
    strategy = strategies.of(config)
    check_place(config, Decided.asked(config))
    own_models.refuse(config, "strategy", strategy.cannot, traits)
    if config.precision == "fp16":
        own_models.refuse(config, "precision", frozenset({"dtype"}), traits)
        if config.strategy not in SCALING:
            scaling = f"--strategy {config.strategy}; those that scale its loss are {', '.join(SCALING)}"
            raise ConfigError("precision", f"must be other than fp16 for {scaling}")
        if config.strategy_options.get("comm_hook") == "powersgd":
            problem = "must be other than powersgd with --precision fp16: it would carry over what overflows"
            raise ConfigError("strategy_options.comm_hook", problem)
    if config.compile and config.sync_batchnorm:
        raise ConfigError("compile", "must be left out with --sync-batchnorm, whose workers exchange within a pass")
    recipe, together = models.recipe(config), "whose workers take every step together"
    if config.elastic is not None and not strategy.synchronous:
        raise ConfigError("elastic", f"needs a strategy {together}; those of {config.strategy} do not")
    if recipe is not None and recipe.lookahead and not strategy.synchronous:
        raise ConfigError(
            "strategy",
            f"must be one {together} for --model {config.model}, whose recipe averages weights over steps, got "
            f"{config.strategy}",
        )


def check_place(config: ResolvedConfig, decided: Decided) -> None:
    """Refuse a topology and a device, which may still be ``auto``, that a run cannot have.

    Raises:
        ConfigError: naming the option.
    """
    ways = decided.world_size * config.accumulate
    if config.global_batch_size % ways:
        raise ConfigError("topology", f"must share {config.global_batch_size} equally, got {decided.topology}")
    if config.sync_batchnorm and decided.device == "cpu":
        raise ConfigError("sync_batchnorm", "needs GPUs; torch has no CPU version of it")
    if config.sync_batchnorm and library_of(config.model) == "timm":  # torch would put a norm alone in their place
        raise ConfigError("sync_batchnorm", f"must be off for {config.model}, which may fuse norm and activation")
    strategies.of(config).check(config, decided)


def _check_sizes(config: ResolvedConfig, spec: Facts, batch: str = "global_batch_size") -> None:
    """Refuse a config that needs more samples than a data set has; ``batch`` is the option that gave the batch."""
    unit = tasks.spec(config, spec).unit
    if config.global_batch_size > spec.train_size:
        raise ConfigError(
            batch,
            f"must leave at least one step per epoch: {config.images_per_worker} x {config.world_size} workers x "
            f"{config.accumulate} micro-batches is {config.global_batch_size} {unit} per step, and "
            f"{config.dataset} has {spec.train_size} training {unit}",
        )
    whole = order.steps_per_epoch(spec.train_size, config.global_batch_size)
    if config.steps_per_epoch is not None and config.steps_per_epoch > whole:
        raise ConfigError(
            "steps_per_epoch",
            f"must be at most {whole}, the global batches of {config.global_batch_size} {unit} in {config.dataset}, "
            f"got {config.steps_per_epoch}",
        )
    profiled_from(config, config.steps_per_epoch or whole)
    counted = config.test_images or spec.test_size
    if counted > spec.test_size:
        raise ConfigError("test_images", f"must be at most {spec.test_size}, all of {config.dataset}, got {counted}")
    for what, count in (("test", counted), ("validation", spec.val_size)):
        if 0 < count < config.world_size:
            raise ConfigError("topology", f"must have at most one worker per {what} {unit[:-1]} ({count})")


def profiled_from(config: TrainConfig, steps: int) -> int | None:
    """The step of a run, from 0, in which the profiler warms up: those after it are profiled. None without them.

    All of them are in one epoch, since an evaluation would fill the trace, and not the first of the run.

    Raises:
        ConfigError: when an epoch has too few ``steps``.
    """
    wanted = config.profile_steps
    if wanted is None:
        return None
    most = steps - 1 if config.epochs > 1 else steps - 2
    if wanted > most:
        told = f"an epoch has {errors.counted(steps, 'step')}, and those before the profiled ones warm up"
        raise ConfigError("profile_steps", f"must be at most {max(most, 0)} here: {told}, got {wanted}")
    return min(_PROFILED_FROM, steps - wanted - 1) or steps


def _check_task(config: TrainConfig, spec: Facts) -> None:
    """Refuse a task that learns what the data set does not have, and a model for another kind of inputs or of task."""
    task, column = tasks.of(config), tasks.column(config)
    if task.target != column and option.chosen(config.dataset) != OWN:
        raise ConfigError(
            "task",
            f"must learn the {column} of {config.dataset}, and {config.task} learns {task.target}; a --dataset of "
            "your own can have others",
        )
    wanted = (spec.inputs, task.spec.has_masks)
    kinds = {name: (one.inputs, one.has_masks) for name, one in models.registry().items()}
    if library_of(config.model):
        kinds[config.model] = ("images", wanted[1])  # what it gives is tried
    if kinds.get(config.model, wanted) != wanted:
        known = [name for name, kind in kinds.items() if kind == wanted]
        what = "pixels" if wanted[1] else tasks.UNITS[spec.inputs]
        raise ConfigError(
            "model",
            f"must be {errors.one_of([*known, 'one of your own'])} to learn the {task.target} of {what}, as "
            f"{config.dataset} has them, got {config.model}",
        )


def _check_shapes(config: ResolvedConfig, spec: Facts) -> None:
    """Refuse samples that are too small for a model, and one alone, of which a batch norm may have no variance.

    Shapes alone tell. This package's data sets suit its models; those of the user's own have been tried on two samples.
    """
    count = min(strategies.of(config).at_once(config), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers without weights
        model = models.outline(config, spec)  # refuses options that do not go together
        if count > 1 and (is_own(config.model) or not is_own(config.dataset)):
            return
        try:
            with next(model.parameters()).device, torch.random.fork_rng(devices=[]):
                model(modality.of(spec).example(count))
        except (RuntimeError, ValueError, ZeroDivisionError) as error:
            sized = "image_size" if option.chosen(config.dataset) in SIZED else "dataset"
            what = f"{errors.counted(count, tasks.spec(config, spec).unit[:-1])} of {'x'.join(map(str, spec.shape))}"
            rule = "suit" if count > 1 else "leave at least 2 in each pass of"
            raise ConfigError(
                sized if count > 1 else strategies.of(config).cut or "global_batch_size",
                f"must {rule} --model {config.model}, which cannot take {what} at once: {errors.first_line(error)}",
            ) from None


def _val_share(config: TrainConfig, chooser: str) -> float | None:
    """The share of the training images that is kept for validation: as given, or for what is to choose; None for none.

    Raises:
        ConfigError: when it is refused to what is to choose, or to data that has validation images.
    """
    chooser = chooser or (f"--log-models {config.log_models}" if config.log_models in ("best", "all") else "")
    chooser = chooser or (f"--patience {config.patience}" if config.patience is not None else "")
    has_own = not config.val_share and data.look(config).val_size > 0
    if has_own and config.val_share == 0:
        raise ConfigError("val_share", f"is for data without validation images, and {config.dataset} has some")
    if has_own or not chooser:
        return config.val_share or None
    if config.val_share == 0:
        raise ConfigError("val_share", f"must be above 0 for {chooser}, which chooses by the validation figure")
    return config.val_share or choosing.DEFAULT_SHARE


def notes(config: TrainConfig, asked: TrainConfig) -> Iterator[str]:
    """Notes on what a resolved config has that nobody asked for, or can hardly want."""
    if config.val_share is not None and asked.val_share is None:
        unit = tasks.spec(config, data.facts(config)).unit
        yield (
            f"note: {config.val_share:.0%} of the training {unit} are kept for validation, since something is chosen "
            "(--val-share sets the share)"
        )
    if config.freeze and config.weights is None and not is_function(config.model):  # one's own may read weights
        yield "note: --freeze keeps random weights as they are: --weights says which weights to start from"


def _augment(config: TrainConfig, spec: Facts) -> str:
    """How training images vary: as asked for, or as usual for the task and the data set."""
    task = tasks.of(config)
    has_classes = task.spec.has_classes
    if config.class_weights != "none" and (is_own(config.task) or not has_classes):
        raise ConfigError("class_weights", f"is for tasks of classes, and the task is {config.task or task.spec.name}")
    if config.label_smoothing and not (is_own(config.task) or has_classes):
        raise ConfigError("label_smoothing", f"is for tasks of classes, and the task is {task.spec.name}")
    if not modality.of(spec).varies:
        for key, values in (("augment", (None, "none")), ("normalise", ("dataset",))):
            if getattr(config, key) not in values:
                raise ConfigError(key, f"is for images, and {config.dataset} has {spec.inputs}")
        return "none"
    usual = "crop_flip" if spec.flip else "crop"
    chosen = config.augment or (usual if has_classes else "none")
    names = typing.get_args(AugmentName)
    if config.class_weights != "none" and chosen in MIXING:
        raise ConfigError("class_weights", f"must be left out with --augment {chosen}, whose images are of two classes")
    has_masks, has_labels = task.spec.has_masks, has_classes and task.target == "labels"
    not_moving, unmixed = [name for name in names if name not in MOVING], config.task or task.spec.name
    refusals = {
        f"{config.dataset}, whose classes a mirror image does not show": [] if spec.flip else ["crop_flip"],
        "masks, which vary with their images": not_moving if has_masks else [],
        f"{unmixed}, which has no labels to mix": [] if has_labels else [*MIXING],
    }
    for what, refused in refusals.items():
        if chosen in refused:
            others = errors.one_of([name for name in names if name not in refused])
            raise ConfigError("augment", f"must be {others} for {what}, got {chosen}")
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


_ALWAYS = ("dataset", "task", "model", "epochs", "global_batch_size", "topology", "seed")
_NEVER = (*runfile.WHERE, *(field.name for field in dataclasses.fields(TrainConfig) if field.metadata["recorded"]))
_DEFAULTS = schema.flatten(schema.to_plain(TrainConfig()))


def command(config: ResolvedConfig, **changes: Any) -> str:
    """The ``cifar-ray train`` command that does what a resolved ``config`` with these ``changes`` does.

    What tells runs apart is always spelled out, the rest where it differs from an option's default.
    """
    words = ["cifar-ray train"]
    for key, value in schema.flatten({**schema.to_plain(config), **changes}).items():
        group, _, is_keyword = key.partition(".")
        if value is None or group in _NEVER or (key not in _ALWAYS and value == _DEFAULTS.get(key)):
            continue
        if isinstance(value, bool) and not is_keyword:
            words.append(errors.flag_of(key if value else f"no_{key}"))
            continue
        several = list(map(str, value)) if isinstance(value, list) else [str(value)]
        several = [",".join(several)] if is_keyword else several
        words.append(" ".join([errors.flag_of(key), *map(shlex.quote, several)]))
    return " ".join(words)


def settle(config: ResolvedConfig, decided: Decided, dataset: Dataset) -> Decided:
    """What is ``decided``, with the facts of the data set, which has been read.

    Raises:
        ConfigError: when these are not the samples that the run began with, or validation has left too few.
    """
    facts = data.keep(config, dataset.spec)
    _check_sizes(config, facts)
    if decided.data is not None and (decided.data.digest, decided.data.names) != (facts.digest, facts.names):
        raise ConfigError(
            "dataset",
            f"must have the {tasks.spec(config, facts).unit} that the run began with, and those of {config.dataset} "
            "have changed since; undo that, or begin a new run",
        )
    if facts.target_std and not all(facts.target_std) and tasks.spec(config, facts).name == "regression":
        raise ConfigError("dataset", f"must have targets that vary in training, and {config.dataset} has not")
    empty = [name for name, count in zip(facts.names, facts.class_counts) if not count]
    if config.class_weights != "none" and empty:
        raise ConfigError("class_weights", f"must be none where a class has no training pixels, as {empty[0]} has none")
    return dataclasses.replace(decided, data=facts)
