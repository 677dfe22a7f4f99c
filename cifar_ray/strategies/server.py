"""What a parameter server is asked; who holds one is not the strategies' affair."""

from __future__ import annotations

from typing import Protocol


class ServerHandle(Protocol):
    """A worker's end of a parameter server."""
