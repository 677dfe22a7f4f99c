"""The options of the commands in ``cluster_cli``: flags, defaults and help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
