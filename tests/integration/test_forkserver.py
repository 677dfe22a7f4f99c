"""Processes that begin as copies of one that has imported torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cifar_ray.orchestration.cluster import fork_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

SCRIPT = """
import json, os, sys
print(json.dumps({
    "torch": "torch" in sys.modules, "ray": "ray" in sys.modules, "words": sys.argv[1:], "folder": os.getcwd(),
    "hello": os.environ.get("HELLO"), "openblas": os.environ.get("OPENBLAS_NUM_THREADS"), "pid": os.getpid(),
}), flush=True)
if "stay" in sys.argv:
    import time
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command with which Ray starts a worker."""
    folder = tmp_path_factory.mktemp("forkserver") / "é and a space"
    folder.mkdir()
    with fork_server.running(folder) as runtime_env:
        # As Ray does
        yield ["bash", "-c", f'exec {runtime_env["py_executable"]} "$@"', "bash"]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.parametrize("flags", [[], ["-s"]])  # Ray hands Python's own flags on
def test_a_copy_has_the_modules_and_what_it_was_given(
    flags: list[str], python: list[str], script: str, tmp_path: Path
) -> None:
    environment = {"PATH": os.environ["PATH"], "HELLO": "there"}
    command = [*python, *flags, script, "a", "b c"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment)
    told = json.loads(done.stdout)
    assert told.pop("pid") != 0
    assert told == {
        "torch": True,
        "ray": False,
        "words": ["a", "b c"],
        "folder": str(tmp_path),
        "hello": "there",
        "openblas": None,
    }


FORKING = """
import multiprocessing, sys, torch
child = multiprocessing.get_context("fork").Process(target=print, args=["from a child"])
child.start()
child.join(30)
child.kill()
images = torch.utils.data.TensorDataset(torch.arange(8))
loader = torch.utils.data.DataLoader(images, num_workers=1, multiprocessing_context="fork", timeout=30)
print(child.exitcode, sum(int(batch[0]) for batch in loader), sys.stdin.read())
"""


def test_multiprocessing_works_in_a_copy(python: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FORKING)
    done = subprocess.run([*python, str(script)], capture_output=True, text=True, timeout=120, input="standard input")
    assert (done.stdout.splitlines(), done.returncode) == (["from a child", "0 28 standard input"], 0), done.stderr


@pytest.mark.parametrize("killed", ["client", "copy"])
def test_a_copy_and_the_process_that_stands_for_it_end_together(killed: str, python: list[str], script: str) -> None:
    with subprocess.Popen([*python, script, "stay"], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        copy = psutil.Process(json.loads(client.stdout.readline())["pid"])
        assert copy.pid != client.pid
        os.kill(client.pid if killed == "client" else copy.pid, signal.SIGKILL)
        client.wait(timeout=10)
        copy.wait(timeout=10)


def test_without_a_server_python_runs_the_script_itself(script: str, tmp_path: Path) -> None:
    client = fork_server.__file__.replace("fork_server", "fork_client")
    words = [sys.executable, client, str(tmp_path / "socket"), "-s", script, "a"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout)
    assert (told["torch"], told["words"]) == (False, ["a"])


@pytest.mark.slow
def test_a_server_that_is_prepared_is_taken_whatever_warnings_are_errors(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    fork_server.prepare()
    (prepared,) = fork_server._prepared
    with fork_server.running(tmp_path) as runtime_env:
        command = f'exec {runtime_env["py_executable"]} "$@"'
        done = subprocess.run(["bash", "-c", command, "bash", script, "a"], capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout)["torch"]
        assert not fork_server._prepared
    assert prepared.process.poll() is not None


DRIVER = """
import pathlib, sys, time
from cifar_ray.orchestration.cluster import fork_server
with fork_server.running(pathlib.Path(sys.argv[1])) as client:
    print(client, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_the_server_ends_with_the_driver(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (server,) = psutil.Process(process.pid).children()
        process.kill()
    server.wait(timeout=30)
