"""Machines on a local network, made of Linux namespaces: hosts with a real sshd, and a laptop to reach them from.

Every machine has a host name, a network interface, processes, a ``/tmp`` and a home folder of its own. It sees the
files of the machine that the tests run on, and all of them share one folder, as over NFS. Its name resolves to
loopback, as Debian has it. The switch between them is a bridge on the laptop; nothing leads out of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
USER = "trainer"
HOME = Path("/srv/home") / USER
SHARED = Path("/srv/cifar_ray")
KEY = HOME / ".ssh" / "cifar_ray"
TOOLS = {"ip": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client", "rsync": "rsync"}
COVERED = ("/tmp", "/srv", "/run", "/dev/shm")
"""Folders of which each machine has its own."""
_PATH = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OWN_PROCESSES = ("bash", "cat", "sshd", "sshd-session")

_SSHD = f"""\
HostKey {KEY}
AuthorizedKeysFile {KEY}.pub
PidFile none
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
SetEnv PYTHONPATH={HOME}/cifar_ray
"""
# There is no systemd on a host. This starts and ends what a unit of the home folder says; nobody starts it again.
_SYSTEMCTL = """\
#!/bin/bash
unit=~/.config/systemd/user/${@: -1}.service pid=/run/${@: -1}.pid
says() { sed -n "s|%h|$HOME|g; s|^$1=||p" "$unit"; }
case "$2" in
  restart)
    bash -c "$(says ExecStartPre)"
    setsid env $(says Environment) $(says ExecStart) >~/unit.log 2>&1 </dev/null &
    echo $! >"$pid" ;;
  disable)
    kill -- -"$(cat "$pid")"
    while kill -0 -- -"$(cat "$pid")" 2>/dev/null; do sleep 0.1; done ;;
esac
"""
# The first process of a machine. It lasts for as long as somebody holds the other end of its input, and all that runs
# on the machine ends with it. While bash waits, it also takes leave of orphans, as an init must.
_INIT = f"""
set -e
name=$1 own=$2 shared=$3
hostname "$name"
for file in hosts hostname resolv.conf passwd; do mount --bind "$own/$file" /etc/$file; done
mount -t tmpfs tmpfs /srv
mkdir -p {SHARED} {HOME}
mount --bind "$shared" {SHARED}
cp -r /etc/skel/. "$own/home/." {HOME}
for folder in /dev/shm /run /tmp; do mount -t tmpfs tmpfs $folder; done
chmod 1777 /tmp
mkdir /run/sshd
if [ -f {HOME}/sshd_config ]; then $(command -v sshd) -f {HOME}/sshd_config; fi
echo ready
cat >/dev/null
"""


@dataclass(frozen=True)
class Machine:
    """One of them.

    Attributes:
        name: its host name.
        address: on the network of all.
        pid: its first process, as the machine of the tests counts.
    """

    name: str
    address: str
    pid: int

    def processes(self) -> list[str]:
        """What runs on it, but for what every host has."""
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.name() not in _OWN_PROCESSES:
                    found.append(" ".join(process.cmdline())[:100])
        return found


@dataclass(frozen=True)
class Network:
    """A laptop, and the hosts that it can reach."""

    laptop: Machine
    hosts: tuple[Machine, ...]


@dataclass(frozen=True)
class Answer:
    """What came of a line at a terminal."""

    status: int
    output: str


class Terminal:
    """A shell on a machine, in which one line is typed after the other."""

    _MARK = "status of the line before:"

    def __init__(self, machine: Machine) -> None:
        own = {"HOME": str(HOME), "USER": USER, "PATH": _PATH, "LANG": "C.UTF-8", "COLUMNS": "200"}
        enter = ["nsenter", "--all", f"--target={machine.pid}", f"--wdns={HOME}", "bash"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._shell = subprocess.Popen(enter, **pipes, text=True, env=own)  # type: ignore[call-overload]

    def types(self, line: str, timeout: float = 300) -> Answer:
        """Type a line, and wait for its end; output and complaints are one text."""
        self._shell.stdin.write(f"{{ {line}\n}} </dev/null\nprintf '\\n{self._MARK} %d\\n' $?\n")
        self._shell.stdin.flush()
        late = threading.Timer(timeout, self._shell.kill)
        late.start()
        said: list[str] = []
        try:
            while not (read := self._shell.stdout.readline()).startswith(self._MARK):
                assert read, f"`{line}` has not ended within {timeout} s:\n{''.join(said)}"
                said.append(read)
        finally:
            late.cancel()
        return Answer(int(read.removeprefix(self._MARK)), "".join(said).strip())

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()


def lacking() -> str:
    """Why this machine cannot be divided so; empty when it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "hosts made of namespaces take root on Linux"
    if missing := [f"{tool} ({package})" for tool, package in TOOLS.items() if shutil.which(tool, path=_PATH) is None]:
        return f"hosts made of namespaces need {', '.join(missing)}"
    for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix)):
        if any(path.is_relative_to(covered) for covered in COVERED):
            return f"hosts have their own {', '.join(COVERED)}, and {path} is in one of them"
    probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"namespaces are not allowed here: {probe.stderr.strip()}" if probe.returncode else ""


@contextlib.contextmanager
def network(folder: Path, names: Sequence[str], subnet: str) -> Iterator[Network]:
    """Machines that last for as long as the context, and never longer than this process.

    Args:
        folder: an empty one, for their keys and the folder that they share.
        names: of the hosts.
        subnet: the first three numbers of their addresses; the laptop's ends in 1, the hosts' from 11 on.
    """
    (folder / "shared").mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / KEY.name], check=True)
    with contextlib.ExitStack() as stack:
        laptop = stack.enter_context(_machine("laptop", f"{subnet}.1", folder, sshd=False))
        _ip(laptop, "link add lan type bridge", "link set lan up", f"address add {laptop.address}/24 dev lan")
        hosts = []
        for number, name in enumerate(names):
            host = stack.enter_context(_machine(name, f"{subnet}.{number + 11}", folder, sshd=True))
            _ip(laptop, f"link add port{number} type veth peer name eth0 netns {host.pid}")
            _ip(laptop, f"link set port{number} master lan up")
            _ip(host, f"address add {host.address}/24 dev eth0", "link set eth0 up")
            # It leads nowhere, but a machine's own address is that of the interface with the default route.
            _ip(host, f"route add default via {laptop.address}")
            hosts.append(host)
        yield Network(laptop, tuple(hosts))


def _ip(machine: Machine, *lines: str) -> None:
    """Commands of ``ip`` on a machine's network."""
    for line in lines:
        subprocess.run(["nsenter", f"--target={machine.pid}", "--net", "ip", *line.split()], check=True)


@contextlib.contextmanager
def _machine(name: str, address: str, folder: Path, sshd: bool) -> Iterator[Machine]:
    own = folder / name
    _prepare(own, name, folder, sshd)
    apart = ["--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc", "--fork", "--kill-child"]
    process = subprocess.Popen(
        ["unshare", *apart, "bash", "-c", _INIT, "init", name, str(own), str(folder / "shared")],
        start_new_session=True,  # Ctrl-C is for what runs on the hosts, and does not end them
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": _PATH},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{name} has not started"
        (first,) = psutil.Process(process.pid).children()
        machine = Machine(name, address, first.pid)
        _ip(machine, "link set lo up")
        yield machine
    finally:
        process.communicate()  # closes the input of its first process


def _prepare(own: Path, name: str, folder: Path, sshd: bool) -> None:
    """The files that a machine has of its own."""
    commands, ssh = own / "home/.local/bin", own / "home/.ssh"
    for each in (commands, ssh):
        each.mkdir(parents=True)
    (own / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
    (own / "hostname").write_text(f"{name}\n")
    (own / "resolv.conf").write_text("")
    # Root's first entry is who processes take themselves for, and its home folder is private; /root is not.
    (own / "passwd").write_text(f"{USER}:x:0:0::{HOME}:/bin/bash\n{Path('/etc/passwd').read_text()}")
    for key in (KEY.name, f"{KEY.name}.pub"):
        shutil.copy(folder / key, ssh)
    (ssh / "known_hosts").write_text(f"* {(folder / f'{KEY.name}.pub').read_text()}")
    ssh.chmod(0o700)
    if sshd:
        (own / "home/sshd_config").write_text(_SSHD)
        (commands / "systemctl").write_text(_SYSTEMCTL)
        (commands / "loginctl").write_text("#!/bin/sh\n")
        for command in commands.iterdir():
            command.chmod(0o755)
