"""A Ray that is slow to come up, or does not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import cloudpickle

from cifar_ray.cli import main
from cifar_ray.config.errors import CommandFailedError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import fork_server, local, optional

TOO_LATE = "The current node timed out during startup. This could happen because the GCS has become overloaded."


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that ``ray.init`` has left behind when it failed."""
    started: list[subprocess.Popen[bytes]] = []

    def fail(**_: Any) -> None:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        raise Exception(TOO_LATE)

    monkeypatch.setattr(ray, "init", fail)
    yield started
    assert not any(psutil.pid_exists(process.pid) for process in started)


def test_a_start_that_failed_is_cleaned_up_and_ends_in_one_sentence(left: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(CommandFailedError, match=rf"^Ray did not start \(load \d+ on \d+ CPUs\): {TOO_LATE}$"):
        local._start(TrainConfig(), {}, {}, ExitStack())
    assert len(left) == 2  # it was tried once more


def test_a_start_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a daemon has ended meanwhile: Ray's own calls wait for it for ever."""
    monkeypatch.setattr(ray, "init", lambda **_: threading.Event().wait())
    monkeypatch.setattr(local, "_START_S", 0.1)
    with pytest.raises(CommandFailedError, match=r"^Ray did not start "):
        local._start(TrainConfig(), {}, {}, ExitStack())


def test_rays_variables_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/theirs")
    before = dict(os.environ)
    with optional.environment(local._environment(tmp_path)):
        os.environ["RAY_SET_BY_RAY"] = "1"
        assert os.environ["RAY_TMPDIR"] == str(tmp_path)
    assert dict(os.environ) == before


def test_plain_ray_is_started_with_documented_variables_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(optional.PLAIN, "1")
    names = {name for name in local._environment(tmp_path) if name.startswith("RAY_")}
    assert names == {"RAY_USAGE_STATS_ENABLED"}


AT_IMPORT = """
import importlib
from cifar_ray.orchestration.cluster import servers
from cifar_ray.config.train import TrainConfig
from ray._private import ray_constants
for arguments in {arguments}:
    with servers.before_ray(*arguments):
        importlib.reload(ray_constants)
    print(ray_constants.ENABLE_RAY_CLUSTER, ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV)
"""


def test_what_ray_reads_at_its_import_is_set_for_a_ray_that_is_started_here() -> None:
    seen = {
        "[TrainConfig()]": "False False",
        "[TrainConfig(local_nodes=2)]": "True False",
        "[TrainConfig(address='127.0.0.1:6379')]": "True True",
        "[TrainConfig(local_nodes=2), {'local_nodes': 1}]": "False False",
        "[TrainConfig(), {'address': '127.0.0.1:6379'}]": "True True",
        "[None]": "True True",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    code = AT_IMPORT.format(arguments=f"[{', '.join(seen)}]")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert dict(zip(seen, done.stdout.splitlines(), strict=True)) == seen


def test_a_refusal_ends_the_fork_server_that_was_prepared(home: Path) -> None:
    fork_server.prepare()
    (server,) = fork_server._prepared
    assert main.main(["train", "--dataset", "digits", "--epochs", "0"]) == 2
    assert server.process.poll() is not None
    assert not fork_server._prepared


PATHS = """
import pickle, sys
sys.path.insert(0, "/inserted before")
pickle.loads(bytes.fromhex({hook!r}))()
for folder in ({users!r}, "/theirs"):
    sys.path.insert(0, folder)  # as Ray does, and then a module of the user's
print("\\n".join(sys.path))
"""


def test_workers_import_from_where_the_driver_does_and_from_the_working_folder_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/added here")
    code = PATHS.format(hook=cloudpickle.dumps(local._path_hook()).hex(), users=str(tmp_path))
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    paths = done.stdout.splitlines()
    assert (paths[0], paths[1], paths[-1]) == ("/theirs", "/added here", str(tmp_path))
    assert "/inserted before" in paths


@pytest.mark.parametrize(
    ("given", "sockets"), [("{}", "{}"), ("{}/é", "/tmp"), ("{}/" + 60 * "a", "/tmp"), ("here", "/tmp")]
)
def test_sockets_have_a_folder_with_a_short_name(given: str, sockets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", given.format(folder))
        assert local._short() == sockets.format(folder)
