"""The words of a command as plain values, and its help: both from the fields of one dataclass.

Words stay text here: :mod:`cifar_ray.config.schema` converts and checks them, as it does the values of a file. Only
what is given is in the result, so that it can be laid over a file.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import textwrap
import typing
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, TypeVar

from cifar_ray.config import schema
from cifar_ray.config.errors import ConfigError, flag_of, one_of, printable, suggestion
from cifar_ray.config.keywords import Keyword
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig

T = TypeVar("T")
_POSITIONAL = "positional"
Positional = Annotated[T, _POSITIONAL]
"""The type of a field that is given without a flag."""
_SWITCH = "switch"
Switch = Annotated[bool, _SWITCH]
"""The type of a field that no config file has, so that nothing needs a ``--no-`` flag to be undone."""
_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT"}
HELP = ("-h", "--help", "--help-all")
"""The flags that print the help of a command."""

_WIDEST, _COLUMN = 100, 33  # characters: lines that are easy to read; where every explanation starts


class Parser(argparse.ArgumentParser):
    """argparse, with its complaints as a ConfigError."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Choices are for the help and for completion; the schema checks them."""

    def error(self, message: str) -> NoReturn:
        missing = message.removeprefix("the following arguments are required: ")
        sentence = message.removeprefix("argument ") if missing == message else f"{missing} must be given"
        raise ConfigError("", f"{sentence}; `{self.prog} --help` tells what it takes")


class _Help(argparse.HelpFormatter):
    """argparse's help, in the terminal's width but no wider than is easy to read, with paragraphs kept."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        super().__init__(prog, max_help_position=_COLUMN, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        plain = text.replace("``", "").split("\n\n")
        fill = super()._fill_text
        return "\n\n".join(part if part.startswith("  ") else fill(part, width, indent) for part in plain)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        several = f"{action.metavar or default_metavar} ..."
        return several if action.nargs == "+" else super()._format_args(action, default_metavar)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"--[no-]{action.option_strings[0].removeprefix('--')}"
        return super()._format_action_invocation(action)


def read(kind: type[T], words: Sequence[str], command: str) -> T:
    """The words that follow a command as a ``kind``, the dataclass of its options.

    Raises:
        ConfigError: on words or values that the command does not take.
    """
    try:
        return schema.build(kind, parse(kind, words, f"cifar-ray {command}"))
    except ConfigError as error:
        if _is_positional(schema.field_types(typing.cast(type, kind)).get(error.key)):
            raise ConfigError("", f"{error.key.upper()} {error.problem}") from None
        raise


def parse(kind: type, words: Sequence[str], program: str) -> dict[str, Any]:
    """What the words give, as nested values by field: text, lists of text and booleans. ``--help`` ends the process.

    Raises:
        ConfigError: on an unknown flag, a missing value, or a word that belongs to no flag.
    """
    if set(HELP) & set(words):
        usual = () if "--help-all" in words else getattr(kind, "USUAL", ())
        described(kind, program, usual).print_help()
        sys.exit(0)
    words, named = _without_named(kind, [_hyphenated(word) for word in words])
    values, rest = parser(kind, program, {}).parse_known_intermixed_args(words)
    if rest and rest[0].startswith("--"):
        flag = rest[0].partition("=")[0]
        recorded = {field.name for field in dataclasses.fields(kind) if field.metadata.get("recorded")}
        hints = {key: hint for key, hint in schema.flat_types(kind).items() if key.partition(".")[0] not in recorded}
        known = [flag_of(key) for key, hint in hints.items() if not _is_positional(hint)]
        raise ConfigError("", f"unknown flag {flag}{suggestion(flag, known)}".replace("'", ""))
    if rest:
        raise ConfigError("", f"unexpected word '{rest[0]}'")
    return schema.nest(vars(values) | named)


def _without_named(kind: type, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words without flags such as ``--model-options.depth 4``, of a field that takes any names; and these."""
    hints = schema.field_types(kind)
    others, named, left = [], {}, iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        field, dot, _ = name.partition(".")
        if not word.startswith("--") or not dot or not schema.is_mapping(hints.get(field)):
            others.append(word)
            continue
        named[name] = value if equals else next(left, "--")
        if named[name].startswith("--"):
            raise ConfigError("", f"{flag} must have a value")
    return others, named


def _hyphenated(word: str) -> str:
    """``--batch_size=8`` as ``--batch-size=8``."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word


def described(kind: type, program: str, usual: Sequence[str] = ()) -> Parser:
    """The :func:`parser` with help; a field without a docstring is that of a run or of a sweep."""
    docs = {**schema.docstrings(TrainConfig), **schema.docstrings(SweepConfig), **schema.docstrings(kind)}
    return parser(kind, program, docs, usual)


def parser(kind: type, program: str, docs: dict[str, str], usual: Sequence[str] = ()) -> Parser:
    """A parser with a flag for every field; the help has the sections of a run, and one for each nested dataclass.

    Args:
        kind: the dataclass.
        program: the command as it is typed.
        docs: what the help says of each field.
        usual: the only fields to show, in no sections, below the command's examples.
    """
    hints = schema.field_types(kind)
    positional = [f"{name.upper()}{' ...' * _is_list(hint)}" for name, hint in hints.items() if _is_positional(hint)]
    result = Parser(
        prog=program,
        usage=" ".join([program, *positional, "[OPTIONS]"]),
        description="\n\n".join([schema.summary(kind), *getattr(kind, "EXAMPLES", ())]),
        formatter_class=_Help,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    section: Any = result
    if hasattr(kind, "USUAL"):
        result.add_argument("--help-all", action="help", help="Describe all options.")
    fields = {field.name: field for field in dataclasses.fields(kind) if not field.metadata.get("recorded")}
    for field in [fields[name] for name in usual] or fields.values():
        hint = hints[field.name]
        is_of_run = issubclass(kind, TrainConfig) and "only" in field.metadata  # and not the command's own
        if is_of_run and not usual and (title := _section(field.name)) != getattr(section, "title", None):
            section = result.add_argument_group(title)
        if dataclasses.is_dataclass(hint):
            inner = typing.cast(type, hint)
            group = result.add_argument_group(f"{field.name} options", schema.summary(inner))
            for name, of in schema.field_types(inner).items():
                _add(group, f"{field.name}.{name}", of, getattr(inner, name), docs.get(f"{field.name}.{name}", ""))
        else:
            belongs = _belongs(field) if is_of_run else ""
            place = section if is_of_run else result
            _add(place, field.name, hint, field.default, docs.get(field.name, ""), belongs)
    return result


def listed(key: str, owner: str, keywords: Sequence[Keyword]) -> str:
    """The options of a model or of a strategy, ``key`` of a run, as the help of a command lists its own."""
    result = Parser(usage=argparse.SUPPRESS, add_help=False, formatter_class=_Help)
    group = result.add_argument_group(f"options of {owner}")
    for keyword in keywords:
        _add(group, f"{key}.{keyword.name}", keyword.kind, keyword.default, f"{keyword.description}.")
    return result.format_help().strip() or f"{owner} has no options of its own"


def _section(name: str) -> str:
    """The title of the section of a run's options that declares a field."""
    section = next(cls for cls in reversed(TrainConfig.__mro__) if name in vars(cls).get("__annotations__", ()))
    return schema.summary(section).removesuffix(".")


def _belongs(field: dataclasses.Field[Any]) -> str:
    """For which choice a field of a run is, as a sentence; for which it is not, if they are fewer."""
    for kind, owners in (field.metadata["only"] or {}).items():
        others = [name for name in _choices(schema.field_types(TrainConfig)[kind]) if name not in owners]
        if len(others) < len(owners):
            return f"Not with --{kind} {one_of(others)}."
        return f"Only with --{kind} {one_of(owners)}."
    return ""


def _choices(hint: Any) -> tuple[str, ...]:
    """The names that a field may have; none where any value may be."""
    kinds = (schema.bare(hint), *_metadata(hint))
    return next((typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is typing.Literal), ())


def _is_positional(hint: Any) -> bool:
    return _POSITIONAL in _metadata(hint)


def _metadata(hint: Any) -> tuple[Any, ...]:
    """What an annotation, or the one that is not None of two, carries."""
    every = (hint, *typing.get_args(hint))
    return next((marks for kind in every if (marks := getattr(kind, "__metadata__", ()))), ())


def _is_list(hint: Any) -> bool:
    return typing.get_origin(schema.bare(hint)) is tuple


def _add(group: Any, key: str, hint: Any, default: Any, doc: str, belongs: str = "") -> None:
    """Add one field to a parser or to a section of it; ``doc`` and ``belongs`` are sentences of its help."""
    kind = schema.bare(hint)
    if _is_list(hint):
        kind = schema.bare(typing.get_args(kind)[0])
    takes_any_name = schema.is_mapping(hint)
    is_required = default is dataclasses.MISSING and not takes_any_name
    choices = _choices(typing.get_args(schema.bare(hint))[0] if _is_list(hint) else hint)
    sentences = [doc, f"One of {one_of(choices)}." if choices else "", belongs]
    if not is_required and default not in (None, (), dataclasses.MISSING):
        sentences.append(f"(default: {_in_words(default)})")
    options: dict[str, Any] = {"help": " ".join(filter(None, sentences)).replace("%", "%%")}
    if kind is bool:
        action: Any = "store_true" if _SWITCH in _metadata(hint) else argparse.BooleanOptionalAction
        group.add_argument(flag_of(key), dest=key, action=action, **options)
    elif _is_positional(hint):
        many = "+" if is_required else "*"
        nargs = many if _is_list(hint) else None if is_required else "?"
        group.add_argument(key, nargs=nargs, choices=choices or None, metavar=key, **options)
    else:
        options["metavar"] = "NAME" if choices else _METAVARS.get(kind, "TEXT")
        options |= {"nargs": "+"} if _is_list(hint) else {}
        key += ".NAME" if takes_any_name else ""
        group.add_argument(flag_of(key), dest=key, required=is_required, choices=choices or None, **options)


def _in_words(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def note(sentence: str) -> None:
    """Tell a person something that is no result."""
    print(f"note: {printable(sentence)}", file=sys.stderr)
