"""Control groups of Linux: what a container or a batch system lets this process have."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

LISTED, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def groups(controller: str, listed: Path = LISTED, mount: Path = MOUNT) -> list[Path]:
    """Folders of the control groups that this process is in and that can limit ``controller``, with those around them.

    Args:
        controller: ``cpu`` or ``memory``.
        listed: the process's control groups, as Linux lists them.
        mount: where control groups are mounted, of version 1, 2 or both.
    """
    try:
        lines = listed.read_text(encoding="utf-8").splitlines()
    except OSError:  # not on Linux
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = mount / controller if controllers else mount
            # In a container the path may be the host's, and the mount already the container's own group.
            parts = [part for part in path.split("/") if part]
            folders += [root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return folders


def free_memory(listed: Path = LISTED, mount: Path = MOUNT) -> float:
    """Bytes of memory that this process can still have: those free here, and at most those its control groups leave."""
    import psutil  # not at the top: the loop alone, on a machine with torch and little else, does without it

    return min([psutil.virtual_memory().available, *map(_left, groups("memory", listed, mount))])


def _left(group: Path) -> float:
    """Bytes between a control group's limit and what it uses, without files that the kernel can drop."""
    for limit, used, dropped in (
        ("memory.max", "memory.current", "inactive_file"),  # version 2
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
    ):
        with suppress(OSError, ValueError):  # no such file, or "max"
            left = int((group / limit).read_text()) - int((group / used).read_text())
            figures = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            return max(left + int(figures[dropped]), 0)
    return math.inf
