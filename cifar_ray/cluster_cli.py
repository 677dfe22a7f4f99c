"""The commands for a cluster and for a trained model. Each subcommand reads its words and calls one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from cifar_ray import flags
from cifar_ray.cluster_commands import JobsCommand, LogsCommand, StopCommand, SubmitCommand
from cifar_ray.strict import ConfigError


def submit(words: Sequence[str]) -> int:
    """``cifar-ray submit``."""
    own, command = _parted(words)
    if not command and not {"-h", "--help"} & set(own):
        raise ConfigError("", "cifar-ray submit needs the command after `--`, such as `cifar-ray submit -- train`")
    given = flags.read(SubmitCommand, own, None, "submit")
    return _jobs().submit(command, given.address, given.name, given.working_dir, given.wait)


def jobs(words: Sequence[str]) -> int:
    """``cifar-ray jobs``."""
    command = flags.read(JobsCommand, words, None, "jobs")
    from cifar_ray.console import Console

    Console().columns(("job", "status", "started", "duration", "command"), _jobs().table(command.address))
    return 0


def logs(words: Sequence[str]) -> int:
    """``cifar-ray logs``."""
    command = flags.read(LogsCommand, words, None, "logs")
    return _jobs().logs(command.job, command.address, command.follow)


def stop(words: Sequence[str]) -> int:
    """``cifar-ray stop``."""
    command = flags.read(StopCommand, words, None, "stop")
    _jobs().stop(command.job, command.address)
    return 0


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "submit": (submit, "have a Ray cluster train, resume or sweep by itself, as a job"),
    "jobs": (jobs, "list the jobs of a Ray cluster"),
    "logs": (logs, "show what a job has printed"),
    "stop": (stop, "stop a job, with its run recorded"),
}


def _jobs() -> ModuleType:
    """Jobs, where what Ray's client of them needs is installed."""
    try:
        from cifar_ray.orchestration import jobs
    except ImportError as error:
        raise ConfigError("", f"jobs need {error.name}; `pip install 'cifar-ray[cluster]'` has it") from None
    return jobs


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before ``--``, and those after it."""
    words = list(words)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]
