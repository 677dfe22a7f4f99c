"""The words of a command as plain values, and its help: both from the signature and docstring of one function.

A command is a function. Its arguments before the ``*`` are words, its keywords flags; the docstring, with its section
``Args:``, is the help. A keyword that the docstring does not describe is described as the field of that name of a run
or of a sweep. A parameter with the mark :class:`Of` takes the options of a config that are given.

Words stay text here: :mod:`cifar_ray.config.schema` converts and checks them, as it does the values of a file.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import Field

from cifar_ray.config import keywords, schema
from cifar_ray.config.errors import ConfigError, flag_of, one_of, printable, suggestion
from cifar_ray.config.keywords import Keyword
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig

F = TypeVar("F", bound=Callable[..., Any])
Given = Mapping[str, Any]
"""Options of a config that are given, nested and as text."""

AsJson = Annotated[
    bool,
    Field(description="Print the result as one JSON document on standard output; progress goes to standard error."),
]
Port = Annotated[int, Field(ge=1, le=65535)]
Overwrite = Annotated[bool, Field(description="Replace files that are there.")]
RunName = Annotated[str, Field(description="Name or MLflow id of the run, or its folder if MLflow has lost it.")]
_METAVARS = {int: "INT", float: "FLOAT"}
_WIDEST, _COLUMN = 100, 33  # characters: lines that are easy to read; where every explanation starts


@dataclass(frozen=True)
class Of:
    """Mark of a parameter: it takes the options of ``config`` that are given, ``without`` some of them, or ``only``."""

    config: type
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


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
    """Call a command with its words.

    Raises:
        ConfigError: on words or values that it does not take, and what it raises.
    """
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
    """The arguments of a command as its words give them.

    Raises:
        ConfigError: on words or values that it does not take.
    """
    given = parse(command, words, f"cifar-ray {name}")
    arguments: dict[str, Any] = {}
    for keyword in keywords.signature(command) or ():
        if configs := _configs(keyword):
            known = {field.name for each in configs for field in _fields(each)}
            arguments[keyword.name] = {key: given.pop(key) for key in known & given.keys()}
        elif keyword.name in given:
            arguments[keyword.name] = schema.build(keyword.kind, given.pop(keyword.name), keyword.name)
    return arguments


def parse(command: Any, words: Sequence[str], program: str) -> dict[str, Any]:
    """What the words give, as nested values by name: text, lists of text and booleans. ``--help`` ends the process.

    Args:
        command: a function, or a config, whose options the words give.
        words: what follows the command; after ``--``, everything is a word.
        program: the command as it is typed.
    """
    end = [*words, "--"].index("--")
    words, last = words[:end], list(words[end + 1 :])
    if {"-h", "--help", "--help-all"} & {*words}:
        shown = () if "--help-all" in words else getattr(command, "usual", ())
        parser(command, program, usual=shown).print_help()
        sys.exit(0)
    flags = of(command)
    mine, named = _without_named(flags, words)
    values, rest = parser(command, program, described=False).parse_known_intermixed_args(mine)
    if rest and rest[0].startswith("--"):
        flag = rest[0].partition("=")[0]
        known = [flag_of(each.name) for each in flags if not each.is_word]
        raise ConfigError("", f"unknown flag {flag}{suggestion(flag, known)}".replace("'", ""))
    found = vars(values) | named
    many = next((flag.name for flag in flags if flag.is_many), None)
    if last and many is not None:
        found[many], last = [*found.pop(many, ()), *last], []
    if others := [*rest, *last]:
        raise ConfigError("", f"unexpected word '{others[0]}'")
    return schema.nest(found)


def _without_named(flags: Sequence[Keyword], words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words, flags with hyphens, and beside them flags such as ``--model-options.depth 4``, which take any name."""
    open_ones = {flag.name for flag in flags if schema.is_mapping(flag.kind)}
    others, named, left = [], {}, iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        field, dot, _ = name.partition(".")
        if not word.startswith("--"):
            others.append(word)
        elif not dot or field not in open_ones:
            others.append(flag.replace("_", "-") + equals + value)
        else:
            named[name] = value if equals else next(left, "--")
            if named[name].startswith("--"):
                raise ConfigError("", f"{flag} must have a value")
    return others, named


def of(command: Any, described: bool = False) -> list[Keyword]:
    """The flags of a function, or of a config whose options the words give; descriptions take a while to read."""
    own: list[Keyword] = []
    configs, docs = [Of(command)], {}
    if not isinstance(command, type):
        own = keywords.signature(command) or []
        configs = [config for keyword in own for config in _configs(keyword)]
        if described:
            docs = {**schema.docstrings(TrainConfig), **schema.docstrings(SweepConfig)}
            docs |= keywords.descriptions(command)
    flags = [
        dataclasses.replace(keyword, description=keyword.description or docs.get(keyword.name, ""))
        for keyword in own
        if not _configs(keyword)
    ]
    known = {keyword.name for keyword in own}
    for config in configs:
        more = [flag for flag in _of_config(config, described) if flag.name.partition(".")[0] not in known]
        flags += more
        known |= {flag.name.partition(".")[0] for flag in more}
    return flags


def _configs(keyword: Keyword) -> list[Of]:
    return [mark for mark in _metadata(keyword.kind) if isinstance(mark, Of)]


def _fields(options: Of) -> list[dataclasses.Field[Any]]:
    """The fields of a config that a person may give."""
    known = [each for each in dataclasses.fields(options.config) if not each.metadata.get("recorded")]
    return [each for each in known if each.name in (options.only or {each.name} - {*options.without})]


def _of_config(options: Of, described: bool) -> Iterator[Keyword]:
    config = options.config
    hints, docs = schema.field_types(config), schema.docstrings(config) if described else {}
    for field in _fields(options):
        hint, belongs = hints[field.name], _belongs(field, config) if described else ""
        section = next(cls for cls in reversed(config.__mro__) if field.name in vars(cls).get("__annotations__", ()))
        title = "" if section is config else (section.__doc__ or "").removesuffix(".")
        known = {field.name: (hint, None if field.default is dataclasses.MISSING else field.default)}
        if dataclasses.is_dataclass(hint):
            inner, title = schema.field_types(typing.cast(type, hint)), f"{field.name} options"
            known = {f"{field.name}.{name}": (kind, getattr(hint, name)) for name, kind in inner.items()}
        for name, (kind, default) in known.items():
            yield Keyword(name, kind, default, " ".join(filter(None, (docs.get(name, ""), belongs))), title)


def parser(command: Any, program: str, described: bool = True, usual: Sequence[str] = ()) -> argparse.ArgumentParser:
    """A parser with a flag for every option of a command.

    Args:
        command: the function, or the config whose options are given.
        program: the command as it is typed.
        described: whether it has a help, with sections.
        usual: the only options to show, in no sections, below the command's examples.
    """
    flags = of(command, described)
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
    )
    if hasattr(command, "usual"):
        result.add_argument("--help-all", action="help", help="Describe all options.")
    by_name = {flag.name: flag for flag in flags}
    sections: dict[str, Any] = {"": result}
    for flag in [by_name[name] for name in usual] or flags:
        title = "" if usual else flag.title
        if title not in sections:
            sections[title] = result.add_argument_group(title)
        _add(sections[title], flag)
    return result


def listed(key: str, owner: str, options: Sequence[Keyword]) -> str:
    """The options of a model or of a strategy, ``key`` of a run, as the help of a command lists its own."""
    result = _Parser(usage=argparse.SUPPRESS, add_help=False, formatter_class=_Help)
    group = result.add_argument_group(f"options of {owner}")
    for each in options:
        _add(group, Keyword(f"{key}.{each.name}", each.kind, each.default, f"{each.description}."))
    return result.format_help().strip() or f"{owner} has no options of its own"


def _belongs(field: dataclasses.Field[Any], config: type) -> str:
    """For which choice a field of a config is, as a sentence; for which it is not, if they are fewer."""
    for kind, owners in field.metadata.get("only", {}).items():
        others = [name for name in _choices(schema.field_types(config)[kind]) if name not in owners]
        if len(others) < len(owners):
            return f"Not with --{kind} {one_of(others)}."
        return f"Only with --{kind} {one_of(owners)}."
    return ""


def _choices(hint: Any) -> tuple[str, ...]:
    """The names that a field may have; none where any value may be."""
    kinds = (schema.bare(hint), *_metadata(hint))
    return next((typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is typing.Literal), ())


def _metadata(hint: Any) -> tuple[Any, ...]:
    """What an annotation, or the one that is not None of two, carries."""
    every = (hint, *typing.get_args(hint))
    return next((marks for kind in every if (marks := getattr(kind, "__metadata__", ()))), ())


def _add(group: Any, flag: Keyword) -> None:
    """Add one flag to a parser or to a section of it."""
    key, kind, default = flag.name, schema.bare(flag.kind), flag.default
    is_list = typing.get_origin(kind) is tuple
    item = typing.get_args(kind)[0] if is_list else flag.kind
    takes_any_name, is_required = schema.is_mapping(flag.kind), default is Parameter.empty
    # A file may turn an option of a run on, and --no- off again; nothing else turns on what a command itself has.
    is_switch = kind is bool and default is False and flag.passed is Parameter.KEYWORD_ONLY
    choices = _choices(item)
    sentences = [flag.description, f"One of {one_of(choices)}." if choices else ""]
    if not is_required and not takes_any_name and default not in (None, ()) and not is_switch:
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
