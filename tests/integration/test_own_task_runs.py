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


@pytest.mark.fault
def test_a_killed_run_goes_on_at_another_topology_and_its_model_is_used(
    person: Person, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", *INK, "--strategy", "reproducible", "--epochs", "4", "--val-share", "0.2"]
    calm = person.succeeds(*words, "--topology", "1x2", "--run-name", "calm").stdout
    assert re.search(r"^test rmse +\d+\.\d{4}$", calm, flags=re.M)
    assert "accuracy" not in calm
    with person.starts(*words, "--topology", "2x2", "--local-nodes", "2", "--run-name", "killed") as run:
        run.until("epoch 1/4")
        run.kill(signal.SIGKILL)
        run.end()
    person.succeeds("resume", "killed")
    runs = [person.run_named(name).data for name in ("calm", "killed")]
    assert len({run.tags["cifar_ray.weights_sha256"] for run in runs}) == 1
    assert len({run.metrics["test/rmse"] for run in runs}) == 1
    history = person.mlflow.get_metric_history(person.run_named("calm").info.run_id, "val/rmse")
    assert runs[0].metrics["best/rmse"] == min(point.value for point in history)
    assert len({run.metrics["chosen/test/rmse"] for run in runs}) == 1

    shown = person.succeeds("compare", "calm", "killed").stdout
    assert "RMSE" in shown
    assert "ccuracy" not in shown
    pixels = own_task.load()[1][0][0]
    image = person.home / "digit.png"
    image.write_bytes(png(pixels))
    (predicted,) = json.loads(person.succeeds("predict", "calm", str(image), "--json").stdout)
    values = dict(predicted["values"])
    assert [*values] == [*own_task.QUADRANTS]
    with person.starts("serve", "calm", "--port", str(port := free_port())) as command:
        command.until("ready at")
        answer = requests.post(f"http://127.0.0.1:{port}/predict", data=image.read_bytes(), timeout=60).json()
        assert answer["values"] == pytest.approx(values, abs=1e-4)
        assert "of run calm, step-" in command.output
    monkeypatch.setenv("MLFLOW_TRACKING_URI", person.uri)
    models = [output.model_id for output in person.run_named("calm").outputs.model_outputs]
    answers = mlflow.pyfunc.load_model(f"models:/{models[-1]}").predict({"image": [image.read_bytes()]})
    assert answers.iloc[0].to_dict() == pytest.approx(values, abs=1e-3)
    mine.write_text(mine.read_text().replace("/ 10).square()", "/ 20).square()"))
    assert person.refused("evaluate", "calm").startswith("--task must be as the run began with it")


@pytest.mark.slow
@pytest.mark.extended
def test_a_sweep_stops_the_runs_with_the_highest_error_and_its_report_shows_the_lowest(
    person: Person, mine: Path
) -> None:
    words = ["--name", "inks", *INK, "--epochs", "20", "--scheduler", "asha", "--max-concurrent", "1"]
    shown = person.succeeds("sweep", *words, "--grid", "lr=0.05,1e-9,1e-8,1e-7", "cpus_per_worker=1").stdout
    assert re.search(r"^runs +1 finished, 3 stopped$", shown, flags=re.M)
    best = person.run_named("lr0.05 1x1 seed0")
    assert best.info.status == "FINISHED"
    person.succeeds("report", "inks", "--out", "report")
    page = (person.home / "report" / "report.md").read_text()
    assert "RMSE" in page
    assert "ccura" not in page
    assert f"{best.data.metrics['chosen/test/rmse']:.2f}" in page
    assert f"{best.data.metrics['best/rmse']:.2f}" in page
    assert "rmse" in person.succeeds("runs").stdout.splitlines()[0]
