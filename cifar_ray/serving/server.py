"""Serve a run's model over HTTP with uvicorn, until Ctrl-C."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable

import torch
import uvicorn

from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.serving.app import of_run
from cifar_ray.training import hardware

MAX_CONNECTIONS = 256  # what comes beyond them is answered 503


def serve(
    run: str,
    checkpoint: WhichCheckpoint,
    tracking_uri: str | None,
    listener: socket.socket,
    line: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    """Serve a run's model until SIGINT or SIGTERM, and answer the requests in progress before returning.

    ``line`` prints a line of output, ``note`` what is worth telling beside it.

    Raises:
        CheckpointError: the run has no usable checkpoint.
        ConfigError: there is no such run.
    """
    app = of_run(run, checkpoint, tracking_uri, note)
    torch.set_num_threads(hardware.allowed_cpus())
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", limit_concurrency=MAX_CONNECTIONS))
    for signum in (signal.SIGINT, signal.SIGTERM):  # also before and after uvicorn listens to them
        signal.signal(signum, server.handle_exit)
    about, (host, port) = app.state.about, listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    line(f"{about['model']} of run {about['run']}, {about['checkpoint']}")
    line(f"ready at {url}; Ctrl-C ends it")
    if not ipaddress.ip_address(host).is_loopback:
        line(f"caution: anyone who reaches port {port} of this address can use it; there is no password")
    line(f"  curl --data-binary {app.state.example} '{url}/predict?top=3'")
    server.run([listener])
    line("stopped; the model is no longer served")
