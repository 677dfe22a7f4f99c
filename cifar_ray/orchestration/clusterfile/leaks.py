"""Whether a cluster file gives away what is its reader's alone: passwords in commands, keys and whole folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cifar_ray.config.strict import mapping
from cifar_ray.orchestration.clusterfile.shell import commands

_SECRETS = re.compile(
    r"\b(AWS_SECRET_ACCESS_KEY|AWS_SESSION_TOKEN|PGPASSWORD|MLFLOW_TRACKING_PASSWORD|MLFLOW_TRACKING_TOKEN)"
    r"""=["']?[^\s"'$`]"""
)
"""A variable with its value written out; one that a shell fills in is no secret yet."""

_ADDRESS = re.compile(r"""[a-z][\w+.-]*://[^\s/:@"']*:[^\s/@"'$`]+@""")
_PRIVATE = ("~/.aws", "~/.ssh", "~/.config/gcloud", "~/.kube", "~/.netrc")


def problems(config: dict[str, Any], provider: str) -> Iterator[str]:
    """A sentence for every secret in a command, and for every mount of more than the cluster needs."""
    for command in commands(config):
        if found := _SECRETS.search(command.text):
            yield f"{command.key} must not hold {found[1]}: give the machine a role, or have it look the value up"
        if _ADDRESS.search(command.text):
            yield f"{command.key} must not hold an address with a password: have the machine look it up"
    # Ray takes a path without a leading / from the folder in which `ray up` is typed.
    whole = [Path.cwd(), *Path.cwd().parents, Path.home(), *Path.home().parents]
    for source in mapping(config.get("file_mounts")).values():
        path = Path(str(source)).expanduser().absolute().resolve()
        if path in whole:
            yield f"file_mounts must not copy all of {source}, with whatever lies in it: name the pieces"
        private = (Path(folder).expanduser().resolve() for folder in _PRIVATE)
        if any(folder in (path, *path.parents) for folder in private):
            yield f"file_mounts must not copy {source}: its keys open more than this cluster"
