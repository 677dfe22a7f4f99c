"""The commands for a cluster and for a trained model. Each subcommand reads its words and calls one function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from cifar_ray import flags, strict
from cifar_ray.cluster_commands import ClusterCheckCommand
from cifar_ray.strict import ConfigError


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
    raise ConfigError("", f"cifar-ray cluster must be followed by {strict.one_of(CLUSTER_COMMANDS)}, {got}")


def cluster_check(words: Sequence[str]) -> int:
    """``cifar-ray cluster check``."""
    command = flags.read(ClusterCheckCommand, words, None, "cluster check")
    if not command.files:
        raise ConfigError("", "cifar-ray cluster check needs one or more cluster files, such as cluster.yaml")
    from cifar_ray.orchestration import clusterschema

    sound = True
    for file in command.files:
        try:
            verdict = clusterschema.check(file)
        except ConfigError as error:
            print(f"error: {file} {error.problem}", file=sys.stderr)
            sound = False
            continue
        for problem in verdict.problems:
            print(f"error: {file}: {problem}", file=sys.stderr)
        for note in verdict.notes:
            print(f"note: {file}: {note}", file=sys.stderr)
        if not verdict.problems:
            print(f"{file}: ok")
        sound = sound and not verdict.problems
    return 0 if sound else 2


CLUSTER_COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "check": (cluster_check, "check files for `ray up`, offline"),
}

COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "cluster": (cluster, "what has to do with a cluster: check its file"),
}
