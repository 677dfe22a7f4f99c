"""What a job prints is shown until it ends, and its exit status is the command's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from aiohttp import web

from cifar_ray.config.errors import CommandFailedError
from cifar_ray.orchestration.jobs import client
from tests.support.ports import free_port


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
        assert request.transport is not None
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


def test_a_job_is_followed_to_its_end(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert client._follow(url, client._connect(url, {}), "one") == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("first\nsecond\n", "job one ended: FAILED\n")


def test_a_connection_that_ends_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandFailedError, match=f"^job cut continues, but {url} does not answer: "):
        client._follow(url, client._connect(url, {}), "cut")
    assert capsys.readouterr().out.startswith("first\n")
