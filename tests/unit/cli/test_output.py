"""What commands print of their results: words, one JSON document, or one line."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from cifar_ray import tasks
from cifar_ray.cli import doctor
from cifar_ray.cli.doctor import Check
from cifar_ray.display.run import Console
from cifar_ray.orchestration.run import driver
from cifar_ray.orchestration.run.train_result import TrainResult
from cifar_ray.runs import use
from cifar_ray.runs.use import Prediction, Scored
from cifar_ray.tasks import Figure, TaskSpec, segmentation
from cifar_ray.tracking import parent, reading
from cifar_ray.tracking.study import KEY_TAG, SWEEP_TAG, TASK_TAG
from tests.support import mlflow_store
from tests.support.studies import grid
from tests.support.typed import Said

IMAGE = Path(__file__).parents[3] / "docs/studies/vgg11_group_report/charts/confusion.png"
METRICS = {"accuracy": 0.5, "precision": 0.5, "recall": 0.5, "f1": 0.5, "specificity": 0.5, "loss": 1.0}
NO_UTF8 = Path("no UTF-8 \udcff.png")


def test_a_training_prints_its_progress_or_one_document(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    history, times = [{"epoch": 1, "train/epoch_loss": math.inf}], {"time/wall_s": 12.3, "images_per_s": 9300.4}
    end = ("mine", "id", "uri", None, "/there", {"test/accuracy": 0.9722, "test/loss": math.nan}, times, history, "sha")
    result = TrainResult(*end, checkpoint="/there/last")

    def train(*_: object, **__: object) -> TrainResult:
        with Console() as console:
            console.line("epoch 1/1")
        print("a library has something to say")
        return result

    monkeypatch.setattr(driver, "train", train)
    progress = "resnet on cifar10, 1x1, ddp: loading PyTorch and Ray\nepoch 1/1\na library has something to say\n"
    assert said("train") == (progress, "")
    out, err = said("train --json")
    result.metrics["test/loss"] = history[0]["train/epoch_loss"] = None
    assert (json.loads(out, parse_constant=pytest.fail), err) == (json.loads(json.dumps(asdict(result))), progress)


def test_an_evaluation_as_json(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    def evaluate(*_: object) -> Scored:
        print("downloading")
        return Scored("/there/step8", 8, METRICS, 360, 0.75)

    monkeypatch.setattr(use, "evaluate", evaluate)
    out, err = said("evaluate ./mine --json")
    scored = {"checkpoint": "/there/step8", "step": 8, "metrics": METRICS, "images": 360, "recorded_score": 0.75}
    scored |= {"task": json.loads(json.dumps(asdict(tasks.USUAL))), "recorded_on": "test"}
    assert (json.loads(out), err) == (scored, "downloading\n")
    shown = said("evaluate ./mine")[0]
    assert "/there/step8 (step 8)" in shown
    assert "75.00%" in shown


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """``answered(task, *predictions)`` has a run answer so; it returns where masks were asked to go."""

    def by(task: TaskSpec, *predictions: Prediction) -> list[Any]:
        asked: list[Any] = []

        def predict(*words: Any) -> Any:
            asked.append(words[-3])
            return task, [replace(each, answers=each.answers[: words[-4]]) for each in predictions]

        monkeypatch.setattr(use, "predict", predict)
        return asked

    return by


def test_predictions_as_json(answered: Callable[..., list[Any]], said: Said) -> None:
    answers = [("cat", 0.5), ("dog", 0.375), ("ship", 0.125)]
    answered(tasks.USUAL, Prediction({"image": IMAGE}, answers))
    assert json.loads(said(f"predict ./mine {IMAGE} --top 2 --json")[0]) == [
        {"image": str(IMAGE), "classes": [["cat", 0.5], ["dog", 0.375]]}
    ]
    assert said(f"predict ./mine {IMAGE} --top 1") == (f"{IMAGE}: cat 50.0%\n", "")
    answered(tasks.USUAL, Prediction({"image": NO_UTF8}, answers))
    assert json.loads(said(f"predict ./mine {IMAGE} --json")[0])[0]["image"] == str(NO_UTF8)


def test_predictions_as_csv(answered: Callable[..., list[Any]], said: Said, tmp_path: Path) -> None:
    first = Prediction({"image": IMAGE}, [("a cat, asleep", 0.5), ("dog", 0.375)])
    answered(tasks.USUAL, first, Prediction({"image": NO_UTF8}, [("dog", 1.0), ("a cat, asleep", 0.0)]))
    table = tmp_path / "answers.csv"
    command, note = f"predict ./mine {IMAGE} --csv {table}", f"note: {table} has the answers for 2 images\n"
    assert said(command) == ("", note)
    assert [*csv.reader(table.read_text().splitlines())] == [
        ["image", "class", "probability", "class_2", "probability_2"],
        [str(IMAGE), "a cat, asleep", "0.5", "dog", "0.375"],
        ["no UTF-8 \\xff.png", "dog", "1.0", "a cat, asleep", "0.0"],
    ]
    out, err = said(f"{command} --overwrite --json")
    assert (len(json.loads(out)), err) == (2, note)
    values = TaskSpec("ink", (Figure("rmse", "RMSE"),), answer="values")
    answered(values, Prediction({"image": IMAGE}, [("left", 12.5), ("right", -1.0)]))
    said(f"{command} --overwrite")
    assert table.read_text() == f"image,left,right\n{IMAGE},12.5,-1.0\n"
    for path, start in {"/": "must be a file that can be written", __file__: "must be a new file, and "}.items():
        assert said(f"predict nobody {IMAGE} --csv {path}", 2)[1].startswith(f"--csv {start}")


def test_predicted_masks_are_named(answered: Callable[..., list[Any]], said: Said, tmp_path: Path) -> None:
    mask = Prediction({"image": IMAGE}, [("ground", 0.75), ("cat", 0.25)], Path("out/a.png"))
    asked = answered(segmentation.TASK.spec, mask)
    assert said(f"predict ./mine {IMAGE}")[0] == f"{IMAGE} -> out/a.png: ground 75.0%, cat 25.0%\n"
    (one,) = json.loads(said(f"predict ./mine {IMAGE} --out there --json")[0])
    assert one == {"image": str(IMAGE), "mask": "out/a.png", "classes": [["ground", 0.75], ["cat", 0.25]]}
    assert asked == [None, Path("there").absolute()]
    said(f"predict ./mine {IMAGE} --csv {tmp_path}/answers.csv")
    head, row = (tmp_path / "answers.csv").read_text().splitlines()
    assert (head, row) == ("image,mask,class,share,class_2,share_2", f"{IMAGE},out/a.png,ground,0.75,cat,0.25")


def test_a_comparison_as_json(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    study = grid()
    monkeypatch.setattr(reading, "runs", lambda *_: study)
    whole = json.loads(said("compare ./a ./b --json")[0])
    assert [row["name"] for row in whole["runs"]] == [trial.name for trial in study.trials]
    assert {"images_per_s", "accuracy_percent"} <= {row["figure"] for row in whole["figures"]}


def test_what_the_doctor_finds_as_json(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    found = [Check("python", "3.11"), Check("storage", "/full", "choose another --storage")]
    monkeypatch.setattr(doctor, "examine", lambda _: iter(found))
    out, err = said("doctor --json", 1)
    assert [Check(**one) for one in json.loads(out)] == found
    assert err.startswith("ok  python ")
    assert said("doctor", 1) == (err, "")
    found.pop()
    assert said("doctor")[0].endswith("nothing stands in the way of a run\n")


def test_a_sweep_in_place_of_a_run_is_answered_by_its_runs(tmp_path: Path, home: Path, said: Said) -> None:
    client = mlflow_store.new_store(tmp_path)
    own = client.create_run("0", 1, {parent.KIND_TAG: parent.KIND, SWEEP_TAG: "grid"}, "grid").info.run_id
    for began, name in enumerate(("a", "b"), 2):
        client.create_run("0", began, {KEY_TAG: name, parent.PARENT_TAG: own, SWEEP_TAG: "grid"}, name)
    for command in ("evaluate grid", f"predict grid {IMAGE}", "resume grid", "compare grid a"):
        refusal = said(f"{command} --tracking-uri {client.tracking_uri}", 2)[1]
        assert refusal.startswith("'grid' is a sweep, and a run is wanted; `cifar-ray runs grid --tracking-uri ")


def test_runs_are_listed_in_columns(tmp_path: Path, said: Said) -> None:
    client = mlflow_store.new_store(tmp_path)
    flag = f"--tracking-uri {client.tracking_uri}"
    assert said(f"runs {flag}") == (f"no runs in {client.tracking_uri}\n", "")
    own = client.create_run("0", 1, {parent.KIND_TAG: parent.KIND, SWEEP_TAG: "grid"}, "grid").info.run_id
    run_id = client.create_run("0", 2, {KEY_TAG: "k", parent.PARENT_TAG: own}, "bs16 1x2").info.run_id
    for name, value in {"dataset": "folder:/home/me/photos", "model": "resnet", "topology": "1x2"}.items():
        client.log_param(run_id, name, value)
    for name, figure in {"test/accuracy": 0.9722, "images_per_s": 9300.4}.items():
        client.log_metric(run_id, name, figure)
    client.set_terminated(run_id)
    _, line = said(f"runs {flag}")[0].splitlines()
    assert line[17:].split() == ["running", "folder:photos", "resnet", "1x2", "grid", "(sweep", "of", "1", "run)"]
    header, line = said(f"runs grid {flag}")[0].splitlines()
    columns = ("started", "state", "data set", "model", "topology", "test result", "throughput", "cost", "name")
    assert re.split("  +", header) == [*columns]
    values = ["finished", "folder:photos", "resnet", "1x2", "accuracy 97.22%", "9,300 images/s", "bs16 1x2"]
    assert re.split("  +", line)[1:] == values
    for tag, number in {parent.PLANNED_TAG: "3", parent.WITHOUT_RUN_TAG: "1"}.items():
        client.set_tag(own, tag, number)
    client.set_terminated(own)
    (line,) = said(f"runs {flag}")[0].splitlines()[1:]
    assert "  1 of 3 failed  folder:photos  resnet  1x2 " in line
    assert line.endswith("  grid (sweep of 1 of 3 runs)")
    (listed,) = json.loads(said(f"runs grid --json {flag}")[0])
    assert (listed["run_id"], listed["score"], listed["images_per_s"]) == (run_id, 0.9722, 9300.4)
    (listed,) = json.loads(said(f"runs --json {flag}")[0])
    assert (listed["kind"], listed["runs"], listed["score"]) == ("sweep", 1, None)


def test_a_name_of_somebody_elses_run_commands_no_terminal(tmp_path: Path, said: Said) -> None:
    client = mlflow_store.new_store(tmp_path)
    run_id = client.create_run("0", 1, {KEY_TAG: "k"}, "evil\x1b[2J\nfinished").info.run_id
    client.log_param(run_id, "model", "m\x1b]0;title\x07")
    header, line = said(f"runs --tracking-uri {client.tracking_uri}")[0].splitlines()
    assert line.endswith(r"  evil\x1b[2J finished")
    assert line.index(r"m\x1b]0;title\x07") == header.index("model")


def test_runs_of_several_tasks_are_listed_with_the_names_of_their_figures(tmp_path: Path, said: Said) -> None:
    client = mlflow_store.new_store(tmp_path)
    facts = asdict(TaskSpec("gone:Depth", (Figure("rmse", "RMSE", "min"),), "scans"))  # its module is not there
    own, flag = {TASK_TAG: json.dumps(facts)}, f"--tracking-uri {client.tracking_uri}"
    figures = {"test/rmse": 3.21, "scans_per_s": 1500.0, "test/accuracy": 0.9722, "images_per_s": 9300.4}
    for began, (name, tags) in enumerate({"depth": own, "digits": {}}.items(), 1):
        run_id = client.create_run("0", began, {KEY_TAG: name, **tags}, name).info.run_id
        for metric, figure in figures.items():
            client.log_metric(run_id, metric, figure)
    assert [line[16:].split() for line in said(f"runs {flag}")[0].splitlines()] == [
        ["state", "data", "set", "model", "topology", "test", "result", "throughput", "cost", "name"],
        ["running", "accuracy", "97.22%", "9,300", "images/s", "digits"],
        ["running", "rmse", "3.2100", "1,500", "scans/s", "depth"],
    ]
    digits, depth = json.loads(said(f"runs --json {flag}")[0])
    assert (digits["score"], digits["task"]["name"]) == (0.9722, "classification")
    assert (depth["score"], depth["task"]) == (3.21, facts | {"figures": [*facts["figures"]]})


@pytest.mark.slow
def test_listing_runs_loads_neither_ray_nor_torch(tmp_path: Path) -> None:
    client = mlflow_store.new_store(tmp_path)
    words = ["runs", "--json", "--tracking-uri", client.tracking_uri]
    script = f"import sys; from cifar_ray.cli import main; main.main({words}); assert not {{'ray', 'torch'}} & {{*sys.modules}}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, [], "")
