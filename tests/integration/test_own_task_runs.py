"""A task of the user's own through the whole program: the example's, whose best figure is the lowest."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import mlflow
import pytest
import requests

from examples import own_task
from tests.support.helpers import png
from tests.support.mlflow_store import as_default
from tests.support.person import Person
from tests.support.ports import free_port

EXAMPLE = Path(own_task.__file__)
INK = ["--task", "own_task:Ink", "--dataset", "own_task:load", "--model", "resnet", "--precision", "fp32"]


@pytest.fixture
def mine(person: Person) -> Path:
    """The example's file in the person's working folder."""
    file = person.home / "own_task.py"
    file.write_text(EXAMPLE.read_text())
    return file


@pytest.mark.extended
@pytest.mark.fault
def test_a_killed_run_goes_on_at_another_topology_and_its_model_is_used(person: Person, mine: Path) -> None:
    words = ["train", *INK, "--strategy", "reproducible", "--epochs", "4", "--val-share", "0.2"]
    calm = person.succeeds(*words, "--topology", "1x2", "--run-name", "calm").stdout
    assert re.search(r"^test rmse +\d+\.\d{4}$", calm, flags=re.M)
    assert "accuracy" not in calm
    with person.starts(*words, "--topology", "2x2", "--local-nodes", "2", "--run-name", "killed") as run:
        run.until("epoch 1/4")
        run.kill(signal.SIGKILL)
        run.end()
    person.succeeds("resume", "killed")
    first, second = (person.run_named(name).data for name in ("calm", "killed"))
    assert first.tags["cifar_ray.weights_sha256"] == second.tags["cifar_ray.weights_sha256"]
    for name in ("test/rmse", "chosen/test/rmse"):
        assert first.metrics[name] == second.metrics[name]
    history = person.mlflow.get_metric_history(person.run_named("calm").info.run_id, "val/rmse")
    assert first.metrics["best/rmse"] == min(point.value for point in history)

    shown = person.succeeds("compare", "calm", "killed").stdout
    assert "RMSE" in shown
    assert "ccuracy" not in shown
    image = person.home / "digit.png"
    image.write_bytes(png(own_task.load()[1][0][0]))
    (predicted,) = json.loads(person.succeeds("predict", "calm", str(image), "--json").stdout)
    values = dict(predicted["values"])
    assert [*values] == [*own_task.QUADRANTS]
    with person.starts("serve", "calm", "--port", str(port := free_port())) as command:
        command.until("ready at")
        answer = requests.post(f"http://127.0.0.1:{port}/predict", data=image.read_bytes(), timeout=60).json()
    assert answer["values"] == pytest.approx(values, abs=1e-4)
    models = [output.model_id for output in person.run_named("calm").outputs.model_outputs]
    with as_default(person.uri):
        answers = mlflow.pyfunc.load_model(f"models:/{models[-1]}").predict({"image": [image.read_bytes()]})
    assert answers.iloc[0].to_dict() == pytest.approx(values, abs=1e-3)
    mine.write_text(mine.read_text().replace("/ 10).square()", "/ 20).square()"))
    assert person.refused("evaluate", "calm").startswith("--task must be as the run began with it")
