"""Whether a cluster is made of the same versions tomorrow: images, Python, Ray and every package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from cifar_ray.clusterfile.read import listing, mapping, node_types
from cifar_ray.clusterfile.shell import Call, commands

_CONSTRAINTS = {"-c", "--constraint", "--constraints"}
_HASHES = "--require-hashes"
_REQUIREMENTS = {"-r", "--requirement", "--requirements"}
_WITH_VALUE = _CONSTRAINTS | {
    "-p",
    "--python",
    "-i",
    "--index-url",
    "--default-index",
    "--index",
    "--extra-index-url",
    "-f",
    "--find-links",
    "-t",
    "--target",
    "--prefix",
    "--root",
    "--timeout",
    "--retries",
    "--cache-dir",
    "--index-strategy",
}
_RAY = re.compile(r"ray(\[[^]]*\])?==(?P<version>.+)")
_NAMED_PYTHON = re.compile(r"(--python|-p)[= ]+(cpython-?)?\d+\.\d+|python\d+\.\d+\s|\bpython=+\d+\.\d+")
_MAKES_ENVIRONMENT = re.compile(r"-m venv\b|\bvirtualenv\b|\buv venv\b|\bconda create\b")
_DEFAULTS = ("setup_commands", "head_setup_commands")
_UNFIXED = ("latest", "nightly")


def problems(config: dict[str, Any], provider: str) -> Iterator[str]:
    """A sentence for everything that is not pinned, or pinned to another Ray than this program's."""
    if provider in ("aws", "gcp"):
        for key in _DEFAULTS:
            if key not in config:
                yield f"{key} must be given: Ray's own default installs packages that are not pinned"
    yield from _images(config, provider)
    yield from _python(config)
    for command in commands(config):
        for call in command.calls():
            yield from (f"{command.key} {problem}" for problem in _packages(call))


def _packages(call: Call) -> Iterator[str]:
    words = list(call.words)
    installer = next((at for at, word in enumerate(words) if word.rsplit("/", 1)[-1] in ("pip", "pip3")), None)
    if installer is None or "install" not in words[installer:]:
        return
    words = words[words.index("install", installer) + 1 :]
    held = bool(_CONSTRAINTS & set(words)) or any(word.split("=")[0] in _CONSTRAINTS for word in words)
    held = held or _HASHES in words
    position = 0
    while position < len(words):
        word = words[position]
        position += 2 if word in _WITH_VALUE else 1
        if word.startswith("-") and word not in _REQUIREMENTS:
            continue
        if word in _REQUIREMENTS and not held:
            yield f"must name a constraints file (-c), or {_HASHES}, beside {word}"
        ray = _RAY.fullmatch(word)
        if ray and ray["version"] != version("ray"):
            yield f"must install ray=={version('ray')}, which this program runs with, got {ray['version']}"
        if any(unfixed in word for unfixed in _UNFIXED) or not (held or _is_exact(word)):
            yield f"must name a version (==) or a constraints file (-c) for '{word}'"


def _is_exact(requirement: str) -> bool:
    return "==" in requirement and "*" not in requirement


def _python(config: dict[str, Any]) -> Iterator[str]:
    makers = [command for command in commands(config) if _MAKES_ENVIRONMENT.search(command.text)]
    if makers and not any(_NAMED_PYTHON.search(command.text) for command in makers):
        yield f"{makers[0].key} must name the Python version, such as `uv venv --python 3.11.7`, as nodes must agree"


def _images(config: dict[str, Any], provider: str) -> Iterator[str]:
    docker = mapping(config.get("docker"))
    for name in ("image", "head_image", "worker_image"):
        yield from _container(f"docker.{name}", docker.get(name))
    for name, kind in node_types(config).items():
        key = f"available_node_types.{name}"
        yield from _container(f"{key}.docker.worker_image", mapping(kind.get("docker")).get("worker_image"))
        node = mapping(kind.get("node_config"))
        if provider == "aws":
            image = str(node.get("ImageId", ""))
            if not image.startswith("ami-"):
                yield f"{key}.node_config.ImageId must be the id of one image (ami-...), got {image or 'none'!r}"
        elif provider == "gcp":
            yield from _gcp_image(f"{key}.node_config.disks", node)


def _gcp_image(key: str, node: dict[str, Any]) -> Iterator[str]:
    for position, disk in enumerate(listing(node.get("disks"))):
        image = str(mapping(mapping(disk).get("initializeParams")).get("sourceImage", ""))
        if mapping(disk).get("boot") and (not image or "/family/" in image):
            where = f"{key}[{position}].initializeParams.sourceImage"
            yield f"{where} must be one image, not a family that moves on, got {image or 'none'!r}"


def _container(key: str, image: Any) -> Iterator[str]:
    if not image:
        return
    name, at, _ = str(image).partition("@sha256:")
    repository, colon, tag = name.rpartition(":")
    if "/" in tag or not colon:
        repository, tag = name, ""
    if not at and (not tag or any(unfixed in tag for unfixed in _UNFIXED)):
        yield f"{key} must have a version's tag or a digest (@sha256:...), got {image!r}"
    elif repository.startswith("rayproject/") and tag and not re.match(rf"{re.escape(version('ray'))}(-|$)", tag):
        yield f"{key} must be of Ray {version('ray')}, which this program runs with, got {image!r}"
