"""Parameters that ``--freeze`` and ``--lr-scale`` name: which do not learn, until when, and which at another rate.

A pattern matches what :func:`fnmatch.fnmatchcase` says of a dotted name, or of a leading run of its parts: ``layer1``
and ``layer?`` match ``layer1.0.conv1.weight``, and so does ``*.conv1``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from cifar_ray import models
from cifar_ray.config.errors import ConfigError, brief, some
from cifar_ray.config.optimisation import parse_scale
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Facts


@dataclass(frozen=True)
class Rule:
    """How one parameter is treated.

    Attributes:
        frozen: whether it does not learn, if only in the first epochs.
        lr_scale: its learning rate as a multiple of the others'.
    """

    frozen: bool = False
    lr_scale: float = 1.0


def rules(model: nn.Module, config: TrainConfig) -> list[Rule]:
    """The rule of each parameter, in the model's order; none where all are treated alike."""
    if not config.freeze and not config.lr_scale:
        return []
    names: dict[int, list[str]] = {}  # a parameter may have several
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    every_scale, made = [*map(parse_scale, config.lr_scale)], []
    for of in names.values():
        scales = [scale for pattern, scale in every_scale if _matches(pattern, of)]
        made.append(Rule(_frozen(config, of), scales[-1] if scales else 1.0))
    return made


def holds(config: TrainConfig, epoch: int) -> bool:
    """Whether parameters are frozen in an epoch, counted from 0."""
    return bool(config.freeze) and (config.unfreeze_epoch is None or epoch + 1 < config.unfreeze_epoch)


def freeze(model: nn.Module, config: TrainConfig) -> None:
    """Keep the parameters that ``--freeze`` names as they are, and their modules in evaluation mode.

    So batch norm keeps its statistics, and uses them, and nothing is dropped there.
    """
    frozen = {parameter for parameter, rule in zip(model.parameters(), rules(model, config)) if rule.frozen}
    for parameter in frozen:
        parameter.requires_grad_(False)
    for name, module in model.named_modules():
        own = {*module.parameters(recurse=False)}
        if (isinstance(module, _BatchNorm) and own and own <= frozen) or (name and _frozen(config, [name])):
            module.eval()


def check(config: TrainConfig, spec: Facts) -> None:
    """Refuse patterns that match no parameter of the model, and such as leave nothing to learn.

    Raises:
        ConfigError: naming the pattern.
    """
    if not config.freeze and not config.lr_scale:
        return
    model = models.outline(config, spec)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    patterns = {"freeze": config.freeze, "lr_scale": [pattern for pattern, _ in map(parse_scale, config.lr_scale)]}
    for key, pattern in ((key, pattern) for key, each in patterns.items() for pattern in each):
        if not _matches(pattern, names):
            begin = some([*dict.fromkeys(name.partition(".")[0] for name in names)])
            rule = f"must match parameters of {config.model}, whose names begin with {begin}"
            raise ConfigError(key, f"{rule}; {brief(pattern)} matches none")
    freeze(model, config)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "freeze", f"must leave {config.model} a parameter to learn, and {' '.join(config.freeze)} matches all"
        )


def _frozen(config: TrainConfig, names: Iterable[str]) -> bool:
    return any(_matches(pattern, names) for pattern in config.freeze)


def _matches(pattern: str, names: Iterable[str]) -> bool:
    """Whether a pattern matches one of these names, or what one of them begins with."""
    runs = (run for name in names for run in accumulate(name.split("."), "{}.{}".format))
    return any(fnmatch.fnmatchcase(run, pattern) for run in runs)
