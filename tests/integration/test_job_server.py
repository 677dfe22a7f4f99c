"""Jobs through a tunnel that stalls, so that nothing comes through it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cifar_ray.orchestration.jobs import client
from cifar_ray.orchestration.jobs.client import JobServerError


class Stalling(ThreadingHTTPServer):
    """Answers as a job server with one job, which prints two lines, does; but some requests it never answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.stalled: list[bool] = []
        """Whether the next requests for the log are never answered."""
        self.logs = 0
        self.end = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Stalling

    def do_GET(self) -> None:
        if self.path == "/api/jobs/one/logs":
            if self.server.stalled and self.server.stalled.pop(0):
                self.server.end.wait()
                return
            self.server.logs += 1
        job = {"type": "SUBMISSION", "submission_id": "one", "entrypoint": "train"}
        ended = self.server.logs > 0
        state = {"status": "FAILED", "driver_exit_code": 2} if ended else {"status": "RUNNING"}
        answers = {
            "/api/version": {"ray_version": "2.60.0"},
            "/api/jobs/one": job | state,
            "/api/jobs/one/logs": {"logs": "first\nsecond\n" if ended and self.server.logs > 1 else "first\n"},
        }
        body = json.dumps(answers[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stalling]:
    monkeypatch.setattr(client, "_POLL_S", 0.01)
    with Stalling() as stalling:
        threading.Thread(target=stalling.serve_forever, args=[0.01], daemon=True).start()
        yield stalling
        stalling.end.set()
        stalling.shutdown()


def test_a_log_that_stalls_is_asked_for_again_and_each_line_is_shown_once(
    server: Stalling, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is the command's."""
    monkeypatch.setattr(client, "_REQUEST_S", 0.5)
    server.stalled = [False, True, True]
    assert client._follow(client.JobServer(server.url), "one") == 2
    said = capsys.readouterr()
    assert said.out == "first\nsecond\n"
    assert said.err == "job one ended: FAILED\n"
    assert server.stalled == []


def test_a_connection_that_stays_away_is_given_up(server: Stalling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_REQUEST_S", 0.5)
    monkeypatch.setattr(client, "_RECONNECT_S", 0.2)
    server.stalled = [True] * 1000
    with pytest.raises(JobServerError, match=rf"^the job server at {server.url} does not answer \(timed out\)$"):
        client._follow(client.JobServer(server.url), "one")
