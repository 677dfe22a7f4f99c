"""Check a file for ``ray up`` offline: Ray's own schema first, then a short list of rules (:data:`RULES`).

A rule takes the file's values, with Ray's defaults for the keys that it lacks, and yields one sentence per fault.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from cifar_ray.config import errors
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.yaml import read as read_yaml

MARK = "YOURS"
"""Marks a line that needs the reader's own value."""

_MARKS = {"cluster_name", "provider", "available_node_types", "head_node_type"}
"""Keys by which a file is known to be for ``ray up``."""

PROVIDERS = ("aws", "gcp", "local")

_COMMANDS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)
_INSTALL = re.compile(r"\b(?:pip[\d.]*|pipx|uv tool) install\b((?:(?!\s\d?[<>])[^;&|#\n])*)")
_HELD = re.compile(r"\s(?:-c|--constraints?|--require-hashes)\b")
_REQUIREMENT = re.compile(r"[A-Za-z][\w.-]*(?:\[[\w,-]*\])?(?:[=<>!~].*)?")
_EXACT = re.compile(r"[^=<>!~]+={2,3}[^*]+")
_RAY = re.compile(r"(?<![\w-])ray(?:\[[\w,-]*\])?\s*[=~<>]=\s*([\w.]+)")
_START = re.compile(r"^.*?\bray start\b", re.DOTALL)
_LISTENER = re.compile(r"--(?:dashboard|ray-client-server)-host[= ]+[\"']?([^\s\"']+)|(?<![\d.])(0\.0\.0\.0)(?![\d./])")
_WORLD = re.compile(r"(?<![\d.])0\.0\.0\.0/0|(?<![\w:])::/0")
_OPENS = re.compile(r"authorize-security-group-ingress|firewall-rules (?:create|update)|ufw allow|iptables .*ACCEPT")
_ONLY_SSH = re.compile(r"(?:--port |(?:--allow|--rules)[ =]tcp:)22(?=\s)")
_SSH = 22
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        problems: one sentence for each fault; empty when the file is sound.
        notes: what the reader should know besides.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A shell command of the file, and its key, such as ``setup_commands[1]``."""

    key: str
    text: str


class NoClusterFileError(ConfigError):
    """A file that is for something else."""


def check(path: Path, price: Callable[[Mapping[str, Any]], str]) -> Verdict:
    """Check a cluster file.

    Args:
        path: the file.
        price: describes the price of an entry of ``available_node_types``; a ``ConfigError`` when it is unknown.

    Raises:
        NoClusterFileError: when nothing in the file is of a cluster.
        ConfigError: when the file cannot be read or is not YAML.
    """
    if _is_for_another(path):
        raise NoClusterFileError("", f"{path} is not a cluster file")
    given = read_yaml(path)
    notes = list(_unfilled(path.read_text(encoding="utf-8")))
    problems = list(_schema(given)) or list(_incomplete(given, given["provider"]))
    if not problems:
        config = _defaults(given["provider"]["type"]) | given
        problems = [problem for rule in RULES for problem in rule(config, list(_commands(config, given)))]
        for name, kind in _node_types(config):
            try:
                notes.append(f"{name} is {price(kind)}")
            except ConfigError as error:
                problems.append(f"available_node_types.{name} has no price: the machine type {error.problem}")
    return Verdict(tuple(problems), tuple(notes))


def _is_for_another(path: Path) -> bool:
    """Whether a file is YAML, also of several documents or with tags of another program, and not of a cluster."""
    try:
        roots = list(yaml.compose_all(path.read_text(encoding="utf-8"), yaml.SafeLoader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return False
    keys = {str(key.value) for root in roots if isinstance(root, yaml.MappingNode) for key, _ in root.value}
    return not keys & _MARKS


def _unfilled(text: str) -> Iterator[str]:
    lines = enumerate(text.splitlines(), start=1)
    marked = [str(number) for number, line in lines if MARK in line and not line.lstrip().startswith("#")]
    if marked:
        yield f"still to be filled in ({MARK}): lines {', '.join(marked)}"


def _schema(given: dict[str, Any]) -> Iterator[str]:
    """What Ray's schema says, all of it at once."""
    import jsonschema
    import ray.autoscaler

    provider = given.get("provider")
    kind = provider.get("type") if isinstance(provider, dict) else None
    if kind not in PROVIDERS:
        yield f"provider.type must be {errors.one_of(PROVIDERS)} to be checked, got {kind!r}"
        return
    schema = json.loads(Path(ray.autoscaler.__file__).with_name("ray-schema.json").read_text())
    config = _defaults(kind) | given
    if kind == "local":
        config.pop("min_workers", None)  # Ray takes it out before it validates the rest
    for error in jsonschema.Draft7Validator(schema).iter_errors(config):
        key = error.json_path.removeprefix("$").removeprefix(".")
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            known = error.schema["properties"]
            for name in (name for name in error.instance if name not in known):
                where = f"{key}.{name}".removeprefix(".")
                yield f"{where} is unknown to Ray{errors.suggestion(str(name), known)}"
        else:
            yield f"{key}: {error.message}"


def _incomplete(given: dict[str, Any], provider: dict[str, Any]) -> Iterator[str]:
    """What ``ray up`` refuses though the schema allows it."""
    if provider["type"] == "local":
        if "coordinator_address" not in provider:
            yield from (f"provider.{name} must be given" for name in ("head_ip", "worker_ips") if name not in provider)
        if given.get("available_node_types"):
            yield "available_node_types must not be given with provider.type local, whose nodes are in worker_ips"
    elif given.get("head_node_type") not in given.get("available_node_types", {}):
        yield "head_node_type must be one of available_node_types"


def _defaults(provider: str) -> dict[str, Any]:
    """What Ray takes for keys that a file lacks."""
    import ray.autoscaler

    return yaml.safe_load((Path(ray.autoscaler.__file__).parent / provider / "defaults.yaml").read_text())


def _node_types(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from config.get("available_node_types", {}).items()


def _commands(config: dict[str, Any], given: dict[str, Any]) -> Iterator[Command]:
    """All commands, in the file's words for them."""
    for key in _COMMANDS:
        where = key if key in given else f"Ray's default {key}"
        yield from (Command(f"{where}[{place}]", text) for place, text in enumerate(config[key]))
    for name, kind in _node_types(config):
        for key in (key for key in _COMMANDS if key in kind):
            where = f"available_node_types.{name}.{key}"
            yield from (Command(f"{where}[{place}]", text) for place, text in enumerate(kind[key]))


def _are_shell(config: dict[str, Any], commands: list[Command]) -> Iterator[str]:
    """Bash can read every command."""
    for command in commands:
        environment = {**os.environ, "LC_ALL": "C"}
        read = subprocess.run(["bash", "-n", "-c", command.text], capture_output=True, text=True, env=environment)
        if read.returncode:
            complaint = re.sub(r"bash: (-c: )?line \d+: ", "", read.stderr.split("\n")[0])
            yield f"{command.key} is not a shell command: {complaint}"


def _are_pinned(config: dict[str, Any], commands: list[Command]) -> Iterator[str]:
    """Packages, Python, Ray and images are the same tomorrow, and Ray is the one that this program runs with."""
    own = version("ray")
    for command in commands:
        for install in _INSTALL.findall(command.text):
            words = re.sub(r"\s*([=<>!~]=)\s*", r"\1", install).split() if not _HELD.search(install) else []
            for word in (word.strip("'\"") for word in words):
                if _REQUIREMENT.fullmatch(word) and not _EXACT.fullmatch(word):
                    yield f"{command.key} must name a version (==) or a constraints file (-c) for {word!r}"
        for other in set(_RAY.findall(command.text)) - {own}:
            yield f"{command.key} must install ray=={own}, which this program runs with, got {other}"
    installs = [command.key for command in commands if _INSTALL.search(command.text)]
    if installs and not config["docker"] and not any(re.search(r"--python[= ]\d+\.\d", c.text) for c in commands):
        yield f"{installs[0]} must name the Python version, such as `uv venv --python 3.11.7`, as nodes must agree"
    docker = {"docker": config["docker"]}
    docker |= {f"available_node_types.{name}.docker": kind.get("docker", {}) for name, kind in _node_types(config)}
    images = [(f"{at}.{key}", str(image)) for at in docker for key, image in docker[at].items() if "image" in key]
    for key, image in images:
        tag = image.rpartition("/")[2].partition(":")[2]
        if not tag or "latest" in tag or "nightly" in tag:
            yield f"{key} must have a version's tag or a digest, got {image!r}"
        elif image.startswith("rayproject/") and not tag.startswith(own) and "@" not in image:
            yield f"{key} must be of Ray {own}, which this program runs with, got {image!r}"
    for name, kind in _node_types(config):
        key, node = f"available_node_types.{name}.node_config", kind["node_config"]
        if config["provider"]["type"] == "aws" and not str(node.get("ImageId")).startswith("ami-"):
            yield f"{key}.ImageId must be the id of one image (ami-...), got {node.get('ImageId')!r}"
        for image in re.findall(r"'sourceImage': '([^']*/family/[^']*)'", str(node)):
            yield f"{key}.disks must name one image, not a family that moves on, got {image!r}"


def _have_a_token(config: dict[str, Any], commands: list[Command]) -> Iterator[str]:
    """Every ``ray start`` asks for the token, which every node has as a file."""
    for command in commands:
        start = _START.search(command.text)
        if start and not re.search(r"\bRAY_AUTH_MODE=token\b", start[0]):
            yield f"{command.key} must set RAY_AUTH_MODE=token before `ray start`, or anybody may run code there"
        if re.search(r"\bRAY_AUTH_TOKEN=", command.text):
            yield f"{command.key} must not hold the token itself (RAY_AUTH_TOKEN): mount its file"
    if not any(str(target).endswith(".ray/auth_token") for target in config["file_mounts"]):
        yield "file_mounts must bring the token to every node, ~/.ray/auth_token: ~/.ray/auth_token"


def _are_closed(config: dict[str, Any], commands: list[Command]) -> Iterator[str]:
    """Nothing but SSH is open, and SSH to the addresses of a network rule that the reader has made."""
    for command in commands:
        for host, everywhere in _LISTENER.findall(command.text):
            if (host or everywhere) not in _LOOPBACK:
                yield f"{command.key} must listen on 127.0.0.1 and be reached through SSH, got {host or everywhere}"
        if _OPENS.search(command.text) and _WORLD.search(command.text) and not _ONLY_SSH.search(command.text):
            yield f"{command.key} must open nothing but SSH to all addresses (0.0.0.0/0, ::/0), or anybody may run code"
    for place, rule in enumerate((config["provider"].get("security_group") or {}).get("IpPermissions") or []):
        if _WORLD.search(str(rule)) and (rule.get("FromPort"), rule.get("ToPort")) != (_SSH, _SSH):
            key = f"provider.security_group.IpPermissions[{place}]"
            ports = f"ports {rule.get('FromPort', 'all')} to {rule.get('ToPort', 'all')}"
            yield f"{key} must open nothing but SSH to all addresses (0.0.0.0/0, ::/0), got {ports}"
    for name, kind in _node_types(config):
        key, node = f"available_node_types.{name}.node_config", kind["node_config"]
        provider = config["provider"]["type"]
        if provider == "aws" and not (node.get("SecurityGroupIds") or node.get("NetworkInterfaces")):
            yield f"{key}.SecurityGroupIds must name a group of your own: Ray's lets in SSH from everywhere"
        subnetworks = re.findall(r"'subnetwork': '([^']+)'", str(node))
        if provider == "gcp" and (not subnetworks or any(name.endswith("/default") for name in subnetworks)):
            yield f"{key}.networkInterfaces must name a subnetwork of your own: Ray's lets in SSH from everywhere"


RULES = (_are_shell, _are_pinned, _have_a_token, _are_closed)
"""Beside Ray's schema and a price for each machine type; the one on ``YOURS`` is a note, as examples have it."""
