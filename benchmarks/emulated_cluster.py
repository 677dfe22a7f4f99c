"""Emulate a cluster on one machine: hosts whose workers have equal shares of a CPU, links of a set rate.

    python benchmarks/emulated_cluster.py --rounds 5            # does it measure? about 25 minutes
    python benchmarks/emulated_cluster.py --rate 1gbit -- sweep examples/paper_times.yaml
    cifar-ray report paper_times

After ``--`` are the words of a ``cifar-ray`` command. It runs on the first of ``--hosts`` hosts, which are Linux
namespaces with a network interface, processes, and a ``/tmp`` of their own. On each is a real Ray node with 4 CPUs;
all see the same home folder, and so the same data, runs and MLflow store. ``tc`` holds both ends of every link to
``--rate``.

Every worker is in a control group of its own, which gives it ``--share`` of a CPU in periods of 5 ms: one worker of a
run is nearly as fast as one of four as long as all shares together fit the machine, so speed-up and efficiency mean
what they mean on a cluster, below a ceiling: what the workers' caches and shared cores cost them before they exchange
anything. Absolute seconds do not, so the hosts' processor says that it is emulated, and with it every run and report.
What Ray, MLflow, the driver and parameter servers do beside the workers is held by nothing; leave it some CPU.

Without a command, three things show whether this measures: the images per second of independent workers at once
against one alone (below 1 is what caches and shared cores take, and what no strategy can exceed), half the share
against the whole, and what one host really sends another over a link of each rate.

Needs root, Linux with iproute2, openssh-server and rsync (of the hosts that the tests make as well), and real CIFAR-10.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import record
import torch

sys.path.insert(0, str(record.ROOT))

from cifar_ray.training import hardware
from tests.support import hosts

PERIOD_US = 5000
"""Short, so that a step is slowed and not stopped: a step of a small model lasts some 10 ms."""
CPUS = 4
"""Of a host, as Ray counts them: room for four workers."""
LEAST_QUOTA_US = 1000
"""Of the kernel."""
SUBNET = "10.98.0"
PORT = 6379
GROUPS = Path("/sys/fs/cgroup")
RATES = ("1gbit", "10gbit", "none")
BATCH, STEPS = 64, 60
TRANSFER_S = 3.0
LOOK_S = 1.0
WORKERS = ("ray::RayTrainWorker", "ray::LoneWorker")  # of several workers, and of one
"""Between two looks at the hosts' processes, which cost CPU; a worker takes longer to come to its first step."""
SENDER = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5001)) as line:
    block, end = bytes(1 << 20), time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        line.sendall(block)
"""
RECEIVER = """
import socket, time
with socket.create_server(("", 5001)) as server:
    print("ready", flush=True)
    line, _ = server.accept()
    begin, count = time.monotonic(), 0
    while got := len(line.recv(1 << 20)):
        count += got
    print(8 * count / (time.monotonic() - begin) / 1e9, flush=True)
"""


class Share:
    """A control group for each process that is added, with the same part of a CPU."""

    def __init__(self, share: float) -> None:
        self._quota = round(share * PERIOD_US)
        self._legacy = (GROUPS / "cpu").is_dir()  # version 1
        self._root = (GROUPS / "cpu" if self._legacy else GROUPS) / f"cifar-ray-{os.getpid()}"
        self._made: list[Path] = []
        self.most = 0
        self.trouble = ""

    def __enter__(self) -> Share:
        if not self._legacy:
            (GROUPS / "cgroup.subtree_control").write_text("+cpu")
        self._root.mkdir()
        if not self._legacy:
            (self._root / "cgroup.subtree_control").write_text("+cpu")
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + 30
        for group in (*self._made, self._root):
            while (group / "cgroup.procs").read_text().strip() and time.monotonic() < end:  # about to end
                time.sleep(0.05)
            group.rmdir()

    @property
    def count(self) -> int:
        """Processes that were added."""
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
    def workers(self, network: hosts.Network) -> Iterator[None]:
        """Context manager: hold every training worker of Ray that starts on the hosts."""
        done = threading.Event()

        def watch() -> None:
            held: set[psutil.Process] = set()
            while not done.wait(LOOK_S):
                for host in network.hosts:
                    with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                        for process in psutil.Process(host.pid).children(recursive=True):
                            if process not in held and " ".join(process.cmdline()).startswith(WORKERS):
                                held.add(process)
                                try:
                                    self.add(process.pid)
                                except OSError as error:
                                    if process.is_running():
                                        self.trouble = f"a worker could not be held: {error}"
                self.most = max(self.most, sum(process.is_running() for process in held))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            yield
        finally:
            done.set()
            watching.join()


def inside(machine: hosts.Machine, words: Sequence[str]) -> list[str]:
    """A command's words, to be run on a host."""
    return ["nsenter", "--all", f"--target={machine.pid}", f"--wdns={Path.cwd()}", *words]


def shape(network: hosts.Network, rate: str) -> None:
    """Hold both ends of every link to a rate."""
    if rate == "none":
        return
    ends = [(host, "eth0") for host in network.hosts]
    ends += [(network.laptop, f"port{number}") for number in range(len(network.hosts))]
    for machine, device in ends:
        limit = ["root", "tbf", "rate", rate, "burst", "1mb", "latency", "50ms"]
        subprocess.run(
            ["nsenter", f"--target={machine.pid}", "--net", "tc", "qdisc", "replace", "dev", device, *limit], check=True
        )


@contextlib.contextmanager
def network(count: int, rate: str) -> Iterator[hosts.Network]:
    """Context manager: hosts with links of a rate."""
    names = [f"emulated{number}" for number in range(count)]
    with tempfile.TemporaryDirectory() as folder, hosts.network(Path(folder), names, SUBNET) as made:
        shape(made, rate)
        yield made


def name_processors(made: hosts.Network, share: float, rate: str) -> None:
    """Have the hosts say what they are, where the name of a processor is read."""
    links = "unshaped links" if rate == "none" else f"links of {rate}"
    said = f"{share:g} of it for each worker, {links} (emulated)"
    name = f"model name\t: {hardware.describe(torch.device('cpu'))}, {said}\n"  # the first one counts
    for host in made.hosts:
        rest = "grep -v '^cpu family' /proc/cpuinfo"  # the name has it
        rename = f'{{ printf %s "$1"; {rest}; }} > /run/cpuinfo; mount --bind /run/cpuinfo /proc/cpuinfo'
        subprocess.run(inside(host, ["sh", "-c", rename, "sh", name]), check=True)


def start_ray(made: hosts.Network, environment: dict[str, str]) -> None:
    """A head on the first host, and a node on every other."""
    head = made.hosts[0].address
    for host in made.hosts:
        as_head = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        place = as_head if host.address == head else [f"--address={head}:{PORT}"]
        words = ["ray", "start", *place, f"--node-ip-address={host.address}", f"--num-cpus={CPUS}"]
        words += ["--object-store-memory=500000000", "--disable-usage-stats"]
        subprocess.run(inside(host, words), env=environment, check=True, stdout=subprocess.DEVNULL)


def command(given: argparse.Namespace) -> int:
    """Run a ``cifar-ray`` command on the first host of a cluster; its exit status."""
    with Share(given.share) as share, network(given.hosts, given.rate) as made:
        name_processors(made, given.share, given.rate)
        head = made.hosts[0]
        environment = dict(os.environ) | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # which sudo replaces
            "PYTHONPATH": str(record.ROOT),
            "RAY_ADDRESS": f"{head.address}:{PORT}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        start_ray(made, environment)
        # Ctrl-C is for the command, which ends its run and takes signals itself; nsenter, before it, would end at once.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with share.workers(made):
            status = subprocess.run(inside(head, ["cifar-ray", *given.words]), env=environment).returncode
        for host in made.hosts:
            subprocess.run(inside(host, ["ray", "stop", "--force"]), env=environment, capture_output=True)
        give_back()
        print(f"{share.count} workers were held to {given.share:g} of a CPU")
    if share.most * given.share > hardware.allowed_cpus():
        print(f"{share.most} workers ran at once: more than this machine's CPUs, so they had less than their shares")
    if share.trouble:
        print(f"{share.trouble}; these times are not those of equal shares", file=sys.stderr)
    return status or int(bool(share.trouble))


def give_back() -> None:
    """Under sudo, make its user the owner of what root wrote in their home folder, so that they can use it."""
    if user := os.environ.get("SUDO_UID"):
        written = [
            folder for folder in (Path.home() / ".cifar_ray", Path.home() / ".cache/cifar_ray") if folder.exists()
        ]
        subprocess.run(["chown", "--recursive", f"{user}:{os.environ['SUDO_GID']}", *written], check=True)


def independent(count: int, share: float, model: str) -> float:
    """Images per second of each of some workers at once that have nothing to do with one another, the mean."""
    words = [sys.executable, "-m", "cifar_ray.training", "--model", model, "--batch-size", str(BATCH), "--epochs", "1"]
    words += ["--steps-per-epoch", str(STEPS), "--cpus-per-worker", "1", "--device", "cpu", "--precision", "fp32"]
    with Share(share) as held, tempfile.TemporaryDirectory() as folder:
        started = []
        for number in range(count):
            line = [*words, "--storage", f"{folder}/{number}"]
            started.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=record.ROOT))
            held.add(started[-1].pid)
        printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a worker failed")
    times = [line for said in printed for line in said.splitlines() if line.startswith("times: ")]
    steps = [dict(pair.split() for pair in line.removeprefix("times: ").split(", ")) for line in times]
    return statistics.mean(BATCH / float(figures["time/iteration_mean_s"]) for figures in steps)


def link(rate: str) -> float:
    """Gbit/s that one host really sends another."""
    with network(2, rate) as made:
        sender, receiver = made.hosts
        listening = subprocess.Popen(
            inside(receiver, [sys.executable, "-c", RECEIVER]), stdout=subprocess.PIPE, text=True
        )
        assert listening.stdout is not None
        listening.stdout.readline()
        send = [sys.executable, "-c", SENDER, receiver.address, str(TRANSFER_S)]
        subprocess.run(inside(sender, send), check=True)
        return float(listening.communicate()[0])


def check(given: argparse.Namespace) -> None:
    """Measure whether the cluster measures, and save the rows."""
    found: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)
        print(f"{name}: {value:.2f}", flush=True)

    for turn in range(given.rounds):
        print(f"round {turn + 1}", flush=True)
        for count in (1, 2, 4):
            if count * given.share <= hardware.allowed_cpus():
                add(f"{count} at once", independent(count, given.share, given.model))
        add("half the share", independent(1, given.share / 2, given.model))
        for rate in RATES:
            add(rate, link(rate))
    record.save("emulated_cluster", "A cluster emulated on one machine", rows(given, found), found, dry=given.dry)


def rows(given: argparse.Namespace, found: dict[str, list[float]]) -> list[record.Row]:
    """The lines of the table."""
    middle = {name: statistics.median(values) for name, values in found.items()}
    subject = f"{given.model}, batch {BATCH}, fp32, {given.share:g} of a CPU for each worker"
    alone = middle["1 at once"]
    made = [
        record.Row(
            f"{subject}: each of {name} against one alone",
            "",
            f"{value / alone:.2f} times",
            given.rounds,
            f"{value:.0f} ({min(found[name]):.0f} to {max(found[name]):.0f}) against {alone:.0f} "
            f"({min(found['1 at once']):.0f} to {max(found['1 at once']):.0f}) images/s: the ceiling of an efficiency",
        )
        for name, value in middle.items()
        if name.endswith("at once") and name != "1 at once"
    ]
    half = middle["half the share"]
    note = f"{half:.0f} against {alone:.0f} images/s"
    made.append(record.Row(f"{subject}: half the share", "0.50 times", f"{half / alone:.2f} times", given.rounds, note))
    for rate in RATES:
        asked = "" if rate == "none" else rate.replace("gbit", " Gbit/s")
        sent = f"{middle[rate]:.2f} Gbit/s"
        made.append(record.Row(f"a link, {rate}: TCP between two hosts", asked, sent, given.rounds))
    return made


def main() -> int:
    """Measure whether it measures, or run a command on a cluster."""
    parser = record.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=2, help="hosts of the cluster (%(default)s)")
    parser.add_argument("--share", type=float, default=0.45, help="part of a CPU for each worker (%(default)s)")
    parser.add_argument("--rate", default="none", help="of every link, as tc writes it, or none (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each, without a command (%(default)s)")
    parser.add_argument("--model", default="resnet", help="model, without a command (%(default)s)")
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="cifar-ray's words, after --")
    given = parser.parse_args()
    if reason := hosts.lacking():
        parser.error(reason)
    least = LEAST_QUOTA_US / PERIOD_US * (1 if given.words else 2)  # without a command, half of it is measured as well
    if not least <= given.share <= 1:
        parser.error(f"--share must be {least:g} to 1, got {given.share:g}")
    for folder in (Path.cwd(), Path.home()):
        if any(folder.is_relative_to(covered) for covered in hosts.COVERED):
            parser.error(f"hosts have a /tmp, /srv, /run and /dev/shm of their own, and this is in one: {folder}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that hosts and groups go
    if given.words:
        return command(given)
    check(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
