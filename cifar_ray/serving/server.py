"""Serve a run's model over HTTP with uvicorn, until Ctrl-C."""

from __future__ import annotations

import asyncio
import functools
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.serving.app import of_run
from cifar_ray.training import hardware

HEAD_TIMEOUT_S = 10.0  # for the headers of a request to arrive
MAX_CONNECTIONS = 1024  # or half of the files that the process may open, where that is less
_MAX_FILES = 8192
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Connection(H11Protocol):
    """A connection that may wait for the headers of a request only so long, and that makes room when there are many.

    uvicorn by itself waits for headers without end, and accepts connections until the process can open no more files.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        assert self.limit_concurrency is not None
        if len(self.connections) >= self.limit_concurrency:  # uvicorn would answer 503 to everyone
            _warn(self.logger, self.limit_concurrency)
            waiting = (each for each in self.connections if isinstance(each, Connection) and each._awaits_client())
            longest = min(waiting, key=lambda each: each._since)
            self.connections.discard(longest)
            longest.transport.abort()

    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()

    def _await_head(self) -> None:
        self._since = self.loop.time()
        self.loop.call_later(HEAD_TIMEOUT_S, self._close_after, self.cycle)

    def _close_after(self, request: object) -> None:
        if self.cycle is request:  # no other has begun
            self.transport.close()

    def _awaits_client(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body


@functools.cache
def _warn(logger: logging.Logger, connections: int) -> None:
    """Log once that connections are closed for others."""
    logger.warning("%s connections are open, the most there may be: a new one closes the longest idle", connections)


def serve(
    run: str,
    checkpoint: WhichCheckpoint,
    tracking_uri: str | None,
    host: str,
    port: int,
    listener: socket.socket,
    line: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    """Serve a run's model until SIGINT or SIGTERM, and answer the requests in progress before returning.

    ``listener`` listens at ``host`` and ``port``; ``line`` prints a line of output, ``note`` what is worth telling
    beside it.

    Raises:
        CheckpointError: the run has no usable checkpoint.
        ConfigError: there is no such run.
    """
    app = of_run(run, checkpoint, tracking_uri, note)
    torch.set_num_threads(hardware.allowed_cpus())
    server = uvicorn.Server(configured(app))
    for signum in (signal.SIGINT, signal.SIGTERM):  # also before and after uvicorn listens to them
        signal.signal(signum, server.handle_exit)
    for text in _instructions(app.state.about, app.state.result, app.state.example, host, port):
        line(text)
    server.run([listener])
    line("stopped; the model is no longer served")


def configured(app: FastAPI) -> uvicorn.Config:
    """How uvicorn serves: with its own loop and parser, whatever else is installed, and never out of open files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MAX_FILES if most == resource.RLIM_INFINITY else min(most, _MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    connections = min(MAX_CONNECTIONS, files // 2)
    # In one turn of asyncio's loop it accepts as many as the backlog; they are closed three turns later at the soonest.
    backlog = (files - connections) // 8
    return uvicorn.Config(
        app, loop="asyncio", http=Connection, log_level="warning", limit_concurrency=connections, backlog=backlog
    )


def _instructions(about: Mapping[str, Any], result: str, example: str, host: str, port: int) -> Iterator[str]:
    """Yield lines on where the model is and how to use it."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    yield ", ".join(filter(None, (f"{about['model']} of run {about['run']}, {about['checkpoint']}", result)))
    yield f"ready at {url}; Ctrl-C ends it"
    if host not in _LOOPBACK:
        yield f"caution: anyone who reaches port {port} of this address can use it; there is no password"
    yield f"  curl --data-binary {example} '{url}/predict?top=3'"
