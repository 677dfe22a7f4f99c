"""What a job is told, and which folders do not go along with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cifar_ray.cli import cluster
from cifar_ray.config import command_line
from cifar_ray.config.errors import ConfigError
from cifar_ray.orchestration.jobs import client
from cifar_ray.tracking import origin


@pytest.mark.parametrize(
    ("uri", "is_reachable"),
    [
        ("http://mlflow:5000", True),
        ("https://mlflow.example.org/team", True),
        ("http://10.1.2.3:5000", True),
        ("http://[2001:db8::1]:5000", True),
        ("http://127.0.0.1:5000", False),
        ("http://127.1.2.3", False),
        ("http://localhost:5000/", False),
        ("http://[::1]:5000", False),
        ("http://0.0.0.0:5000", False),
        ("sqlite:////home/me/mlflow.db", False),
        ("postgresql://me@db/mlflow", False),
    ],
)
def test_a_job_takes_the_store_of_this_shell_where_other_machines_reach_it(
    uri: str, is_reachable: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert client._store(None) == ({"MLFLOW_TRACKING_URI": uri} if is_reachable else {})
    assert (f"note: {uri} is on this machine" in capsys.readouterr().out) != is_reachable
    assert client._store("http://other:1") == {}


@pytest.mark.parametrize("uri", ["https://me:hunter2@mlflow", "https://hunter2@mlflow", "http://mlflow?token=hunter2"])
def test_a_store_with_a_secret_in_its_address_is_refused_and_not_shown(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        client._store(None)
    assert "hunter2" not in str(caught.value)


def test_a_jobs_runs_are_those_of_the_person_who_submitted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(command_line.SUBMITTED_BY, "ada")
    monkeypatch.setenv("LOGNAME", "root")
    assert origin.origin_tags()["mlflow.user"] == "ada"


def test_a_folder_that_is_no_piece_of_work_does_not_go(tmp_path: Path, home: Path) -> None:
    for name in ("run.yaml", "code/model.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    asked = cluster.read(["train", "--config", str(tmp_path / "run.yaml")], None)
    for folder, problem in (
        (home, "^working_dir must be the folder of one piece of work"),
        (Path("/"), "^working_dir must be the folder of one piece of work"),
        (tmp_path / "none", "^working_dir must be the folder of one piece of work"),
        (tmp_path / "code", "^working_dir must be a folder with the file that the command names, .*run.yaml$"),
    ):
        with pytest.raises(ConfigError, match=problem):
            client.submit(asked, "http://127.0.0.1:9", str(folder), wait=False)
