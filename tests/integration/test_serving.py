"""A trained model used by others: served over HTTP, and in MLflow's registry."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest
import requests
from PIL import Image

from cifar_ray import data
from cifar_ray.runs import use
from cifar_ray.serving.app import MAX_BODY_MIB
from cifar_ray.tracking import registry
from tests.support import mlflow_store, stores
from tests.support.person import Person, Started
from tests.support.ports import free_port

pytestmark = pytest.mark.slow

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def trained(resident: Person) -> Person:
    """A person with a finished run named ``first``."""
    words = ["--dataset", "digits", "--model", "simple_cnn", "--epochs", "2", "--run-name", "first"]
    resident.succeeds("train", *words)
    return resident


@dataclass
class Service:
    """A command that serves, and where."""

    command: Started
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def predict(self, body: bytes, **query: int) -> requests.Response:
        return requests.post(f"{self.url}/predict", data=body, params=query, timeout=TIMEOUT_S)

    @contextlib.contextmanager
    def posting(self, header: tuple[str, str], begin: bytes | None = None) -> Iterator[http.client.HTTPConnection]:
        """A request of which the headers and the beginning of the body are sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.putrequest("POST", "/predict")
            connection.putheader(*header)
            connection.endheaders(begin)
            yield connection


@pytest.fixture(scope="module")
def service(trained: Person) -> Iterator[Service]:
    port = free_port()
    with trained.starts("serve", "first", "--port", str(port)) as command:
        command.until("curl ")
        yield Service(command, port)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images of digits in several formats and sizes, none of them that of the data set."""
    folder, formats = tmp_path_factory.mktemp("images"), ("png", "jpg", "gif", "bmp", "webp", "tiff")
    made = []
    for index, pixels in enumerate(data.load("digits").test.inputs[:16]):
        made.append(folder / f"{index}.{formats[index % len(formats)]}")
        Image.fromarray(pixels).resize((40 + index, 90)).save(made[-1])
    return made


@pytest.fixture(scope="module")
def predictions(trained: Person, files: list[Path]) -> list[dict[str, float]]:
    """What ``cifar-ray predict`` says of the images."""
    said = use.predict("first", files, "last", trained.uri, print)
    return [dict(prediction.answers) for prediction in said[1]]


def answer(connection: http.client.HTTPConnection) -> tuple[int, Any]:
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def answered(response: requests.Response) -> dict[str, float]:
    assert response.status_code == 200, response.text
    return {entry["class"]: entry["probability"] for entry in response.json()["classes"]}


def test_it_says_what_it_serves(service: Service, trained: Person) -> None:
    assert "caution" not in service.command.output  # it listens on the loopback interface
    assert "INFO" not in service.command.output
    run = trained.run_named("first")
    said = requests.get(service.url, timeout=TIMEOUT_S).json()
    known = {"run": "first", "run_id": run.info.run_id, "model": "simple_cnn", "dataset": "digits", "step": 22}
    known |= {"weights_sha256": run.data.tags["cifar_ray.weights_sha256"], "classes": list("0123456789")}
    assert known.items() <= said.items()
    assert said["test_accuracy"] == pytest.approx(run.data.metrics["test/accuracy"])
    health = requests.get(f"{service.url}/healthz", timeout=TIMEOUT_S)
    assert (health.status_code, health.json()) == (200, {"status": "ok"})


def test_an_image_gets_the_probabilities_that_predict_gives(
    service: Service, files: list[Path], predictions: list[dict[str, float]]
) -> None:
    """Also where requests arrive together and share a forward pass."""
    found = answered(service.predict(files[0].read_bytes()))
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert list(answered(service.predict(files[0].read_bytes(), top=3))) == list(found)[:3]
    with ThreadPoolExecutor(32) as clients:
        for response, expected in zip(clients.map(service.predict, [file.read_bytes() for file in files]), predictions):
            assert answered(response) == pytest.approx(expected, abs=1e-6)


def test_a_body_that_is_too_large_or_of_unknown_length_is_refused_before_it_has_arrived(service: Service) -> None:
    with service.posting(("Content-Length", str((MAX_BODY_MIB << 20) + 1))) as posted:
        assert answer(posted)[0] == 413
    with service.posting(("Transfer-Encoding", "chunked")) as posted:
        assert answer(posted)[0] == 411


def test_a_port_that_is_taken_is_refused(service: Service, trained: Person) -> None:
    assert trained.refused("serve", "first", "--port", str(service.port)).startswith("--port must be a free port ")


def test_a_run_is_registered_once_and_loaded_by_its_name(
    trained: Person, files: list[Path], predictions: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.succeeds("register", "first", "--name", "digits", "--alias", "champion")
    again = registry.register("first", "digits", None, trained.uri)
    assert again == registry.Registered("digits", 1, "first", fresh=False)
    run = trained.run_named("first")
    (version,) = trained.mlflow.search_model_versions("name = 'digits'")
    assert (version.run_id, version.status) == (run.info.run_id, "READY")
    assert version.tags["weights_sha256"] == run.data.tags["cifar_ray.weights_sha256"]
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with mlflow_store.as_default(trained.uri):
        for uri in ("models:/digits/1", "models:/digits@champion"):
            answers = mlflow.pyfunc.load_model(uri).predict({"image": [file.read_bytes() for file in files]})
            assert list(answers.probabilities) == [pytest.approx(each, abs=1e-5) for each in predictions]
            assert list(answers.label) == [next(iter(each)) for each in predictions]


@pytest.mark.extended
def test_mlflow_serves_the_model_to_whoever_sends_image_files(
    trained: Person, files: list[Path], predictions: list[dict[str, float]], tmp_path: Path
) -> None:
    """In an environment without this package, as far as imports can tell."""
    registry.register("first", "served", None, trained.uri)
    (tmp_path / "cifar_ray.py").write_text("raise ImportError")
    port, path = free_port(), f"{Path(sys.executable).parent}:{trained.environment['PATH']}"  # MLflow starts `uvicorn`
    words = f"models serve --model-uri models:/served/1 --env-manager local --port {port} --workers 1".split()
    variables = {**trained.environment, "PATH": path, "MLFLOW_TRACKING_URI": trained.uri, "PYTHONPATH": str(tmp_path)}
    variables["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] = "false"
    with stores.serving([sys.executable, "-m", "mlflow", *words], f"http://127.0.0.1:{port}/ping", variables):
        records = [{"image": base64.b64encode(file.read_bytes()).decode()} for file in files]
        sent = {"json": {"dataframe_records": records}, "timeout": TIMEOUT_S}
        answers = requests.post(f"http://127.0.0.1:{port}/invocations", **sent).json()["predictions"]
    assert [each["probabilities"] for each in answers] == [pytest.approx(each, abs=1e-5) for each in predictions]
    assert [each["label"] for each in answers] == [next(iter(each)) for each in predictions]


def test_sigterm_ends_it_with_all_answered_and_nothing_left_running(
    service: Service, trained: Person, files: list[Path], predictions: list[dict[str, float]]
) -> None:
    body = files[0].read_bytes()
    with service.posting(("Content-Length", str(len(body))), body[:100]) as under_way:
        assert requests.get(f"{service.url}/healthz", timeout=TIMEOUT_S).status_code == 200
        service.command.kill(signal.SIGTERM)
        while service.listens():
            time.sleep(0.05)
        under_way.send(body[100:])
        status, said = answer(under_way)
        assert (status, said["classes"][0]["class"]) == (200, next(iter(predictions[0])))
    assert service.command.end() == 0
    assert "Traceback" not in service.command.output
    assert trained.leftovers() == []
