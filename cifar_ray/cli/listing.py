"""The table of ``cifar-ray runs``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from cifar_ray.display.run import Console
from cifar_ray.tracking.listing import Listed

_HEADER = ("started", "state", "data set", "model", "topology", "accuracy", "images/s", "name")


def show(listed: Sequence[Listed], store: str) -> None:
    """Print a line for each run and sweep; its name comes last, whole and ready to be copied."""
    if not listed:
        print(f"no runs in {store}")
        return
    Console().columns(_HEADER, map(_cells, listed))


def _cells(run: Listed) -> tuple[str, ...]:
    local = datetime.fromisoformat(run.started).astimezone()
    accuracy = "" if run.accuracy is None else f"{run.accuracy:.2%}"
    speed = "" if run.images_per_s is None else f"{run.images_per_s:,.0f}"
    name, state = run.name, run.state
    if run.planned is not None:
        begun = "" if run.runs == run.planned else f"{run.runs} of "
        name = f"{name} (sweep of {begun}{run.planned} run{'s' * (run.planned != 1)})"
        state = f"{run.failed} of {run.planned} failed" if run.failed and state == "failed" else state
    # The name of a folder of images is its whole path.
    dataset = ", ".join(re.sub(r"^folder:.*/", "folder:", each) for each in run.dataset.split(", "))
    started = f"{local:%Y-%m-%d %H:%M}"
    return started, state, dataset, run.model, run.topology, f"{accuracy:>8}", f"{speed:>8}", name
