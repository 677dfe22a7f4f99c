"""Read a command that is to run as a job, and name the job, so that the same command is not sent twice."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from cifar_ray.config import command_line, files, runfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sections import NAME
from cifar_ray.config.train import TrainConfig


@dataclass(frozen=True)
class Submission:
    """A command as a job: its words are without ``cifar-ray``, and ``file`` is the YAML file that they name."""

    name: str
    words: list[str]
    tracking_uri: str | None
    file: str | None
    is_numbered: bool
    """Whether the name needs a number at its end, since a run can be continued more than once."""


def read(words: Sequence[str], name: str | None) -> Submission:
    """Read ``train``, ``resume`` or ``sweep`` with its options as the command itself would.

    The job is called ``name``; without one, as the run or the sweep, or by a hash of the words.

    Raises:
        ConfigError: on what the command would refuse, or a path that a job would lose.
    """
    if name is not None and not re.fullmatch(NAME, name):
        raise ConfigError("name", f"must be 1 to 120 letters, digits, '.', '_' or '-', got {name!r}")
    command, rest = words[0], list(words[1:])
    file = earlier = flag = None
    weights: list[str | None] = []
    job = name or f"{command}-{hashlib.sha256(shlex.join(words).encode()).hexdigest()[:8]}"
    if command == "train":
        config, (file, rest) = command_line.train(rest).config, command_line.config_file(rest)
        rest = [*(["--config", file] if file else []), *rest]
        weights = [config.weights]
        job, flag = name or config.run_name or job, None if config.run_name else "--run-name"
    elif command == "resume":
        earlier, changes = command_line.resume(rest)
        config = runfile.load(None, changes)
    elif command == "sweep":
        sweep = command_line.sweep(rest)
        if sweep.config is None:
            earlier, config = sweep.name, TrainConfig(tracking_uri=sweep.tracking_uri)
        else:
            config, file = sweep.config.base, sweep.file
            weights = [sweep.config.train.get("weights")]
            weights += [text for axes in sweep.config.grid for text in axes.get("weights", ())]
            job, flag = name or (sweep.name if sweep.is_named else job), None if sweep.is_named else "--name"
    else:
        raise ConfigError("", f"cifar-ray submit takes train, resume or sweep after `--`, got {command!r}")
    for key, path in [("storage", config.storage), ("data_dir", config.data_dir), *(("weights", w) for w in weights)]:
        is_here = path is not None and "://" not in path and (key != "weights" or files.existing(key, path))
        if path is not None and is_here and not path.startswith(("/", "~")):
            raise ConfigError(key, f"must begin with / or ~ in a job, which runs in a temporary folder, got {path!r}")
    if earlier and not name:
        job = f"resume-{re.sub(r'[^A-Za-z0-9._-]+', '-', earlier)}"  # MLflow takes any name, a job does not
    words = [command, *rest, *([flag, job] if flag else [])]
    return Submission(job, words, config.tracking_uri, file, is_numbered=bool(earlier and not name))
