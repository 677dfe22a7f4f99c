"""Whether a cluster is closed to everybody else, holds few rights, and leaves nothing behind that is paid for."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator
from typing import Any

from cifar_ray.config import errors
from cifar_ray.config.strict import mapping
from cifar_ray.orchestration.clusterfile.read import listing, node_types
from cifar_ray.orchestration.clusterfile.shell import Call, commands

_EVERYWHERE = "0.0.0.0/0"
_WIDEST = {4: 16, 6: 48}
"""IP version -> bits that all addresses that may come in must have in common."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANY_ADDRESS = re.compile(r"(?<![\d.])0\.0\.0\.0(?![\d./])|\[::\]")
_HOST_FLAGS = {
    "ray": {"--dashboard-host", "--ray-client-server-host"},
    "mlflow": {"--host", "-h"},
    "uvicorn": {"--host"},
    "gunicorn": {"--bind", "-b"},
    "jupyter": {"--ip"},
    "tensorboard": {"--host"},
    "cifar-ray": {"--host"},
}
"""Program that listens -> options that say where."""

_STARTS = ("head_start_ray_commands", "worker_start_ray_commands")
_TOKEN_FILE = ".ray/auth_token"  # noqa: S105  a path
_RAYS_PROFILE = re.compile(r"(.*/)?ray-autoscaler-v1")
_RAYS_ACCOUNT = re.compile(r"default|ray-autoscaler-sa-v1@.*|.*-compute@developer\.gserviceaccount\.com")
_ROOT_DEVICES = ("/dev/sda1", "/dev/xvda")
_PUBLISH = ("-p", "--publish")


def problems(config: dict[str, Any], provider: str) -> Iterator[str]:
    """A sentence for everything that is open, or given away."""
    yield from _token(config)
    yield from _listeners(config)
    yield from _docker(config)
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
        told = False
        for call in command.calls():
            program, words = _program(call)
            for word, following in zip(words, (*words[1:], ""), strict=True):
                flag, equals, value = word.partition("=")
                address = value if equals else following
                if flag in _HOST_FLAGS.get(program, ()) and address and not _is_loopback(address):
                    told = True
                    yield f"{command.key} must keep {flag} on 127.0.0.1 and be reached through SSH, got {address}"
        if found := not told and _ANY_ADDRESS.search(command.text):
            yield f"{command.key} must listen on 127.0.0.1 and be reached through SSH, got {found[0]}"


def _program(call: Call) -> tuple[str, tuple[str, ...]]:
    """The name of what is started, and all its words; ``uv run`` and ``python -m`` start something else."""
    words = call.words
    if words[:2] == ("uv", "run") or (words[0].startswith("python") and words[1:2] == ("-m",)):
        words = words[2:] or words
    return words[0].rsplit("/", 1)[-1], words


def _is_loopback(address: str) -> bool:
    """Whether it is this machine alone, with a port behind it or not; what a shell would fill in is not known."""
    host = re.sub(r":\d+$", "", address) if address not in _LOOPBACK else address
    return host.strip("[]") in _LOOPBACK or address.startswith("unix:")


def _docker(config: dict[str, Any]) -> Iterator[str]:
    for key, options in _run_options(config):
        words = " ".join(str(option) for option in options).replace("=", " ").split()
        if "--privileged" in words:
            yield f"{key} must not have --privileged, with which a container owns the machine"
        for word, following in itertools.pairwise(words):
            if word in _PUBLISH and not _is_loopback(following.partition("/")[0].rsplit(":", 2)[0]):
                yield f"{key} must publish ports on 127.0.0.1 alone, got {word} {following}"


def _run_options(config: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    docker = mapping(config.get("docker"))
    for name in ("run_options", "head_run_options", "worker_run_options"):
        yield f"docker.{name}", listing(docker.get(name))
    for name, kind in node_types(config).items():
        key = f"available_node_types.{name}.docker.worker_run_options"
        yield key, listing(mapping(kind.get("docker")).get("worker_run_options"))


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
        yield f"{key}.SecurityGroupIds must name a group of your own: Ray's opens SSH (port 22) to {_EVERYWHERE}"
    if not node.get("IamInstanceProfile"):
        yield f"{key}.IamInstanceProfile must name a profile of few rights: Ray's own has all of EC2 and S3"
    profile = mapping(node.get("IamInstanceProfile"))
    if any(_RAYS_PROFILE.fullmatch(str(profile.get(name))) for name in ("Name", "Arn")):
        yield f"{key}.IamInstanceProfile must not be Ray's own, ray-autoscaler-v1, which has all of EC2 and S3"
    if mapping(node.get("MetadataOptions")).get("HttpTokens") != "required":
        yield f"{key}.MetadataOptions.HttpTokens must be required (IMDSv2), or any request gives away the credentials"
    named = {
        str(mapping(disk).get("DeviceName")): mapping(mapping(disk).get("Ebs"))
        for disk in listing(node.get("BlockDeviceMappings"))
    }
    disks = list(named.values())
    if not any(named.get(device) for device in _ROOT_DEVICES):
        yield (
            f"{key}.BlockDeviceMappings must list the disk that the machine boots from, "
            f"{errors.one_of(_ROOT_DEVICES)}, with Encrypted: true"
        )
    for position, disk in enumerate(disks):
        where = f"{key}.BlockDeviceMappings[{position}].Ebs"
        if disk and disk.get("Encrypted") is not True:
            yield f"{where}.Encrypted must be true"
        if disk and disk.get("DeleteOnTermination") is False:
            yield f"{where}.DeleteOnTermination must be true: a disk that stays behind costs money"


def _gcp_node(node: dict[str, Any], key: str) -> Iterator[str]:
    subnetworks = [str(mapping(face).get("subnetwork") or "") for face in listing(node.get("networkInterfaces"))]
    if not subnetworks or any(name.rsplit("/", 1)[-1] in ("", "default") for name in subnetworks):
        yield f"{key}.networkInterfaces must name a subnetwork of your own: the default one lets SSH in from everywhere"
    if not node.get("serviceAccounts"):
        yield f"{key}.serviceAccounts must name an account of few rights: Ray's own may administer all machines"
    for account in listing(node.get("serviceAccounts")):
        email = str(mapping(account).get("email"))
        if _RAYS_ACCOUNT.fullmatch(email):
            yield f"{key}.serviceAccounts must name an account of few rights, which {email} is not"
    for position, disk in enumerate(listing(node.get("disks"))):
        if mapping(disk).get("autoDelete") is not True:
            yield f"{key}.disks[{position}].autoDelete must be true: a disk that stays behind costs money"


def _open_rule(rule: dict[str, Any], key: str) -> Iterator[str]:
    ports = (rule.get("FromPort"), rule.get("ToPort"))
    named = "all ports" if None in ports or -1 in ports else f"ports {ports[0]} to {ports[1]}"
    for ranges, address in (("IpRanges", "CidrIp"), ("Ipv6Ranges", "CidrIpv6")):
        for allowed in listing(rule.get(ranges)):
            text = str(mapping(allowed).get(address))
            try:
                network = ipaddress.ip_network(text, strict=False)
            except ValueError:
                yield f"{key}.{ranges} must be ranges of addresses such as 203.0.113.7/32, got {text}"
                continue
            if network.prefixlen < _WIDEST[network.version]:
                widest = f"a range is /{_WIDEST[network.version]} at most"
                yield f"{key}.{ranges} must not open {named} to everybody ({text}); {widest}"
            elif ports != (22, 22):
                yield f"{key}.{ranges} must not open {named} to {text}; SSH (port 22) alone is for addresses"
