"""A Ray that is slow to come up, or does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._private import parameter, services

from cifar_ray.cli import main
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import connection, local, ray_internals

TOO_LATE = "The current node timed out during startup. This could happen because the GCS has become overloaded."


class Starts:
    """Stands in for ``ray.init``: leaves a process behind and fails, until the given try."""

    def __init__(self, succeeds: int) -> None:
        self.succeeds = succeeds
        self.left: list[subprocess.Popen[bytes]] = []

    def __call__(self, **_: Any) -> None:
        self.left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        if len(self.left) < self.succeeds:
            raise Exception(TOO_LATE)


def started(starts: Starts, monkeypatch: pytest.MonkeyPatch, folder: Path, config: TrainConfig | None = None) -> None:
    monkeypatch.setattr(ray, "init", starts)
    try:
        local._start(config or TrainConfig(), {}, folder)
    finally:
        for process in starts.left[: starts.succeeds - 1]:
            assert not psutil.pid_exists(process.pid)
        for process in starts.left:
            process.kill()
            process.wait()


def test_a_start_that_failed_is_cleaned_up_and_tried_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    starts = Starts(succeeds=2)
    started(starts, monkeypatch, tmp_path)
    assert len(starts.left) == 2


def test_a_second_failure_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = Starts(succeeds=4)

    def run(_: Any) -> int:
        started(starts, monkeypatch, tmp_path)
        return 0

    monkeypatch.setitem(main.COMMANDS, "train", (run, None, ""))
    assert main.main(["train"]) == 1
    assert len(starts.left) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"error: Ray did not start, tried 2 times in \d+ s \(load \d+ on \d+ CPUs\): try again, "
        r"or with --verbose to see what Ray says\n",
        said,
    )


def test_verbose_shows_why_ray_did_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(local.NotStartedError, match=r"try again$"):
        started(Starts(succeeds=4), monkeypatch, tmp_path, TrainConfig(verbose=True))
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert TOO_LATE in said


@pytest.mark.parametrize(("tries", "comes"), [(1000, True), (5000, False)])
def test_ray_waits_for_its_node_as_long_as_a_busy_machine_needs(
    monkeypatch: pytest.MonkeyPatch, tries: int, comes: bool
) -> None:
    """The clock stands in for a load that nobody wants in a test: a try takes a tenth of a second."""
    asked, now = [0], [0.0]

    def get_node(address: str, node_id: str) -> dict[str, str]:
        asked[0] += 1
        if asked[0] < tries:
            raise RuntimeError("no such node")
        return {"node_id": node_id}

    monkeypatch.setattr(services, "get_node", get_node)
    monkeypatch.setattr(ray_internals.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ray_internals.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(ray_internals.psutil.Process, "children", lambda _: [])
    with ray_internals.patient_start(120):
        if comes:
            assert services.get_node("address", "id") == {"node_id": "id"}
        else:
            with pytest.raises(RuntimeError, match="no such node"):
                services.get_node("address", "id")
    assert services.get_node is get_node


def test_only_what_a_run_needs_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(services, "start_ray_process", lambda command, kind, **rest: started.append(command))
    agent = str(Path(services.RAY_PATH) / "dashboard" / "agent.py")
    with ray_internals.lean_start(tmp_path / "client.py", show_output=False, sockets=tmp_path):
        params = parameter.RayParams(num_cpus=2)
        assert services.start_api_server(False, False, "127.0.0.1") == (None, None)
        services.start_ray_process(["raylet", f"--dashboard_agent_command=python -u {agent} --node-id=1"], "raylet")
    assert (params.num_cpus, params.no_monitor, params.include_log_monitor) == (2, True, False)
    assert params.setup_worker_path == str(tmp_path / "client.py")
    ((_, command),) = started
    stand_in = command.split()[2]
    assert (Path(stand_in).name, agent in command, "--node-id=1" in command) == ("stand_in.py", False, True)
    with ray_internals.lean_start(None, show_output=True, sockets=tmp_path):
        params = parameter.RayParams()
    assert (params.include_log_monitor, params.setup_worker_path) == (True, None)


@pytest.mark.parametrize(
    ("given", "sockets"), [("{}/short", "{}/short"), ("{}/é", "/tmp"), ("{}/" + 60 * "a", "/tmp"), ("here", "/tmp")]
)
def test_sockets_have_a_folder_with_a_short_name(given: str, sockets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", given.format(folder))
        assert local._short() == sockets.format(folder)


def test_what_is_too_long_for_sockets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/" + 60 * "é")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(local.NotStartedError, match=r"TMPDIR must be .* ASCII of at most 64 characters .*, got /é+, "):
        local._short()


def test_before_ray_is_joined_a_file_is_named_that_hides_what_its_workers_import_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []

    def joined() -> str:
        with (
            pytest.raises(ConfigError) as refused,
            connection.connected(TrainConfig(address="127.0.0.1:1"), (), said.append),
        ):
            pass
        return str(refused.value)

    Path("code.py").touch()  # Ray's workers have imported it before the working folder is on their path
    assert joined().startswith("address must be that of a running Ray head")
    assert said.pop() == "joining Ray"
    Path("statistics.py").touch()
    assert joined().startswith("statistics.py in the working folder")
    assert not said
