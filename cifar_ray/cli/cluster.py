"""The commands for a Ray cluster and for a trained model, and how a command is called. Each calls one function."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cifar_ray.cli import early, ports
from cifar_ray.config import errors, flags
from cifar_ray.config.cluster_commands import (
    ClusterCheckCommand,
    JobsCommand,
    LogsCommand,
    RegisterCommand,
    ServeCommand,
    StopCommand,
    SubmitCommand,
)
from cifar_ray.config.errors import ConfigError
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import servers

Commands = Mapping[str, tuple[Callable[[Any], int], Any, str]]
"""Name -> what runs it, the dataclass of its options or the commands below it, and a summary."""

BY_WORDS = ("train", "resume", "sweep", "plan", "submit", "cluster")
"""The commands that read their words themselves; the others are called with a dataclass."""


def call(commands: Commands, name: str, words: Sequence[str], above: str = "") -> int:
    """Run a command with its words.

    Raises:
        ConfigError: on words or values that it does not take.
    """
    run, kind, _ = commands[name]
    return run(words if above + name in BY_WORDS else flags.read(kind, words, above + name))


def cluster(words: Sequence[str]) -> int:
    """``cifar-ray cluster``, which has commands of its own."""
    if words and words[0] in CLUSTER_COMMANDS:
        return call(CLUSTER_COMMANDS, words[0], words[1:], "cluster ")
    if words and words[0] in flags.HELP:
        print("usage: cifar-ray cluster COMMAND [OPTIONS]\n")
        for name, (_, _, summary) in CLUSTER_COMMANDS.items():
            print(f"  {name:<10} {summary}")
        return 0
    got = repr(words[0]) if words else "nothing"
    moved = " (now examples/nodes/drain_on_notice.py)" if words[:1] == ["watch"] else ""
    raise ConfigError("", f"cifar-ray cluster must be followed by {errors.one_of(CLUSTER_COMMANDS)}, got {got}{moved}")


def cluster_check(command: ClusterCheckCommand) -> int:
    """``cifar-ray cluster check``."""
    from cifar_ray.orchestration.cluster import clusterfile
    from cifar_ray.reporting import cost

    status = 0
    for file in command.files:
        try:
            faults = clusterfile.check(file, lambda kind: cost.of_node_type(kind).gpus)
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


def submit(words: Sequence[str]) -> int:
    """``cifar-ray submit``."""
    words = list(words)
    end = words.index("--") if "--" in words else len(words)
    flags_of_submit, job = words[:end], words[end + 1 :]
    if not job and not set(flags.HELP) & set(flags_of_submit):
        raise ConfigError("", "cifar-ray submit needs the command after `--`, such as `cifar-ray submit -- train`")
    command = flags.read(SubmitCommand, flags_of_submit, "submit")
    from cifar_ray.orchestration.jobs import submission

    asked = submission.read(job, command.name)
    _reach_job_server(command.address)
    with _extra():
        from cifar_ray.orchestration.jobs import client
    return client.submit(asked, command)


def jobs(command: JobsCommand) -> int:
    """``cifar-ray jobs``."""
    _reach_job_server(command.address)
    with _extra():
        from cifar_ray.orchestration.jobs import client
    client.show_jobs(command)
    return 0


def logs(command: LogsCommand) -> int:
    """``cifar-ray logs``."""
    _reach_job_server(command.address)
    with _extra():
        from cifar_ray.orchestration.jobs import client
    return client.logs(command)


def stop(command: StopCommand) -> int:
    """``cifar-ray stop``."""
    _reach_job_server(command.address)
    with _extra():
        from cifar_ray.orchestration.jobs import client
    client.stop(command)
    return 0


def serve(command: ServeCommand) -> int:
    """``cifar-ray serve``."""
    with ports.listen(command.host, command.port) as listener:
        early.check_runs([command.run], command.tracking_uri)
        with early.loading("loading PyTorch and MLflow", always=True):
            from cifar_ray.serving import server
        server.serve(command, listener, Console().line, flags.note)
    return 0


def register(command: RegisterCommand) -> int:
    """``cifar-ray register``."""
    early.check_runs([command.run], command.tracking_uri)
    with early.loading("loading MLflow"):
        from cifar_ray.tracking import registry

    version = registry.register(command.run, command.name, command.alias, command.tracking_uri)
    state = "is" if version.fresh else "is already"
    uri = f"models:/{version.name}/{version.version}"
    print(f"the model of run {version.run} {state} version {version.version} of {version.name}: {uri}")
    return 0


CLUSTER_COMMANDS: Commands = {
    "check": (cluster_check, ClusterCheckCommand, "check files for `ray up`, offline"),
}

COMMANDS: Commands = {
    "cluster": (cluster, CLUSTER_COMMANDS, "check a cluster file"),
    "submit": (submit, SubmitCommand, "train, resume or sweep on a Ray cluster, as a job"),
    "jobs": (jobs, JobsCommand, "list the jobs of a Ray cluster"),
    "logs": (logs, LogsCommand, "print what a job has printed"),
    "stop": (stop, StopCommand, "stop a job and record its run"),
    "serve": (serve, ServeCommand, "answer HTTP requests with a run's model"),
    "register": (register, RegisterCommand, "register a run's model in MLflow's model registry"),
}


def _reach_job_server(address: str | None) -> None:
    with _extra():
        import aiohttp  # noqa: F401  Ray's client needs it, whatever the address
    servers.reach_job_server(address)


@contextlib.contextmanager
def _extra() -> Iterator[None]:
    """Context manager: raise ConfigError if an import needs a package of the extra ``cluster``."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            "", f"this command needs {error.name}; install it with `pip install 'cifar-ray[cluster]'`"
        ) from None
