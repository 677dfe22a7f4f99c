"""MLflow's own pages for the tracking store."""

from __future__ import annotations

import os
import sys

from cifar_ray import tracking
from cifar_ray.config import ports
from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking import store


def serve(tracking_uri: str | None, port: int) -> None:
    """Replace this process by MLflow's server on the loopback interface.

    Raises:
        ConfigError: when the store does not answer, is a server itself, or the port is taken.
    """
    uri = store.resolve_uri(tracking_uri)
    if store.is_server(uri):
        raise ConfigError("tracking_uri", f"is a server already; open {uri} in a browser")
    ports.check("127.0.0.1", port)
    tracking.quieten(verbose=False)
    store.connect(uri)
    print(f"MLflow on {uri}: open http://127.0.0.1:{port} in a browser; Ctrl-C ends it", flush=True)
    arguments = ["server", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", *arguments])
