"""What the clouds' metadata services say, as they are documented, and what else may answer there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.orchestration.cluster import spot


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
        known = known and bool(self.server.token)
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


def test_aws_has_no_notice_until_there_is_one_and_takes_a_new_token_each_time(service: Service) -> None:
    service.answers["/latest/meta-data/events/recommendations/rebalance"] = (
        200,
        '{"noticeTime": "2020-10-27T08:22:00Z"}',
    )
    assert spot.aws(service.url) is None
    service.token = "second"
    service.answers[ACTION] = (200, '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}')
    assert spot.aws(service.url) == spot.Notice(1_505_722_920_000, "AWS will terminate this spot instance")


@pytest.mark.parametrize("body", ["", "terminate", "[]", '{"action": "stop"}', '{"action": "stop", "time": "soon"}'])
def test_an_action_that_cannot_be_read_is_no_silence(service: Service, body: str) -> None:
    service.answers[ACTION] = (200, body)
    with pytest.raises(OSError, match="instance-action is "):
        spot.aws(service.url)


def test_google_says_true_or_false(service: Service) -> None:
    service.answers[PREEMPTED] = (200, "FALSE\n")
    assert spot.gcp(service.url) is None
    service.answers[PREEMPTED] = (200, "TRUE")
    notice = spot.gcp(service.url)
    assert notice is not None
    assert notice.reason == "Google Cloud preempts this instance"
    service.answers[PREEMPTED] = (200, "perhaps")
    with pytest.raises(OSError, match="instance/preempted is 'perhaps'"):
        spot.gcp(service.url)


def test_the_cloud_is_the_one_that_answers(service: Service) -> None:
    service.token = ""  # AWS's alone are given out
    service.answers[PREEMPTED] = (200, "FALSE")
    name, ask = spot._cloud(None, service.url)
    assert (name, ask()) == ("gcp", None)
    service.google = "somebody"
    with pytest.raises(ConfigError, match="must lead to the metadata service of AWS or GCP, and none answers here"):
        spot._cloud(None, service.url)
    with pytest.raises(ConfigError, match="must lead to the metadata service of AWS, and none answers here"):
        spot._cloud("aws", "http://127.0.0.1:9/")
    with pytest.raises(ConfigError, match="must be an address such as"):
        spot._cloud(None, "169.254.169.254")
