"""All rules over one cluster file, and what its machines cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cifar_ray.config import errors
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.strict import mapping
from cifar_ray.orchestration.clusterfile import fit, leaks, pins, safety, shell, spelling
from cifar_ray.orchestration.clusterfile.read import ClusterFile, node_types
from cifar_ray.reporting import cost


@dataclass(frozen=True)
class Verdict:
    """What is to be said of a cluster file.

    Attributes:
        problems: a sentence each, that begins with the key path at fault; none when the file is sound.
        notes: what its reader should know besides.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]


def judge(file: ClusterFile, of_ray: tuple[str, ...]) -> Verdict:
    """Hold a file against every rule.

    Args:
        file: the file as it was read.
        of_ray: what Ray's own schema has to say against it; comes first.
    """
    provider = mapping(file.config.get("provider")).get("type")
    if provider not in spelling.PROVIDERS:
        known = errors.one_of(spelling.PROVIDERS)
        return Verdict((*of_ray, f"provider.type must be {known} to be checked, got {provider!r}"), ())
    found = [*of_ray]
    for rules in (spelling.problems, pins.problems, safety.problems, leaks.problems, fit.problems):
        found += rules(file.config, provider)
    found += [*shell.syntax(file.config), *_unpriced(file.config, provider)]
    return Verdict(tuple(dict.fromkeys(found)), tuple(_notes(file, provider)))


def _unpriced(config: dict[str, Any], provider: str) -> Iterator[str]:
    for name, kind in _rented(config, provider).items():
        try:
            cost.of_node_type(kind)
        except ConfigError as error:
            yield f"available_node_types.{name}.node_config has no price here: the machine type {error.problem}"


def _rented(config: dict[str, Any], provider: str) -> dict[str, dict[str, Any]]:
    return node_types(config) if provider in ("aws", "gcp") else {}


def _notes(file: ClusterFile, provider: str) -> Iterator[str]:
    if len(file.unfilled) == 1:
        yield f"1 value is still to be filled in: {file.unfilled[0]}"
    elif file.unfilled:
        yield f"{len(file.unfilled)} values are still to be filled in: {', '.join(file.unfilled)}"
    yield from fit.notes(file.config)
    for name, kind in _rented(file.config, provider).items():
        try:
            yield f"{name} is {cost.of_node_type(kind).words}"
        except ConfigError:
            continue
