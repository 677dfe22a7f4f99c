"""The options of the commands in ``cli/cluster.py``: flags, defaults and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cifar_ray.config.commands import OfModel
from cifar_ray.config.flags import Positional, Switch


@dataclass(frozen=True)
class ClusterCheckCommand:
    """Check files for `ray up` offline: your own values, versions, the token, open ports, GPUs of machine types."""

    files: Positional[tuple[Path, ...]]
    """Ray cluster files, such as cluster.yaml."""


@dataclass(frozen=True, kw_only=True)
class _JobServerCommand:
    address: str | None = None
    """http://HOST:PORT of the cluster's job server (RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265)."""


@dataclass(frozen=True, kw_only=True)
class SubmitCommand(_JobServerCommand):
    """Run `cifar-ray train`, `resume` or `sweep` on a Ray cluster as a job: submit [OPTIONS] -- train ..."""

    wait: Switch = False
    """Print the job's output until it ends; the exit status is the command's."""

    name: str | None = None
    """Name of the job. Default: that of the run or sweep, or made from the options."""

    working_dir: str | None = None
    """Folder to send, without hidden files and what .gitignore lists. Default: the current folder."""


@dataclass(frozen=True, kw_only=True)
class JobsCommand(_JobServerCommand):
    """List the jobs of a Ray cluster."""


@dataclass(frozen=True, kw_only=True)
class LogsCommand(_JobServerCommand):
    """Print a job's output."""

    job: Positional[str]
    """The job's name."""

    follow: Switch = False
    """Print until the job ends; the exit status is the job's."""


@dataclass(frozen=True, kw_only=True)
class StopCommand(_JobServerCommand):
    """Stop a job: its run is recorded as KILLED, keeps its checkpoints and can be resumed."""

    job: Positional[str]
    """The job's name."""


@dataclass(frozen=True, kw_only=True)
class ServeCommand(OfModel):
    """Answer for images, or rows of numbers, sent over HTTP with a run's model, until Ctrl-C.

    curl --data-binary @IMAGE http://127.0.0.1:8000/predict
    """

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 admits other machines; there is no password."""

    port: int = 8000
    """Port to listen on."""


@dataclass(frozen=True)
class RegisterCommand:
    """Register a finished run's model in MLflow's model registry."""

    run: Positional[str]
    """The run's name or MLflow id."""

    name: str
    """Name of the registered model; created if it is new."""

    alias: str | None = None
    """Alias for this version, such as champion; it moves here from the version that had it."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the run, and the registry (MLFLOW_TRACKING_URI, else ~/.cifar_ray/mlflow.db)."""
