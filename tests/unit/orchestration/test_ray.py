"""A Ray that is slow to come up or does not, what it is told, and what takes the place of its private parts."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import cloudpickle
from ray.train.torch import TorchTrainer

from cifar_ray.cli import main
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import fork_server, local, optional, servers
from cifar_ray.orchestration.cluster.connection import connected

TOO_LATE = "The current node timed out during startup. This could happen because the GCS has become overloaded."


def test_a_start_that_failed_is_cleaned_up_tried_once_more_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[subprocess.Popen[bytes]] = []

    def fail(**_: Any) -> None:
        left.append(subprocess.Popen(["sleep", "60"]))
        raise Exception(TOO_LATE)

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(CommandFailedError, match=rf"^Ray did not start \(load \d+ on \d+ CPUs\): {TOO_LATE}$"):
        local._start(TrainConfig(), {}, {}, ExitStack())
    assert [psutil.pid_exists(process.pid) for process in left] == [False, False]
    # As when a daemon has ended meanwhile: Ray's own calls wait for it for ever.
    monkeypatch.setattr(ray, "init", lambda **_: threading.Event().wait())
    monkeypatch.setattr(local, "_START_S", 0.01)
    with pytest.raises(CommandFailedError, match=r"^Ray did not start "):
        local._start(TrainConfig(), {}, {}, ExitStack())


def test_rays_variables_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/theirs")
    before = dict(os.environ)
    with optional.environment(local._environment(tmp_path)):
        os.environ["RAY_SET_BY_RAY"] = "1"
        assert os.environ["RAY_TMPDIR"] == str(tmp_path)
    assert dict(os.environ) == before
    monkeypatch.setenv(optional.PLAIN, "1")
    names = {name for name in local._environment(tmp_path) if name.startswith("RAY_")}
    assert names == {"RAY_USAGE_STATS_ENABLED"}


AT_IMPORT = """
import importlib
from cifar_ray.orchestration.cluster import servers
from cifar_ray.config.train import TrainConfig
from ray._private import ray_constants
here, two, away = TrainConfig(), TrainConfig(local_nodes=2), TrainConfig(address="127.0.0.1:6379")
for arguments in [here], [two], [away], [two, {"local_nodes": 1}], [here, {"address": "127.0.0.1:6379"}], [None]:
    with servers.before_ray(*arguments):
        importlib.reload(ray_constants)
    print(int(ray_constants.ENABLE_RAY_CLUSTER), int(ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV))
"""


def test_what_ray_reads_at_its_import_is_set_for_a_ray_that_is_started_here() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", AT_IMPORT], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.splitlines() == ["0 0", "1 0", "1 1", "0 0", "1 1", "1 1"]


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


def test_workers_import_from_where_the_driver_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/added here")
    code = PATHS.format(hook=cloudpickle.dumps(local._path_hook()).hex(), users=str(tmp_path))
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    paths = done.stdout.splitlines()
    assert (paths[0], paths[1], paths[-1]) == ("/theirs", "/added here", str(tmp_path))
    assert "/inserted before" in paths


def test_auto_says_at_once_that_the_head_last_started_here_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", functools.cache(list))  # whatever else runs here
    monkeypatch.setattr(ray, "init", None)  # it would try for a minute
    with pytest.raises(ConfigError, match=r":1'.*refused"), connected(TrainConfig(address="auto")):
        pass


def test_sockets_have_a_folder_with_a_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, sockets in {
        "/dev/shm": "/dev/shm",
        "/dev/é": "/tmp",
        "/dev/" + 60 * "a": "/tmp",
        "here": "/tmp",
    }.items():
        monkeypatch.setenv("TMPDIR", given)
        assert local._short() == sockets


def test_a_token_is_shown_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    def is_shown(name: str = "RAY_AUTH_MODE", value: str = "") -> bool:
        with monkeypatch.context() as patch:
            for each in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
                patch.delenv(each, raising=False)
            if value:
                patch.setenv(name, value)
            return servers.token_mode() == {"RAY_AUTH_MODE": "token"}

    assert (is_shown(), is_shown("RAY_AUTH_TOKEN", "secret")) == (False, True)
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("secret")
    assert (is_shown(), is_shown("RAY_AUTH_TOKEN_PATH", "missing"), is_shown(value="disabled")) == (True, False, False)


def _totals() -> str:
    return "totals"


@optional.part(_totals)
def gone() -> str:
    return optional.find("ray._private.state:never_there")()


@optional.part(_totals)
def there() -> str:
    return "free"


@optional.part(_totals)
def away() -> str:
    raise ray.exceptions.RpcError("the head does not answer")


def test_a_part_that_is_missing_is_replaced_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, records = logging.Logger(optional.__name__, logging.DEBUG), list[logging.LogRecord]()
    monkeypatch.setattr(logger, "handle", records.append)
    monkeypatch.setattr(optional, "_logger", logger)
    assert [gone(), there()] == ["totals", "free"]
    with pytest.raises(ray.exceptions.RpcError, match="does not answer"):
        away()
    (record,) = records
    assert record.levelno == logging.INFO
    assert "never_there" in record.getMessage()
    monkeypatch.setenv(optional.PLAIN, "1")
    assert (there(), len(records)) == ("totals", 1)


def test_plain_ray_switches_all_parts_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(optional.PLAIN, "1")
    assert (optional.draining_nodes(), optional.head_resource()) == ({}, {})
    assert (optional.refused_bundles(), optional.abandoned_groups()) == ([], [])
    assert (optional.latest_head(), optional.greeting("127.0.0.1:1", 1.0)) == ("auto", "OK")
    assert optional.lean(TorchTrainer) is TorchTrainer
    # No node has more free than it has, and than the cluster has free.
    nodes = [{"NodeID": node, "Alive": node != "gone", "Resources": {"CPU": 4.0}} for node in ("a", "b", "gone")]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    for free, each in (({}, 0.0), ({"CPU": 3.0}, 3.0), ({"CPU": 8.0}, 4.0)):
        monkeypatch.setattr(ray, "available_resources", lambda free=free: free)
        assert optional.free_resources() == {"a": {"CPU": each}, "b": {"CPU": each}}
