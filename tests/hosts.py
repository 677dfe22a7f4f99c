"""Machines on a local network, made of Linux namespaces: hosts with a real sshd, and a laptop to reach them from.

Every machine has a host name, a network interface, processes, a ``/tmp`` and a home folder of its own. It sees the
files of the machine that the tests run on, and all of them share one folder, as over NFS. Its name resolves to
loopback, as Debian has it. The switch between them is a bridge on the laptop; nothing leads out of it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
USER = "trainer"
HOME = Path("/srv/home") / USER
SHARED = Path("/srv/cifar_ray")
KEY = HOME / ".ssh" / "id_ed25519"
TOOLS = {"ip": "iproute2", "sshd": "openssh-server", "ssh-keygen": "openssh-client", "rsync": "rsync"}
COVERED = ("/tmp", "/srv", "/run", "/dev/shm")
"""Folders of which each machine has its own."""

_FILES = {
    "hosts": "127.0.0.1 localhost\n127.0.1.1 {name}\n",
    "hostname": "{name}\n",
    "resolv.conf": "",
    # The first entry of a user id is what its processes are told: this one's home is private, root's is not.
    "passwd": f"{USER}:x:0:0::{HOME}:/bin/bash\n",
}
_SSHD = f"""\
HostKey {HOME}/.ssh/id_ed25519
AuthorizedKeysFile {HOME}/.ssh/authorized_keys
PidFile none
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
SetEnv PYTHONPATH={HOME}/cifar_ray
"""
# The first process of a machine: it lasts for as long as somebody holds the other end of its input, and what it has
# started ends with it. Bash takes leave of orphans while it waits, as an init must.
_INIT = f"""
set -e
name=$1 folder=$2 shared=$3
hostname "$name"
for file in {" ".join(_FILES)}; do mount --bind "$folder/$file" /etc/$file; done
mount -t tmpfs tmpfs /srv
mkdir -p {SHARED} {HOME}
mount --bind "$shared" {SHARED}
cp -r /etc/skel/. {HOME}
cp -r "$folder/home/." {HOME}
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount -t tmpfs tmpfs /tmp
chmod 1777 /tmp
[ ! -f {HOME}/sshd_config ] || $(command -v sshd) -e -f {HOME}/sshd_config 2>{HOME}/sshd.log
echo ready
cat >/dev/null
"""


@dataclass(frozen=True)
class Machine:
    """One of them.

    Attributes:
        name: its host name.
        address: on the network of all.
        pid: its first process, as the tests' machine counts.
    """

    name: str
    address: str
    pid: int

    def runs(self, line: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Type a line at its terminal, and wait for its end; output and complaints are one text."""
        path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        own = {"HOME": str(HOME), "USER": USER, "PATH": path, "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
        enter = ["nsenter", "--all", f"--target={self.pid}", f"--wd={ROOT}"]
        return subprocess.run(
            [*enter, "bash", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            env=own,
        )

    def processes(self) -> list[str]:
        """What runs on it, sshd and the first process apart."""
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name() not in ("sshd", "sshd-session", "cat") and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()) or process.name())
        return found


@dataclass(frozen=True)
class Network:
    """A laptop, and the hosts that it can reach."""

    laptop: Machine
    hosts: tuple[Machine, ...]


def lacking() -> str:
    """Why this machine cannot be divided so; empty when it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "hosts made of namespaces take root on Linux"
    if missing := [f"{tool} ({package})" for tool, package in TOOLS.items() if shutil.which(tool) is None]:
        return f"hosts made of namespaces need {', '.join(missing)}"
    for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix)):
        if any(path.is_relative_to(covered) for covered in COVERED):
            return f"hosts have {', '.join(COVERED)} of their own, and {path} is in one of them"
    probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"namespaces are not allowed here: {probe.stderr.strip()}" if probe.returncode else ""


@contextlib.contextmanager
def network(folder: Path, names: Sequence[str], subnet: str = "10.98.0") -> Iterator[Network]:
    """Machines that last for as long as the context, and not longer than this process.

    Args:
        folder: an empty one, for their keys and the folder that they share.
        names: of the hosts.
        subnet: the first three numbers of their addresses; the laptop's ends in 1, the hosts' from 11 on.
    """
    shared = folder / "shared"
    shared.mkdir()
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    with contextlib.ExitStack() as stack:
        laptop = stack.enter_context(_machine("laptop", f"{subnet}.1", folder, serves=False))
        _ip(laptop, "link add lan type bridge", "link set lan up", f"address add {laptop.address}/24 dev lan")
        hosts = []
        for number, name in enumerate(names):
            host = stack.enter_context(_machine(name, f"{subnet}.{number + 11}", folder, serves=True))
            _ip(laptop, f"link add port{number} type veth peer name eth0 netns {host.pid}")
            _ip(laptop, f"link set port{number} master lan up")
            # A way out that leads nowhere: programs ask for the interface of the default route.
            _ip(host, f"address add {host.address}/24 dev eth0", "link set eth0 up")
            _ip(host, f"route add default via {laptop.address}")
            hosts.append(host)
        yield Network(laptop, tuple(hosts))


def _ip(machine: Machine, *lines: str) -> None:
    """Commands of ``ip`` on a machine's network."""
    for line in lines:
        subprocess.run(["nsenter", f"--target={machine.pid}", "--net", "ip", *line.split()], check=True)


@contextlib.contextmanager
def _machine(name: str, address: str, folder: Path, serves: bool) -> Iterator[Machine]:
    own = folder / name
    ssh = own / "home" / ".ssh"
    ssh.mkdir(parents=True)
    ssh.chmod(0o700)
    for file, text in _FILES.items():
        (own / file).write_text(text.format(name=name))
    for file in ("passwd",):
        with (own / file).open("a") as out:
            out.write(Path("/etc/passwd").read_text())
    shutil.copy(folder / "key", ssh / "id_ed25519")
    if serves:
        shutil.copy(folder / "key.pub", ssh / "authorized_keys")
        (own / "home" / "sshd_config").write_text(_SSHD)
    apart = ["--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc", "--fork", "--kill-child"]
    process = subprocess.Popen(
        ["unshare", *apart, "bash", "-c", _INIT, "init", name, str(own), str(folder / "shared")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{name} has not started"
        (first,) = psutil.Process(process.pid).children()
        machine = Machine(name, address, first.pid)
        _ip(machine, "link set lo up")
        yield machine
    finally:
        process.communicate()  # closes its input, at which it ends
