"""Small things about files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(path: Path, algorithm: str) -> str:
    """A file's hash in hex, read piece by piece.

    Args:
        path: the file.
        algorithm: a name that ``hashlib`` knows; it guards against accidents here, not against attackers.

    Raises:
        OSError: when the file cannot be read.
    """
    state = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            state.update(chunk)
    return state.hexdigest()
