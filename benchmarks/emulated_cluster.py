"""Emulate a cluster on one machine: hosts whose workers have equal shares of a CPU, links of a set rate.

    python benchmarks/emulated_cluster.py --rate 1gbit -- sweep examples/paper_times.yaml
    cifar-ray report paper_times
    python benchmarks/emulated_cluster.py            # the ceiling of an efficiency; about 15 minutes

Measured: each of four independent `resnet` workers at once reaches 0.91 of one alone, each of two 0.97 (n = 3, two cores
of an AMD EPYC).

After ``--`` are the words of a ``cifar-ray`` command. It runs on the first of ``--hosts`` hosts, which are Linux
namespaces with a network interface, processes, and a ``/tmp`` of their own. On each is a real Ray node with 4 CPUs;
all see the same home folder, and so the same data, runs and MLflow store. ``tc`` holds both ends of every link to
``--rate``.

Every worker is in a control group of its own, which gives it ``--share`` of a CPU in periods of 5 ms: one worker of a
run is nearly as fast as one of four as long as all shares together fit the machine, so speed-up and efficiency mean
what they mean on a cluster, below a ceiling: what the workers' caches and shared cores cost them before they exchange
anything, which the script measures without a command. Absolute seconds do not, so the hosts' processor says that it is
emulated, and with it every run and report. What Ray, MLflow, the driver and parameter servers do beside the workers is
held by nothing; leave it some CPU.

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
from functools import partial
from pathlib import Path

import psutil
import record
import torch

sys.path.insert(0, str(record.ROOT))

from cifar_ray.training import hardware
from tests.support import hosts

PERIOD_US = 5000
"""Of a share: short, so that a step is slowed and not stopped; a step of a small model lasts some 10 ms."""
GROUPS = Path("/sys/fs/cgroup")
CPUS = 4
"""Of a host, as Ray counts them: room for four workers."""
LEAST_QUOTA_US = 1000
"""Of the kernel."""
SUBNET = "10.98.0"
PORT = 6379
BATCH, STEPS = 64, 60
LOOK_S = 1.0
"""Between two looks at the hosts' processes, which cost CPU; a worker takes longer to come to its first step."""
WORKERS = ("ray::RayTrainWorker", "ray::LoneWorker")  # of several workers, and of one


class Share:
    """Context manager: control groups whose processes each have the same part of a CPU."""

    def __init__(self, share: float) -> None:
        self._quota = round(share * PERIOD_US)
        self._legacy = (GROUPS / "cpu").is_dir()  # version 1
        self._root = (GROUPS / "cpu" if self._legacy else GROUPS) / f"cifar-ray-{os.getpid()}"
        self.made: list[Path] = []

    def __enter__(self) -> Share:
        for parent in (GROUPS, self._root):
            parent.mkdir(exist_ok=True)
            if not self._legacy:
                (parent / "cgroup.subtree_control").write_text("+cpu")
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + 30
        for group in (*self.made, self._root):
            while (group / "cgroup.procs").read_text().strip() and time.monotonic() < end:  # about to end
                time.sleep(0.05)
            group.rmdir()

    def group(self) -> Path:
        """A new control group with this part of a CPU."""
        group = self._root / str(len(self.made))
        group.mkdir()
        self.made.append(group)
        if self._legacy:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(self._quota))
        else:
            (group / "cpu.max").write_text(f"{self._quota} {PERIOD_US}")
        return group

    def add(self, pid: int) -> None:
        """Hold a process, with all its threads and those to come."""
        (self.group() / "cgroup.procs").write_text(str(pid))


class Watch:
    """Holds every training worker of Ray that starts on the hosts, while it is open."""

    def __init__(self, share: Share, network: hosts.Network) -> None:
        self._share, self._network = share, network
        self._held: set[psutil.Process] = set()
        self._done, self._thread = threading.Event(), threading.Thread(target=self._watch)
        self.most = 0  # at once
        self.trouble = ""

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            for host in self._network.hosts:
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    for process in psutil.Process(host.pid).children(recursive=True):
                        if process not in self._held and " ".join(process.cmdline()).startswith(WORKERS):
                            self._hold(process)
            self.most = max(self.most, sum(process.is_running() for process in self._held))

    def _hold(self, process: psutil.Process) -> None:
        self._held.add(process)
        try:
            self._share.add(process.pid)
        except OSError as error:
            if process.is_running():
                self.trouble = f"a worker could not be held: {error}"


def inside(machine: hosts.Machine, words: Sequence[str]) -> list[str]:
    """A command's words, to be run on a host."""
    return ["nsenter", "--all", f"--target={machine.pid}", f"--wdns={Path.cwd()}", *words]


@contextlib.contextmanager
def network(count: int) -> Iterator[hosts.Network]:
    """Context manager: some hosts on a network of their own."""
    if reason := hosts.lacking():
        sys.exit(f"error: {reason}")
    names = [f"emulated{number}" for number in range(count)]
    with tempfile.TemporaryDirectory() as folder, hosts.network(Path(folder), names, SUBNET) as made:
        yield made


def shape(made: hosts.Network, rate: str, burst: str = "1mb") -> None:
    """Hold both ends of every link to a rate; ``none`` is a bare link."""
    ends = [(host, "eth0") for host in made.hosts]
    ends += [(made.laptop, f"port{number}") for number in range(len(made.hosts))]
    for machine, device in ends:
        tc = ["nsenter", f"--target={machine.pid}", "--net", "tc", "qdisc"]
        if rate == "none":
            subprocess.run([*tc, "delete", "dev", device, "root"], stderr=subprocess.DEVNULL)
        else:
            limit = ["tbf", "rate", rate, "burst", burst, "latency", "50ms"]
            subprocess.run([*tc, "replace", "dev", device, "root", *limit], check=True)


def name_processors(made: hosts.Network, given: argparse.Namespace) -> None:
    """Have the hosts say what they are, where the name of a processor is read."""
    links = "unshaped links" if given.rate == "none" else f"links of {given.rate}"
    said = f"{given.share:g} of it for each worker, {links} (emulated)"
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
    with Share(given.share) as share, network(given.hosts) as made:
        shape(made, given.rate)
        name_processors(made, given)
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
        with Watch(share, made) as watch:
            status = subprocess.run(inside(head, ["cifar-ray", *given.words]), env=environment).returncode
        for host in made.hosts:
            subprocess.run(inside(host, ["ray", "stop", "--force"]), env=environment, capture_output=True)
        give_back()
        print(f"{len(share.made)} workers were held to {given.share:g} of a CPU")
    if watch.most * given.share > hardware.allowed_cpus():
        print(f"{watch.most} workers ran at once: more than this machine's CPUs, so they had less than their shares")
    if watch.trouble:
        print(f"{watch.trouble}; these times are not those of equal shares", file=sys.stderr)
    return status or int(bool(watch.trouble))


def give_back() -> None:
    """Under sudo, make its user the owner of what root wrote in their home folder, so that they can use it."""
    if user := os.environ.get("SUDO_UID"):
        folders = [Path.home() / name for name in (".cifar_ray", ".cache/cifar_ray")]
        written = [folder for folder in folders if folder.exists()]
        subprocess.run(["chown", "--recursive", f"{user}:{os.environ['SUDO_GID']}", *written], check=True)


def independent(count: int, given: argparse.Namespace) -> float:
    """Images per second of each of some workers at once that have nothing to do with one another, the mean."""
    words = ["--model", given.model, "--batch-size", str(BATCH), "--epochs", "1", "--steps-per-epoch", str(STEPS)]
    words += ["--cpus-per-worker", "1", "--precision", "fp32"]
    with Share(given.share) as held, tempfile.TemporaryDirectory() as folder:
        started = []
        for number in range(count):
            line = record.training(words, f"{folder}/{number}")
            started.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=record.ROOT))
            held.add(started[-1].pid)
        printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit("a worker failed")
    return statistics.mean(BATCH / record.figures(said)["time/iteration_mean_s"] for said in printed)


def check(given: argparse.Namespace) -> None:
    """Measure the ceiling of an efficiency, and save the rows."""
    counts = [count for count in (1, 2, 4) if count * given.share <= hardware.allowed_cpus()]
    found = record.in_turn(given.rounds, {f"{count} at once": partial(independent, count, given) for count in counts})
    subject = f"{given.model}, batch {BATCH}, fp32, {given.share:g} of a CPU for each worker"
    made, alone = [], found["1 at once"]
    for name, values in list(found.items())[1:]:
        ratio = f"{statistics.median(values) / statistics.median(alone):.2f} times"
        note = f"{record.spread(values)} against {record.spread(alone)} images/s: the ceiling of an efficiency"
        made.append(record.Row(f"{subject}: each of {name} against one alone", "", ratio, given.rounds, note))
    record.save("emulated_cluster", "A cluster emulated on one machine", made, found, dry=given.dry)


def main() -> int:
    """Run a command on a cluster, or measure its ceiling."""
    parser = record.parser(__doc__, rounds=5)
    parser.add_argument("--hosts", type=int, default=2, help="hosts of the cluster (%(default)s)")
    parser.add_argument("--share", type=float, default=0.45, help="part of a CPU for each worker (%(default)s)")
    parser.add_argument("--rate", default="none", help="of every link, as tc writes it, or none (%(default)s)")
    parser.add_argument("--model", default="resnet", help="model, without a command (%(default)s)")
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="cifar-ray's words, after --")
    given = parser.parse_args()
    if not LEAST_QUOTA_US / PERIOD_US <= given.share <= 1:
        parser.error(f"--share must be {LEAST_QUOTA_US / PERIOD_US:g} to 1, got {given.share:g}")
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
