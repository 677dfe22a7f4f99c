"""The examples do what they say; that of a first run is test_train.py's, that of a first sweep test_sweep.py's."""

from __future__ import annotations

import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cifar_ray import data
from cifar_ray.config import command_line, runfile, yaml
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.sweep import cells as cells_of
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import recipe
from examples.segmentation import make_masks
from examples.text import make_texts
from tests.support import stores
from tests.support.helpers import png
from tests.support.person import Person
from tests.support.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
OTHERS = {"aws-stack", "cluster-gcp", "cluster-onprem", "rayjob"}
"""What is for other programs than this one; tests of their own hold them."""
YAML = sorted(file for file in EXAMPLES.glob("*.yaml") if file.stem not in OTHERS)
SWEEPS = [file for file in YAML if "grid" in yaml.read(file)]
FILES = [file for file in YAML if file not in SWEEPS]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_is_a_run_that_can_be_started(file: Path) -> None:
    config = recipe.resolve(runfile.load(file))
    assert config != recipe.resolve(TrainConfig())


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_a_file_is_a_sweep_whose_cells_can_be(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if file.stem == "tasks":
        make_masks.make(Path("digits_masks"), 200)
        make_texts.make(Path("reviews"), 200)
    sweep = sweeps.from_mapping(command_line.merged(runfile.read(file), {}, str(file)))
    cells = cells_of(sweep, sweep.combinations)
    assert len(cells) > 1
    assert all(recipe.resolve(cell.config) for cell in cells if cell.config)
    assert [cell.name for cell in cells if cell.config is None] == []


def run_python(person: Person, *words: str) -> str:
    """What an example prints."""
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=person.environment, cwd=person.home)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def page_of(person: Person, name: str) -> tuple[str, list[str]]:
    """An example's page, with its files in the home folder, and every command of it."""
    shutil.copytree(EXAMPLES / name, person.home, dirs_exist_ok=True)
    page = (person.home / "README.md").read_text()
    return page, "".join(re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)).splitlines()


def run_shell(person: Person, line: str) -> str:
    paths = {"PATH": f"{Path(sys.executable).parent}:{person.environment['PATH']}"}
    environment = {**person.environment, **paths}
    command = ["bash", "-c", line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=person.home, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.extended
def test_strategies_are_compared(person: Person) -> None:
    """The settings of its sweep with two strategies, on digits; a pipeline of one worker is skipped."""
    words = "--dataset digits --model simple_cnn --steps-per-epoch 4 --log-every 2 --skip-infeasible"
    words += " --grid strategy=all_reduce,gpipe topology=1x1,1x2"
    done = person.succeeds("sweep", str(EXAMPLES / "strategies.yaml"), *words.split())
    assert re.search(r"^runs +3 finished, 1 skipped$", done.stdout, flags=re.MULTILINE)
    person.succeeds("report", "strategies", "--out", "out")
    report = (person.home / "out/report.md").read_text()
    headings = (
        "Iteration (ms)",
        "Test loss of every rank's own replica",
        "Where a step's time goes",
        "Pipeline bubble",
    )
    assert [heading for heading in headings if heading not in report] == []


@pytest.mark.extended
def test_a_run_is_seen_in_tensorboard(person: Person) -> None:
    output = run_python(person, str(EXAMPLES / "to_tensorboard.py"))
    assert "raised" not in output
    curves = EventAccumulator(str(person.home / "tensorboard")).Reload()
    shown = [(point.step, point.value) for point in curves.Scalars("test/accuracy")]
    printed = re.findall(r"^epoch (\d)/5 .* accuracy ([\d.]+)% ", output, flags=re.MULTILINE)
    assert shown == [(int(epoch), pytest.approx(float(percent) / 100, abs=1e-4)) for epoch, percent in printed]
    assert "train/loss" in curves.Tags()["scalars"]


@pytest.mark.extended
def test_runs_and_a_sweep_from_python(person: Person) -> None:
    output = run_python(person, str(EXAMPLES / "from_python.py"))
    shown = re.findall(r"^(1x\d): accuracy [\d.]+%, [\d,]+ images/s, MLflow run (\w{32})$", output, flags=re.M)
    assert [topology for topology, _ in shown] == ["1x1", "1x2"]
    assert [person.mlflow.get_run(run_id).data.params["global_batch_size"] for _, run_id in shown] == ["64", "64"]
    output = run_python(person, str(EXAMPLES / "sweep_from_python.py"))
    shown = re.findall(r"^learning rate ([\d.]+): mean accuracy [\d.]+% over 2 seeds$", output, flags=re.M)
    assert shown == ["0.01", "0.1"]
    assert f"{person.home}/rates/report.html\n" in output


@pytest.mark.extended
def test_a_model_is_served_by_replicas_on_ray_serve(person: Person) -> None:
    person.succeeds("train", "--dataset", "digits", "--model", "simple_cnn", "--epochs", "1", "--run-name", "first")
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, str(EXAMPLES / "ray_serve.py"), "first", port]
    with stores.serving(command, url, person.environment) as server:
        answers = [requests.get(url, timeout=60) for _ in range(10)]
        assert [answer.status_code for answer in answers] == [200] * 10, answers[0].text
        while sum("ServeReplica" in words for words in person.processes().values()) < 2:
            time.sleep(0.2)
        image = png(data.load("digits").test.inputs[0])
        predicted = requests.post(f"{url}/predict?top=3", data=image, timeout=60).json()
        server.send_signal(signal.SIGINT)
        server.wait(180)
    assert {answer.json()["run"] for answer in answers} == {"first"}
    assert len(predicted["classes"]) == 3


@pytest.mark.data
@pytest.mark.extended
def test_a_newcomer_fine_tunes_a_network(person: Person) -> None:
    """Trained weights are ahead by more than the seeds differ."""
    for line in page_of(person, "fine_tune")[1]:
        run_shell(person, line)
    accuracies: dict[tuple[str, bool], list[float]] = {}
    experiments = [experiment.experiment_id for experiment in person.mlflow.search_experiments()]
    for run in person.mlflow.search_runs(experiments):
        if run.data.params.get("epochs") == "4" and "test/accuracy" in run.data.metrics:
            key = run.data.params["dataset"].partition(":")[0], "weights" in run.data.params
            accuracies.setdefault(key, []).append(run.data.metrics["test/accuracy"])
    for source in ("cifar", "folder"):
        tuned, scratch = (accuracies[source, is_tuned] for is_tuned in (True, False))
        assert len(tuned) == len(scratch) == 3
        ahead = statistics.fmean(tuned) - statistics.fmean(scratch)
        assert ahead > max(statistics.stdev(tuned), statistics.stdev(scratch)), accuracies


@pytest.mark.extended
def test_a_newcomer_brings_a_model_and_images(person: Person) -> None:
    """The server listens where nobody else does."""
    page, lines = page_of(person, "bring_your_own")
    port = str(free_port())
    said = []
    for line in lines:
        if line == "cifar-ray serve own":
            with person.starts("serve", "own", "--port", port) as server:
                server.until("ready at")
                curl = re.search(r"(curl .*)", page)
                assert curl is not None
                answer = json.loads(run_shell(person, curl[1].replace("8000", port)))
                server.kill(signal.SIGINT)
                server.end()
            assert answer["classes"][0]["class"] == "7"
        elif not line.startswith("curl"):
            said.append(run_shell(person, line))
    images, trained, swept, _, predicted = said
    assert images == "1,797 images in images/\n"
    accuracy = re.search(r"^test accuracy +([\d.]+)%", trained, flags=re.MULTILINE)
    assert accuracy is not None
    assert float(accuracy[1]) > 85
    assert re.search(r"^runs +4 finished$", swept, flags=re.MULTILINE)
    assert predicted.count(".png: 3 ") > 0.8 * len(predicted.splitlines())
    assert "model_options.width=8" in (person.home / "report" / "report.md").read_text()


IN_ORDER = """
import json, sys
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        *lines, last = "".join(cell["source"]).splitlines()
        exec("\\n".join(lines))
        print(eval(last))
"""


@pytest.mark.extended
def test_the_notebook(person: Person) -> None:
    """Its cells in order, each with its last line shown, as in a notebook."""
    notebook = EXAMPLES / "notebook.ipynb"
    assert all(cell.get("outputs", []) == [] for cell in json.loads(notebook.read_text())["cells"])
    output = run_python(person, "-c", IN_ORDER, str(notebook))
    line = r"^<run (\S+): test accuracy ([\d.]+%), training [\d.]+ s; open in MLflow: cifar-ray ui>$"
    (name, accuracy), *_ = re.findall(line, output, re.M)
    recorded = person.run_named(name).data.metrics["test/accuracy"]
    assert f"{recorded:.2%}" == accuracy
    *_, last = re.findall(r"^5(?: +[\d.]+){2} +([\d.]+) ", output, re.M)
    assert float(last) == pytest.approx(recorded, abs=1e-6)
    pairs = re.findall(r"^[0-7] +(\d) +(\d)$", output, re.M)
    assert len(pairs) == 8
    assert sum(predicted == true for predicted, true in pairs) >= 4
