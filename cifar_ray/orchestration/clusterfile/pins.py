"""Whether a cluster is made of the same versions tomorrow: images, Python, Ray and every package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from cifar_ray.config.strict import mapping
from cifar_ray.orchestration.clusterfile.read import listing, node_types
from cifar_ray.orchestration.clusterfile.shell import Call, commands

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
_COMMIT = re.compile(r"@[0-9a-f]{40}(#|$)")
_PIP = re.compile(r"pip[\d.]*|pipx")
_CONDA = {"conda", "mamba", "micromamba"}
_CONDA_VALUES = {"-c", "--channel", "-n", "--name", "-p", "--prefix", "-f", "--file", "--solver"}
_NAMED_PYTHON = re.compile(r"(?:(?:--python|-p)[= ]+(?:cpython-?|python)?|\bpython=*)(\d+\.\d+[\d.]*)")
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
    for at, word in enumerate(call.words):
        name = word.rsplit("/", 1)[-1]
        following = call.words[at + 1 :]
        if _PIP.fullmatch(name) or call.words[at : at + 2] == ("tool", "install"):
            if "install" in following:
                yield from _of_pip(following[following.index("install") + 1 :])
            return
        if name in _CONDA:
            if {"install", "create"} & set(following[:1]):
                yield from _of_conda(following[1:])
            return


def _of_pip(words: tuple[str, ...]) -> Iterator[str]:
    held = bool(_CONSTRAINTS & set(words)) or any(word.split("=")[0] in _CONSTRAINTS for word in words)
    held = held or _HASHES in words
    for word in _wanted(words, _WITH_VALUE):
        if word in _REQUIREMENTS and not held:
            yield f"must name a constraints file (-c), or {_HASHES}, beside {word}"
        if word.startswith("-"):
            continue
        if "git+" in word:
            if not _COMMIT.search(word):
                yield f"must name a commit (@ and its 40 digits) for '{word}', whose branches and tags move on"
            continue
        asked = _requirement(word)
        exact = asked is not None and _is_exact(asked)
        of_ray = asked is not None and canonicalize_name(asked.name) == "ray"
        if asked and of_ray and not asked.specifier.contains(version("ray"), prereleases=True):
            got = str(asked.specifier).removeprefix("==")
            yield f"must install ray=={version('ray')}, which this program runs with, got {got}"
        if any(unfixed in word for unfixed in _UNFIXED) or not (held or exact):
            yield f"must name a version (==) or a constraints file (-c) for '{word}'"


def _of_conda(words: tuple[str, ...]) -> Iterator[str]:
    for word in _wanted(words, _CONDA_VALUES):
        if not word.startswith("-") and not re.fullmatch(r"[\w.:-]+=[^*]+", word):
            yield f"must name a version (=) for '{word}'"


def _wanted(words: tuple[str, ...], with_value: set[str]) -> Iterator[str]:
    """The words without the values of options."""
    position = 0
    while position < len(words):
        yield words[position]
        position += 2 if words[position] in with_value else 1


def _requirement(word: str) -> Requirement | None:
    """What pip is asked for; None for a file, a folder or an address."""
    try:
        return Requirement(word)
    except InvalidRequirement:
        return None


def _is_exact(requirement: Requirement) -> bool:
    return any(part.operator in ("==", "===") and "*" not in part.version for part in requirement.specifier)


def _python(config: dict[str, Any]) -> Iterator[str]:
    """One Python, named, for whatever Ray is started from."""
    starts = [command.text for command in commands(config) if "start_ray_commands" in command.key]
    first: dict[str, str] = {}
    unnamed = []
    for command in commands(config):
        for call in command.calls():
            words = " ".join(call.words)
            if not _MAKES_ENVIRONMENT.search(words):
                continue
            if named := _NAMED_PYTHON.search(words):
                first.setdefault(named[1], command.key)
            else:
                unnamed.append((command.key, call.words[-1]))
    for key, folder in unnamed:
        if not first or any(f"{folder}/bin/" in text for text in starts):
            yield f"{key} must name the Python version, such as `uv venv --python 3.11.7`, as nodes must agree"
    if len(first) > 1:
        yield f"{list(first.values())[-1]} must name the same Python as the others, got {' and '.join(first)}"


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
    if not any(mapping(disk).get("boot") for disk in listing(node.get("disks"))):
        yield f"{key} must list the disk that the machine boots from (boot: true), with its image"
    for position, disk in enumerate(listing(node.get("disks"))):
        image = str(mapping(mapping(disk).get("initializeParams")).get("sourceImage", ""))
        if mapping(disk).get("boot") and ("/images/" not in image or "/family/" in image):
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
