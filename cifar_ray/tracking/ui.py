"""MLflow's own pages for the tracking store."""

from __future__ import annotations

import os
import socket
import sys
import time
import webbrowser

from cifar_ray import tracking
from cifar_ray.config import imports
from cifar_ray.tracking import pages, store
from cifar_ray.tracking import uri as stores

_LOOK_S = 0.2


def serve(uri: str, port: int, browse: bool) -> None:
    """Print the address of MLflow's pages, and replace this process by its server on the loopback interface.

    Of a store that is a server itself, only the address is printed. ``browse`` opens it in a browser, too.

    Raises:
        ConfigError: when the store does not answer.
    """
    tracking.quieten(verbose=False)
    server = uri.rstrip("/") if store.is_server(uri) else f"http://127.0.0.1:{port}"
    page = pages.newest(server, store.connect(uri))
    if not store.is_server(uri):
        print(f"MLflow starts on {uri} within seconds; Ctrl-C ends it")
    print(f"open {page}", flush=True)
    if store.is_server(uri):
        if browse:
            webbrowser.open(page)
        return
    parent = os.getpid()
    if browse and os.fork() == 0:
        try:
            _browse_when_ready(port, page, parent)
        finally:
            os._exit(0)
    args = ["server", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    if path := stores.sqlite_path(uri):
        os.chdir(path.parent)  # a file in the working folder may have the name of a library
    os.execv(sys.executable, imports.python("mlflow", *args, "--uvicorn-opts", "--log-level warning"))


def _browse_when_ready(port: int, page: str, server: int) -> None:
    """Open the page in a browser once the server, the parent of this process, answers."""
    while os.getppid() == server:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(_LOOK_S)
        else:
            webbrowser.open(page)
            return
