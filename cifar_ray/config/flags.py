"""The words of a command as plain values, and its help: both from the fields of one dataclass.

Words stay text here: :mod:`cifar_ray.config.schema` converts and checks them, as it does the values of a file. Only
what is given is in the result, so that it can be laid over a file.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import sys
import textwrap
import typing
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, TypeVar

from cifar_ray.config import schema
from cifar_ray.config.errors import ConfigError, flag_of, suggestion
from cifar_ray.config.train import SECTIONS, TrainConfig

T = TypeVar("T")
_POSITIONAL = "positional"
Positional = Annotated[T, _POSITIONAL]
"""The type of a field that is given without a flag."""
_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT"}


class Parser(argparse.ArgumentParser):
    """argparse, with its complaints as a ConfigError."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError("", f"{message.removeprefix('argument ')}; `{self.prog} --help` tells what it takes")


def read(kind: type[T], words: Sequence[str], command: str) -> T:
    """The words as a ``kind``.

    Args:
        kind: a dataclass.
        words: what follows the command.
        command: its name.

    Raises:
        ConfigError: on words or values that the command does not take.
    """
    made: T = schema.build(kind, given(kind, words, f"cifar-ray {command}"))
    return made


def given(kind: type, words: Sequence[str], program: str) -> dict[str, Any]:
    """What the words give, as nested values by field: text, lists of text and booleans. ``--help`` ends the process.

    Raises:
        ConfigError: on an unknown flag, a missing value, or a word that belongs to no flag.
    """
    if {"-h", "--help"} & set(words):
        _parser(kind, program, _docstrings(kind)).print_help()
        sys.exit(0)
    values, rest = _parser(kind, program, {}).parse_known_intermixed_args([_hyphenated(word) for word in words])
    if rest and rest[0].startswith("--"):
        flag = rest[0].partition("=")[0]
        known = [flag_of(key) for key, hint in schema.flat_types(kind).items() if not _is_positional(hint)]
        near = suggestion(flag, known).replace("'", "")
        raise ConfigError("", f"unknown flag {flag}{near}")
    if rest:
        raise ConfigError("", f"unexpected word '{rest[0]}'")
    return schema.nest(vars(values))


def _hyphenated(word: str) -> str:
    """``--batch_size=8`` as ``--batch-size=8``."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word


def _parser(kind: type, program: str, docs: dict[str, str]) -> Parser:
    """A parser with a flag for every field; the help has the sections of a run, and one for each nested dataclass."""
    hints = schema.field_types(kind)
    positional = [f"{name.upper()}{' ...' * _is_list(hint)}" for name, hint in hints.items() if _is_positional(hint)]
    parser = Parser(
        prog=program,
        usage=" ".join([program, *positional, "[OPTIONS]"]),
        description=inspect.getdoc(kind),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    of_run = schema.field_types(TrainConfig) if issubclass(kind, TrainConfig) else {}
    section: Any = parser
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if field.name in of_run and field.name in SECTIONS:
            section = parser.add_argument_group(SECTIONS[field.name])
        if dataclasses.is_dataclass(hint):
            inner = typing.cast(type, hint)
            group = parser.add_argument_group(f"{field.name} options", inspect.getdoc(inner))
            for name, of in schema.field_types(inner).items():
                _add(group, f"{field.name}.{name}", of, getattr(inner, name), docs.get(f"{field.name}.{name}", ""))
        else:
            _add(section if field.name in of_run else parser, field.name, hint, field.default, docs.get(field.name, ""))
    return parser


def _is_positional(hint: Any) -> bool:
    return _POSITIONAL in getattr(hint, "__metadata__", ())


def _is_list(hint: Any) -> bool:
    return typing.get_origin(schema.bare(hint)) is tuple


def _add(group: Any, key: str, hint: Any, default: Any, doc: str) -> None:
    """Add one field to a parser or to a section of it."""
    kind = schema.bare(hint)
    if _is_list(hint):
        kind = schema.bare(typing.get_args(kind)[0])
    is_required = default is dataclasses.MISSING
    if not is_required and default not in (None, ()):
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        doc = f"{doc} (default: {shown})"
    options: dict[str, Any] = {"help": doc.replace("%", "%%")}
    if kind is bool:
        group.add_argument(flag_of(key), dest=key, action=argparse.BooleanOptionalAction, **options)
    elif _is_positional(hint):
        many = "+" if is_required else "*"
        group.add_argument(key, nargs=many if _is_list(hint) else None if is_required else "?", **options)
    else:
        choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
        metavar = f"{{{','.join(choices)}}}" if choices else _METAVARS.get(kind, "TEXT")
        options |= {"nargs": "+"} if _is_list(hint) else {}
        group.add_argument(flag_of(key), dest=key, required=is_required, metavar=metavar, **options)


def _docstrings(kind: type) -> dict[str, str]:
    """Dotted field name -> the docstring below the field, which Python keeps in the source only."""
    found: dict[str, str] = {}
    for cls in kind.__mro__[:-1]:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        for field, doc in itertools.pairwise(typing.cast(ast.ClassDef, tree).body):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                found[ast.unparse(field.target)] = " ".join(str(doc.value.value).split())
    for name, hint in schema.field_types(kind).items():
        if dataclasses.is_dataclass(hint):
            found |= {f"{name}.{inner}": doc for inner, doc in _docstrings(typing.cast(type, hint)).items()}
    return found


def note(sentence: str) -> None:
    """Tell a person something that is no result."""
    print(f"note: {sentence}", file=sys.stderr)
