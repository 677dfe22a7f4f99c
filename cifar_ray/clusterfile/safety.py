"""Whether a cluster is closed to everybody else, holds few rights, and leaves nothing behind that is paid for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cifar_ray.clusterfile.read import listing, mapping, node_types
from cifar_ray.clusterfile.shell import Call, commands

EVERYWHERE = ("0.0.0.0/0", "::/0")
_ANY_ADDRESS = ("0.0.0.0", "::", "*")  # noqa: S104  what is refused
_HOST_FLAGS = ("--dashboard-host", "--host", "--ray-client-server-host")
_STARTS = ("head_start_ray_commands", "worker_start_ray_commands")
_TOKEN_FILE = ".ray/auth_token"  # noqa: S105  a path


def problems(config: dict[str, Any], provider: str) -> Iterator[str]:
    """A sentence for everything that is open, or given away."""
    yield from _token(config)
    yield from _listeners(config)
    if provider in ("aws", "gcp"):
        yield from _money(config)
    for name, kind in node_types(config).items():
        node = mapping(kind.get("node_config"))
        key = f"available_node_types.{name}.node_config"
        if provider == "aws":
            yield from _aws_node(node, key)
        elif provider == "gcp":
            yield from _gcp_node(node, key)
    rules = listing(mapping(mapping(config.get("provider")).get("security_group")).get("IpPermissions"))
    for position, rule in enumerate(rules):
        yield from _open_rule(mapping(rule), f"provider.security_group.IpPermissions[{position}]")


def _token(config: dict[str, Any]) -> Iterator[str]:
    """Ray's token authentication: on wherever Ray starts, with a file that every node has."""
    starts = [(command.key, call) for command in commands(config) for call in command.calls() if _starts_ray(call)]
    for key in _STARTS:
        if not any(where.startswith(f"{key}[") for where, _ in starts):
            yield f"{key} must start Ray itself: Ray's own default starts it without a token"
    for where, call in starts:
        if call.variables.get("RAY_AUTH_MODE") != "token":
            yield f"{where} must set RAY_AUTH_MODE=token before `ray start`, or anybody who reaches it may run code"
    mounts = [str(target) for target in mapping(config.get("file_mounts"))]
    named = all("RAY_AUTH_TOKEN_PATH" in call.variables for _, call in starts) and starts
    if not named and not any(target.endswith(_TOKEN_FILE) for target in mounts):
        yield "file_mounts must bring the token to every node, ~/.ray/auth_token: ~/.ray/auth_token"
    for command in commands(config):
        if re.search(r"\bRAY_AUTH_TOKEN=", command.text):
            yield f"{command.key} must not hold the token itself (RAY_AUTH_TOKEN); mount its file"


def _starts_ray(call: Call) -> bool:
    return call.words[:2] == ("ray", "start")


def _listeners(config: dict[str, Any]) -> Iterator[str]:
    for command in commands(config):
        for call in command.calls():
            for word, following in zip(call.words, (*call.words[1:], ""), strict=True):
                flag, equals, value = word.partition("=")
                if flag in _HOST_FLAGS and (value if equals else following) in _ANY_ADDRESS:
                    address = value if equals else following
                    yield f"{command.key} must keep {flag} on 127.0.0.1 and be reached through SSH, got {address}"


def _money(config: dict[str, Any]) -> Iterator[str]:
    provider = mapping(config.get("provider"))
    if provider.get("cache_stopped_nodes") is not False:
        yield "provider.cache_stopped_nodes must be false: machines that are stopped, not ended, cost money"
    head = config.get("head_node_type")
    workers = {name: kind for name, kind in node_types(config).items() if name != head}
    for name, kind in workers.items():
        most = kind.get("max_workers", config.get("max_workers", 0))
        if most != kind.get("min_workers", 0) and not (
            config.get("idle_timeout_minutes") or kind.get("idle_timeout_s")
        ):
            yield f"idle_timeout_minutes must be given, since nodes of {name} come and go"


def _aws_node(node: dict[str, Any], key: str) -> Iterator[str]:
    interfaces = listing(node.get("NetworkInterfaces"))
    grouped = bool(interfaces) and all(mapping(interface).get("Groups") for interface in interfaces)
    if not node.get("SecurityGroupIds") and not grouped:
        yield f"{key}.SecurityGroupIds must name a group of your own: Ray's opens SSH (port 22) to {EVERYWHERE[0]}"
    if not node.get("IamInstanceProfile"):
        yield f"{key}.IamInstanceProfile must name a profile of few rights: Ray's own has all of EC2 and S3"
    if mapping(node.get("MetadataOptions")).get("HttpTokens") != "required":
        yield f"{key}.MetadataOptions.HttpTokens must be required (IMDSv2), or any request gives away the credentials"
    disks = [mapping(mapping(disk).get("Ebs")) for disk in listing(node.get("BlockDeviceMappings"))]
    if not disks:
        yield f"{key}.BlockDeviceMappings must list the machine's disk with Encrypted: true"
    for position, disk in enumerate(disks):
        where = f"{key}.BlockDeviceMappings[{position}].Ebs"
        if disk and disk.get("Encrypted") is not True:
            yield f"{where}.Encrypted must be true"
        if disk and disk.get("DeleteOnTermination") is False:
            yield f"{where}.DeleteOnTermination must be true: a disk that stays behind costs money"


def _gcp_node(node: dict[str, Any], key: str) -> Iterator[str]:
    if not all(mapping(face).get("subnetwork") for face in listing(node.get("networkInterfaces")) or [{}]):
        yield f"{key}.networkInterfaces must name a subnetwork of your own: the default one lets SSH in from everywhere"
    if not node.get("serviceAccounts"):
        yield f"{key}.serviceAccounts must name an account of few rights: Ray's own may administer all machines"
    for position, disk in enumerate(listing(node.get("disks"))):
        if mapping(disk).get("autoDelete") is not True:
            yield f"{key}.disks[{position}].autoDelete must be true: a disk that stays behind costs money"


def _open_rule(rule: dict[str, Any], key: str) -> Iterator[str]:
    for ranges, address in (("IpRanges", "CidrIp"), ("Ipv6Ranges", "CidrIpv6")):
        for allowed in listing(rule.get(ranges)):
            if mapping(allowed).get(address) in EVERYWHERE:
                ports = f"ports {rule.get('FromPort')} to {rule.get('ToPort')}"
                yield f"{key}.{ranges} must not open {ports} to everybody ({mapping(allowed)[address]})"
