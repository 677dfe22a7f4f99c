"""A trained model used by others: served over HTTP, and in MLflow's registry."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import signal
import socket
import subprocess
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
from mlflow import MlflowClient
from PIL import Image

from cifar_ray import data
from cifar_ray.cli import output
from cifar_ray.config.errors import ConfigError
from cifar_ray.runs import use
from cifar_ray.serving.app import MAX_BODY_MIB
from cifar_ray.tracking import registry, store
from cifar_ray.tracking.study import FOLDER_TAG, KEY_TAG
from cifar_ray.training import checkpoint
from tests.support import mlflow_store, stores
from tests.support.person import Person, Started
from tests.support.ports import free_port

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
NO_MODEL = "it was trained with --log-models none, or MLflow did not take it"


@pytest.fixture(scope="module")
def trained(resident: Person) -> Person:
    """A person with a finished run named ``first``, which has told all."""
    words = ["--dataset", "digits", "--model", "simple_cnn", "--epochs", "2", "--run-name", "first", "--verbose"]
    done = resident.succeeds("train", *words)
    assert "PlacementGroupCleaner" not in done.stdout + done.stderr  # it has nothing to see there
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
    for index, pixels in enumerate(data.load("digits").test.inputs[:32]):
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


def test_it_tells_how_to_use_it_and_what_it_serves(service: Service, trained: Person) -> None:
    assert f"ready at {service.url}; Ctrl-C ends it\n" in service.command.output
    assert f"  curl --data-binary @IMAGE '{service.url}/predict?top=3'\n" in service.command.output
    assert "caution" not in service.command.output  # it listens on the loopback interface
    assert "INFO" not in service.command.output
    run = trained.run_named("first")
    newest = checkpoint.every(trained.home / ".cifar_ray" / "runs" / "first" / "checkpoints")[-1]
    assert requests.get(service.url, timeout=TIMEOUT_S).json() == {
        "run": "first",
        "run_id": run.info.run_id,
        "model": "simple_cnn",
        "dataset": "digits",
        "checkpoint": newest.name,
        "step": 22,
        "test_accuracy": pytest.approx(run.data.metrics["test/accuracy"]),
        "weights_sha256": run.data.tags["cifar_ray.weights_sha256"],
        "classes": list("0123456789"),
    }
    health = requests.get(f"{service.url}/healthz", timeout=TIMEOUT_S)
    assert (health.status_code, health.json()) == (200, {"status": "ok"})


def test_an_image_gets_the_probabilities_that_predict_gives(
    service: Service, files: list[Path], predictions: list[dict[str, float]]
) -> None:
    for file, expected in zip(files[:6], predictions, strict=False):  # one of each format
        found = answered(service.predict(file.read_bytes()))
        assert found == pytest.approx(expected, abs=1e-6)
        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert sum(found.values()) == pytest.approx(1, abs=1e-5)
        assert list(answered(service.predict(file.read_bytes(), top=3))) == list(found)[:3]


def test_requests_that_arrive_together_share_a_forward_pass(
    service: Service, files: list[Path], predictions: list[dict[str, float]]
) -> None:
    """Each with the answer to its own image. An image that was in a batch of n stands for 1/n of a pass."""
    passes, images = 0.0, 0
    with ThreadPoolExecutor(32) as clients:
        while passes > images - 1 and images < 10 * len(files):
            bodies = [file.read_bytes() for file in files]
            for response, expected in zip(clients.map(service.predict, bodies), predictions, strict=True):
                assert answered(response) == pytest.approx(expected, abs=1e-6)
                passes += 1 / int(response.headers["X-Batch-Size"])
                images += 1
    assert passes <= images - 1


def test_a_body_that_is_too_large_or_of_unknown_length_is_refused_before_it_has_arrived(service: Service) -> None:
    with service.posting(("Content-Length", str((MAX_BODY_MIB << 20) + 1))) as posted:
        assert answer(posted) == (413, {"error": f"the body is larger than {MAX_BODY_MIB} MiB"})
    with service.posting(("Transfer-Encoding", "chunked")) as posted:
        assert answer(posted) == (411, {"error": "the request must tell the length of its body"})


@pytest.mark.parametrize("host", ["203.0.113.1", "nohost.invalid"])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        output.listen(host, port := free_port())
    assert caught.value.as_flag().startswith(f"--host must be a free port of this machine, got {port} at '{host}' (")


def test_a_port_that_is_taken_is_refused(service: Service, trained: Person) -> None:
    sentence = trained.refused("serve", "first", "--port", str(service.port))
    assert sentence.startswith(f"--port must be a free port of this machine, got {service.port} at ")


def test_a_run_is_registered_once_and_loaded_by_its_name(
    trained: Person, files: list[Path], predictions: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = trained.succeeds("register", "first", "--name", "digits", "--alias", "champion")
    assert done.stdout == "the model of run first is version 1 of digits: models:/digits/1\n"
    again = registry.register("first", "digits", None, trained.uri)
    assert again == registry.Registered("digits", 1, "first", fresh=False)
    run = trained.run_named("first")
    (version,) = trained.mlflow.search_model_versions("name = 'digits'")
    assert (version.run_id, version.status) == (run.info.run_id, "READY")
    assert version.tags == {
        "run": "first",
        "dataset": "digits",
        "model": "simple_cnn",
        "weights_sha256": run.data.tags["cifar_ray.weights_sha256"],
    }
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with mlflow_store.as_default(trained.uri):
        for uri in ("models:/digits/1", "models:/digits@champion"):
            answers = mlflow.pyfunc.load_model(uri).predict({"image": [file.read_bytes() for file in files]})
            assert list(answers.probabilities) == [pytest.approx(each, abs=1e-5) for each in predictions]
            assert list(answers.label) == [next(iter(each)) for each in predictions]


@pytest.fixture(scope="module")
def version(trained: Person) -> dict[str, str]:
    """Variables with which a model is ``models:/served/1``."""
    registry.register("first", "served", None, trained.uri)
    paths = f"{Path(sys.executable).parent}:{trained.environment['PATH']}"  # MLflow starts `uvicorn`
    variables = {"PATH": paths, "MLFLOW_TRACKING_URI": trained.uri, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    return {**trained.environment, **variables}


def test_mlflow_serves_the_model_to_whoever_sends_image_files(
    version: dict[str, str], files: list[Path], predictions: list[dict[str, float]], tmp_path: Path
) -> None:
    """In an environment without this package, as far as imports can tell."""
    (tmp_path / "cifar_ray.py").write_text("raise ImportError")
    port = free_port()
    words = f"models serve --model-uri models:/served/1 --env-manager local --port {port} --workers 1".split()
    variables = {**version, "PYTHONPATH": str(tmp_path)}
    with stores.serving([sys.executable, "-m", "mlflow", *words], f"http://127.0.0.1:{port}/ping", variables):
        records = [{"image": base64.b64encode(file.read_bytes()).decode()} for file in files]
        response = requests.post(
            f"http://127.0.0.1:{port}/invocations", json={"dataframe_records": records}, timeout=TIMEOUT_S
        )
    answers = response.json()["predictions"]
    assert [each["probabilities"] for each in answers] == [pytest.approx(each, abs=1e-5) for each in predictions]
    assert [each["label"] for each in answers] == [next(iter(each)) for each in predictions]


def test_mlflow_writes_a_dockerfile_for_the_model(version: dict[str, str], tmp_path: Path) -> None:
    words = f"models generate-dockerfile --model-uri models:/served/1 --output-directory {tmp_path}/image".split()
    command = [sys.executable, "-m", "mlflow", *words]
    subprocess.run(command, env=version, check=True, timeout=300, capture_output=True)
    assert "COPY model_dir /opt/ml/model" in (tmp_path / "image" / "Dockerfile").read_text()
    kept = {path.name for path in (tmp_path / "image" / "model_dir").rglob("*")}
    assert {"MLmodel", "logged_model.py", "network.pt2", "requirements.txt"} <= kept


def test_what_cannot_be_registered_is_refused(trained: Person) -> None:
    client = MlflowClient(tracking_uri=trained.uri)
    tags = {KEY_TAG: "k", FOLDER_TAG: str(trained.home)}
    client.create_run(store.experiment_id(client, "other"), run_name="half", tags=tags)
    whole = client.create_run(store.experiment_id(client, "other"), run_name="empty", tags=tags)
    client.set_terminated(whole.info.run_id)
    for run, name, sentence in (
        ("half", "x", "run 'half' is RUNNING, and only a FINISHED run has a model that can be registered"),
        ("empty", "x", f"run 'empty' has no model in MLflow: {NO_MODEL}"),
        ("nobody", "x", f"there is no run or sweep 'nobody' in {trained.uri}; give its name or MLflow id"),
    ):
        with pytest.raises(ConfigError) as caught:
            registry.register(run, name, None, trained.uri)
        assert caught.value.as_flag() == sentence
    for name, alias in (("a/b", None), ("served", "v1"), ("served", "the best")):
        with pytest.raises(ConfigError, match=r"^--name and --alias must be what the registry takes: "):
            registry.register("first", name, alias, trained.uri)
    assert {model.name for model in client.search_registered_models()} <= {"digits", "served"}


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
    assert service.command.output.endswith("stopped; the model is no longer served\n")
    assert "Traceback" not in service.command.output
    assert trained.leftovers() == []
