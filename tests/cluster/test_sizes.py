"""Clusters whose size changes under a run: nodes that are asked for, that come, that leave with notice or without."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cifar_ray import data
from cifar_ray.config import flags, runfile
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import recipe
from tests.support.helpers import train_here
from tests.support.nodes import Head
from tests.support.person import Person, Started

SCRIPT = Path(__file__).parents[2] / "examples" / "nodes" / "drain_on_notice.py"
pytestmark = pytest.mark.cluster

WORDS = ["train", "--dataset", "digits", "--global-batch-size", "64", "--precision", "fp32", "--log-every", "5"]
SMALL = [*WORDS, "--model", "simple_cnn", "--epochs", "1"]
SLOW = "--strategy reproducible --model resnet --model-options.blocks 1,1 --model-options.width 8"
EPOCHS = 18
LONG = [*WORDS, *SLOW.split(), "--epochs", str(EPOCHS)]
PATIENCE_S = 900
LOGGED = list(range(5, EPOCHS * 22 + 1, 5))


@pytest.fixture(scope="module")
def user(resident: Person) -> Person:
    resident.environment |= {**Head.VARIABLES, "RAY_AUTH_MODE": "token"}
    return resident


@pytest.fixture(scope="module")
def head(user: Person) -> Iterator[Head]:
    """A cluster of one node with one CPU, to which the tests add others."""
    with contextlib.closing(Head(user)) as running:
        running.until_nodes(1)
        yield running


class Metadata:
    """A metadata service that answers as both clouds document it, with no notice until there is one."""

    def __init__(self) -> None:
        service = self
        self.deadline = ""

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
                known = self.path == "/latest/api/token" and ttl.isdecimal()
                self._answer(200, "aws-token") if known else self._answer(400, "")

            def do_GET(self) -> None:
                is_aws = self.path == "/latest/meta-data/spot/instance-action"
                name, wanted = ("X-aws-ec2-metadata-token", "aws-token") if is_aws else ("Metadata-Flavor", "Google")
                if not (is_aws or self.path.startswith("/computeMetadata/v1/")):
                    self._answer(404, "")
                elif self.headers.get(name) != wanted:
                    self._answer(401 if is_aws else 403, "")
                elif not is_aws:
                    self._answer(200, "TRUE" if service.deadline else "FALSE")
                elif service.deadline:
                    self._answer(200, json.dumps({"action": "terminate", "time": service.deadline}))
                else:
                    self._answer(404, "")

            def _answer(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Metadata-Flavor", "Google")
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take_away(self) -> None:
        """The machine is to go in two minutes."""
        self.deadline = (datetime.now(timezone.utc) + timedelta(minutes=2)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def watching(user: Person, head: Head, name: str, cloud: str) -> Iterator[tuple[Metadata, Started]]:
    """The script that waits for a cloud's notice, on a node of the cluster."""
    words = ["--address", head.address, "--node-id", head.node_id(name)]
    with (
        contextlib.closing(Metadata()) as service,
        user.starts_program(sys.executable, str(SCRIPT), cloud, "--metadata-url", service.url, *words) as watch,
    ):
        watch.until("waiting for a notice", PATIENCE_S)
        yield service, watch


def weights(user: Person, name: str) -> str:
    run = user.run_named(name)
    assert run.info.status == "FINISHED"
    return run.data.tags["cifar_ray.weights_sha256"]


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of one worker that was never disturbed, without Ray."""
    given = flags.parse(TrainConfig, LONG[1:], "cifar-ray train")
    config = recipe.resolve(runfile.load(None, given))
    return train_here(config, data.load("digits"), tmp_path_factory.mktemp("one")).weights_sha256


@pytest.mark.optional
def test_an_elastic_run_grows_and_shrinks_between_two_steps(user: Person, head: Head, one_worker: str) -> None:
    """A node comes, and leaves with AWS's notice: the weights are those of one worker, and nothing has failed."""
    elastic = ["--elastic", "1x1:2x2", "--address", head.address, "--max-failures", "0", "--run-name", "elastic"]
    with user.starts(*LONG, *elastic) as run:
        run.until("starting the workers", PATIENCE_S)
        head.add("second")
        with watching(user, head, "second", "aws") as (service, watch):
            run.until("going on with topology 2x1, 64 images per step as before (32 per worker)", PATIENCE_S)
            run.until("continuing after step", PATIENCE_S)
            service.take_away()
            run.until("stopping as soon as possible, which is no failure", PATIENCE_S)
            assert watch.end(PATIENCE_S) == 0, watch.output
            assert "the node is drained" in watch.output
        run.until("going on with topology 1x1", PATIENCE_S)
        head.remove("second")  # as the cloud would
        assert run.end(PATIENCE_S) == 0, run.output
    assert "workers failed" not in run.output
    assert weights(user, "elastic") == one_worker
    tags = user.run_named("elastic").data.tags
    assert (tags["cifar_ray.preemptions"], tags["topology"]) == ("1", "1x1")
    assert [segment.split()[0] for segment in tags["cifar_ray.segments"].split(", ")] == ["1x1", "2x1", "1x1"]
    assert user.steps("elastic", "train/loss") == LOGGED


@pytest.mark.compat
@pytest.mark.extended
@pytest.mark.fault
def test_an_elastic_run_goes_on_with_what_is_left_of_the_cluster(user: Person, head: Head, one_worker: str) -> None:
    head.add("third")
    with user.starts(*LONG, "--elastic", "1x1:2x1", "--address", head.address, "--run-name", "shrunk") as run:
        run.until(f"epoch 2/{EPOCHS}", PATIENCE_S)
        head.remove("third")
        run.until("failure 1 of at most 3", PATIENCE_S)
        run.until("going on with topology 1x1", PATIENCE_S)
        assert run.end(PATIENCE_S) == 0, run.output
    assert "topology 2x1" in run.output
    assert weights(user, "shrunk") == one_worker
    assert "cifar_ray.preemptions" not in user.run_named("shrunk").data.tags


@pytest.mark.extended
def test_a_run_on_a_node_that_is_taken_away_goes_on_on_another(user: Person, head: Head, one_worker: str) -> None:
    """Google's notice, a fixed topology: the run waits for another node."""
    head.add("fourth")
    fixed = ["--topology", "2x1", "--address", head.address, "--max-failures", "0", "--run-name", "spot"]
    with user.starts(*LONG, *fixed) as run, watching(user, head, "fourth", "gcp") as (service, watch):
        run.until(f"epoch 2/{EPOCHS}", PATIENCE_S)
        before = placement(user, "spot")
        service.take_away()
        run.until("with a checkpoint\nwaiting for nodes: 1 of 2", PATIENCE_S)
        assert watch.end(PATIENCE_S) == 0, watch.output
        head.remove("fourth")
        head.add("fifth")
        assert run.end(PATIENCE_S) == 0, run.output
    after = placement(user, "spot")
    assert head.node_id("fourth") in before - after
    assert len(after) == 2
    assert weights(user, "spot") == one_worker
    assert user.run_named("spot").data.tags["cifar_ray.preemptions"] == "1"
    assert user.steps("spot", "train/loss") == LOGGED


def placement(user: Person, name: str) -> set[object]:
    return {worker["node_id"] for worker in user.placement(name)}


@pytest.mark.extended
def test_an_autoscaler_is_asked_for_nodes_which_may_go_again(user: Person) -> None:
    with contextlib.closing(Head(user, {"worker": {"resources": {"CPU": 1}, "max_workers": 1}})) as head:
        head.until_nodes(1)
        sentence = user.refused(*SMALL, "--topology", "4x1", "--address", head.address, timeout=PATIENCE_S)
        assert sentence.startswith("--topology 4x1 needs 4 nodes ")
        assert "its autoscaler cannot bring more" in sentence
        # A node that counted as idle while it trains would be gone before the end.
        words = [*LONG, "--epochs", "4", "--topology", "2x1", "--max-failures", "0", "--address", head.address]
        done = user.succeeds(*words, "--run-name", "waited", timeout=PATIENCE_S)
        assert re.search(r"waiting for nodes: 1 of 2, \d+ s of at most 15 min 00 s", done.stdout)
        assert len(placement(user, "waited")) == 2
        head.until_nodes(1)  # nothing is asked for any more


def test_a_node_that_ray_does_not_drain_fails_the_script(user: Person, head: Head) -> None:
    """So systemd starts it again."""
    with contextlib.closing(Metadata()) as service:
        service.take_away()
        words = ["aws", "--metadata-url", service.url, "--address", head.address, "--node-id", "nonsense"]
        with user.starts_program(sys.executable, str(SCRIPT), *words) as watch:
            assert watch.end(PATIENCE_S) != 0
    assert "Ray does not drain the node: exit status " in watch.output
