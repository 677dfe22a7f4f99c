"""Read a command that is to run as a job, and name the job: the same command always has the same name."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cifar_ray.config import command_line, errors, runfile, servers, sweep, sweepfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import NAME, TrainConfig
from cifar_ray.orchestration.jobs import packing


@dataclass(frozen=True)
class Submission:
    """A command as a job.

    Attributes:
        name: of the job.
        words: of the command, without ``cifar-ray``.
        identity: hash of the resolved options, the same however the command is worded.
        continued_by: command that continues this one after an interruption, without ``cifar-ray``.
        tracking_uri: the store that the command or its file names.
        file: YAML file that the words name.
        numbered: the name needs a number at its end, since a run can be continued more than once.
    """

    name: str
    words: tuple[str, ...]
    identity: str
    continued_by: str
    tracking_uri: str | None = None
    file: str | None = None
    numbered: bool = False

    @property
    def command(self) -> str:
        """The command as typed."""
        return shlex.join(["cifar-ray", *self.words])

    def entrypoint(self, root: Path) -> str:
        """Return the shell command for a copy of the working folder; ``exec``, so that signals reach Python."""
        words = list(self.words)
        if self.file is not None:
            words[words.index(self.file, 1)] = packing.inside(root, self.file)
        return f"exec python -m cifar_ray.cli {shlex.join(words)}"


def read(words: Sequence[str], name: str | None) -> Submission:
    """Read ``train``, ``resume`` or ``sweep`` with its options as the command itself would.

    Args:
        words: of the command, without ``cifar-ray``.
        name: of the job; the run's, the sweep's or a hash of the options when None.

    Raises:
        ConfigError: on what the command would refuse, or what has no meaning on a cluster.
    """
    if name is not None and not re.fullmatch(NAME, name):
        raise ConfigError("name", f"must be 1 to 120 letters, digits, '.', '_' or '-', got {name!r}")
    readers = {"train": _train, "resume": _resume, "sweep": _sweep}
    if words[0] not in readers:
        raise ConfigError("", f"cifar-ray submit takes {errors.one_of(readers)} after `--`, got {words[0]!r}")
    return readers[words[0]](words[1:], name)


def _train(words: Sequence[str], name: str | None) -> Submission:
    config = command_line.train(words).config
    file, given = command_line.config_file(words)
    _check(config)
    from cifar_ray.training import recipe  # loads torch, which a mistake should not wait for

    identity = _hash(runfile.to_yaml(recipe.resolve(config)))
    name = name or config.run_name or f"train-{identity[:8]}"
    named = [] if config.run_name else ["--run-name", name]
    words = ["train", *(["--config", file] if file else []), *given, *named]
    return Submission(name, tuple(words), identity, f"resume {config.run_name or name}", config.tracking_uri, file)


def _resume(words: Sequence[str], name: str | None) -> Submission:
    run, changes = command_line.resume(words)
    _check(runfile.merge(TrainConfig(), changes))
    identity = _hash(f"resume {run} {sorted(changes.items())}")
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", run)  # MLflow takes any name, a job does not
    words = ["resume", *words]
    store, numbered = changes.get("tracking_uri"), name is None
    return Submission(name or f"resume-{slug}", tuple(words), identity, shlex.join(words), store, numbered=numbered)


def _sweep(words: Sequence[str], name: str | None) -> Submission:
    asked = command_line.sweep(words)
    if not asked.is_named and asked.config is not None:  # the same command always has the same name
        unnamed = sweepfile.to_yaml(dataclasses.replace(asked.config, name="sweep"))
        words = [*words, "--name", name or f"sweep-{_hash(unnamed)[:8]}"]
        asked = command_line.sweep(words)
    again, words = f"sweep --resume {asked.name}", ("sweep", *words)
    if asked.config is None:
        name, numbered = name or f"resume-{asked.name}", name is None
        return Submission(name, words, _hash(again), again, asked.tracking_uri, numbered=numbered)
    _check(asked.config.base)
    from cifar_ray.orchestration.sweep import planner  # loads Ray Tune and MLflow

    planner.refuse(asked.config, planner.plan(sweep.cells(asked.config, planner.draw(asked.config))))
    store, identity = asked.config.base.tracking_uri, _hash(sweepfile.to_yaml(asked.config))
    return Submission(name or asked.name, words, identity, again, store, asked.file)


def _check(config: TrainConfig) -> None:
    """Raise ConfigError on an option that only makes sense on this machine."""
    if servers.is_made_up(config):
        raise ConfigError(
            "local_nodes" if config.local_nodes > 1 else "oversubscribe", "is for a Ray started here, not for a job"
        )
    for key in ("storage", "data_dir"):
        given = getattr(config, key)
        if given is not None and "://" not in given and not given.startswith(("/", "~")):
            raise ConfigError(key, f"must begin with / or ~ in a job, which runs in a temporary folder, got {given!r}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
