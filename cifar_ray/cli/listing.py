"""The table of ``cifar-ray runs``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cifar_ray.display.run import Console
from cifar_ray.tracking.listing import Listed

_HEADER = ("started", "state", "model", "topology", "accuracy", "images/s", "name")


def show(found: Sequence[Listed], store: str) -> None:
    """Print a line for each run and sweep; its name comes last, whole and ready to be copied."""
    if not found:
        print(f"no runs in {store}")
        return
    Console().columns(_HEADER, map(_cells, found))


def _cells(one: Listed) -> tuple[str, ...]:
    local = datetime.fromisoformat(one.started).astimezone()
    accuracy = "" if one.accuracy is None else f"{one.accuracy:.2%}"
    speed = "" if one.images_per_s is None else f"{one.images_per_s:,.0f}"
    name = one.name if one.runs is None else f"{one.name} (sweep of {one.runs} run{'s' * (one.runs != 1)})"
    return f"{local:%Y-%m-%d %H:%M}", one.state, one.model, one.topology, f"{accuracy:>8}", f"{speed:>8}", name
