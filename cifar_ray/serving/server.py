"""Serve a run's model over HTTP with uvicorn, until Ctrl-C."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import signal
import socket
from collections.abc import Callable

import torch
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.serving.app import of_run
from cifar_ray.training import hardware

REQUEST_TIMEOUT_S = 10.0  # for a whole request to arrive
MAX_CONNECTIONS = 256  # or half of the files that the process may open, where that is less


class Connection(H11Protocol):
    """A connection that waits only so long for a whole request; where there are too many, the longest waiting ends.

    uvicorn by itself waits without end, and answers 503 to everyone once there are too many.
    """

    _due: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        assert self.limit_concurrency is not None
        if len(self.connections) >= self.limit_concurrency:
            every = [each for each in self.connections if isinstance(each, Connection)]
            longest = min((each for each in every if not each._due.cancelled()), key=lambda each: each._due.when())
            self.connections.discard(longest)
            longest.transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle and not self.cycle.more_body and not self.cycle.response_complete:
            self._due.cancel()

    def on_response_complete(self) -> None:
        self._due.cancel()
        self._await_request()
        super().on_response_complete()

    def _await_request(self) -> None:
        self._due = self.loop.call_later(REQUEST_TIMEOUT_S, self.transport.close)


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
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(MAX_CONNECTIONS, files // 2)
    # In one turn of asyncio's loop it accepts as many as the backlog; they are closed three turns later at the soonest.
    config = uvicorn.Config(
        app, loop="asyncio", http=Connection, log_level="warning", limit_concurrency=limit, backlog=limit // 8
    )
    server = uvicorn.Server(config)
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
