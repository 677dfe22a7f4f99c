"""Keys that Ray passes on to a cloud unseen: a misspelt one would be ignored, or fail when machines are paid for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cifar_ray.config import errors, strict
from cifar_ray.config.strict import mapping
from cifar_ray.orchestration.clusterfile.read import node_types

PROVIDERS = ("aws", "gcp", "local")
_KNOWN = Path(__file__).with_suffix(".yaml")
_SECRETS = {"aws_credentials", "gcp_credentials"}

_SUBNETS = "SubnetIds"
"""Ray's own key on AWS: a list, of which it takes one."""


@cache
def _known() -> Mapping[str, Any]:
    return strict.read_yaml(_KNOWN)


def problems(config: dict[str, Any], provider: str) -> Iterator[str]:
    """A sentence for every key that nobody would read, and for credentials in the file."""
    given = mapping(config.get("provider"))
    known = [*_known()["provider"]["all"], *_known()["provider"][provider]]
    for name in given:
        if name in _SECRETS:
            yield f"provider.{name} must not be in the file: put credentials where the cloud's own tools look for them"
        elif name not in known:
            yield f"provider.{name} is unknown{errors.suggestion(str(name), known)}"
    for name, kind in node_types(config).items():
        key = f"available_node_types.{name}.node_config"
        node = mapping(kind.get("node_config"))
        if provider == "aws":
            yield from _aws(node, key)
        elif provider == "gcp":
            yield from _gcp(node, key, "")


def _aws(node: dict[str, Any], key: str) -> Iterator[str]:
    try:
        shape = _run_instances()
    except ImportError:
        yield from _unknown(node, [*_known()["aws"], _SUBNETS], key)
        return
    yield from _against(node, shape, key, (_SUBNETS,))
    if not isinstance(node.get(_SUBNETS, []), list):
        yield f"{key}.{_SUBNETS} must be a list, got {node[_SUBNETS]!r}"


@cache
def _run_instances() -> Any:
    """What EC2's RunInstances takes, from boto3's own description of it."""
    import botocore.session

    service = botocore.session.get_session().get_service_model("ec2")
    return service.operation_model("RunInstances").input_shape


def _against(value: Any, shape: Any, key: str, also: Iterable[str] = ()) -> Iterator[str]:
    """Hold a value against a shape of botocore's description of EC2."""
    if shape.type_name == "structure":
        if not isinstance(value, dict):
            yield f"{key} must be a mapping, got {value!r}"
            return
        yield from _unknown(value, [*shape.members, *also], key)
        for name, item in value.items():
            if name in shape.members:
                yield from _against(item, shape.members[name], f"{key}.{name}")
    elif shape.type_name == "list":
        if not isinstance(value, list):
            yield f"{key} must be a list, got {value!r}"
            return
        for position, item in enumerate(value):
            yield from _against(item, shape.member, f"{key}[{position}]")
    elif shape.type_name == "string" and 0 < len(shape.enum) < 20 and value not in shape.enum:
        yield f"{key} must be {errors.one_of(shape.enum)}, got {value!r}"
    elif shape.type_name in _KINDS and not isinstance(value, _KINDS[shape.type_name]):
        yield f"{key} must be of the type {shape.type_name}, got {value!r}"


_KINDS: dict[str, Any] = {"string": str, "integer": int, "boolean": bool, "double": int | float, "float": int | float}


def _gcp(node: Any, key: str, where: str) -> Iterator[str]:
    known = _known()["gcp"]
    if not isinstance(node, dict):
        yield f"{key} must be a mapping, got {node!r}"
        return
    yield from _unknown(node, known[where], key)
    for name, value in node.items():
        inner = f"{where}.{name}" if where else str(name)
        if inner in known and isinstance(value, list):
            for position, item in enumerate(value):
                yield from _gcp(item, f"{key}.{name}[{position}]", inner)
        elif inner in known:
            yield from _gcp(value, f"{key}.{name}", inner)


def _unknown(given: Iterable[Any], known: Iterable[str], key: str) -> Iterator[str]:
    known = list(known)
    for name in given:
        if name not in known:
            yield f"{key}.{name} is unknown{errors.suggestion(str(name), known)}"
