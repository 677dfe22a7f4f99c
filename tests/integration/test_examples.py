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
from collections.abc import Iterator
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


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.cluster
def test_the_paper_grid_runs(person: Person) -> None:
    """Its settings with one and two nodes, on digits rather than CIFAR-10."""
    grid = "--dataset digits --grid model=simple_cnn batch_size=64 topology=1x1,2x2"
    shown = person.succeeds("sweep", str(EXAMPLES / "paper_grid.yaml"), *grid.split(), timeout=900).stdout
    assert re.search(r"^runs +2 finished$", shown, flags=re.MULTILINE)
    assert "do not read the times as a cluster's" in shown
    person.succeeds("report", "paper_grid", "--baseline", "rangoju_katneni_2025")


@pytest.mark.extended
@pytest.mark.slow
def test_strategies_are_compared(person: Person) -> None:
    """The settings of its sweep with two strategies, on digits; a pipeline of one worker is skipped."""
    words = "--dataset digits --model simple_cnn --steps-per-epoch 4 --log-every 2 --skip-infeasible"
    grid = "--grid strategy=all_reduce,gpipe topology=1x1,1x2"
    done = person.succeeds("sweep", str(EXAMPLES / "strategies.yaml"), *words.split(), *grid.split(), timeout=600)
    assert re.search(r"^runs +3 finished, 1 skipped$", done.stdout, flags=re.MULTILINE)
    person.succeeds("report", "strategies", "--out", "out")
    report = (person.home / "out/report.md").read_text()
    for heading in ("Iteration (ms)", "Test loss of every rank's own replica", "Where a step's time goes"):
        assert heading in report
    assert "Pipeline bubble" in report


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in FILES if file.stem != "digits"], ids=lambda file: file.stem)
def test_a_file_trains(file: Path, person: Person) -> None:
    """One epoch of a small data set rather than what the file asks for, which takes long on a CPU."""
    done = person.succeeds("train", "--config", str(file), "--epochs", "1", "--dataset", "digits", "--topology", "1x2")
    assert re.search(r"^images evaluated +360$", done.stdout, flags=re.MULTILINE)


@pytest.mark.extended
@pytest.mark.slow
def test_a_run_is_seen_in_tensorboard(person: Person) -> None:
    command = [sys.executable, str(EXAMPLES / "to_tensorboard.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=person.environment, cwd=person.home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "raised" not in done.stdout
    curves = EventAccumulator(str(person.home / "tensorboard")).Reload()
    shown = [(point.step, point.value) for point in curves.Scalars("test/accuracy")]
    printed = re.findall(r"^epoch (\d)/5 .* accuracy ([\d.]+)% ", done.stdout, flags=re.MULTILINE)
    assert shown == [(int(epoch), pytest.approx(float(percent) / 100, abs=1e-4)) for epoch, percent in printed]
    assert "train/loss" in curves.Tags()["scalars"]


@pytest.mark.extended
@pytest.mark.slow
def test_from_python(person: Person) -> None:
    command = [sys.executable, str(EXAMPLES / "from_python.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=person.environment, cwd=person.home)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^(1x\d): accuracy [\d.]+%, [\d,]+ images/s, MLflow run (\w{32})$", done.stdout, flags=re.M)
    assert [topology for topology, _ in shown] == ["1x1", "1x2"]
    client = person.mlflow
    sizes = [client.get_run(run_id).data.params["global_batch_size"] for _, run_id in shown]
    assert sizes == ["64", "64"]


@pytest.mark.extended
@pytest.mark.slow
def test_a_sweep_from_python(person: Person) -> None:
    command = [sys.executable, str(EXAMPLES / "sweep_from_python.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=person.environment, cwd=person.home)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^learning rate ([\d.]+): mean accuracy [\d.]+% over 2 seeds$", done.stdout, flags=re.M)
    assert shown == ["0.01", "0.1"]
    assert f"{person.home}/rates/report.html\n" in done.stdout
    assert re.search(r"^lr +0\.01 +0\.1$", done.stdout, flags=re.M), done.stdout


@pytest.mark.extended
@pytest.mark.slow
def test_a_model_is_served_by_replicas_on_ray_serve(person: Person) -> None:
    person.succeeds("train", "--dataset", "digits", "--model", "simple_cnn", "--epochs", "1", "--run-name", "first")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, str(EXAMPLES / "ray_serve.py"), "first", str(port)]
    with stores.serving(command, url, person.environment) as server:
        answers = [requests.get(url, timeout=60) for _ in range(10)]
        assert [answer.status_code for answer in answers] == [200] * 10, answers[0].text
        while len(list(replicas(person))) < 2:
            time.sleep(0.2)
        image = png(data.load("digits").test.inputs[0])
        predicted = requests.post(f"{url}/predict?top=3", data=image, timeout=60).json()
        server.send_signal(signal.SIGINT)
        server.wait(60)
    assert {answer.json()["run"] for answer in answers} == {"first"}
    assert len(predicted["classes"]) == 3


def replicas(person: Person) -> Iterator[str]:
    return (words for words in person.processes().values() if "ServeReplica" in words)


@pytest.mark.data
@pytest.mark.extended
@pytest.mark.slow
def test_a_newcomer_fine_tunes_a_network(person: Person) -> None:
    """Every command of the page, as it stands there; trained weights are ahead by more than the seeds differ."""
    shutil.copytree(EXAMPLES / "fine_tune", person.home, dirs_exist_ok=True)
    page = (person.home / "README.md").read_text()
    environment = {**person.environment, "PATH": f"{Path(sys.executable).parent}:{person.environment['PATH']}"}
    for line in "".join(re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)).splitlines():
        command = ["bash", "-c", line]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=person.home, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
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


IN_ORDER = """
import json, sys
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        *lines, last = "".join(cell["source"]).splitlines()
        exec("\\n".join(lines))
        print(eval(last))
"""


@pytest.mark.slow
def test_the_notebook(person: Person) -> None:
    """Its cells in order, each with its last line shown, as in a notebook."""
    notebook = EXAMPLES / "notebook.ipynb"
    assert all(cell.get("outputs", []) == [] for cell in json.loads(notebook.read_text())["cells"])
    command = [sys.executable, "-c", IN_ORDER, str(notebook)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=person.environment, cwd=person.home)
    assert done.returncode == 0, done.stderr
    (name, accuracy) = re.findall(
        r"^<run (\S+): test accuracy ([\d.]+%), training [\d.]+ s; open in MLflow: cifar-ray ui>$", done.stdout, re.M
    )[0]
    recorded = person.run_named(name)
    assert f"{recorded.data.metrics['test/accuracy']:.2%}" == accuracy
    *_, last = re.findall(r"^5(?: +[\d.]+){2} +([\d.]+) ", done.stdout, re.M)
    assert float(last) == pytest.approx(recorded.data.metrics["test/accuracy"], abs=1e-6)
    pairs = re.findall(r"^[0-7] +(\d) +(\d)$", done.stdout, re.M)
    assert len(pairs) == 8
    assert sum(predicted == true for predicted, true in pairs) >= 4


@pytest.mark.extended
@pytest.mark.slow
def test_a_newcomer_brings_a_model_and_images(person: Person) -> None:
    """Every command of the page, as it stands there; the server listens where nobody else does."""
    shutil.copytree(EXAMPLES / "bring_your_own", person.home, dirs_exist_ok=True)
    page = (person.home / "README.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)
    paths = f"{Path(sys.executable).parent}:{person.environment['PATH']}"
    said = []
    port = str(free_port())
    for line in "".join(blocks).replace("8000", port).splitlines():
        command = ["bash", "-c", line]
        if line == "cifar-ray serve first":
            with person.starts("serve", "first", "--port", port) as server:
                server.until("ready at")
                curl = re.search(r"(curl .*)", page)
                assert curl is not None
                command[-1] = curl[1].replace("8000", port)
                answer = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=person.home)
                server.kill(signal.SIGINT)
                server.end()
            said.append(json.loads(answer.stdout)["classes"][0]["class"])
        elif not line.startswith("curl"):
            environment = {**person.environment, "PATH": paths}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=600, cwd=person.home, env=environment
            )
            assert done.returncode == 0, done.stdout + done.stderr
            said.append(done.stdout)
    images, trained, swept, _, predicted, served = said
    assert images == "1,797 images in images/\n"
    assert served == "7"
    accuracy = re.search(r"^test accuracy +([\d.]+)%", trained, flags=re.MULTILINE)
    assert accuracy is not None
    assert float(accuracy[1]) > 85
    assert re.search(r"^runs +4 finished$", swept, flags=re.MULTILINE)
    assert predicted.count(".png: 3 ") > 0.8 * len(predicted.splitlines())
    assert "model_options.width=8" in (person.home / "report" / "report.md").read_text()
