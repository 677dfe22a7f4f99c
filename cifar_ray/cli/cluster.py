"""Commands for a Ray cluster: ``cifar-ray submit`` and ``cifar-ray check-cluster``."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cifar_ray.cli.sweep import new_limits, sweep
from cifar_ray.cli.train import resume, train
from cifar_ray.config import command_line, flags, runfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sections import Name
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.jobs import Submission


def check_cluster(*files: Path) -> int:
    """Check files for `ray up` offline: your own values, the token, open ports.

    Args:
        files: Ray cluster files, such as cluster.yaml.
    """
    from cifar_ray.orchestration.cluster import clusterfile

    if not files:
        raise ConfigError("files", "must be given")
    status = 0
    for file in files:
        try:
            faults = clusterfile.check(file)
            problems = [f"{file}: {problem}" for problem in faults]
        except ConfigError as error:
            problems = [error.problem]
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        if problems:
            status = 2
        else:
            print(f"{file}: ok")
    return status


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
    command, rest = words[0], list(words[1:])
    commands: dict[str, Callable[..., Any]] = {"train": train, "resume": resume, "sweep": sweep}
    if command not in commands:
        raise ConfigError("", f"cifar-ray submit takes train, resume or sweep after `--`, got {command!r}")
    given = flags.read(commands[command], rest, command)
    given = {key: value for key, value in given.items() if key not in ("json", "dry_run", "retry_failed")}
    file = earlier = flag = None
    job = name or f"{command}-{hashlib.sha256(shlex.join(words).encode()).hexdigest()[:8]}"
    if command == "train":
        config, file = command_line.train(**given), given.get("config")
        job, flag = name or config.run_name or job, None if config.run_name else "--run-name"
    elif command == "resume":
        earlier = given.pop("run")
        config = runfile.load(None, {**given, "max_cost": None})  # the run may have a price
    elif earlier := given.pop("resume", None):
        new_limits(**given)
        config = TrainConfig(tracking_uri=given["options"].get("tracking_uri"))
    else:
        asked, file = command_line.sweep(**given), given.get("file")
        config = asked.base
        is_named = file is not None or "name" in given["options"]
        job, flag = name or (asked.name if is_named else job), None if is_named else "--name"
    for key, path in (("storage", config.storage), ("data_dir", config.data_dir)):
        if path is not None and "://" not in path and not path.startswith(("/", "~")):
            raise ConfigError(key, f"must begin with / or ~ in a job, which runs in a temporary folder, got {path!r}")
    if earlier and not name:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", earlier)  # MLflow takes any name, a job does not
        job = f"resume-{plain}-{time.strftime('%Y%m%d-%H%M%S')}"  # a run can be continued more than once
    words = [*words, *([flag, job] if flag else [])]
    return Submission(job, words, config.tracking_uri, file)
