"""MLflow's own pages for the tracking store."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
import webbrowser
from typing import IO

from cifar_ray import tracking
from cifar_ray.config import imports
from cifar_ray.tracking import pages, store
from cifar_ray.tracking import uri as stores

_LOOK_S = 0.2


def serve(uri: str, port: int, browse: bool) -> None:
    """Replace this process by MLflow's server on the loopback interface, and print its address once it answers.

    Of a store that is a server itself, only the address is printed. ``browse`` opens it in a browser, too.

    Raises:
        ConfigError: when the store does not answer.
    """
    tracking.quieten(verbose=False)
    server = uri.rstrip("/") if store.is_server(uri) else f"http://127.0.0.1:{port}"
    page = pages.newest(server, store.connect(uri))
    if store.is_server(uri):
        _show(page, browse)
        return
    print(f"MLflow starts on {uri}; Ctrl-C ends it", flush=True)
    with tempfile.TemporaryFile() as output:  # the server's chatter, shown only if it does not start
        parent = os.getpid()
        if os.fork() == 0:
            try:
                _show_when_ready(port, page, browse, parent, output)
            finally:
                os._exit(0)
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        args = ["server", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        if path := stores.sqlite_path(uri):
            os.chdir(path.parent)  # a file in the working folder may have the name of a library
        os.execv(sys.executable, imports.python("mlflow", *args, "--uvicorn-opts", "--log-level warning"))


def _show(page: str, browse: bool) -> None:
    print(f"open {page}", flush=True)
    if browse:
        webbrowser.open(page)


def _show_when_ready(port: int, page: str, browse: bool, server: int, output: IO[bytes]) -> None:
    """Show the page once the server, the parent of this process, answers; or its output, if it ends before."""
    while os.getppid() == server:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(_LOOK_S)
        else:
            _show(page, browse)
            return
    output.seek(0)
    print(f"MLflow's server has ended: {output.read().decode(errors='replace').strip()}", file=sys.stderr, flush=True)
