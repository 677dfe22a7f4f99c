"""Functions of the user's own, by ``MODULE:FUNCTION``: found, imported, and their files known again.

A module is looked for in the working folder last, so that a file there takes no library's place.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
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

from cifar_ray.config.errors import LONGEST, ConfigError, brief, suggestion
from cifar_ray.config.option import is_function
from cifar_ray.config.train import FUNCTIONS, TrainConfig

_importing: list[str] = []
_LONGEST, _LONGEST_TRACE = 2 * LONGEST, 10_000
_CAUSE = re.compile(r"\b\w+(Error|Exception)\b[:(].*")


@functools.cache
def source(path: str, key: str) -> str:
    """SHA-256 of the file that defines the function, as it was when this process first asked.

    Raises:
        ConfigError: as :func:`load`.
    """
    return hashlib.sha256(file(path, key).read_bytes()).hexdigest()


def load(path: str, key: str) -> Callable[..., Any]:
    """The function ``path``, such as ``mypackage.nets:build``; ``key`` is the field that names it.

    Raises:
        ConfigError: when there is none that can be imported.
    """
    name, _, attribute = path.partition(":")
    module, kind = _module(name, key), "class" if key == "task" else "function"
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            near = suggestion(part, [known for known in dir(value) if not known.startswith("_")])
            raise ConfigError(key, f"must name a {kind}, and {name} has no {part}{near}")
        value = getattr(value, part)
    if not callable(value):
        raise ConfigError(key, f"must name a {kind}, and {path} is {brief(value)}")
    return value


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
        raise ConfigError(key, f"{rule}, and {path} fails: {told(error)}") from None


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


def check_source(config: TrainConfig, key: str) -> None:
    """Refuse a function whose file is no longer the one that the run began with; ``key`` is the field that names it.

    Raises:
        ConfigError: when it is not, and as :func:`load`.
    """
    path = getattr(config, key)
    if getattr(config, f"{key}_source") not in (None, source(path, key)):
        where = file(path, key)
        raise ConfigError(
            key, f"must be as the run began with it: {where} has changed since; undo that, or begin a new run"
        )


def python(module: str, *words: str) -> list[str]:
    """The command of ``python -m MODULE WORDS`` without the working folder on its path, for Python before 3.11, too."""
    path = f"import sys; sys.path[:] = [*filter(None, sys.path), {str(Path(__file__).parents[2])!r}]"
    run = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"{path}; {run}", *words]


def functions(config: TrainConfig) -> list[str]:
    """The import paths of the user's own that workers import."""
    return [path for key in FUNCTIONS if is_function(path := getattr(config, key))]


def to_ship(paths: Sequence[str]) -> list[ModuleType]:
    """The top-level modules of the functions ``paths``, without those that are installed.

    Raises:
        ConfigError: as :func:`load`.
    """
    tops = dict.fromkeys(path.partition(":")[0].partition(".")[0] for path in paths if is_function(path))
    modules = [_module(name, "model") for name in tops]
    return [module for module in modules if not is_installed(Path(str(module.__file__)))]


def _module(name: str, key: str) -> ModuleType:
    """The module ``name``, imported; the script that runs, where it is that one."""
    if name == _name_of_script() and name not in sys.modules:
        return sys.modules["__main__"]
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)
    _importing.append(name)
    try:
        with warnings.catch_warnings():
            return importlib.import_module(name)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        what = "must name a module that can be imported"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise ConfigError(key, f"{what} here, in {here}: there is no {missing}") from None
        raise ConfigError(key, f"{what}, and {name} fails: {told(error)}") from None
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


def file(path: str, key: str) -> Path:
    """The file that defines the function or class ``path``, which another may have imported."""
    name = path.partition(":")[0]
    home = getattr(load(path, key), "__module__", None)
    module = sys.modules[home] if home in sys.modules else _module(name, key)
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise ConfigError(key, f"must name a function in a Python file, and {path} is in none")
    return Path(file)


def told(error: BaseException) -> str:
    """What has failed in the user's code, and where: the last place that is not in an installed library."""
    if isinstance(error, SyntaxError):
        return described(error)
    places = traceback.extract_tb(error.__traceback__)
    place = (frames(places) or places)[-1]
    return f"{described(error)} ({Path(place.filename).name}, line {place.lineno})"


def described(error: BaseException) -> str:
    """Type, message and cause of an error, in one line."""
    flat = shorten(message(error), _LONGEST, placeholder=" ...")
    if flat.endswith(" ..."):  # torch's compilers and loaders say last what has happened
        first, *below = filter(None, map(str.strip, message(error).splitlines()))
        causes = [match[0] for line in below if (match := _CAUSE.search(line))]
        if causes:
            flat = ": ".join(shorten(text, _LONGEST, placeholder=" ...") for text in (first.rstrip(".:"), causes[-1]))
    text = f"{type(error).__name__}: {flat}" if flat else type(error).__name__
    *_, cause = chain(error, "__cause__")
    return text if cause is error else f"{text}; its cause is {described(cause)}"


def message(error: BaseException) -> str:
    """The text of an error, whatever its class."""
    try:
        text = str(error)
    except (Exception, SystemExit) as failure:
        return f"no text, since __str__ raises {type(failure).__name__}"
    return text.encode(errors="backslashreplace").decode()


def chain(error: Any, *links: str) -> Iterator[Any]:
    """An error and what the attributes ``links`` lead to from it, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            waiting += [other for link in links if (other := getattr(current, link)) is not None]


def frames(places: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Those of ``places`` that are in the user's own files."""
    files = {name: Path(name) for name in {place.filename for place in places}}
    return [place for place in places if (file := files[place.filename]).is_file() and not is_installed(file)]


def trace(error: BaseException) -> str:
    """The traceback through the user's own files; the whole one when it leads through none."""
    whole = traceback.TracebackException.from_exception(error)
    parts = list(chain(whole, "__cause__", "__context__"))
    if any(frames(part.stack) for part in parts):
        for part in parts:
            part.stack = traceback.StackSummary.from_list(frames(part.stack) or part.stack[-1:])
    text = "".join(whole.format()).encode(errors="backslashreplace").decode().rstrip()
    return (
        text if len(text) <= _LONGEST_TRACE else f"{text[: _LONGEST_TRACE // 2]}\n...\n{text[-_LONGEST_TRACE // 2 :]}"
    )


def is_installed(file: Path) -> bool:
    """Whether a file belongs to Python, to a library or to this program."""
    folders = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib")]
    folders.append(Path(__file__).parents[1])
    return any(folder.resolve() in file.resolve().parents for folder in folders)


def matplotlib() -> Any:
    """The library, whatever the user's settings are."""
    try:
        import matplotlib
    except Exception:  # MPLBACKEND names a backend that is not installed here, as Jupyter's, or matplotlibrc is damaged
        names = ("MPLBACKEND", "MATPLOTLIBRC")
        user = {name: os.environ[name] for name in names if name in os.environ}
        for half in [module for module in sys.modules if module.startswith("matplotlib.")]:
            del sys.modules[half]
        os.environ.update(MPLBACKEND="agg", MATPLOTLIBRC=os.devnull)
        try:
            import matplotlib
        finally:
            for name in names:
                del os.environ[name]
            os.environ.update(user)
    return matplotlib
