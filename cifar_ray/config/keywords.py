"""Keywords of a function as options: of one that builds a model, of a strategy, and of a command.

Types, bounds and defaults stand in the signature, descriptions there or in the docstring's section ``Args:``:
``depth: Annotated[Count, "Blocks"] = 6``, or a ``Field(description=...)``. A keyword without an annotation takes what a
YAML file may have.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, TypeVar, cast

from pydantic import PydanticUserError, TypeAdapter
from pydantic.fields import FieldInfo

from cifar_ray.config import schema
from cifar_ray.config.errors import ConfigError, one_of, suggestion
from cifar_ray.config.schema import Value

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Keyword:
    """One keyword of a function, or option of a config; a word or flag of a command."""

    name: str
    kind: Any  # the annotation
    default: Any  # ``inspect.Parameter.empty`` where it must be given
    description: str = ""
    title: str = ""  # the section of the help that it belongs to; empty for that of the command itself
    passed: Any = None  # as which kind of a function's arguments; None of an option of a config

    @property
    def is_word(self) -> bool:
        """Whether a command takes it without its name: it comes before the ``*``."""
        return self.passed in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)

    @property
    def is_many(self) -> bool:
        """Whether it is the ``*words`` of the signature."""
        return self.passed is Parameter.VAR_POSITIONAL


def of(function: Callable[..., Any], taken: int) -> list[Keyword] | None:
    """The keywords of a function or a class beyond its first ``taken`` arguments; None where it takes any."""
    known = signature(function)
    return None if known is None else [keyword for keyword in known[taken:] if not keyword.is_many]


def signature(function: Callable[..., Any]) -> list[Keyword] | None:
    """All arguments of a function or a class, or the options of a config; None where it takes any."""
    if dataclasses.is_dataclass(function):
        return _options(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a callable without a signature
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    try:
        typed: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
        hints = typing.get_type_hints(typed, include_extras=True)
    except Exception:  # annotations of the user's own that name nothing
        hints = {}
    found = []
    for each in parameters:
        kind, default = hints.get(each.name, Value), each.default
        if each.kind is each.VAR_POSITIONAL:
            kind, default = Annotated[tuple[kind, ...], _description(kind)], ()  # type: ignore[valid-type]
        found.append(Keyword(each.name, kind, default, _description(kind), passed=each.kind))
    return found


def _options(config: Any) -> list[Keyword]:
    """The options of a config that a person may give; their description says only for which choice they are."""
    found = []
    for field in dataclasses.fields(config):
        if field.metadata.get("recorded"):
            continue
        only = field.metadata.get("only", {})
        belongs = " ".join(f"Only with --{choice} {one_of(owners)}." for choice, owners in only.items())
        section = next(cls for cls in reversed(config.__mro__) if field.name in vars(cls).get("__annotations__", ()))
        title = "" if section is config else (section.__doc__ or "").removesuffix(".")
        default = None if field.default is dataclasses.MISSING else field.default
        found.append(Keyword(field.name, schema.field_types(config)[field.name], default, belongs, title))
    return found


def descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """What the section ``Args:`` of a function's docstring, or a config, says of each argument or option."""
    if dataclasses.is_dataclass(function):
        return schema.docstrings(function)
    section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    lines = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in lines}


def checked(function: F) -> F:
    """Decorator: check the arguments of a command that is called from Python."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        bound = inspect.signature(function).bind(*args, **options)
        for keyword in signature(function) or ():
            if keyword.name in bound.arguments:
                value = schema.plain(bound.arguments[keyword.name])
                bound.arguments[keyword.name] = schema.build(keyword.kind, value, keyword.name)
            elif keyword.is_many:
                raise ConfigError(keyword.name, "must be given, one or more")
        return function(*bound.args, **bound.kwargs)

    return cast(F, call)


def complete(
    key: str, owner: str, function: Callable[..., Any], taken: int, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The keywords ``given``, checked, and the defaults of the others; as they are where the function takes any.

    In a sentence they are the options ``key``, such as ``model_options``, of ``owner``, such as ``vit``.
    """
    listed = of(function, taken)
    if listed is None:
        return dict(given)
    known = {keyword.name: keyword for keyword in listed}
    if unknown := next((name for name in given if name not in known), None):
        has = f"has {', '.join(known)}" if known else "has none"
        raise ConfigError(f"{key}.{unknown}", f"is no option of {owner}, which {has}{suggestion(unknown, known)}")
    completed = {}
    for name, keyword in known.items():
        if name in given:
            value = schema.plain(given[name])
            takes_several = schema.is_list(keyword.kind) or isinstance(keyword.default, tuple | list)
            if takes_several and isinstance(value, str | int | float):
                value = schema.listed(str(value))
            completed[name] = schema.build(_checked(keyword.kind), value, f"{key}.{name}")
        elif keyword.default is Parameter.empty:
            raise ConfigError(f"{key}.{name}", f"must be given for {owner}")
        else:
            with suppress(ConfigError):  # a default that a file could not give back as it is stays the function's own
                if repr(schema.build(Value, keyword.default)) == repr(keyword.default):
                    completed[name] = keyword.default
    return completed


def _checked(kind: Any) -> Any:
    """An annotation; what a file may have, where pydantic cannot check it, as it cannot a ``torch.dtype``."""
    try:
        TypeAdapter(kind)
        hash(kind)
    except (PydanticUserError, TypeError):
        return Value
    return kind


def _description(kind: Any) -> str:
    notes = [each.description if isinstance(each, FieldInfo) else each for each in getattr(kind, "__metadata__", ())]
    return next((note for note in reversed(notes) if note and isinstance(note, str)), "")
