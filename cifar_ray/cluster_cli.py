"""The commands for a cluster and for a trained model. Each subcommand reads its words and calls one function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from cifar_ray import flags
from cifar_ray.cluster_commands import RegisterCommand, ServeCommand


def serve(words: Sequence[str]) -> int:
    """``cifar-ray serve``."""
    command = flags.read(ServeCommand, words, None, "serve")
    from cifar_ray.orchestration import serving

    try:
        serving.serve(
            command.run,
            command.checkpoint,
            command.host,
            command.port,
            command.replicas,
            command.address,
            command.tracking_uri,
            _note,
        )
    except serving.ServingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
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


def _note(sentence: str) -> None:
    print(f"note: {sentence}", file=sys.stderr)


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "serve": (serve, "answer HTTP requests with a run's model"),
    "register": (register, "put a run's model into MLflow's model registry"),
}
