"""Serve a run's model over HTTP with uvicorn, until Ctrl-C."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import uvicorn

from cifar_ray.config.cluster_commands import ServeCommand
from cifar_ray.serving.app import of_run
from cifar_ray.training import hardware

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    command: ServeCommand, listener: socket.socket, line: Callable[[str], None], note: Callable[[str], None]
) -> None:
    """Serve a run's model until SIGINT or SIGTERM, and answer the requests in progress before returning.

    ``line`` prints a line of output, ``note`` what is worth telling beside it.

    Raises:
        CheckpointError: the run has no usable checkpoint.
        ConfigError: there is no such run.
    """
    app = of_run(command.run, command.checkpoint, command.tracking_uri, note)
    hardware.set_threads(hardware.allowed_cpus())
    # The loop and the parser that uvicorn brings, whatever else is installed.
    server = uvicorn.Server(uvicorn.Config(app, loop="asyncio", http="h11", log_level="warning"))
    for signum in (signal.SIGINT, signal.SIGTERM):  # also before and after uvicorn listens to them
        signal.signal(signum, server.handle_exit)
    for text in _instructions(app.state.about, app.state.result, app.state.example, command):
        line(text)
    server.run([listener])
    line("stopped; the model is no longer served")


def _instructions(about: Mapping[str, Any], result: str, example: str, command: ServeCommand) -> Iterator[str]:
    """Yield lines on where the model is and how to use it."""
    url = f"http://{f'[{command.host}]' if ':' in command.host else command.host}:{command.port}"
    yield ", ".join(filter(None, (f"{about['model']} of run {about['run']}, {about['checkpoint']}", result)))
    yield f"ready at {url}; Ctrl-C ends it"
    if command.host not in _LOOPBACK:
        yield f"caution: anyone who reaches port {command.port} of this address can use it; there is no password"
    yield f"  curl --data-binary {example} '{url}/predict?top=3'"
