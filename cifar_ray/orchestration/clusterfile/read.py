"""A cluster file as plain values, and which of them its reader has still to fill in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cifar_ray.config import strict
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.strict import mapping

MARK = "YOURS"
"""Stands in a value, or in the comment behind it, until somebody has put a value of his own there."""


@dataclass(frozen=True)
class ClusterFile:
    """A file that ``ray up`` takes.

    Attributes:
        config: what it says, as ``yaml.safe_load`` has it.
        unfilled: key paths of the values that still bear the mark ``YOURS``, in the file's order.
    """

    config: dict[str, Any]
    unfilled: tuple[str, ...]


def read(path: Path) -> ClusterFile:
    """Read a cluster file.

    Raises:
        ConfigError: when it cannot be read or is no YAML; the sentence has no file name in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise ConfigError("", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("", "cannot be read: it is not UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError("", f"is no YAML: {error.problem}{line}") from None
    except yaml.YAMLError as error:
        raise ConfigError("", f"is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError("", "must be a mapping of keys to values")
    try:
        config = strict.read_yaml(path)
    except ConfigError as error:
        raise ConfigError("", f"cannot be read: {error.problem.split(': ', 1)[-1]}") from None
    return ClusterFile(config, tuple(_unfilled(root, text.splitlines())))


def listing(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one: what is of the wrong kind is told by Ray's schema."""
    return value if isinstance(value, list) else []


def node_types(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Name of every node type -> its options."""
    return {str(name): mapping(kind) for name, kind in mapping(config.get("available_node_types")).items()}


def _unfilled(root: yaml.Node, lines: list[str]) -> Iterator[str]:
    """Key paths of the scalars with the mark; what an alias repeats counts once."""
    seen: set[int] = set()

    def walk(node: yaml.Node, key: str) -> Iterator[str]:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                yield from walk(value, f"{key}.{name.value}" if key else str(name.value))
        elif isinstance(node, yaml.SequenceNode):
            for position, value in enumerate(node.value):
                yield from walk(value, f"{key}[{position}]")
        elif MARK in str(node.value) or (not _is_block(node) and _is_marked(lines[node.end_mark.line])):
            yield key

    yield from walk(root, "")


def _is_block(node: yaml.Node) -> bool:
    """Whether it is text of several lines, which ends where the next key begins."""
    return isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")


def _is_marked(line: str) -> bool:
    return MARK in line.partition(" #")[2]
