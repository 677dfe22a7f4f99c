"""The ``cifar-ray models`` command."""

from __future__ import annotations

import fnmatch
import typing

from cifar_ray.cli import early
from cifar_ray.config import flags, keywords
from cifar_ray.config.commands import ModelsCommand
from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.model import ModelName
from cifar_ray.config.option import LIBRARIES, library_of


def show(command: ModelsCommand) -> int:
    """``cifar-ray models``: one name a line, as ``--model`` takes it, and what a library knows of those of PATTERN.

    Of one model of this package: its options.
    """
    with early.loading("loading PyTorch"):
        from cifar_ray.models import libraries, registry

    if command.pattern in registry():
        entry = registry()[command.pattern]
        options = keywords.of(entry.build, 2 if entry.inputs == "features" else 3) or []
        print(flags.listed("model_options", command.pattern, options))
        return 0
    names = [*typing.get_args(ModelName)]
    for library in LIBRARIES:
        try:
            names += libraries.names(library)
        except ConfigError:
            flags.note(f"{library} is not installed; `pip install 'cifar-ray[{library}]'` adds its networks")
    pattern = command.pattern or "*"
    matches = fnmatch.filter(names, pattern if set(pattern) & set("*?[") else f"*{pattern}*")
    if not matches:
        raise ConfigError("", f"PATTERN must match the name of a model, got {brief(pattern)}")
    if command.pattern is None:
        print("\n".join(matches))
        return 0
    width = max(map(len, matches))
    print(f"{'model':<{width}}  {'parameters':>13}  {'image':>5}  weights")
    for name in matches:
        size, tags = ("", ""), ""
        if library_of(name):
            parameters, side = libraries.size(name)
            size, tags = (f"{parameters:,}", f"{side}"), " ".join(libraries.weights(name))
        print(f"{name:<{width}}  {size[0]:>13}  {size[1]:>5}  {tags}".rstrip(), flush=True)
    return 0
