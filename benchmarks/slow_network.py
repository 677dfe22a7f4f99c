"""What a slow network costs each strategy: seconds per iteration and bytes per step, between nodes on this machine.

    python benchmarks/slow_network.py                        # every strategy, two nodes, 1 Gbit/s beside unshaped
    python benchmarks/slow_network.py --strategies ddp --nodes 4 --rate none,100mbit,1gbit --rounds 5
    python benchmarks/slow_network.py --strategies ddp -- --bucket-cap-mb 5     # flags of the training after --
    python benchmarks/slow_network.py --save buckets --dataset digits --model resnet18 --rate none,1gbit,100mbit \
        --steps 8 --rounds 5 --strategies "ddp --bucket-cap-mb 1,ddp --bucket-cap-mb 5,ddp --bucket-cap-mb 25,\
        ddp --bucket-cap-mb 100,ddp --strategy-options.comm-hook bf16"     # flags of each in turn; rows for docs/measurements/performance.md

A node is a Linux network namespace with one link to a switch, a bridge in a namespace of its own, so that neither
the machine's interfaces nor its firewall take part. ``tc`` shapes both ends of every link: tbf bounds what a node
sends and what it receives to ``--rate``, and netem delays what it sends by ``--delay``, half a round trip. Where the
kernel has no netem there is no delay, and the table says so. torchrun starts the workers, each of one thread, over
gloo. Every round runs every strategy on every network, so that a busier hour is everybody's. Needs root, Linux with
iproute2, and CIFAR-10 where ``cifar-ray train`` looks for it. A run of vgg11 lasts about 40 seconds on 2 cores plus
its exchanges; 10 of them are the evaluation of all test images, which no figure but the bytes includes.

How to read the table. Seconds are the mean over a run's iterations without the first, so that a strategy that
exchanges only now and then pays its share; the table has the median, least and most over the n runs. The ratio is
that of the medians on this network and on the unshaped one, which is memory of the same machine: it is the price of
the network, not the speed of a cluster, whose nodes share no cores. MB (10^6 bytes) sent per step, node 0 first, are
tx_bytes of the node's own interface over a whole run divided by its steps, the mean of the runs, with nothing
subtracted. Beside the strategy's exchange they include what happens once: the meeting of the workers, the first
weights (DDP broadcasts them), the warm-up (two exchanges with DDP, one with others), the evaluation. More ``--steps``
make its share smaller. They also include acknowledgements, and headers, but one for each piece of up to 64 KiB that
the kernel hands over, not one for each packet.

The exit status is 1 when a run failed (its last lines are shown and the strategy is left out from there on), and 2
when this machine cannot do it. Nothing remains, however it ends; what a ``kill -9`` leaves, the next start removes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import typing
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import record

from cifar_ray.config.strategy import StrategyName

PREFIX = "cifar-ray-slow-"
"""Begins the name of every namespace and every temporary folder made here."""
ROOT = Path(__file__).parents[1]
SWITCH = f"{PREFIX}switch"
SUBNET = "10.99.0"
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ELSEWHERE = ("data_parallel", "parameter_server", "hogwild")
"""Strategies that need GPUs, need Ray, or stay within one node."""
STRATEGIES = [name for name in typing.get_args(StrategyName) if name not in ELSEWHERE]
Found = dict[tuple[str, str], list[tuple[float, list[float]]]]
"""Strategy and rate -> of every run, seconds per iteration and MB that each node sent per step."""


class Refused(Exception):  # noqa: N818
    """This machine, or what was asked for, does not allow the measurement."""


def command(*words: str) -> str:
    """What a command prints; ``CalledProcessError`` when it complains."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def node(rank: int) -> str:
    """The namespace of a node."""
    return f"{PREFIX}node{rank}"


def check_machine() -> socket.socket:
    """Refuse a machine that cannot do this; the socket keeps a second one away for as long as it is open."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise Refused("this makes network namespaces, which takes root on Linux")
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        raise Refused(f"this needs the commands ip and tc of iproute2; not found: {', '.join(missing)}")
    alone = socket.socket(socket.AF_UNIX)
    try:
        alone.bind(f"\0{PREFIX}lock")  # an abstract name: gone with the process, however it ends
    except OSError:
        alone.close()
        raise Refused("another slow_network.py runs on this machine, and each would slow the other") from None
    return alone


def end_processes(name: str) -> None:
    """Kill whatever runs in a namespace, until nothing does."""
    pids = ["ip", "netns", "pids", name]
    while found := subprocess.run(pids, capture_output=True, text=True).stdout.split():
        for pid in map(int, found):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def remove_all() -> None:
    """Remove all namespaces, whose interfaces go with them, and temporary folders; call it under the lock."""
    for name in [path.name for path in Path("/run/netns").glob(f"{PREFIX}*")]:
        end_processes(name)
        subprocess.run(["ip", "netns", "delete", name])
    remove_folders()


def remove_folders() -> None:
    """Remove the temporary folders of this process and of ended ones; other measurements may run beside it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid == str(os.getpid()) or not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Context manager: a temporary folder, named after this process for :func:`remove_folders`."""
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-")


def build(nodes: int) -> None:
    """Make the nodes, the switch, and a link from each node to it."""
    try:
        for name in (SWITCH, *map(node, range(nodes))):
            command("ip", "netns", "add", name)
            command("ip", "-n", name, "link", "set", "lo", "up")
        command("ip", "-n", SWITCH, "link", "add", "bridge", "type", "bridge")
        command("ip", "-n", SWITCH, "link", "set", "bridge", "up")
        for rank in range(nodes):
            here, port = node(rank), f"port{rank}"
            command("ip", "link", "add", "eth0", "netns", here, "type", "veth", "peer", "name", port, "netns", SWITCH)
            command("ip", "-n", SWITCH, "link", "set", port, "master", "bridge", "up")
            command("ip", "-n", here, "address", "add", f"{SUBNET}.{rank + 1}/24", "dev", "eth0")
            command("ip", "-n", here, "link", "set", "eth0", "up")
    except subprocess.CalledProcessError as error:
        raise Refused(f"the network could not be made: `{' '.join(error.cmd)}` says {error.stderr.strip()}") from None


def shape(nodes: int, rate: str, delay: str | None) -> None:
    """Give every link this rate in both directions, and what a node sends this delay; "none" is a bare link."""
    for name, device in [(node(rank), "eth0") for rank in range(nodes)] + [(SWITCH, f"port{n}") for n in range(nodes)]:
        subprocess.run(["tc", "-n", name, "qdisc", "delete", "dev", device, "root"], stderr=subprocess.DEVNULL)
        if rate == "none":
            continue
        add = ("tc", "-n", name, "qdisc", "add", "dev", device)
        # A bucket of two of the largest pieces that TCP hands over, and a queue as long as a small switch's.
        command(*add, "root", "handle", "1:", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms")
        if delay and device == "eth0":
            command(*add, "parent", "1:1", "handle", "2:", "netem", "delay", delay, "limit", "100000")


def usable_delay(nodes: int, rates: list[str], delay: str) -> str | None:
    """Try every network: the delay, or None where the kernel has no netem."""
    usable: str | None = delay
    for rate in rates:
        try:
            shape(nodes, rate, usable)
        except subprocess.CalledProcessError as error:
            complaint = error.stderr.strip().splitlines()[0]
            if error.returncode == 1:  # tc's own word, before it asks the kernel
                raise Refused(f"tc does not understand --rate {rate} with --delay {delay}: {complaint}") from None
            if "netem" not in error.cmd:
                raise Refused(f"the kernel refuses to shape a link with tbf: {complaint}") from None
            print("this kernel has no netem (CONFIG_NET_SCH_NETEM): links are shaped, but not delayed", flush=True)
            usable = None
            shape(nodes, rate, usable)
    return usable


def sent(nodes: int) -> list[int]:
    """Bytes that each node has sent so far."""
    shown = (json.loads(command("ip", "-n", node(rank), "-s", "-j", "link", "show", "eth0")) for rank in range(nodes))
    return [link["stats64"]["tx"]["bytes"] for (link,) in shown]


@contextlib.contextmanager
def torchruns(given: argparse.Namespace, strategy: str, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One torchrun in each node, whose output goes to a file of its rank in ``folder``."""
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={given.nodes}"]
    launch += [f"--nproc-per-node={given.workers}", f"--master-addr={SUBNET}.1", "--master-port=29500"]
    words = [
        "--cpus-per-worker",
        "1",
        "--strategy",
        *strategy.split(),
        "--storage",
        str(folder),
        "--epochs",
        "1",
        "--steps-per-epoch",
        str(given.steps),
    ]
    words += ["--dataset", given.dataset, "--model", given.model, "--global-batch-size", str(given.global_batch_size)]
    # A small learning rate: no strategy diverges in its first steps, and the time is the same.
    words += ["--precision", given.precision, "--device", "cpu", "--lr", "0.001", *given.flags]
    env = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(given.nodes):
            place = [f"--node-rank={rank}", f"--local-addr={SUBNET}.{rank + 1}", "-m", "cifar_ray.training"]
            line = ["ip", "netns", "exec", node(rank), *launch, *place, *words]
            with (folder / f"{rank}.txt").open("wb") as out:
                # A group of its own: Ctrl-C is for this script, which ends them.
                own = {"cwd": ROOT, "env": os.environ | env, "start_new_session": True}
                started.append(subprocess.Popen(line, stdout=out, stderr=out, **own))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
        for rank in range(given.nodes):
            end_processes(node(rank))


def last_words(output: str) -> str:
    """The last lines of the workers, without torchrun's own account of their end, which is longer."""
    said = output.rpartition("Traceback (most recent call last)")[0] if "ChildFailedError" in output else output
    return "\n".join(said.splitlines()[-20:])


def run(given: argparse.Namespace, strategy: str) -> tuple[float, list[float], str]:
    """Train once: seconds per iteration, MB that each node sent per step, and what was trained on what."""
    with temporary_folder() as name:
        folder, before = Path(name), sent(given.nodes)
        with torchruns(given, strategy, folder) as started:
            while (ends := [process.poll() for process in started]) != [0] * given.nodes:
                if any(ends):
                    rank = next(rank for rank, status in enumerate(ends) if status)
                    text = last_words((folder / f"{rank}.txt").read_text(errors="replace"))
                    raise ChildProcessError(f"{strategy} failed on node {rank}, whose last lines are:\n{text}")
                time.sleep(0.1)
        lines = (folder / "0.txt").read_text().splitlines()
    megabytes = [(after - sooner) / given.steps / 1e6 for sooner, after in zip(before, sent(given.nodes))]
    (times,) = (line.removeprefix("times: ") for line in lines if line.startswith("times: "))
    (trained,) = (line.removesuffix(", from scratch") for line in lines if line.startswith("training "))
    figures = dict(pair.split() for pair in times.split(", "))
    return float(figures["time/iteration_mean_s"]), megabytes, trained


def measure(given: argparse.Namespace, delay: str | None) -> tuple[Found, str, set[str]]:
    """All rounds: the figures, what was trained on what, and the strategies that failed."""
    found: Found = {}
    failed: set[str] = set()
    trained = ""
    for turn, strategy, rate in itertools.product(range(given.rounds), given.strategies, given.rate):
        if strategy in failed:
            continue
        shape(given.nodes, rate, delay)
        try:
            seconds, megabytes, trained = run(given, strategy)
        except ChildProcessError as error:
            print(error, flush=True)
            failed.add(strategy)
        else:
            found.setdefault((strategy, rate), []).append((seconds, megabytes))
            print(f"round {turn + 1}: {strategy}, {rate}: {seconds:.3f} s", flush=True)
    return found, trained, failed


def table(found: Found, delay: str | None) -> Iterator[str]:
    """The lines of the table, as Markdown."""
    yield "| strategy | network | s/iteration, median (min to max) | n | x unshaped | MB sent per step, by node |"
    yield "|---|---|--:|--:|--:|--:|"
    medians = {key: statistics.median(seconds for seconds, _ in runs) for key, runs in found.items()}
    for (strategy, rate), runs in found.items():
        seconds, megabytes = zip(*runs)
        median, bare = medians[strategy, rate], medians.get((strategy, "none"))
        network = "unshaped" if rate == "none" else f"{rate}, {delay or 'no delay'}"
        spread = f"{median:.3f} ({min(seconds):.3f} to {max(seconds):.3f}) | {len(runs)}"
        by_node = ", ".join(f"{statistics.mean(each):.2f}" for each in zip(*megabytes))
        yield f"| {strategy} | {network} | {spread} | {f'{median / bare:.2f}' if bare else '-'} | {by_node} |"


def save(given: argparse.Namespace, found: Found, delay: str | None) -> None:
    """Keep every run's figures, and a row for each strategy on each network."""
    rows = []
    for (strategy, rate), runs in found.items():
        seconds = [each for each, _ in runs]
        where = "unshaped" if rate == "none" else f"{rate}, {delay or 'no delay'}"
        spread = f"{statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
        note = f"{given.model} in {given.precision}, {given.global_batch_size} images per step, {given.nodes}x{given.workers}"
        rows.append(record.Row(f"{strategy}: {where}", "", spread, len(runs), note))
    raw = {f"{strategy}: {rate}": runs for (strategy, rate), runs in found.items()}
    record.save(given.save, "A step over links of several rates", rows, raw, dry=given.dry)


def read_words() -> argparse.Namespace:
    """The command line."""
    parser = record.parser(__doc__)
    parser.add_argument(
        "--strategies", default=",".join(STRATEGIES), help="separated by commas, each may have flags (%(default)s)"
    )
    parser.add_argument("--nodes", type=int, choices=(2, 4), default=2, help="network namespaces (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="workers on each node (%(default)s)")
    parser.add_argument("--rate", default="none,1gbit", help="tc's rates of a link; none: unshaped (%(default)s)")
    parser.add_argument("--delay", default="1ms", help="tc's delay of a shaped link, one way (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each strategy on each network (%(default)s)")
    parser.add_argument("--dataset", default="cifar10", help="(%(default)s)")
    parser.add_argument("--model", default="vgg11", help="(%(default)s)")
    parser.add_argument("--global-batch-size", type=int, default=64, help="images per step (%(default)s)")
    parser.add_argument("--precision", default="bf16", help="fp32 or bf16 (%(default)s)")
    parser.add_argument("--steps", type=int, default=15, help="optimizer steps of a run (%(default)s)")
    parser.add_argument(
        "--save", metavar="CLAIM", help="keep the figures under this name, for docs/measurements/performance.md"
    )
    parser.add_argument("flags", nargs="*", help="further flags of the training, after --")
    given = parser.parse_args()
    given.strategies, given.rate = given.strategies.split(","), given.rate.split(",")
    given.strategies = [" ".join(each.split()) for each in given.strategies]
    if unknown := [each for each in given.strategies if each.partition(" ")[0] not in STRATEGIES]:
        parser.error(f"--strategies may have {', '.join(STRATEGIES)}; not {', '.join(unknown)}")
    if min(given.rounds, given.workers) < 1 or given.steps < 2:
        parser.error("--rounds and --workers must be at least 1, and --steps 2, as the first is not counted")
    return given


def main() -> int:
    """Measure, print, and leave nothing behind."""
    given = read_words()
    try:
        with check_machine():
            remove_all()
            for number in ENDINGS:
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                    signal.signal(number, lambda number, _: sys.exit(128 + number))
            try:
                build(given.nodes)
                delay = usable_delay(given.nodes, given.rate, given.delay)
                found, trained, failed = measure(given, delay)
            finally:
                for number in ENDINGS:
                    signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C would leave half of it
                remove_all()
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if found:
        print("", *table(found, delay), sep="\n")
        print(
            f"\n{trained}, topology {given.nodes}x{given.workers} on {os.cpu_count()} cores, torch {version('torch')}."
        )
        if given.save:
            save(given, found, delay)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
