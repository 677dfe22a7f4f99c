"""``cifar-ray models`` and ``cifar-ray strategies``: what can be chosen, with the options of each."""

from __future__ import annotations

import fnmatch
import typing

from cifar_ray.cli import output
from cifar_ray.config import flags, keywords
from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.model import ModelName
from cifar_ray.config.option import LIBRARIES, is_function, library_of
from cifar_ray.config.strategy import StrategyName
from cifar_ray.display.run import Console


def models(pattern: str | None = None) -> None:
    """List the models of this package, of torchvision and of timm.

    With PATTERN: also the names for --weights, which those of this package do not have. With the whole NAME of one of
    this package, or MODULE:FUNCTION of your own: its options.

    Args:
        pattern: Part of a name, or a pattern of the whole name such as 'timm:convnext*'. Default: the names of all.
    """
    with output.loading("loading PyTorch"):
        from cifar_ray.config import imports
        from cifar_ray.data import modality
        from cifar_ray.models import libraries, registry

    if pattern is not None and (pattern in registry() or is_function(pattern)):
        entry = registry().get(pattern)
        build = entry.build if entry else imports.load(pattern, "model")
        options = keywords.of(build, len(modality.KINDS[entry.inputs if entry else "images"].arguments)) or []
        print(flags.listed("model_options", pattern, options))
        return
    names = [*typing.get_args(ModelName)]
    for library in LIBRARIES:
        try:
            names += [f"{library}:{name}" for name in libraries.load(library).names()]
        except ConfigError:
            flags.note(f"{library} is not installed; `pip install 'cifar-ray[{library}]'` adds its networks")
    part = pattern or "*"
    matches = fnmatch.filter(names, part if set(part) & set("*?[") else f"*{part}*")
    if not matches:
        raise ConfigError("", f"PATTERN must match the name of a model, got {brief(part)}")
    if pattern is None:
        print("\n".join(matches))
        return
    found = [libraries.find(name) if library_of(name) else None for name in matches]
    weights = [" ".join(entry[0].weights(entry[1])) if entry else "" for entry in found]
    Console().columns(("model", "weights"), zip(matches, weights))


def strategies(name: StrategyName | None = None) -> None:
    """List the strategies that keep replicas in step: promise, source, and cost per step.

    Args:
        name: The strategy to list, with its options. Default: all.
    """
    from cifar_ray.strategies import CONTEXT, NAMES, about, named

    console, options = Console(), None
    if name is not None:
        with output.loading("loading PyTorch"):
            options = keywords.of(named(name), CONTEXT) or []
    for each in [name] if name else NAMES:
        known = about(each)
        rows = [("what", known.summary), (known.label, known.condition), ("source", known.source)]
        rows += [("each step", f"{known.messages} messages, {known.bytes} bytes"), ("", known.cost)]
        console.line(f"{each}: {known.label}")
        console.table((f"  {title}", text.replace("``", "")) for title, text in rows)
        console.line("")
    console.line("each step: what a rank hands over, in a pipeline all ranks; W workers, P parameters of G bytes")
    if name and options is not None:
        print(f"\n{flags.listed('strategy_options', name, options)}")
