"""What is submitted as a job, under which name, what it is told, and what is shown of it until it ends."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from cifar_ray.cli import cluster, main
from cifar_ray.config import command_line
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.orchestration.jobs import client
from cifar_ray.tracking import origin
from tests.support.ports import free_port

DIGITS = ["--dataset", "digits", "--model", "simple_cnn"]
GRID = ["sweep", "--grid", "batch_size=16,32", *DIGITS]


def test_a_run_or_a_sweep_is_called_as_its_job_and_the_same_every_time() -> None:
    for words, kind, flag in ((["train", *DIGITS], "train", "--run-name"), (GRID, "sweep", "--name")):
        unnamed = cluster.read(words, None)
        assert re.fullmatch(rf"{kind}-[0-9a-f]{{8}}", unnamed.name)
        assert unnamed.words == [*words, flag, unnamed.name]
        assert cluster.read(words, None) == unnamed
        assert cluster.read([*words, "--seed", "4"], None).name != unnamed.name
        named = cluster.read(words, "mine")
        assert (named.name, named.words[-2:]) == ("mine", [flag, "mine"])
        assert cluster.read([*words, "--tracking-uri", "http://mlflow"], None).tracking_uri == "http://mlflow"
    run_named = ["train", *DIGITS, "--run-name", "run"]
    for name, job in (("run", None), ("job", "job")):
        assert (cluster.read(run_named, job).name, cluster.read(run_named, job).words) == (name, run_named)


def test_a_sweep_of_a_file_is_called_by_its_name_and_a_continuation_has_a_time(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("grid: {batch_size: [16, 32]}\ntrain: {dataset: digits, model: simple_cnn}\n")
    sweep = cluster.read(["sweep", str(file), "--seeds", "2"], None)
    assert (sweep.name, sweep.file, sweep.words) == ("grid", str(file), ["sweep", str(file), "--seeds", "2"])
    # What only the job can check is left to it: whether the sweep has failed runs, or the run a price.
    for words in (["resume", "my run!", "--max-cost", "5"], ["sweep", "--resume", "grid", "--retry-failed"]):
        again = cluster.read(words, None)
        assert again.words == words
        assert re.fullmatch(r"resume-\d{8}-\d{6}", again.name)
        assert (cluster.read(words, "known").name, again.tracking_uri) == ("known", None)
        assert cluster.read([*words, "--tracking-uri", "http://mlflow"], None).tracking_uri == "http://mlflow"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("-- train --epochs many", "--epochs must be a whole number, got 'many'"),
        ("-- train --config none.yaml", "none.yaml"),
        ("-- train --storage runs", "--storage must begin with / or ~ in a job"),
        ("-- resume run --epochs 3", "unknown flag --epochs"),
        ("-- sweep --grid batch_size=x --name s", "--batch-size"),
        ("-- sweep --grid batch_size=16 --name s --storage runs", "--storage must begin with / or ~ in a job"),
        ("-- evaluate run", "cifar-ray submit takes train, resume or sweep after `--`, got 'evaluate'"),
        ("", "cifar-ray submit needs the command after `--`"),
        ("--address 127.0.0.1:8265 -- train", "--address must be http://HOST:PORT of a Ray job server, got "),
        ("--address http://me:hunter2@head -- train", "--address must be http://HOST:PORT"),
    ],
)
def test_mistakes_are_found_first(words: str, part: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No server is asked: there is none at that address."""
    assert main.main(["submit", "--address", "http://127.0.0.1:9", *words.split()]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch("error: .*\n", said)
    assert part in said
    assert "hunter2" not in said


def test_without_what_rays_client_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "cifar_ray.orchestration.jobs.client", raising=False)
    monkeypatch.delattr("cifar_ray.orchestration.jobs.client", raising=False)
    assert main.main(["submit", "--", "train"]) == 2
    assert capsys.readouterr().err.startswith("error: this command needs aiohttp; install it with ")


def test_a_job_takes_the_store_of_this_shell_where_other_machines_reach_it_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = ("https://mlflow.example.org/team", "http://10.1.2.3:5000", "http://[2001:db8::1]:5000")
    here = ("http://127.1.2.3", "http://localhost:5000/", "http://[::1]:5000", "http://0.0.0.0:5000", "sqlite:////m.db")
    for uri in (*away, *here):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert client._store(None) == ({"MLFLOW_TRACKING_URI": uri} if uri in away else {})
        assert (f"note: {uri} is on this machine" in capsys.readouterr().out) == (uri in here)
        assert client._store("http://other:1") == {}
    for uri in ("https://me:hunter2@mlflow", "https://hunter2@mlflow", "http://mlflow?token=hunter2"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as caught:
            client._store(None)
        assert "hunter2" not in str(caught.value)


def test_a_jobs_runs_are_those_of_the_person_who_submitted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(command_line.SUBMITTED_BY, "ada")
    monkeypatch.setenv("LOGNAME", "root")
    assert origin.origin_tags()["mlflow.user"] == "ada"


def test_a_folder_that_is_no_piece_of_work_does_not_go(tmp_path: Path, home: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "run.yaml").touch()
    asked = cluster.read(["train", "--config", str(tmp_path / "run.yaml")], None)
    piece = "^working_dir must be the folder of one piece of work"
    named = "^working_dir must be a folder with the file that the command names, .*run.yaml$"
    for folder, problem in ((home, piece), (Path("/"), piece), (tmp_path / "none", piece), (tmp_path / "code", named)):
        with pytest.raises(ConfigError, match=problem):
            client.submit(asked, "http://127.0.0.1:9", str(folder), wait=False)


async def _version(_: web.Request) -> web.Response:
    return web.json_response({"ray_version": "2.60.0"})


async def _job(_: web.Request) -> web.Response:
    job = {"type": "SUBMISSION", "submission_id": "one", "entrypoint": "train"}
    return web.json_response({**job, "status": "FAILED", "driver_exit_code": 2})


async def _log(request: web.Request) -> web.WebSocketResponse:
    lines = web.WebSocketResponse()
    await lines.prepare(request)
    for line in ("first\n", "second\n"):
        await lines.send_str(line)
    if request.match_info["name"] == "cut":  # as when a tunnel ends
        request.transport.abort()
    await lines.close()
    return lines


@pytest.fixture
def url() -> Iterator[str]:
    """A job server with two jobs: ``one`` ends, and the connection to ``cut`` does."""
    app, loop, port = web.Application(), asyncio.new_event_loop(), free_port()
    app.router.add_get("/api/version", _version)
    app.router.add_get("/api/jobs/{name}", _job)
    app.router.add_get("/api/jobs/{name}/logs/tail", _log)
    runner = web.AppRunner(app)
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", port).start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_job_is_followed_until_it_or_the_connection_ends(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert client._follow(url, client._connect(url, {}), "one") == 2
    assert capsys.readouterr() == ("first\nsecond\n", "job one ended: FAILED\n")
    with pytest.raises(CommandFailedError, match=f"^job cut continues, but {url} does not answer: "):
        client._follow(url, client._connect(url, {}), "cut")
    assert capsys.readouterr().out.startswith("first\n")
