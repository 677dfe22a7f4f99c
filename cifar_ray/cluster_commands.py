"""The options of the commands in ``cluster_cli``: flags, defaults and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class ClusterCheckCommand:
    """Check files for `ray up` without a cloud: Ray's schema, pinned versions, open ports, commands, prices."""

    files: Positional[tuple[Path, ...]]
    """Ray cluster files, such as cluster.yaml."""
