"""What the clouds' metadata services say, as they are documented, and what else may answer there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cifar_ray.orchestration.cluster.metadata import Aws, Gcp


class Service(ThreadingHTTPServer):
    """Answers (status, body) by method and path; 404 to what it does not know."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, tuple[int, str]] = {}
        self.google = "Google"
        self.token = "first"
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_PUT(self) -> None:
        known = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        self._answer(*((200, self.server.token) if known else (404, "")))

    def do_GET(self) -> None:
        if self.path.startswith("/latest/") and self.headers["X-aws-ec2-metadata-token"] != self.server.token:
            self._answer(401, "")
        else:
            self._answer(*self.server.answers.get(self.path, (404, "")))

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Metadata-Flavor", self.server.google)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server
        server.shutdown()


ACTION = "/latest/meta-data/spot/instance-action"
PREEMPTED = "/computeMetadata/v1/instance/preempted"


def test_aws_has_no_notice_until_there_is_one_and_renews_a_token_that_has_run_out(service: Service) -> None:
    cloud = Aws(service.url)
    assert cloud.answers()
    service.answers["/latest/meta-data/events/recommendations/rebalance"] = (
        200,
        '{"noticeTime": "2020-10-27T08:22:00Z"}',
    )
    assert cloud.notice() is None
    service.token = "second"
    service.answers[ACTION] = (200, '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}')
    notice = cloud.notice()
    assert notice is not None
    assert (notice.deadline_ms, notice.reason) == (1_505_722_920_000, "AWS will terminate this spot instance")


@pytest.mark.parametrize("body", ["", "terminate", "[]", '{"action": "stop"}', '{"action": "stop", "time": "soon"}'])
def test_an_action_that_cannot_be_read_is_no_silence(service: Service, body: str) -> None:
    service.answers[ACTION] = (200, body)
    with pytest.raises(OSError, match="instance-action is "):
        Aws(service.url).notice()


def test_google_says_true_or_false(service: Service) -> None:
    cloud = Gcp(service.url)
    service.answers |= {"/computeMetadata/v1/": (200, "instance/\n"), PREEMPTED: (200, "FALSE\n")}
    assert cloud.answers()
    assert cloud.notice() is None
    service.answers[PREEMPTED] = (200, "TRUE")
    notice = cloud.notice()
    assert notice is not None
    assert notice.reason == "Google Cloud preempts this instance"
    service.answers[PREEMPTED] = (200, "perhaps")
    with pytest.raises(OSError, match="instance/preempted is 'perhaps'"):
        cloud.notice()


def test_whoever_else_answers_is_neither(service: Service) -> None:
    service.answers |= {"/computeMetadata/v1/": (200, ""), PREEMPTED: (200, "TRUE")}
    service.google = "somebody"
    assert not Gcp(service.url).answers()
    assert not Aws("http://127.0.0.1:9").answers()
    with pytest.raises(OSError, match="not Google's"):
        Gcp(service.url).notice()
