"""The options of the commands in ``cluster_cli``: flags, defaults and help."""

from __future__ import annotations

from dataclasses import dataclass

from tyro.conf import Positional

from cifar_ray.config import WhichCheckpoint


@dataclass(frozen=True)
class ServeCommand:
    """Answer HTTP requests with what a run's model sees in an image, until Ctrl-C.

    curl --data-binary @IMAGE http://127.0.0.1:8000/predict
    """

    run: Positional[str]
    """The run's name or MLflow id."""

    checkpoint: WhichCheckpoint = "last"
    """The newest checkpoint, or the one with the highest test accuracy."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in, and there is no password."""

    port: int = 8000
    """Port to listen on."""

    replicas: int = 1
    """Copies of the model that share the requests, of one CPU each."""

    address: str | None = None
    """Ray cluster to run on, whose head then listens (RAY_ADDRESS)."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the run."""


@dataclass(frozen=True)
class RegisterCommand:
    """Put a finished run's model into MLflow's model registry."""

    run: Positional[str]
    """The run's name or MLflow id."""

    name: str
    """Name of the registered model; made when it is new."""

    alias: str | None = None
    """Another name for this version, such as champion; it moves here from the version that had it."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the run, and the registry."""
