"""YAML files of people: one mapping each, small, and with no key twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cifar_ray.config.errors import LONGEST, ConfigError, brief


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also refuses repeated keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for name, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # PyYAML refuses others
            if str(name.value) in names:
                raise ValueError(f"it has the key {brief(name.value)} twice")
            names.add(str(name.value))
        return super().construct_mapping(node, deep)


def read(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        ConfigError: when it cannot be read, is not a mapping, or has a key twice; the sentence names the file.
    """
    try:
        values = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)  # noqa: S506  it is a SafeLoader
    except Exception as error:  # of the file, or of PyYAML, which has several kinds
        problem = getattr(error, "strerror", None) or getattr(error, "problem", None) or error
        mark, text = getattr(error, "problem_mark", None), " ".join(str(problem).split())[:LONGEST]
        where = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError("", f"cannot read config file {path}: {text}{where}") from None
    if not isinstance(values, dict | None):
        raise ConfigError("", f"{path} must be a mapping of keys to values")
    return values or {}


def dump(values: Mapping[str, Any]) -> str:
    """The text of a YAML file with these values, in their order."""
    return yaml.safe_dump(values, sort_keys=False)


def mapping(value: Any) -> dict[Any, Any]:
    """The value if it is a mapping, else an empty one, for readers that report a wrong kind elsewhere."""
    return value if isinstance(value, dict) else {}
