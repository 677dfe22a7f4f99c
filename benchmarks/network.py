"""Emulated nodes on this machine: network namespaces with links of a set rate, and equal shares of a CPU.

Nothing is measured here; forked.py and emulated_cluster.py use it. A node is a Linux network namespace with one link to
a switch, a bridge in a namespace of its own, so neither the machine's interfaces nor its firewall take part. ``tc``
holds both ends of a link to a rate. Needs root and Linux with iproute2. What a ``kill -9`` leaves, the next start
removes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "cifar-ray-slow-"
"""Begins the name of every namespace and every temporary folder made here."""
SWITCH = f"{PREFIX}switch"
SUBNET = "10.99.0"
PERIOD_US = 5000
"""Of a share: short, so that a step is slowed and not stopped; a step of a small model lasts some 10 ms."""
GROUPS = Path("/sys/fs/cgroup")


class Refused(Exception):  # noqa: N818
    """This machine, or what was asked for, does not allow the measurement."""


class Share:
    """Context manager: control groups whose processes each have the same part of a CPU."""

    def __init__(self, share: float) -> None:
        self._quota = round(share * PERIOD_US)
        self._legacy = (GROUPS / "cpu").is_dir()  # version 1
        self._root = (GROUPS / "cpu" if self._legacy else GROUPS) / f"cifar-ray-{os.getpid()}"
        self._made: list[Path] = []

    def __enter__(self) -> Share:
        for parent in (GROUPS, self._root):
            parent.mkdir(exist_ok=True)
            if not self._legacy:
                (parent / "cgroup.subtree_control").write_text("+cpu")
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + 30
        for group in (*self._made, self._root):
            while (group / "cgroup.procs").read_text().strip() and time.monotonic() < end:  # about to end
                time.sleep(0.05)
            group.rmdir()

    @property
    def count(self) -> int:
        """Groups that were made."""
        return len(self._made)

    def group(self) -> Path:
        """A new control group with this part of a CPU."""
        group = self._root / str(len(self._made))
        group.mkdir()
        self._made.append(group)
        if self._legacy:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(self._quota))
        else:
            (group / "cpu.max").write_text(f"{self._quota} {PERIOD_US}")
        return group

    def add(self, pid: int) -> None:
        """Hold a process, with all its threads and those to come."""
        (self.group() / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def nodes(count: int) -> Iterator[None]:
    """Context manager: namespaces for the nodes, a switch, and a link from each node to it.

    Raises:
        Refused: where this cannot be had, or another measurement has it.
    """
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise Refused("this makes network namespaces, which takes root on Linux")
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        raise Refused(f"this needs the commands ip and tc of iproute2; not found: {', '.join(missing)}")
    with socket.socket(socket.AF_UNIX) as alone:
        try:
            alone.bind(f"\0{PREFIX}lock")  # an abstract name: gone with the process, however it ends
        except OSError:
            raise Refused("another measurement has emulated nodes here, and each would slow the other") from None
        _remove_all()
        try:
            _build(count)
            yield
        finally:
            _remove_all()


def node(rank: int) -> str:
    """The namespace of a node."""
    return f"{PREFIX}node{rank}"


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Context manager: a temporary folder, named after this process so that the next start can remove it."""
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-")


def shape(count: int, rate: str) -> None:
    """Give every link this rate in both directions; ``none`` is a bare link."""
    for name, device in [(node(rank), "eth0") for rank in range(count)] + [(SWITCH, f"port{n}") for n in range(count)]:
        subprocess.run(["tc", "-n", name, "qdisc", "delete", "dev", device, "root"], stderr=subprocess.DEVNULL)
        if rate != "none":
            # A bucket of two of the largest pieces that TCP hands over, and a queue as long as a small switch's.
            limit = ("root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms")
            _command("tc", "-n", name, "qdisc", "add", "dev", device, *limit)


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"the network could not be made: `{' '.join(words)}` says {done.stderr.strip()}")


def _build(count: int) -> None:
    for name in (SWITCH, *map(node, range(count))):
        _command("ip", "netns", "add", name)
        _command("ip", "-n", name, "link", "set", "lo", "up")
    _command("ip", "-n", SWITCH, "link", "add", "bridge", "type", "bridge")
    _command("ip", "-n", SWITCH, "link", "set", "bridge", "up")
    for rank in range(count):
        here, port = node(rank), f"port{rank}"
        _command("ip", "link", "add", "eth0", "netns", here, "type", "veth", "peer", "name", port, "netns", SWITCH)
        _command("ip", "-n", SWITCH, "link", "set", port, "master", "bridge", "up")
        _command("ip", "-n", here, "address", "add", f"{SUBNET}.{rank + 1}/24", "dev", "eth0")
        _command("ip", "-n", here, "link", "set", "eth0", "up")


def _remove_all() -> None:
    """Remove all namespaces, whose interfaces go with them, and the temporary folders of ended processes."""
    for name in [path.name for path in Path("/run/netns").glob(f"{PREFIX}*")]:
        pids = ["ip", "netns", "pids", name]
        while found := subprocess.run(pids, capture_output=True, text=True).stdout.split():
            for pid in map(int, found):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        subprocess.run(["ip", "netns", "delete", name])
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid == str(os.getpid()) or not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
