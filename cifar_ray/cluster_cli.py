"""The commands for a cluster and for a trained model. Each subcommand reads its words and calls one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cifar_ray import flags, strict
from cifar_ray.cluster_commands import WatchCommand
from cifar_ray.strict import ConfigError


def cluster(words: Sequence[str]) -> int:
    """``cifar-ray cluster``, whose second word says what about it."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: cifar-ray cluster COMMAND [OPTIONS]\n")
        print("\n".join(f"  {name:<10} {summary}" for name, (_, summary) in CLUSTER.items()))
        return 0
    if words[0] not in CLUSTER:
        raise ConfigError(
            "", f"unknown command 'cluster {words[0]}'; cluster may be followed by {strict.one_of(CLUSTER)}"
        )
    return CLUSTER[words[0]][0](words[1:])


def watch(words: Sequence[str]) -> int:
    """``cifar-ray cluster watch``."""
    command = flags.read(WatchCommand, words, None, "cluster watch")
    from cifar_ray.orchestration import spot

    done = spot.watch(command.provider, command.metadata_url, command.address, command.node_id, _say)
    return 0 if done else 1


def _say(sentence: str) -> None:
    print(sentence, flush=True)


CLUSTER: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "watch": (watch, "on a node: wait for the cloud's notice that it will be taken away, and drain the node"),
}

COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "cluster": (cluster, "look after a cluster"),
}
