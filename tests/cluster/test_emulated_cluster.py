"""The benchmark that makes a cluster of hosts with equal workers: what a run on it knows of it, and that nothing remains."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "emulated_cluster.py"
SWEEP = ["sweep", "--name", "emulated", "--dataset", "digits", "--model", "simple_cnn", "--epochs", "1"]
SWEEP += ["--grid", "topology=1x1,2x2", "--cpus-per-worker", "1", "--max-concurrent", "1"]


def groups() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob("**/cifar-ray-*"))


@pytest.fixture
def person() -> Iterator[Person]:
    """Somebody at home where hosts see it: each has a ``/tmp`` of its own."""
    if reason := hosts.lacking():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Person(Path(folder))


def test_every_worker_is_held_and_every_run_says_so(person: Person) -> None:
    words = [sys.executable, str(SCRIPT), "--rate", "1gbit", "--share", "0.4", "--", *SWEEP]
    done = subprocess.run(words, capture_output=True, text=True, env=person.environment, cwd=person.home, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 workers were held to 0.4 of a CPU" in done.stdout
    for name in ("1x1 seed0", "2x2 seed0"):
        hardware = person.run_named(name).data.tags["cifar_ray.hardware"]
        assert hardware.endswith(", 0.4 of it for each worker, links of 1gbit (emulated)")
    assert len({place["address"] for place in person.placement("2x2 seed0")}) == 2
    assert person.leftovers() == []
    assert groups() == []


def test_a_folder_that_hosts_do_not_see_is_refused() -> None:
    if reason := hosts.lacking():
        pytest.skip(reason)
    done = subprocess.run([sys.executable, str(SCRIPT), "--", "runs"], capture_output=True, text=True, cwd="/tmp")
    assert done.returncode == 2
    assert done.stderr.endswith("hosts have a /tmp, /srv, /run and /dev/shm of their own, and this is in one: /tmp\n")
