"""The options of the commands in ``cluster_cli``: flags, defaults and help."""

from __future__ import annotations
