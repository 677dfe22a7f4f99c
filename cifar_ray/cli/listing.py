"""The table of ``cifar-ray runs``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from cifar_ray.display.run import Console
from cifar_ray.tracking.listing import Listed

_HEADER = ("started", "state", "data set", "model", "topology", "accuracy", "images/s", "name")


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
    name, state = one.name, one.state
    if one.planned is not None:
        begun = "" if one.runs == one.planned else f"{one.runs} of "
        name = f"{name} (sweep of {begun}{one.planned} run{'s' * (one.planned != 1)})"
        state = f"{one.failed} of {one.planned} failed" if one.failed and state == "failed" else state
    # The name of a folder of images is its whole path.
    dataset = ", ".join(re.sub(r"^folder:.*/", "folder:", each) for each in one.dataset.split(", "))
    started = f"{local:%Y-%m-%d %H:%M}"
    return started, state, dataset, one.model, one.topology, f"{accuracy:>8}", f"{speed:>8}", name
