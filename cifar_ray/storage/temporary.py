"""Temporary folders."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(above: str | None = None) -> Iterator[Path]:
    """Context manager: a temporary folder in ``above`` or the system's, removed at the end.

    What other processes still write there then is left.
    """
    if above is not None:
        Path(above).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cifar_ray-", dir=above, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
