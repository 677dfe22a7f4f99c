"""Models of the user's own: ``--model MODULE:FUNCTION`` names a function that builds one.

The function is called as ``build(image_size, channels, classes, **options)`` and returns an ``nn.Module`` that maps
float32 images (B, C, H, W) to logits (B, classes). Its module is looked for in the working folder first, as
``python -m`` does. It should draw its weights from torch's global generator, which is seeded alike on every worker.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from cifar_ray.config.errors import LONGEST, ConfigError, brief, suggestion
from cifar_ray.config.train import TrainConfig, is_own
from cifar_ray.data import DatasetSpec
from cifar_ray.models.architecture import Architecture, Recipe

RECIPES = (
    Recipe(optimizer="sgd", lr=0.05, weight_decay=5e-4, warmup_epochs=0.5),
    Recipe(optimizer="adamw", lr=1e-3, weight_decay=0.05, warmup_epochs=0.5),
)
"""Usual choices, found for none of these models in particular."""

_importing: list[str] = []
_checked: set[tuple[object, ...]] = set()


def architecture(path: str) -> Architecture:
    """The registry's entry for the function ``path``."""
    return Architecture(build, RECIPES, functools.partial(_layers, path))


def build(config: TrainConfig, spec: DatasetSpec) -> nn.Module:
    """What the user's function returns for the data set.

    Raises:
        ConfigError: when it cannot be called, fails, or returns no module, or when its file is no longer the one that
            the run began with.
    """
    _check_source(config)
    function = load(config.model)
    sizes = (spec.image_size, spec.channels, spec.num_classes)
    try:
        inspect.signature(function).bind(*sizes, **config.model_options)
    except TypeError as error:
        raise ConfigError(
            "model_options", f"must fit {config.model}(image_size, channels, classes, ...): {error}"
        ) from None
    except ValueError:  # a callable without a signature
        pass
    try:
        model = function(*sizes, **config.model_options)
    except Exception as error:
        raise ConfigError("model", f"must build a model, and {config.model} fails: {_told(error)}") from None
    if not isinstance(model, nn.Module):
        raise ConfigError("model", f"must return an nn.Module, and {config.model} returns {brief(model)}")
    return model


def check(config: TrainConfig, spec: DatasetSpec) -> None:
    """Build the model and try it on two images, once in a process; torch's generator is left as it was.

    Raises:
        ConfigError: as :func:`build`, and when it has nothing to learn or gives no logits (2, classes).
    """
    _check_source(config)
    key = (config.model, config.model_source, spec.name, *sorted(config.model_options.items()))
    if key in _checked:
        return
    with torch.random.fork_rng(devices=[]):
        model = build(config, spec)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError("model", f"must have weights to learn, and that of {config.model} has none")
        images = torch.zeros(2, spec.channels, spec.image_size, spec.image_size)
        shape = ", ".join(map(str, images.shape[1:]))
        wanted = f"must give float logits (B, {spec.num_classes}) for images (B, {shape})"
        try:
            with torch.no_grad():
                logits = model.eval()(images)
            learned = model.train()(images)
            if isinstance(learned, Tensor):
                learned.sum().backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise ConfigError("model", f"{wanted}, and {config.model} fails: {_told(error)}") from None
        if any(isinstance(each, UninitializedParameter) for each in build(config, spec).parameters()):
            raise ConfigError("model", f"must know its sizes when it is built, and {config.model} has lazy layers")
        unused = [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
        if isinstance(learned, Tensor) and unused:
            raise ConfigError("model", f"must use all weights that learn, and {config.model} does not use {unused[0]}")
    logits = logits if isinstance(learned, Tensor) else learned
    if not isinstance(logits, Tensor) or logits.shape != (2, spec.num_classes) or not logits.is_floating_point():
        is_float = isinstance(logits, Tensor) and logits.is_floating_point()
        given = f"shape {tuple(logits.shape)}" if is_float else f"a {type(logits).__name__}"
        raise ConfigError("model", f"{wanted}, and {config.model} gives {given} for 2 images")
    _checked.add(key)


@functools.cache
def source(path: str) -> str:
    """SHA-256 of the file that defines the function, as it was when this process first asked.

    Raises:
        ConfigError: as :func:`load`.
    """
    return hashlib.sha256(_file(path).read_bytes()).hexdigest()


def load(path: str) -> Callable[..., Any]:
    """The function ``path``, such as ``mypackage.nets:build``.

    Raises:
        ConfigError: when there is none that can be imported.
    """
    name, _, attribute = path.partition(":")
    module = _module(name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = suggestion(part, [known for known in dir(found) if not known.startswith("_")])
            raise ConfigError("model", f"must name a function, and {name} has no {part}{near}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError("model", f"must name a function, and {path} is {brief(found)}")
    return found  # type: ignore[no-any-return]


def path_of(function: Callable[..., Any]) -> str:
    """The import path of a function, which workers import by it.

    Raises:
        ConfigError: when it has none: it lies in another function, or in a notebook.
    """
    name = getattr(function, "__module__", None)
    attribute = getattr(function, "__qualname__", "<none>")
    if name == "__main__":
        name = _name_of_script()
    if name is None or "<" in attribute:
        what = brief(function)
        raise ConfigError("model", f"must be a function at the top of a file that workers can import, got {what}")
    return f"{name}:{attribute}"


def refuse_while_importing() -> None:
    """Refuse to train while a script is imported for its model.

    Raises:
        ConfigError: when it is.
    """
    if _importing:
        raise ConfigError(
            "model",
            "must be in a file that can be imported without training: put its calls below `if __name__ == "
            f'"__main__":` in {_importing[-1]}',
        )


def to_ship(models: Sequence[str]) -> list[ModuleType]:
    """The top-level modules of the user's own among ``models``, without those that are installed.

    Raises:
        ConfigError: as :func:`load`.
    """
    tops = dict.fromkeys(path.partition(":")[0].partition(".")[0] for path in models if is_own(path))
    found = [_module(name) for name in tops]
    return [module for module in found if not _is_installed(Path(str(module.__file__)))]


def _module(name: str) -> ModuleType:
    """The module ``name``, imported; the script that runs, where it is that one."""
    if name == _name_of_script() and name not in sys.modules:
        return sys.modules["__main__"]
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    try:
        with _imports(name):
            return importlib.import_module(name)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        what = "must name a module that can be imported"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise ConfigError("model", f"{what} here, in {here}: there is no {missing}") from None
        raise ConfigError("model", f"{what}, and {name} fails: {_told(error)}") from None


def _name_of_script() -> str | None:
    """The name by which workers import the script that runs; None when it is in no file."""
    script = sys.modules["__main__"]
    spec, file = getattr(script, "__spec__", None), getattr(script, "__file__", None)
    if spec is not None:  # by `python -m`
        return str(spec.name)
    return Path(file).stem if file else None


@contextmanager
def _imports(name: str) -> Iterator[None]:
    _importing.append(name)
    try:
        yield
    finally:
        _importing.pop()


def _check_source(config: TrainConfig) -> None:
    if config.model_source not in (None, source(config.model)):
        raise ConfigError(
            "model",
            f"must be as the run began with it: {_file(config.model)} has changed since; undo that, or begin a new run",
        )


def _file(path: str) -> Path:
    """The file that defines the function or class ``path``, which another may have imported."""
    name = path.partition(":")[0]
    home = getattr(load(path), "__module__", None)
    module = sys.modules[home] if home in sys.modules else _module(name)
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise ConfigError("model", f"must name a function in a Python file, and {path} is in none")
    return Path(file)


def _told(error: BaseException) -> str:
    """What has failed in the user's code, and where: the last place that is not in an installed library."""
    text = " ".join(str(error).split())[: 2 * LONGEST]
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {text}"
    places = [(Path(each.filename), each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    theirs = [place for place in places if place[0].is_file() and not _is_installed(place[0])]
    file, line = (theirs or places)[-1]
    return f"{type(error).__name__}: {text} ({file.name}, line {line})"


def _is_installed(file: Path) -> bool:
    folders = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib")]
    return file == Path(__file__) or any(folder in file.resolve().parents for folder in folders)


def _layers(path: str, model: nn.Module) -> list[nn.Module]:
    """The children of a ``Sequential``, or what the model's ``stages()`` lists."""
    if isinstance(model, nn.Sequential):
        return list(model)
    stages = getattr(model, "stages", None)
    if not callable(stages):
        raise ConfigError(
            "strategy",
            f"must keep the model whole for --model {path}, which is no nn.Sequential and has no stages() that lists "
            "its layers in order",
        )
    return list(stages())
