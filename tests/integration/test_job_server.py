"""Jobs through a tunnel that stalls, so that nothing comes through it, and jobs of another cifar_ray."""

from __future__ import annotations

import asyncio
import platform
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from aiohttp import web

from cifar_ray.config.cluster_commands import LogsCommand, SubmitCommand
from cifar_ray.orchestration.jobs import client, submission
from cifar_ray.orchestration.jobs.client import JobServer, JobServerError


class Stalling:
    """Answers as a job server with one job, which prints two lines, does, until it is stalled."""

    def __init__(self) -> None:
        self.stalled = False
        self.identity = ""
        self.logs = self.tails = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        self._up.wait()

    async def _run(self) -> None:
        self._end = asyncio.Event()
        application = web.Application(middlewares=[self._stall])
        application.add_routes(
            [
                web.get("/api/version", self._version),
                web.get("/api/v0/cluster_metadata", self._metadata),
                web.get("/api/jobs/", self._jobs),
                web.get("/api/jobs/one/logs", self._log),
                web.get("/api/jobs/one/logs/tail", self._tail),
            ]
        )
        runner = web.AppRunner(application, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._up.set()
        await self._end.wait()
        await runner.cleanup()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    @web.middleware
    async def _stall(self, request: web.Request, handler: object) -> web.StreamResponse:
        if self.stalled:
            await self._end.wait()
        return await handler(request)  # type: ignore[operator]

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"ray_version": "2.60.0"})

    async def _jobs(self, _: web.Request) -> web.Response:
        job = {"type": "SUBMISSION", "submission_id": "one", "entrypoint": "train"}
        ended = self.tails > 1 or self.logs > 2
        state = {"status": "SUCCEEDED" if ended else "RUNNING", "metadata": {"cifar_ray.identity": self.identity}}
        return web.json_response([job | state])

    async def _metadata(self, _: web.Request) -> web.Response:
        return web.json_response({"data": {"rayVersion": ray.__version__, "pythonVersion": platform.python_version()}})

    async def _log(self, _: web.Request) -> web.Response:
        self.logs += 1
        return web.json_response({"logs": "first\nsecond\n"})

    async def _tail(self, request: web.Request) -> web.WebSocketResponse:
        """The first connection stalls after the first line."""
        self.tails += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("first\n")
        if self.tails == 1:
            await self._end.wait()
        await socket.send_str("second\n")
        return socket


@pytest.fixture
def server() -> Iterator[Stalling]:
    stalling = Stalling()
    yield stalling
    stalling.end()


def test_a_log_that_stalls_is_asked_for_again(
    server: Stalling, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "_SILENCE_S", 0.3)
    assert client.logs(LogsCommand(job="one", address=server.url, follow=True)) == 0
    said = capsys.readouterr()
    assert said.out == "first\nsecond\n"
    assert said.err == "job one ended: SUCCEEDED\n"
    assert server.tails == 2


def test_a_request_that_stalls_is_given_up(server: Stalling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_REQUEST_S", 0.3)
    connected = JobServer(server.url)
    server.stalled = True
    with pytest.raises(JobServerError, match=rf"^the job server at {server.url} does not answer \(timed out\)$"):
        connected.jobs()


def test_a_job_of_another_version_is_followed_although_it_greets_otherwise(
    server: Stalling, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(client, "_SILENCE_S", 0.3)
    words = ["train", "--dataset", "digits", "--model", "simple_cnn"]
    asked = submission.read(words, "one")
    server.identity = asked.identity
    command = SubmitCommand(address=server.url, name="one", working_dir=str(tmp_path), wait=True)
    assert client.submit(asked, command) == 0
    said = capsys.readouterr().out
    assert said.startswith("job one is already running; nothing was submitted\n")
    assert said.endswith("first\nsecond\n")
