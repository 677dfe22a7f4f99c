"""What Ray's own launcher has to say against a cluster file, without a cloud's library and without a network."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cifar_ray.config import errors
from cifar_ray.config.strict import mapping
from cifar_ray.orchestration.clusterfile import check as rules
from cifar_ray.orchestration.clusterfile.read import read


def check(path: Path) -> rules.Verdict:
    """Hold a cluster file against Ray's schema and this program's own rules.

    Raises:
        ConfigError: when it cannot be read, or is no YAML.
    """
    file = read(path)
    return rules.judge(file, tuple(problems(file.config)))


def problems(config: dict[str, Any]) -> list[str]:
    """Every complaint of Ray's schema, a sentence each that begins with the key path."""
    if not isinstance(config.get("provider"), dict) or "type" not in config["provider"]:
        return ["provider.type must be given"]
    if config["provider"]["type"] == "local":
        missing = _local(config)
        if missing:
            return missing
    import jsonschema
    import ray.autoscaler

    from cifar_ray.orchestration.cluster.ray_internals import prepare_config, validate_config

    schema = json.loads(Path(ray.autoscaler.__file__).with_name("ray-schema.json").read_text())
    given = copy.deepcopy(config)
    with contextlib.redirect_stdout(io.StringIO()), _quiet("ray.autoscaler"):
        try:
            prepared = prepare_config(given)
        except Exception as error:
            # What it needs to fill in its defaults is missing or of another kind: the schema tells what.
            prepared, refusal = given, f"cannot be read by Ray: {type(error).__name__}: {error}"
        else:
            refusal = ""
        errors = jsonschema.Draft7Validator(schema).iter_errors(prepared)
        found = [sentence for error in errors for sentence in _sentences(error)]
        if not found and not refusal:
            try:
                validate_config(prepared)
            except Exception as error:
                refusal = " ".join(str(error).split())
    return found or ([refusal] if refusal else [])


def _local(config: dict[str, Any]) -> list[str]:
    """What Ray would end the program for, where machines are one's own."""
    found = []
    if mapping(config.get("available_node_types")):
        found.append("available_node_types must not be given with provider.type local, whose nodes are in worker_ips")
    if "coordinator_address" not in config["provider"]:
        found += [f"provider.{key} must be given" for key in ("head_ip", "worker_ips") if key not in config["provider"]]
    return found


def _sentences(error: Any) -> Iterator[str]:
    path = ""
    for step in error.absolute_path:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {})
        for name in error.instance:
            if name not in known:
                yield f"{path}.{name}".lstrip(".") + f" is unknown to Ray{errors.suggestion(str(name), known)}"
    else:
        yield f"{path or 'the file'}: {error.message}"


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
