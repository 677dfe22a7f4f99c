"""Jobs on a Ray cluster whose dashboard listens on the loopback interface and asks for a token."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.person import Person
from tests.support.ports import free_port, free_ports

pytestmark = pytest.mark.slow

DIGITS = ["train", "--dataset", "digits", "--model", "simple_cnn"]
LONG = [*DIGITS, "--epochs", "5000", "--checkpoint-every", "5"]
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")


@dataclass(frozen=True)
class Cluster:
    """A head that is there before the commands: its port, the URL of its job server, and Ray's folder."""

    port: int
    url: str
    folder: Path


def until(condition: Callable[[], bool], timeout: float = 600) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def process(words: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, with all that it has started in it."""
    running = subprocess.Popen(words, start_new_session=True, **options)  # type: ignore[call-overload]
    try:
        yield running
    finally:
        running.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


@pytest.fixture(scope="module")
def cluster(resident: Person) -> Iterator[Cluster]:
    """A head of two CPUs. Whoever has the token in ~/.ray/auth_token may use it."""
    token = resident.home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("a" * 64)
    token.chmod(0o600)
    port, dashboard, agent, client = free_ports(4)
    folder = tempfile.mkdtemp(prefix="cj", dir="/tmp")  # sockets have short paths
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    words += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"]
    words += [f"--ray-client-server-port={client}", f"--temp-dir={folder}", "--num-cpus=2", "--disable-usage-stats"]
    environment = {**resident.environment, "RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with (Path(folder) / "head.txt").open("w") as output, process(
        words, stdout=output, stderr=output, env=environment, cwd=resident.home
    ):  # fmt: skip
        until(lambda: listens(dashboard))
        resident.environment["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{dashboard}"
        yield Cluster(port, f"http://127.0.0.1:{dashboard}", Path(folder))
    until(lambda: resident.leftovers() == [], 60)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def work(resident: Person) -> Path:
    """A folder with a run's config in it, and with things that are nobody else's."""
    folder = resident.home / "work"
    folder.mkdir()
    (folder / "short.yaml").write_text("dataset: digits\nmodel: simple_cnn\nepochs: 2\n")
    (folder / ".env").write_text("PASSWORD=hunter2\n")
    (folder / ".gitignore").write_text("data_batch_*\n")
    (folder / "data_batch_1").write_bytes(bytes(1000))
    return folder


@pytest.fixture
def tunnel(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The job server's address at the near end of `ssh -L`."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("needs OpenSSH's server and client")
    for name in ("host", "mine"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    shutil.copy(tmp_path / "mine.pub", tmp_path / "authorized")
    far, near = free_ports(2)
    settings = (
        f"Port {far}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized\n"
    )
    settings += "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
    (tmp_path / "sshd_config").write_text(settings)
    made = os.geteuid() == 0 and not Path("/run/sshd").exists()  # of root's server only
    if made:
        Path("/run/sshd").mkdir(mode=0o755)
    words = ["ssh", "-N", "-F", "none", "-i", str(tmp_path / "mine"), "-p", str(far)]
    words += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ExitOnForwardFailure=yes"]
    words += ["-L", f"{near}:{cluster.url.removeprefix('http://')}", f"{getpass.getuser()}@127.0.0.1"]
    try:
        with process([SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")]):
            until(lambda: listens(far))
            with process(words):
                until(lambda: listens(near))
                yield f"http://127.0.0.1:{near}"
    finally:
        if made:
            Path("/run/sshd").rmdir()


def stop(person: Person, job: str) -> None:
    """Stop a job by Ray's own command, and wait for its end."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "job", "stop", job]
    environment = {**person.environment, "RAY_AUTH_MODE": "token"}
    stopped = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr


@pytest.mark.extended
def test_a_job_through_a_tunnel_ends_as_its_run_does(
    resident: Person, cluster: Cluster, work: Path, tunnel: str
) -> None:
    words = ["submit", "--address", tunnel, "--working-dir", str(work), "--wait", "--"]
    words += ["train", "--config", str(work / "short.yaml"), "--run-name", "short"]
    done = resident.succeeds(*words, LOGNAME="ada", MLFLOW_TRACKING_URI="http://127.0.0.1:1")
    assert "so records go to the cluster's own store" in done.stdout
    assert f"follow it: RAY_API_SERVER_ADDRESS={tunnel} RAY_AUTH_MODE=token ray job logs --follow short" in done.stdout
    assert done.stdout.count("\nepoch ") == 2  # no live line without a terminal
    assert "test accuracy  " in done.stdout
    assert "\x1b" not in done.stdout
    assert "job short ended: SUCCEEDED" in done.stderr
    run = resident.run_named("short")
    assert (run.info.status, run.data.tags["mlflow.user"]) == ("FINISHED", "ada")
    (copy,) = cluster.folder.glob("session_latest/runtime_resources/working_dir_files/_ray_pkg_*/")
    assert [file.name for file in copy.iterdir()] == ["short.yaml"]


def test_a_job_lives_without_its_terminal_until_it_is_stopped(resident: Person, cluster: Cluster, work: Path) -> None:
    submit = ["submit", "--working-dir", str(work), "--name", "long"]
    with resident.starts(*submit, "--wait", "--", *LONG) as waiting:
        waiting.until("epoch 2/5000", 600)
        waiting.kill(signal.SIGINT)
        assert waiting.end() == 130
        assert "job long continues" in waiting.output
    sentence = resident.refused(*submit, "--", *LONG)
    assert sentence.startswith(f"--name must be new, and 'long' is a job at {cluster.url} (RUNNING)")
    stop(resident, "long")
    assert resident.run_named("long").info.status == "KILLED"
    assert list((resident.home / ".cifar_ray" / "runs" / "long" / "checkpoints").glob("step-*"))


@pytest.mark.extended
@pytest.mark.fault
def test_a_driver_that_does_not_stop_is_killed_and_its_run_ends_all_the_same(
    resident: Person, cluster: Cluster, work: Path
) -> None:
    """A driver that hears no signal, and Ray's own 3 s of patience with it."""
    submit = ["submit", "--working-dir", str(work), "--name", "deaf", "--wait", "--", *LONG]
    with resident.starts(*submit, RAY_JOB_STOP_WAIT_TIME_S="3") as waiting:
        waiting.until("epoch 1/5000", 600)
        (pid,) = [
            pid for pid, words in resident.processes().items() if "cifar_ray.cli train" in words and "bash" not in words
        ]
        driver = psutil.Process(pid)
        driver.suspend()
        stop(resident, "deaf")
        assert waiting.end() != 0
    until(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE)
    until(lambda: resident.run_named("deaf").info.status == "KILLED")


def test_a_job_that_fails(resident: Person, cluster: Cluster, work: Path) -> None:
    words = ["submit", "--working-dir", str(work), "--wait", "--", *DIGITS, "--storage", "/proc/none"]
    done = resident.runs(*words)
    assert done.returncode == 2  # the command's own
    assert "error: --storage must be a folder" in done.stdout
    assert " ended: FAILED\n" in done.stderr


def test_an_address_without_a_job_server(resident: Person, cluster: Cluster, work: Path) -> None:
    for port in (free_port(), cluster.port):
        at = ["--address", f"http://127.0.0.1:{port}", "--working-dir", str(work)]
        sentence = resident.refused("submit", *at, "--", *DIGITS)
        assert sentence.startswith("--address must be that of a Ray job server, and none answers at ")


def test_a_wrong_token(person: Person, resident: Person, cluster: Cluster, work: Path) -> None:
    submit = ["submit", "--working-dir", str(work)]
    joining = [*DIGITS, "--address", f"127.0.0.1:{cluster.port}"]
    for sentence in (
        resident.refused(*submit, "--", *DIGITS, RAY_AUTH_TOKEN="b" * 64),
        person.refused(*submit, "--address", cluster.url, "--", *DIGITS),  # none at all
        resident.refused(*joining, RAY_AUTH_TOKEN="b" * 64),
    ):
        assert "does not take the token given here, if any; put its own into ~/.ray/auth_token" in sentence


def pretending(folder: Path, statement: str) -> dict[str, str]:
    """Variables by which a command says that it is of another version."""
    (folder / "sitecustomize.py").write_text(statement)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])]), "RAY_AUTH_MODE": "token"}


def test_other_versions(resident: Person, cluster: Cluster, work: Path, tmp_path: Path) -> None:
    older = pretending(tmp_path, "import ray\nray.__version__ = '2.59.0'\n")
    joining = resident.refused(*DIGITS, "--address", f"127.0.0.1:{cluster.port}", **older)
    assert ("Version mismatch" in joining, "Ray: 2.59.0" in joining) == (True, True)
    newer = pretending(tmp_path, "from cifar_ray import _version\n_version.__version__ = '9.9.9'\n")
    submit = ["submit", "--working-dir", str(work), "--name", "other", "--wait", "--", *DIGITS]
    done = resident.runs(*submit, **newer)
    assert done.returncode == 2
    assert re.search(r"error: the cluster has cifar_ray .*submitted with 9.9.9", done.stdout), done.stdout
