"""Plain values to checked ones, by pydantic, with its complaints as sentences of this program.

The same annotations check YAML files, command-line words, JSON and calls from Python: the text of a number is a number.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import math
import os
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from cifar_ray.config.errors import ConfigError, brief, suggestion

T = TypeVar("T")

NO_OTHERS = ConfigDict(extra="forbid")
"""How a dataclass is checked: unknown keys are refused."""


def _no_bool(value: Any) -> Any:
    """Refuse true and false, which are numbers to Python, and in a file a slip."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, got {value}")
    return value


def fits(parse: Callable[[str], Any]) -> AfterValidator:
    """Check that ``parse`` can read a text, which stays as it is."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def listed(value: Any) -> Any:
    """A list as a tuple; of a text, and of each text in a list, the words that commas or spaces separate."""
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if not isinstance(value, list):
        return value
    return tuple(word for item in value for word in (listed(item) if isinstance(item, str) else [item]))


def _spelled(text: str) -> Any:
    """The number, true or false that a text spells, else the text."""
    with suppress(ValueError):
        read = json.loads(text.lower() if text in ("True", "False") else text)
        if isinstance(read, bool | int) or (isinstance(read, float) and math.isfinite(read)):
            return read
    return text


def _value(value: Any) -> Any:
    """What a keyword of a function may be in a file: a number, true, false, a text, None, or several of them."""
    if isinstance(value, tuple | list):
        return tuple(map(_value, value))
    if isinstance(value, str):
        return _spelled(value)
    if isinstance(value, bool | int | None) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"must be a number, true, false or a text, got {brief(value)}")


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, lt=2**63)]
Whole = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, lt=2**63)]
Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, lt=1)]
Value = Annotated[Any, BeforeValidator(_value)]
Options = dict[str, Value]
"""Keywords of a function, by name."""

Numbers = Annotated[tuple[Number, ...], BeforeValidator(listed)]
Texts = Annotated[tuple[str, ...], BeforeValidator(listed)]
Columns = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
"""Names of columns; a text is one, in which there may be spaces and commas."""

Counts = Annotated[tuple[Count, ...], BeforeValidator(listed), Field(min_length=1)]


@functools.cache
def docstrings(kind: type) -> dict[str, str]:
    """Field -> the docstring below the field, read from the source: Python itself keeps none."""
    docs = {}
    for cls in reversed(kind.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        for line, doc in itertools.pairwise(typing.cast(ast.ClassDef, tree).body):
            if isinstance(line, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                docs[ast.unparse(line.target)] = " ".join(str(doc.value.value).split())
    return docs


class _Explained:
    """The docstring of a dataclass with those of its fields, read when it is asked for."""

    def __init__(self, summary: str | None) -> None:
        self._summary = summary

    def __get__(self, instance: object, cls: type) -> str:
        fields = "\n".join(f"    {name}: {doc}" for name, doc in docstrings(cls).items())
        return f"{self._summary}\n\nAttributes:\n{fields}"


def plainly(cls: type[T]) -> type[T]:
    """Class decorator for a pydantic dataclass: an impossible value is a ConfigError, from Python, too."""
    cls.__doc__ = _Explained(cls.__doc__)  # type: ignore[assignment]
    validated = cls.__init__

    @functools.wraps(validated)
    def init(self: T, *args: Any, **values: Any) -> None:
        with _in_words(cls):
            validated(self, *map(plain, args), **plain(values))

    cls.__init__ = init  # type: ignore[assignment, method-assign]
    return cls


def build(kind: Any, value: Any, key: str = "") -> Any:
    """``value`` from YAML, JSON or the command line as a ``kind``: a dataclass or any type that pydantic knows.

    For a dataclass it is a mapping of field names to values; the text ``None`` means None.
    """
    with _in_words(kind, key):
        return _adapter(kind).validate_python(_without_none(value))


def field(cls: type, name: str, value: Any) -> Any:
    """``value`` as the field ``name`` (dotted) of the dataclass ``cls``; see :func:`build`."""
    return build(type_of(cls, name), value, name)


@contextmanager
def _in_words(kind: Any, key: str = "") -> Iterator[None]:
    """Context manager: the complaints of pydantic on a ``kind`` are ConfigErrors."""
    try:
        yield
    except ValidationError as error:
        raise _sentence(error, kind, key) from None


_adapter = functools.cache(TypeAdapter)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_none(inner) for name, inner in value.items()}
    return None if isinstance(value, str) and value == "None" else value


_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a finite number",
    "finite": "a finite number",
    "string": "text",
    "too": "a list with at least one value",
    "tuple": "a list",
    "dict": "a mapping",
}
_BOUNDS = {"ge": "at least", "gt": "more than", "lt": "below", "le": "at most"}


def _sentence(error: ValidationError, kind: Any, key: str) -> ConfigError:
    """The first complaint of pydantic as one sentence."""
    details = error.errors(include_url=False)[0]
    code, value, context = details["type"], details["input"], details.get("ctx", {})
    path = [str(part) for part in details["loc"] if not isinstance(part, int)]
    where = ".".join([key, *path] if key else path)
    if isinstance(problem := context.get("error"), ConfigError):  # from a check of several fields
        return problem
    if code == "unexpected_keyword_argument":
        return ConfigError("", f"unknown key {brief(where)}{suggestion(where, field_types(kind))}")
    if code == "invalid_key":  # YAML has keys that are no text
        return ConfigError("", f"unknown key {brief(value)}")
    if code == "missing":
        return ConfigError(where, "must be given")
    if code == "value_error":
        return ConfigError(where, str(context["error"]))
    wanted = context.get("expected", details["msg"].removeprefix("Input should be ")).replace("'", "")
    wanted = _KINDS.get(code.split("_")[0], wanted)
    if bound := next((name for name in _BOUNDS if name in context), None):
        shown = brief(value).strip("'")  # a number as text, without quotes
        return ConfigError(where, f"must be {_BOUNDS[bound]} {context[bound]:g}, got {shown}")
    return ConfigError(where, f"must be {wanted}, got {brief(value)}")


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Field name -> resolved annotation of a dataclass."""
    return typing.get_type_hints(cls, include_extras=True)


def type_of(cls: type, name: str) -> Any:
    """The annotation of a field by its dotted name, or of a value in a field that is a mapping; None of no field."""
    known = field_types(cls)
    outer, dot, inner = name.partition(".")
    if dot and inner.isidentifier() and is_mapping(known.get(outer)):
        return typing.get_args(bare(known[outer]))[1]
    return known.get(name)


def is_mapping(kind: Any) -> bool:
    """Whether a field takes any names with their values."""
    return typing.get_origin(bare(kind)) is dict


def is_list(kind: Any) -> bool:
    """Whether a field takes several values."""
    return typing.get_origin(bare(kind)) in (tuple, list)


def bare(kind: Any) -> Any:
    """An annotation without its bounds and without None: ``int`` of ``Count | None``."""
    if typing.get_origin(kind) is Annotated:
        return bare(typing.get_args(kind)[0])
    inner = [option for option in typing.get_args(kind) if option is not type(None)]
    is_optional = len(inner) == 1 and type(None) in typing.get_args(kind)
    return bare(inner[0]) if is_optional else kind


def to_plain(config: Any) -> dict[str, Any]:
    """A dataclass as nested dictionaries of YAML's own types."""
    return plain(dataclasses.asdict(config))


def plain(value: Any) -> Any:
    """``value`` with YAML's own types for tuples, mappings, ranges, paths, and numpy's numbers and arrays."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list | range):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by dots; empty ones stay.

    Raises:
        ConfigError: when a key is there twice, as ``text.length`` and as ``length`` within ``text``.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        inner = flatten(value, f"{key}.") if isinstance(value, Mapping) and value else {key: value}
        if twice := sorted(flat.keys() & inner.keys()):
            raise ConfigError(twice[0], "must be given once, and is given twice")
        flat |= inner
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of :func:`flatten`.

    Raises:
        ConfigError: when a key has a value as well as options, or is there twice.
    """
    values: dict[str, Any] = {}
    for key, value in flat.items():
        outer, dot, inner = key.partition(".")
        group = values.setdefault(outer, {}) if dot else values
        if not isinstance(group, dict):
            raise ConfigError(outer, f"must be a mapping of its options, got {brief(group)}")
        if (name := inner or outer) in group:
            raise ConfigError(key, "must be given once, and is given twice")
        group[name] = dict(value) if isinstance(value, Mapping) else value  # which is not the given one's to fill
    return values
