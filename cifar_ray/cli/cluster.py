"""The commands for a cluster and for a trained model. Each subcommand reads its words and calls one function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from cifar_ray.config import errors, flags
from cifar_ray.config.cluster_commands import (
    ClusterCheckCommand,
    JobsCommand,
    LogsCommand,
    RegisterCommand,
    ServeCommand,
    StopCommand,
    SubmitCommand,
    WatchCommand,
)
from cifar_ray.config.errors import ConfigError


def cluster(words: Sequence[str]) -> int:
    """``cifar-ray cluster``, which has commands of its own."""
    if words and words[0] in CLUSTER_COMMANDS:
        return CLUSTER_COMMANDS[words[0]][0](words[1:])
    if {"-h", "--help"} & set(words[:1]):
        print("usage: cifar-ray cluster COMMAND [OPTIONS]\n")
        for name, (_, summary) in CLUSTER_COMMANDS.items():
            print(f"  {name:<10} {summary}")
        return 0
    got = f"got {words[0]!r}" if words else "got nothing"
    raise ConfigError("", f"cifar-ray cluster must be followed by {errors.one_of(CLUSTER_COMMANDS)}, {got}")


def cluster_check(words: Sequence[str]) -> int:
    """``cifar-ray cluster check``."""
    command = flags.read(ClusterCheckCommand, words, None, "cluster check")
    if not command.files:
        raise ConfigError("", "cifar-ray cluster check needs one or more cluster files, such as cluster.yaml")
    from cifar_ray.orchestration.cluster import clusterfile
    from cifar_ray.reporting import cost

    sound = True
    for file in command.files:
        try:
            verdict = clusterfile.check(file, lambda kind: cost.of_node_type(kind).words)
        except ConfigError as error:
            print(f"error: {error.problem}", file=sys.stderr)
            sound = False
            continue
        for problem in verdict.problems:
            print(f"error: {file}: {problem}", file=sys.stderr)
        for note in verdict.notes:
            flags.note(f"{file}: {note}")
        if not verdict.problems:
            print(f"{file}: ok")
        sound = sound and not verdict.problems
    return 0 if sound else 2


def cluster_watch(words: Sequence[str]) -> int:
    """``cifar-ray cluster watch``."""
    command = flags.read(WatchCommand, words, None, "cluster watch")
    from cifar_ray.orchestration.cluster import spot

    done = spot.watch(command.provider, command.metadata_url, command.address, command.node_id, _say)
    return 0 if done else 1


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
    from cifar_ray.display.run import Console

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


def serve(words: Sequence[str]) -> int:
    """``cifar-ray serve``."""
    command = flags.read(ServeCommand, words, None, "serve")
    from cifar_ray.orchestration.serving import deployment

    deployment.serve(
        command.run,
        command.checkpoint,
        command.host,
        command.port,
        command.replicas,
        command.address,
        command.tracking_uri,
        flags.note,
    )
    return 0


def register(words: Sequence[str]) -> int:
    """``cifar-ray register``."""
    command = flags.read(RegisterCommand, words, None, "register")
    from cifar_ray.tracking import registry

    made = registry.register(command.run, command.name, command.alias, command.tracking_uri)
    told = "is" if made.fresh else "is already"
    uri = f"models:/{made.name}/{made.version}"
    print(f"the model of run {made.run} {told} version {made.version} of {made.name}: {uri}")
    return 0


CLUSTER_COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "check": (cluster_check, "check files for `ray up`, offline"),
    "watch": (cluster_watch, "on a node: wait for the cloud's notice that it will be taken away, and drain the node"),
}

COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "cluster": (cluster, "check a cluster's file; watch over a node that its cloud may take away"),
    "submit": (submit, "have a Ray cluster train, resume or sweep by itself, as a job"),
    "jobs": (jobs, "list the jobs of a Ray cluster"),
    "logs": (logs, "show what a job has printed"),
    "stop": (stop, "stop a job, with its run recorded"),
    "serve": (serve, "answer HTTP requests with a run's model"),
    "register": (register, "put a run's model into MLflow's model registry"),
}


def _jobs() -> ModuleType:
    """Jobs, where what Ray's client of them needs is installed."""
    try:
        from cifar_ray.orchestration.jobs import client as jobs
    except ImportError as error:
        raise ConfigError("", f"jobs need {error.name}; `pip install 'cifar-ray[cluster]'` has it") from None
    return jobs


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before ``--``, and those after it."""
    words = list(words)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _say(sentence: str) -> None:
    print(sentence, flush=True)
