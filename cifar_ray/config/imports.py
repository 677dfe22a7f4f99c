"""Functions of the user's own, by ``MODULE:FUNCTION``: import them, know their files again, and tell their failures.

A module is looked for in the working folder last, so that a file there takes no library's place.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import operator
import os
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any

from cifar_ray.config.errors import ConfigError, brief, suggestion
from cifar_ray.config.option import is_function
from cifar_ray.config.train import FUNCTIONS, TrainConfig

_importing: list[str] = []
_LONGEST, _LONGEST_TRACE = 200, 10_000
_CAUSE = re.compile(r"\b\w+(?:Error|Exception)\b[:(].*")
_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = [_PACKAGE, *(Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib"))]


@functools.cache
def source(path: str, key: str) -> str:
    """SHA-256 of the file that defines the function or class ``path``, as it was when this process first asked."""
    return hashlib.sha256(_file(path, key).read_bytes()).hexdigest()


def check_source(config: TrainConfig, key: str) -> None:
    """Refuse a function whose file is no longer the one that the run began with; ``key`` is the field that names it."""
    path = getattr(config, key)
    if getattr(config, f"{key}_source") not in (None, source(path, key)):
        problem = f"must be as the run began with it, and {_file(path, key)} has changed or is another"
        raise ConfigError(key, f"{problem}; undo that, or begin a new run")


def _file(path: str, key: str) -> Path:
    file = getattr(inspect.getmodule(load(path, key)), "__file__", None)
    if file is None or not Path(file).is_file():
        raise ConfigError(key, f"must name a function in a Python file, and {path} is in none")
    return Path(file)


def load(path: str, key: str) -> Callable[..., Any]:
    """The function ``path``, such as ``mypackage.nets:build``; ``key`` is the field that names it."""
    name, _, attribute = path.partition(":")
    module, kind = _module(name, key), "class" if key == "task" else "function"
    try:
        value = operator.attrgetter(attribute)(module)
    except AttributeError:
        near = suggestion(attribute, [known for known in dir(module) if not known.startswith("_")])
        raise ConfigError(key, f"must name a {kind}, and {name} has no {attribute}{near}") from None
    if not callable(value):
        raise ConfigError(key, f"must name a {kind}, and {path} is {brief(value)}")
    return value  # type: ignore[no-any-return]


@contextmanager
def calling(path: str, key: str, rule: str) -> Iterator[None]:
    """Context manager: what the user's function ``path`` raises becomes one sentence, with the place in their file.

    Raises:
        ConfigError: of the field ``key``, which must keep the ``rule``.
    """
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        places = frames(traceback.extract_tb(error.__traceback__))
        is_placed = places and not isinstance(error, SyntaxError)  # which has its place in its text
        where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if is_placed else ""
        raise ConfigError(key, f"{rule}, and {path} fails: {described(error)}{where}") from None


def path_of(function: Callable[..., Any]) -> str:
    """The import path of a function, which workers import by it.

    Raises:
        ConfigError: when it has none: it lies in another function, or in a notebook.
    """
    name, attribute = getattr(function, "__module__", None), getattr(function, "__qualname__", "<none>")
    name = _name_of_script() if name == "__main__" else name
    if name is None or "<" in attribute:
        rule = "must be a function at the top of a file that workers can import"
        raise ConfigError("model", f"{rule}, got {brief(function)}")
    return f"{name}:{attribute}"


def refuse_while_importing() -> None:
    """Refuse to train while a script is imported for its model."""
    if _importing:
        rule = 'must be in a file that can be imported without training: put calls below `if __name__ == "__main__":`'
        raise ConfigError("model", f"{rule} in {_importing[-1]}")


def python(module: str, *words: str) -> list[str]:
    """The command of ``python -m MODULE WORDS`` without the working folder on its path, for Python before 3.11, too."""
    path = f"import sys; sys.path[:] = [*filter(None, sys.path), {str(_PACKAGE.parent)!r}]"
    run = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"{path}; {run}", *words]


def functions(config: TrainConfig) -> list[str]:
    """The import paths of the user's own that workers import."""
    return [path for key in FUNCTIONS if is_function(path := getattr(config, key))]


def to_ship(paths: Sequence[str]) -> list[ModuleType]:
    """The top-level modules of the functions ``paths``, without those that are installed."""
    tops = dict.fromkeys(path.partition(":")[0].partition(".")[0] for path in paths)
    modules = [_module(name, "model") for name in tops]
    return [module for module in modules if not is_installed(str(module.__file__))]


def _module(name: str, key: str) -> ModuleType:
    """The module ``name``, imported; the script that runs, where it is that one."""
    if name == _name_of_script() and name not in sys.modules:
        return sys.modules["__main__"]
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)
    _importing.append(name)
    try:
        with calling(name, key, f"must name a module that can be imported in {here}"), warnings.catch_warnings():
            return importlib.import_module(name)
    finally:
        _importing.pop()
        os.chdir(here)  # the module may have left it


def _name_of_script() -> str | None:
    """The name by which workers import the script that runs; None when it is in no file."""
    script = sys.modules["__main__"]
    spec, file = getattr(script, "__spec__", None), getattr(script, "__file__", None)
    if spec is not None:  # by `python -m`
        return str(spec.name)
    return Path(file).stem if file else None


def described(error: BaseException) -> str:
    """Type and text of an error, and of its cause, in one line."""
    text = f"SyntaxError: {error}" if isinstance(error, SyntaxError) else _text(traceback.format_exception_only(error))
    first, _, below = text.partition("\n")
    if len(text) > _LONGEST and (causes := _CAUSE.findall(below)):  # torch's compilers and loaders say it last
        text = f"{first} {causes[-1]}"
    text = shorten(text, _LONGEST, placeholder=" ...")
    cause = error.__cause__
    return text if cause is None or cause is error else f"{text}; its cause is {described(cause)}"


def chain(error: Any) -> list[Any]:
    """An error, its causes, and what it was raised while handling."""
    known = [error]
    for each in known:  # which grows
        known += [other for other in (each.__cause__, each.__context__) if other is not None and other not in known]
    return known


def frames(places: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Those of ``places`` that are in the user's own files."""
    return [place for place in places if Path(place.filename).is_file() and not is_installed(place.filename)]


def trace(error: BaseException) -> str:
    """The traceback through the user's own files; the whole one when it leads through none."""
    whole = traceback.TracebackException.from_exception(error)
    parts = chain(whole)
    if any(frames(part.stack) for part in parts):
        for part in parts:
            part.stack = traceback.StackSummary.from_list(frames(part.stack) or part.stack[-1:])
    return _text(whole.format())[-_LONGEST_TRACE:]


def _text(lines: Iterable[str]) -> str:
    """Lines of a traceback as text that any store takes: a file's name need not be UTF-8."""
    return "".join(lines).encode(errors="backslashreplace").decode().rstrip()


@functools.cache
def is_installed(file: str) -> bool:
    """Whether a file belongs to Python, to a library or to this program."""
    return any(Path(file).resolve().is_relative_to(folder) for folder in _INSTALLED)


def matplotlib() -> Any:
    """The library, also where an MPLBACKEND that is not installed or a damaged matplotlibrc would stop its import."""
    try:
        import matplotlib
    except Exception:
        from unittest import mock

        for part in [name for name in sys.modules if name.startswith("matplotlib.")]:
            del sys.modules[part]
        with mock.patch.dict(os.environ, MPLBACKEND="agg", MATPLOTLIBRC=os.devnull):
            import matplotlib
    return matplotlib
