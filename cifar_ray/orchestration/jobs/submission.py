"""What is submitted as a job: a command that has been read here first, under a name that stays the same."""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cifar_ray.config import errors, runtext, sweep, sweeptext
from cifar_ray.config import train as configs
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import NAME, TrainConfig
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.jobs import packing
from cifar_ray.training import recipe

_IDENTITY_DIGITS = 8


@dataclass(frozen=True)
class Submission:
    """A command as a job.

    Attributes:
        name: the job's name.
        words: of the command, without ``cifar-ray``.
        identity: hash of what the command asks for, however it is worded.
        file: YAML file that the words name.
        continued_by: words of the command that goes on where this one is interrupted.
        numbered: whether its name needs a number at its end, as one that continues a run has no name of its own.
    """

    name: str
    words: tuple[str, ...]
    identity: str
    continued_by: str
    file: str | None = None
    numbered: bool = False

    @property
    def command(self) -> str:
        """The command as a person would type it."""
        return shlex.join(["cifar-ray", *self.words])

    def called(self, name: str | None, taken: Container[str]) -> Submission:
        """The same under another name, or under the first one with a number at its end that is not taken."""
        numbered = (f"{self.name}-{number}" for number in itertools.count(1))
        return replace(self, name=name or next(label for label in numbered if label not in taken))

    def entrypoint(self, root: Path) -> str:
        """What the shell of the cluster runs, in a copy of the working folder."""
        words = list(self.words)
        if self.file is not None:
            words[words.index(self.file, 1)] = packing.inside(root, self.file)
        # In the shell's place, so that signals reach it.
        return f"exec python -m cifar_ray.cli {shlex.join(words)}"


def read(words: Sequence[str], name: str | None) -> Submission:
    """Read a command as the command itself would, and name it.

    Args:
        words: ``train``, ``resume`` or ``sweep`` with its options.
        name: the job's name; made from the run's name, the sweep's, or from what is asked for, when None.

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
    config = runtext.train(words)
    file, given = runtext.config_file(words)
    _check(config)
    identity = _hash(configs.to_yaml(recipe.resolve(config)))
    chosen = name or config.run_name or f"train-{identity[:_IDENTITY_DIGITS]}"
    named = [] if config.run_name else ["--run-name", chosen]
    words = ["train", *(["--config", file] if file else []), *given, *named]
    return Submission(chosen, tuple(words), identity, f"resume {config.run_name or chosen}", file)


def _resume(words: Sequence[str], name: str | None) -> Submission:
    run, changes = runtext.resume(words)
    _check(configs.merge(TrainConfig(), changes))
    # The run may be of any name that MLflow has; the job's is a file's, too.
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", run)
    identity = _hash(f"resume {run} {sorted(changes.items())}")
    words = ["resume", *words]
    return Submission(name or f"resume-{slug}", tuple(words), identity, shlex.join(words), numbered=name is None)


def _sweep(words: Sequence[str], name: str | None) -> Submission:
    asked = runtext.sweep(words)
    if asked.config is None:
        identity = _hash(f"sweep {asked.name}")
        chosen = name or f"resume-{asked.name}"
        return Submission(chosen, ("sweep", *words), identity, f"sweep --resume {asked.name}", numbered=name is None)
    _check(asked.config.base)
    from cifar_ray.orchestration.sweep import planner  # loads Ray Tune and MLflow

    planner.refuse(asked.config, planner.plan(sweep.cells(asked.config, planner.draw(asked.config))))
    identity = _hash(sweeptext.to_yaml(asked.config))
    again = f"sweep --resume {asked.name}"
    return Submission(name or asked.name, ("sweep", *words), identity, again, asked.file)


def _check(config: TrainConfig) -> None:
    """Refuse what means something on this machine only."""
    if connection.is_made_up(config):
        raise ConfigError(
            "local_nodes" if config.local_nodes > 1 else "oversubscribe", "is for a Ray started here, not for a job"
        )
    for key in ("storage", "data_dir"):
        given = getattr(config, key)
        if given is not None and "://" not in given and not given.startswith(("/", "~")):
            raise ConfigError(
                key, f"must begin with / or ~ in a job, whose working folder is a copy for its time, got {given!r}"
            )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
