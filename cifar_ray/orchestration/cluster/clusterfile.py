"""Check a file for ``ray up`` for what opens a cluster to others; ``ray up`` checks its schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.yaml import mapping, read

MARK = "YOURS"
"""Marks a line that needs the reader's own value."""

_WORLD = re.compile(r"(?<![\d.])0\.0\.0\.0(?![\d.])|(?<![\w:])::/0")
_HOST = re.compile(r"--(?:dashboard|ray-client-server)-host[= ]+[\"']?(?!127\.0\.0\.1|localhost|::1)")
_ONLY_SSH = re.compile(r"(?:--port |(?:--allow|--rules)[ =]tcp:)22(?=\s)|\bdeny\b")
_WITH_TOKEN = re.compile(r"\bRAY_AUTH_MODE=token\b.*\bray start\b", re.DOTALL)


def check(path: Path) -> list[str]:
    """Return one sentence for each fault of a cluster file.

    Raises:
        ConfigError: when the file cannot be read, or is not for ``ray up``.
    """
    config = read(path)
    if not {"cluster_name", "provider"} <= config.keys():
        raise ConfigError("", f"{path} is not for `ray up`, which needs `cluster_name` and `provider`")
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    marked = [str(number) for number, line in lines if MARK in line and not line.lstrip().startswith("#")]
    problems = [f"your own values ({MARK}) are missing in lines {', '.join(marked)}"] if marked else []
    for key, value in _walk(config):
        if isinstance(value, dict) and "IpProtocol" in value and _WORLD.search(str(value)):
            ports = (value.get("FromPort", "all"), value.get("ToPort", "all"))
            if ports != (22, 22):
                problems.append(f"{key} must open nothing but SSH to all addresses, got ports {ports[0]} to {ports[1]}")
        elif isinstance(value, str) and "_commands[" in key:
            if (_WORLD.search(value) and not _ONLY_SSH.search(value)) or _HOST.search(value):
                problems.append(f"{key} must open nothing but SSH: listen on 127.0.0.1, or anybody may run code there")
            if "ray start" in value and not _WITH_TOKEN.search(value):
                problems.append(f"{key} must set RAY_AUTH_MODE=token before `ray start`, or anybody may run code there")
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        if "ray start" not in str(config.get(key)):
            problems.append(f"{key} must have `ray start` with RAY_AUTH_MODE=token, which Ray's default lacks")
    if not any(str(target).endswith(".ray/auth_token") for target in mapping(config.get("file_mounts"))):
        problems.append("file_mounts must bring the token to every node, ~/.ray/auth_token: ~/.ray/auth_token")
    return problems


def _walk(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in the file, and its key, such as ``setup_commands[1]``."""
    yield key, value
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield from _walk(inner, f"{key}.{name}".removeprefix("."))
    for index, inner in enumerate(value if isinstance(value, list) else ()):
        yield from _walk(inner, f"{key}[{index}]")
