"""The words of a command as plain values, and its help: both from the signature and docstring of one function.

Its arguments before the ``*`` are words, its keywords flags. A keyword that the section ``Args:`` does not describe is
described as the field of that name of a run. Words stay text here: :mod:`cifar_ray.config.schema` checks them.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import Field

from cifar_ray.config import keywords, schema
from cifar_ray.config.errors import ConfigError, flag_of, one_of, printable, suggestion
from cifar_ray.config.keywords import Keyword
from cifar_ray.config.train import TrainConfig

F = TypeVar("F", bound=Callable[..., Any])
Given = Mapping[str, Any]
"""Options of a config that are given, nested and as text."""

AsJson = Annotated[bool, "Print the result as one JSON document on standard output; progress goes to standard error."]
Port = Annotated[int, Field(ge=1, le=65535)]
Overwrite = Annotated[bool, "Replace files that are there."]
RunName = Annotated[str, "Name or MLflow id of the run, or its folder if MLflow has lost it."]
_METAVARS = {int: "INT", float: "FLOAT"}
_WIDEST, _COLUMN = 100, 33  # characters: lines that are easy to read; where every explanation starts


@dataclass(frozen=True)
class Of:
    """Mark of a parameter: it takes the options of ``owner``, a config or a function, that are given.

    All of them, all ``without`` some, or ``only`` some.
    """

    owner: Any
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @property
    def options(self) -> list[Keyword]:
        """These options."""
        known = keywords.of(self.owner, 0) or []
        return [each for each in known if each.name in (self.only or {each.name} - {*self.without})]


def usual(*names: str) -> Callable[[F], F]:
    """Decorator: ``--help`` of a command describes these options, ``--help-all`` all."""

    def mark(function: F) -> F:
        function.usual = names  # type: ignore[attr-defined]
        return function

    return mark


class _Parser(argparse.ArgumentParser):
    """argparse, with its complaints as a ConfigError."""

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


def call(command: Callable[..., Any], words: Sequence[str], name: str) -> Any:
    """Call a command with its words; a mistake in one of them is a ConfigError."""
    listed = keywords.signature(command) or []
    try:
        given = read(command, words, name)
        many = [value for each in listed if each.is_many for value in given.pop(each.name, ())]
        before = [given.pop(each.name) for each in listed if many and each.is_word and each.name in given]
        return command(*before, *many, **given)
    except ConfigError as error:
        if any(each.is_word and each.name == error.key for each in listed):
            raise ConfigError("", f"{error.key.upper()} {error.problem}") from None
        raise


def read(command: Callable[..., Any], words: Sequence[str], name: str) -> dict[str, Any]:
    """The arguments of a command as its words give them; a mistake in one of them is a ConfigError."""
    given = parse(command, words, f"cifar-ray {name}")
    arguments: dict[str, Any] = {}
    for keyword in keywords.signature(command) or ():
        if marks := _marks(keyword):
            known = {option.name for mark in marks for option in mark.options}
            arguments[keyword.name] = {key: given.pop(key) for key in known & given.keys()}
        elif keyword.name in given:
            arguments[keyword.name] = schema.build(keyword.kind, given.pop(keyword.name), keyword.name)
    return arguments


def parse(command: Any, words: Sequence[str], program: str) -> dict[str, Any]:
    """What the words after a command, typed as ``program``, give: nested values by name, as text, lists and booleans.

    ``--help`` ends the process. A config in place of a command has its options.
    """
    end = [*words, "--"].index("--")
    words, last = words[:end], list(words[end + 1 :])
    if {"-h", "--help", "--help-all"} & {*words}:
        shown = () if "--help-all" in words else getattr(command, "usual", ())
        parser(command, program, usual=shown).print_help()
        sys.exit(0)
    flags = of(command)
    reader = parser(command, program, described=False)
    groups = tuple(f"{flag_of(flag.name)}." for flag in flags if schema.is_mapping(flag.kind))
    for flag in {word.partition("=")[0] for word in words if word.startswith(groups)}:  # options of a model: any name
        reader.add_argument(flag, dest=flag.removeprefix("--").replace("-", "_"))
    values, rest = reader.parse_known_intermixed_args(words)
    if rest and rest[0].startswith("--"):
        unknown = rest[0].partition("=")[0]
        near = suggestion(unknown, [flag_of(each.name) for each in flags if not each.is_word])
        raise ConfigError("", f"unknown flag {unknown}{near}".replace("'", ""))
    given = vars(values)
    many = next((flag.name for flag in flags if flag.is_many), None)
    if last and many is not None:
        given[many], last = [*given.get(many, ()), *last], []
    if others := [*rest, *last]:
        raise ConfigError("", f"unexpected word '{others[0]}'")
    return schema.nest(given)


def of(command: Any) -> list[Keyword]:
    """The flags of a function, its own first, or of a config, whose options the words give."""
    own = [keyword for keyword in keywords.signature(command) or () if not _marks(keyword)]
    flags: dict[str, Keyword] = {}
    for flag in (*own, *(option for mark in _taken(command) for option in mark.options)):
        flags.setdefault(flag.name, flag)
    return [*flags.values()]


def _taken(command: Any) -> list[Of]:
    """The options of others that a command takes."""
    return [mark for keyword in keywords.signature(command) or () for mark in _marks(keyword)]


def _marks(keyword: Keyword) -> list[Of]:
    return [mark for mark in _metadata(keyword.kind) if isinstance(mark, Of)]


def _docs(command: Any) -> dict[str, str]:
    """Option -> what its docstring says: in the command's, else below the field of that name of a config."""
    docs = dict(schema.docstrings(TrainConfig))
    for owner in (*(mark.owner for mark in reversed(_taken(command))), command):
        docs |= keywords.descriptions(owner)
    return docs


def parser(command: Any, program: str, described: bool = True, usual: Sequence[str] = ()) -> argparse.ArgumentParser:
    """A parser with a flag for every option of a command, or for the ``usual`` ones, in no sections.

    What the options do is ``described`` for a help alone: it takes a while to read.
    """
    flags, docs = of(command), _docs(command) if described else {}
    text, *parts = re.split(r"\n\n(?=[A-Z][a-z]+:\n)", inspect.getdoc(command) or "")
    examples = [textwrap.dedent(part.partition("\n")[2]) for part in parts if part.startswith("Examples:")]
    words = [f"{flag.name.upper()}{' ...' * flag.is_many}" for flag in flags if flag.is_word]
    result = _Parser(
        prog=program,
        usage=" ".join([program, *words, "[OPTIONS]"]),
        description="\n\n".join([text, *(textwrap.indent(each, "  ") for each in examples)]),
        formatter_class=_Help,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        conflict_handler="resolve",  # a model's option may be called as the metavariable of all of them
    )
    if hasattr(command, "usual"):
        result.add_argument("--help-all", action="help", help="Describe all options.")
    by_name = {flag.name: flag for flag in flags}
    sections: dict[str, Any] = {"": result}
    for flag in [by_name[name] for name in usual] or flags:
        title = "" if usual else flag.title
        if title not in sections:
            sections[title] = result.add_argument_group(title)
        _add(sections[title], flag, docs.get(flag.name, ""))
    return result


def listed(key: str, owner: str, options: Sequence[Keyword]) -> str:
    """The options of a model or of a strategy, ``key`` of a run, as the help of a command lists its own."""
    result = _Parser(usage=argparse.SUPPRESS, add_help=False, formatter_class=_Help)
    group = result.add_argument_group(f"options of {owner}")
    for each in options:
        _add(group, Keyword(f"{key}.{each.name}", each.kind, each.default, f"{each.description}."))
    return result.format_help().strip() or f"{owner} has no options of its own"


def _choices(hint: Any) -> tuple[str, ...]:
    """The names that a field may have; none where any value may be."""
    kinds = (schema.bare(hint), *_metadata(hint))
    return next((typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is typing.Literal), ())


def _metadata(hint: Any) -> tuple[Any, ...]:
    """What an annotation, or the one that is not None of two, carries."""
    every = (hint, *typing.get_args(hint))
    return next((marks for kind in every if (marks := getattr(kind, "__metadata__", ()))), ())


def _add(group: Any, flag: Keyword, doc: str = "") -> None:
    """Add one flag to a parser or to a section of it."""
    key, kind, default = flag.name, schema.bare(flag.kind), flag.default
    is_list = schema.is_list(kind)
    item = typing.get_args(kind)[0] if is_list else flag.kind
    takes_any_name, is_required = schema.is_mapping(flag.kind), default is Parameter.empty
    # A file may turn an option of a run on, and --no- off again; nothing else turns on what a command itself has.
    is_switch = kind is bool and default is False and flag.passed is Parameter.KEYWORD_ONLY
    choices = _choices(item)
    sentences = [doc, flag.description, f"One of {one_of(choices)}." if choices else ""]
    if not is_required and not takes_any_name and default not in (None, (), "") and not is_switch:
        sentences.append(f"(default: {_in_words(default)})")
    options: dict[str, Any] = {"help": " ".join(filter(None, sentences)).replace("%", "%%")}
    if kind is bool:
        group.add_argument(
            flag_of(key), dest=key, action="store_true" if is_switch else argparse.BooleanOptionalAction, **options
        )
    elif flag.is_word:
        if is_list:
            options |= {"nargs": "*", "default": argparse.SUPPRESS}  # else argparse requires one
        elif not is_required:
            options["nargs"] = "?"
        group.add_argument(key, metavar=key, **options)
    else:
        options["metavar"] = "NAME" if choices else _METAVARS.get(schema.bare(item), "TEXT")
        options |= {"nargs": "+"} if is_list else {}
        key += ".NAME" if takes_any_name else ""
        group.add_argument(flag_of(key), dest=key, required=is_required, **options)


def _in_words(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def note(sentence: str) -> None:
    """Tell a person something that is no result."""
    print(f"note: {printable(sentence)}", file=sys.stderr)
