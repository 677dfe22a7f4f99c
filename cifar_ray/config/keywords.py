"""Keywords of a function that builds a model, or of a strategy, as options: checked, completed and listed.

Types, bounds, defaults and descriptions stand in the signature: ``depth: Annotated[Count, Field(description="...")] =
6``. A keyword without an annotation takes what a YAML file may have.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PydanticUserError, TypeAdapter
from pydantic.fields import FieldInfo

from cifar_ray.config import schema
from cifar_ray.config.errors import ConfigError, suggestion
from cifar_ray.config.schema import Value


@dataclass(frozen=True)
class Keyword:
    """One keyword of a function; ``default`` is ``inspect.Parameter.empty`` where it must be given."""

    name: str
    kind: Any
    default: Any
    description: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether a file can hold its default."""
        return self.default is None or isinstance(self.default, bool | int | float | str | tuple)


def of(function: Callable[..., Any], taken: int) -> list[Keyword] | None:
    """The keywords of a function or a class beyond its first ``taken`` arguments; None where it takes any."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except ValueError:  # a callable without a signature
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    try:
        typed: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
        hints = typing.get_type_hints(typed, include_extras=True)
    except Exception:  # annotations of the user's own that name nothing
        hints = {}
    kinds = [(parameter, hints.get(parameter.name, Value)) for parameter in parameters[taken:]]
    return [
        Keyword(of.name, kind, of.default, _description(kind)) for of, kind in kinds if of.kind != of.VAR_POSITIONAL
    ]


def complete(
    key: str, owner: str, function: Callable[..., Any], taken: int, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The keywords ``given``, checked, and the defaults of the others; as they are where the function takes any.

    Args:
        key: the option that has them, such as ``model_options``.
        owner: whose they are, such as ``vit``.

    Raises:
        ConfigError: naming a keyword that is unknown, missing, or has a value that it cannot have.
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
            completed[name] = schema.build(_checked(keyword.kind), schema.plain(given[name]), f"{key}.{name}")
        elif keyword.default is inspect.Parameter.empty:
            raise ConfigError(f"{key}.{name}", f"must be given for {owner}")
        elif keyword.is_plain:
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
    if typing.get_origin(kind) is not Annotated:
        return ""
    notes = [each.description for each in typing.get_args(kind)[1:] if isinstance(each, FieldInfo)]
    return next(filter(None, reversed(notes)), "")
