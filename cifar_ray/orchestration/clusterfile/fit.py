"""Whether the values of a cluster file go together: what Ray and a cloud accept one by one, and then never works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cifar_ray.config.strict import mapping
from cifar_ray.orchestration.clusterfile.read import MARK, listing
from cifar_ray.orchestration.clusterfile.shell import Command, commands

_REGION = re.compile(r"\bAWS_(?:DEFAULT_)?REGION=([\w-]+)")
_ZONES = {"aws": r"{}(-[a-z]+-\d+)?[a-z]", "gcp": r"{}-[a-z]"}


def problems(config: dict[str, Any], provider: str) -> Iterator[str]:
    """A sentence for everything that contradicts something else."""
    yield from _starts(config)
    if provider == "local":
        yield from _own_machines(config)
    else:
        yield from _places(config, provider)


def notes(config: dict[str, Any]) -> Iterator[str]:
    """Mounts whose source is not here: a note, since the file may be meant for another folder or another person."""
    for source in mapping(config.get("file_mounts")).values():
        if not Path(str(source)).expanduser().exists():
            yield f"file_mounts copies {source}, which is not here: `ray up` fails without it"


def _starts(config: dict[str, Any]) -> Iterator[str]:
    listed = list(commands(config))
    head = _options(listed, "head_start_ray_commands")
    if head:
        for flag, why in (
            ("--head", "or Ray looks for a head elsewhere"),
            ("--autoscaling-config", "or no worker is ever started"),
        ):
            if not any(flag in options for _, options in head):
                yield f"{head[0][0]} must give `ray start` {flag}, {why}"
    for key, options in _options(listed, "worker_start_ray_commands"):
        if "--address" not in options:
            yield f"{key} must give `ray start` --address=$RAY_HEAD_IP:6379, or each worker is a cluster of its own"


def _options(listed: list[Command], key: str) -> list[tuple[str, set[str]]]:
    """Where Ray is started, and with which options."""
    return [
        (command.key, {word.partition("=")[0] for word in call.words})
        for command in listed
        if command.key.startswith(f"{key}[")
        for call in command.calls()
        if call.words[:2] == ("ray", "start")
    ]


def _own_machines(config: dict[str, Any]) -> Iterator[str]:
    if not mapping(config.get("auth")).get("ssh_user"):
        yield "auth.ssh_user must be given: the user that Ray logs in as on every machine"
    provider = mapping(config.get("provider"))
    if not isinstance(provider.get("worker_ips"), list):
        return  # a coordinator knows them, or Ray's schema has complained
    workers = listing(provider.get("worker_ips"))
    if not workers:
        yield "provider.worker_ips must name one machine or more; without workers no `ray up` is needed"
        return
    if provider.get("head_ip") in workers:
        yield f"provider.worker_ips must not have the head's address, {provider['head_ip']}: it trains without that"
    if config.get("max_workers", len(workers)) != len(workers):
        yield f"max_workers must be {len(workers)}, as many as worker_ips, got {config['max_workers']}"
    if not config.get("min_workers", len(workers)):
        got = config["min_workers"]
        yield f"min_workers must be 1 to {len(workers)}, got {got}: with 0 no worker is there when a run looks"


def _places(config: dict[str, Any], provider: str) -> Iterator[str]:
    given = mapping(config.get("provider"))
    region = str(given.get("region") or "")
    if not region or MARK in region:
        return
    pattern = _ZONES[provider].format(re.escape(region))
    for zone in str(given.get("availability_zone") or "").split(","):
        if zone.strip() and MARK not in zone and not re.fullmatch(pattern, zone.strip()):
            yield f"provider.availability_zone must be in the region {region}, got {zone.strip()}"
    for command in commands(config):
        for named in _REGION.findall(command.text):
            if named != region and MARK not in named:
                yield f"{command.key} must name the region of provider.region, {region}, got {named}"
