"""Strict conversion between plain values and frozen dataclasses.

One set of rules for YAML files, command-line words and Python dictionaries, so that the
same mistake gives the same sentence everywhere. Nothing here knows what a field means.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from cifar_ray.config.errors import LONGEST, ConfigError, brief, one_of, suggestion

T = TypeVar("T")
_MOST = 2**64  # a whole number beyond it is a mistake, and may have too many digits to be shown
_MOST_VALUES = 100_000  # of a YAML file


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Field name -> resolved annotation of a dataclass."""
    return typing.get_type_hints(cls)


def build(cls: type[T], values: Mapping[str, Any], base: T | None = None, prefix: str = "") -> T:
    """Make a ``cls`` from ``values``, field by field.

    Args:
        cls: a dataclass; its fields may be ``bool``, ``int``, ``float``, ``str``, ``Literal``,
            ``tuple[int, ...]``, ``... | None``, or another dataclass.
        values: field name -> value; a nested dataclass takes a mapping.
        base: the instance whose values fill what is not given (the defaults when None).
        prefix: dotted path of ``cls`` within the whole, for messages.

    Raises:
        ConfigError: on an unknown key, a value of the wrong type, or one that ``cls`` refuses.
    """
    known = field_types(typing.cast(Any, cls))
    fresh: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in known:
            raise ConfigError("", f"unknown key {brief(key)}{suggestion(str(name), known)}")
        if dataclasses.is_dataclass(known[name]):
            if not isinstance(value, Mapping):
                raise ConfigError(key, f"must be a mapping of its options, got {brief(value)}")
            inner = getattr(base, name) if base is not None else None
            fresh[name] = build(known[name], value, inner, f"{key}.")
        else:
            fresh[name] = convert(key, value, known[name])
    if base is not None:
        return dataclasses.replace(base, **fresh)  # type: ignore[type-var]
    return cls(**fresh)


def convert(key: str, value: Any, kind: Any) -> Any:
    """``value`` (from YAML, Python, or a command-line word) as ``kind``.

    Raises:
        ConfigError: naming ``key`` and what it may be.
    """
    inner = _without_none(kind)
    if inner is not kind and (value is None or value == "None"):
        return None
    origin, options = typing.get_origin(inner), typing.get_args(inner)
    refusal = ConfigError(key, f"must be {_expected(inner)}, got {brief(value)}")
    if origin is typing.Literal:
        if value in options:
            return value
        raise refusal
    if origin is tuple:
        if isinstance(value, str):
            value = value.replace(",", " ").split()
        if not isinstance(value, Sequence) or not value:
            raise refusal
        return tuple(convert(key, item, options[0]) for item in value)
    try:
        return _PARSERS[inner](value)
    except (TypeError, ValueError, OverflowError):
        raise refusal from None


def check(key: str, value: Any, kind: Any) -> None:
    """Refuse a value that is not a ``kind`` as it stands: from Python, the text of a number is no number.

    Raises:
        ConfigError: naming ``key`` and what it may be.
    """
    if isinstance(convert(key, value, kind), str) != isinstance(value, str):
        raise ConfigError(key, f"must be {_expected(_without_none(kind))}, got {brief(value)}")


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(option for option in typing.get_args(kind) if option is not type(None))
    return kind


def _expected(kind: Any) -> str:
    options = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return one_of(options)
    return f"a list of {_PLURAL[options[0]]}" if typing.get_origin(kind) is tuple else _NAMES[kind]


def _as_bool(value: Any) -> bool:
    words = {"true": True, "false": False}
    if isinstance(value, str):
        return words[value.lower()] if value.lower() in words else _refuse()
    return value if isinstance(value, bool) else _refuse()


def _as_int(value: Any) -> int:
    number = int(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int):
        _refuse()
    return number if abs(number) < _MOST else _refuse()


def _as_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        _refuse()
    number = float(value)
    return number if abs(number) < float("inf") else _refuse()


def _as_str(value: Any) -> str:
    return value if isinstance(value, str) else _refuse()


def _refuse() -> typing.NoReturn:
    raise ValueError


_PARSERS: dict[Any, Any] = {bool: _as_bool, int: _as_int, float: _as_float, str: _as_str}
_NAMES = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
_PLURAL = {int: "whole numbers", float: "numbers", str: "words"}


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        ConfigError: when it cannot be read, is not a mapping, has a key twice, or holds too much; the sentence
            names the file.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def get_single_node(self) -> Any:
            root = super().get_single_node()
            if _values(root, {}) > _MOST_VALUES:
                raise ValueError(f"it holds more than {_MOST_VALUES:,} values, its aliases (*) written out")
            return root

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names: set[str] = set()
            for name, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # PyYAML refuses others
                if str(name.value) in names:
                    raise ValueError(f"it has the key {brief(name.value)} twice")
                names.add(str(name.value))
            return super().construct_mapping(node, deep)

    try:
        values = yaml.load(Path(path).read_text(encoding="utf-8"), Loader)  # noqa: S506  it is a SafeLoader
    except OSError as error:
        raise ConfigError("", f"cannot read config file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("", f"cannot read config file {path}: it is not UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = " ".join(str(error.problem).split())[:LONGEST]
        raise ConfigError("", f"cannot read config file {path}: {problem}{line}") from None
    except (AttributeError, KeyError):  # PyYAML's own, for a `!!timestamp` or `!!bool` that is none
        raise ConfigError("", f"cannot read config file {path}: a value is not what its tag (!!) says") from None
    except (yaml.YAMLError, ValueError, IndexError, RecursionError) as error:
        raise ConfigError("", f"cannot read config file {path}: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(values, dict | None):
        raise ConfigError("", f"{path} must be a mapping of keys to values")
    return values or {}


def _values(node: Any, known: dict[int, float]) -> float:
    """How many values a YAML node holds with every alias written out; no number is enough for one within itself."""
    if node is None or isinstance(node.value, str):
        return 1
    if id(node) not in known:
        known[id(node)] = float("inf")
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]


def to_plain(config: Any) -> dict[str, Any]:
    """A dataclass as nested dictionaries of YAML's own types (tuples become lists)."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    return {name: plain(value) for name, value in dataclasses.asdict(config).items()}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of :func:`flatten`."""
    values: dict[str, Any] = {}
    for key, value in flat.items():
        _set(values, key, value)
    return values


def parse_flags(cls: type, words: Sequence[str]) -> dict[str, Any]:
    """Command-line words as nested values for :func:`build`.

    Understands ``--flag value``, ``--flag=value``, ``--flag a b c`` for lists, and
    ``--flag`` / ``--no-flag`` for booleans: what the ``cifar-ray`` command accepts, with
    nothing installed but Python.

    Raises:
        ConfigError: on an unknown flag, a missing value, or a word that belongs to no flag.
    """
    kinds = flat_types(cls)
    values: dict[str, Any] = {}
    position = 0
    while position < len(words):
        flag, equals, inline = words[position].partition("=")
        position += 1
        if not flag.startswith("--"):
            raise ConfigError("", f"unexpected word '{flag}'")
        key = flag[2:].replace("-", "_")
        negated = key.startswith("no_") and kinds.get(key[3:]) is bool
        key = key[3:] if negated else key
        if key not in kinds:
            near = suggestion(key, kinds).replace("'", "").replace("_", "-").replace("mean ", "mean --")
            raise ConfigError("", f"unknown flag {flag}{near}")
        given = [inline] if equals else []
        while not equals and position < len(words) and not words[position].startswith("--"):
            given.append(words[position])
            position += 1
        if negated and given:
            raise ConfigError("", f"{flag} takes no value, got {brief(given[0])}")
        if kinds[key] is bool and not given:
            given = ["false" if negated else "true"]
        many = typing.get_origin(kinds[key]) is tuple
        if not given or (len(given) > 1 and not many):
            raise ConfigError(key, f"takes {'one or more values' if many else 'one value'}, got {len(given)}")
        _set(values, key, " ".join(given))
    return values


def flat_types(cls: type) -> dict[str, Any]:
    """Dotted field name -> annotation, nested dataclasses included."""
    flat: dict[str, Any] = {}
    for name, kind in field_types(cls).items():
        if dataclasses.is_dataclass(kind):
            flat.update({f"{name}.{key}": inner for key, inner in flat_types(typing.cast(type, kind)).items()})
        else:
            flat[name] = kind
    return flat


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *outer, last = key.split(".")
    for name in outer:
        values = values.setdefault(name, {})
    values[last] = value


def mapping(value: Any) -> dict[Any, Any]:
    """The value if it is a mapping, else an empty one, where a wrong kind is told by somebody else."""
    return value if isinstance(value, dict) else {}
