"""The options of the commands in ``cluster_cli``: flags, defaults and help."""

from __future__ import annotations

from dataclasses import dataclass

from tyro.conf import Positional


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
