"""The options of the commands in ``cluster_cli``: flags, defaults and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from cifar_ray.config.train import WhichCheckpoint


@dataclass(frozen=True)
class ClusterCheckCommand:
    """Check files for `ray up` without a cloud: Ray's schema, versions, token, open ports, commands, prices."""

    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILE [FILE ...]", help_behavior_hint="(required)")]
    """Ray cluster files, such as cluster.yaml."""


@dataclass(frozen=True)
class WatchCommand:
    """On a node that its cloud may take away: wait for the notice, and drain the node, so that runs move in time."""

    provider: Literal["aws", "gcp"] | None = None
    """Whose machine it is; found by asking both when not given."""

    metadata_url: str | None = None
    """Where the metadata service is, if not where the cloud has it."""

    address: str | None = None
    """HOST:PORT of the Ray head; when not given, of the Ray that runs on this machine."""

    node_id: str | None = None
    """Ray's id of the node, where several run on this machine."""


@dataclass(frozen=True)
class SubmitCommand:
    """Have a Ray cluster run `cifar-ray train`, `resume` or `sweep` by itself: submit [OPTIONS] -- train ..."""

    address: str | None = None
    """http://HOST:PORT of the cluster's job server (RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265)."""

    wait: bool = False
    """Show what the job prints until it ends, and end as it does."""

    name: str | None = None
    """Name of the job; the run's or the sweep's when not given, or made from the options."""

    working_dir: str | None = None
    """Folder whose configurations and source code go with the job; the current one when not given."""


@dataclass(frozen=True)
class JobsCommand:
    """List the jobs of a Ray cluster."""

    address: str | None = None
    """http://HOST:PORT of the cluster's job server (RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265)."""


@dataclass(frozen=True)
class LogsCommand:
    """Show what a job has printed."""

    job: Positional[str]
    """The job's name."""

    address: str | None = None
    """http://HOST:PORT of the cluster's job server (RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265)."""

    follow: bool = False
    """Go on until the job ends, and end as it does."""


@dataclass(frozen=True)
class StopCommand:
    """Stop a job: its run is recorded as KILLED and keeps its checkpoints, and can be resumed."""

    job: Positional[str]
    """The job's name."""

    address: str | None = None
    """http://HOST:PORT of the cluster's job server (RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265)."""


@dataclass(frozen=True)
class ServeCommand:
    """Answer HTTP requests with what a run's model sees in an image, until Ctrl-C.

    curl --data-binary @IMAGE http://127.0.0.1:8000/predict
    """

    run: Positional[str]
    """The run's name or MLflow id; its folder, where MLflow has lost it."""

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
