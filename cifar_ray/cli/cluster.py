"""Commands for a Ray cluster: ``cifar-ray submit`` and ``cifar-ray check-cluster``."""

from __future__ import annotations

import hashlib
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cifar_ray.cli.train import new_limits, resume, sweep, train
from cifar_ray.config import command_line, flags, runfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sections import Name
from cifar_ray.orchestration.jobs import Submission


def check_cluster(*files: Path) -> int:
    """Check files for `ray up` offline: your own values, the token, open ports.

    Args:
        files: Ray cluster files, such as cluster.yaml.
    """
    from cifar_ray.orchestration.cluster import clusterfile

    if not files:
        raise ConfigError("files", "must be given")
    problems = [f"{file}: {fault}" for file in files for fault in clusterfile.check(file)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        print(f"{', '.join(map(str, files))}: ok")
    return 2 if problems else 0


def submit(
    *command: str,
    address: str | None = None,
    name: Name | None = None,
    working_dir: str | None = None,
    wait: bool = False,
) -> int:
    """Run `cifar-ray train`, `resume` or `sweep` on a Ray cluster as a job: submit [OPTIONS] -- train ...

    Args:
        command: The command, after `--`.
        address: http://HOST:PORT of the cluster's job server (RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265).
        name: Name of the job. Default: that of the run or sweep, or made from the options.
        working_dir: Folder to send, without hidden files and what .gitignore lists. Default: the current folder.
        wait: Print the job's output until it ends; the exit status is the command's.
    """
    if not command:
        raise ConfigError("", "cifar-ray submit needs the command after `--`, such as `cifar-ray submit -- train`")
    job = read(command, name)
    try:
        from cifar_ray.orchestration.jobs import client
    except ModuleNotFoundError as error:
        problem = f"this command needs {error.name}; install it with `pip install 'cifar-ray[cluster]'`"
        raise ConfigError("", problem) from None
    return client.submit(job, address, working_dir, wait)


def read(words: Sequence[str], name: str | None) -> Submission:
    """Read ``train``, ``resume`` or ``sweep`` with its options as the command itself would.

    The job is called ``name``; without one, as the run or the sweep, or by a hash of the words: the same command is not
    sent twice.

    Raises:
        ConfigError: on what the command would refuse, or a path that a job would lose.
    """
    commands: dict[str, Callable[..., Any]] = {"train": train, "resume": resume, "sweep": sweep}
    command, *rest = words
    if command not in commands:
        raise ConfigError("", f"cifar-ray submit takes train, resume or sweep after `--`, got {command!r}")
    given = flags.read(commands[command], rest, command)
    options, earlier = given["options"], given.get("run") or given.get("resume")
    file, flag = given.get("config") or given.get("file"), "--run-name"
    if earlier:
        own: str | None = f"resume-{time.strftime('%Y%m%d-%H%M%S')}"  # which can be done more than once
        if command == "sweep":
            new_limits(file, options)
        config = runfile.load(None, {**options, "max_cost": None})  # the run may have a price
    elif command == "train":
        config = runfile.load(file, options)
        own = config.run_name
    else:
        asked = command_line.sweep(file, options)
        config, own, flag = asked.base, asked.name if file or "name" in options else None, "--name"
    for key, path in (("storage", config.storage), ("data_dir", config.data_dir)):
        if path is not None and "://" not in path and not path.startswith(("/", "~")):
            raise ConfigError(key, f"must begin with / or ~ in a job, which runs in a temporary folder, got {path!r}")
    job = name or own or f"{command}-{hashlib.sha256(shlex.join(words).encode()).hexdigest()[:8]}"
    return Submission(job, [*words, *([] if own else [flag, job])], config.tracking_uri, file)
