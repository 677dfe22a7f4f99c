"""The benchmark of a slow network: what crosses the links, and that nothing of it remains."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cifar_ray import data, models
from cifar_ray.config.train import TrainConfig

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
PREFIX = "cifar-ray-slow-"
COMMAND = [sys.executable, str(ROOT / "benchmarks" / "slow_network.py"), "--strategies", "ddp", "--rate", "20mbit"]
SMALL = ["--dataset", "digits", "--model", "simple_cnn", "--steps", "4", "--rounds", "1"]


def namespaces() -> list[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(PREFIX)]


def processes(namespace: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    return [int(pid) for pid in done.stdout.split()]


def leftovers(temporary: Path) -> list[str]:
    """What a benchmark that had ``temporary`` for its folders has left on this machine."""
    ours = f"TMPDIR={temporary}".encode()
    running = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(word.startswith(ours) for word in (folder / "environ").read_bytes().split(b"\0")):
                running.append(folder.name)
    return [*namespaces(), *running, *(path.name for path in temporary.glob(f"{PREFIX}*"))]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("network namespaces take root on Linux")
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("needs ip and tc of iproute2")
    probe = f"probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode != 0:
        pytest.skip("network namespaces are not allowed here")
    shape = ["tc", "-n", probe, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1gbit", "burst", "128kb"]
    shaped = subprocess.run([*shape, "latency", "50ms"], capture_output=True)
    subprocess.run(["ip", "netns", "delete", probe], check=True)
    if shaped.returncode != 0:
        pytest.skip("the kernel has no tbf, which shapes the links")
    return tmp_path


@pytest.fixture
def under_way(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """A benchmark whose workers train already, and would for long."""
    long = [*COMMAND, "--rate", "50mbit", "--dataset", "digits", "--model", "vgg11", "--steps", "20"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(long, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        end = time.monotonic() + 120
        while not any("training vgg11" in path.read_text() for path in temporary.glob(f"{PREFIX}*/0.txt")):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.1)
        assert len(processes(f"{PREFIX}node0")) >= 2, "torchrun and its worker"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.extended
def test_the_gradients_cross_both_links_and_nothing_remains(temporary: Path) -> None:
    done = subprocess.run(
        [*COMMAND, *SMALL], capture_output=True, text=True, timeout=300, env={**os.environ, "TMPDIR": str(temporary)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("| ddp |"))
    _, network, seconds, n, ratio, sent = (cell.strip() for cell in row.strip("|").split("|"))
    assert network.startswith("20mbit, ")
    assert re.fullmatch(r"\d+\.\d{3} \(\d+\.\d{3} to \d+\.\d{3}\)", seconds)
    assert (n, ratio) == ("1", "-")
    # All-reduce between two: each sends the half of its gradients that the other adds up, and the half that it has added up.
    model = models.build(TrainConfig(model="simple_cnn", dataset="digits"), data.SPECS["digits"])
    gradients = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert [round(float(megabytes) * 1e6) >= gradients for megabytes in sent.split(", ")] == [True, True]
    assert leftovers(temporary) == []


@pytest.mark.extended
def test_sigterm_leaves_nothing(temporary: Path, under_way: subprocess.Popen[str]) -> None:
    under_way.send_signal(signal.SIGTERM)
    assert under_way.wait(60) == 128 + signal.SIGTERM
    assert leftovers(temporary) == []
