"""Serve a run's model over HTTP with uvicorn, until Ctrl-C."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from cifar_ray.config.cluster_commands import ServeCommand
from cifar_ray.serving import app as apps
from cifar_ray.serving.app import Served
from cifar_ray.training import hardware

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    command: ServeCommand, listener: socket.socket, line: Callable[[str], None], note: Callable[[str], None]
) -> None:
    """Serve a run's model until SIGINT or SIGTERM, and answer the requests in progress before returning.

    Args:
        command: its options.
        listener: listens on the command's port.
        line: prints a line.
        note: called with what is worth telling beside the output.

    Raises:
        CheckpointError: the run has no usable checkpoint.
        ConfigError: there is no such run.
    """
    app = apps.of_run(command.run, command.checkpoint, command.tracking_uri, note)
    hardware.set_threads(hardware.allowed_cpus())
    # The loop and the parser that uvicorn brings, whatever else is installed.
    patience = int(apps.ANSWER_TIMEOUT_S)
    config = uvicorn.Config(app, loop="asyncio", http="h11", log_level="warning", timeout_graceful_shutdown=patience)
    server = uvicorn.Server(config)
    # uvicorn raises the signal that has ended it once more, for the handlers that were there before.
    handlers = {signum: signal.signal(signum, server.handle_exit) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        for text in _instructions(app.state.served, command):
            line(text)
        server.run([listener])
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    line("stopped; the model is no longer served")


def _instructions(served: Served, command: ServeCommand) -> Iterator[str]:
    """Yield lines on where the model is and how to use it."""
    url = f"http://{f'[{command.host}]' if ':' in command.host else command.host}:{command.port}"
    accuracy = "" if served.test_accuracy is None else f", test accuracy {served.test_accuracy:.2%}"
    yield f"{served.model} of run {served.run}, {served.checkpoint}{accuracy}"
    yield f"ready at {url}; Ctrl-C ends it"
    if command.host not in _LOOPBACK:
        yield f"caution: anyone who reaches port {command.port} of this address can use it; there is no password"
    yield f"  curl --data-binary @IMAGE '{url}/predict?top=3'"
