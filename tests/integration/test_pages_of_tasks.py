"""Masks, texts and tables through the whole program: the commands of their pages, shorter, and what uses the run."""

from __future__ import annotations

import base64
import csv
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import requests
from mlflow.entities import Run
from PIL import Image
from sklearn.metrics import r2_score

from tests.support.mlflow_store import as_default
from tests.support.person import Person
from tests.support.ports import free_port

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


def typed(person: Person, page: str, make: tuple[str, ...], *train: str) -> tuple[str, Run, Path]:
    """Type a page's commands, with these words added; the folder of what is made, the run and what predict says."""
    block = (ROOT / "docs" / f"{page}.md").read_text().split("```\n")[1].splitlines()
    made, trained, predicted = (shlex.split(line) for line in block)
    script = next((ROOT / "examples").glob(f"*/{made[1]}"))
    subprocess.run([sys.executable, script, *made[2:], *make], check=True, cwd=person.home)
    assert (trained[:2], predicted[:2]) == (["cifar-ray", "train"], ["cifar-ray", "predict"])
    person.succeeds(*trained[1:], *train)
    said = person.succeeds(*predicted[1:]).stdout
    return said, person.run_named(trained[trained.index("--run-name") + 1]), person.home / made[2]


def served(person: Person, run: Run, ask: Callable[[str], Any], *words: str) -> Any:
    """What a request gets from ``cifar-ray serve``."""
    with person.starts("serve", run.info.run_name, *words, "--port", str(port := free_port())) as command:
        command.until("ready at")
        return ask(f"http://127.0.0.1:{port}/predict")


def answers(person: Person, run: Run, table: Any, which: str = "final") -> pd.DataFrame:
    """What the run's model in MLflow answers."""
    models = {person.mlflow.get_logged_model(of.model_id).tags["checkpoint"]: of for of in run.outputs.model_outputs}
    with as_default(person.uri):
        found = mlflow.pyfunc.load_model(f"models:/{models.get(which, next(iter(models.values()))).model_id}")
        return found.predict(table)


def recorded(person: Person, run: Run, *words: str) -> dict[str, float]:
    """The figures of evaluating the run again."""
    return json.loads(person.succeeds("evaluate", run.info.run_name, *words, "--json").stdout)["metrics"]


def test_masks(person: Person) -> None:
    said, run, made = typed(person, "masks", ("--count", "200"), "--epochs", "1", "--val-share", "0.2")
    assert run.data.metrics["best/miou"] == run.data.metrics["val/miou"]
    images = sorted((made / "test/images").iterdir())
    written = sorted((person.home / "predicted").iterdir())
    assert [path.name for path in written] == [path.name for path in images]
    assert len(said.splitlines()) == len(images) == 40
    mask = np.asarray(Image.open(written[0]))
    assert (mask.shape, mask.max() < 11) == ((32, 32), True)
    taken = ("--out", str(images[0].parent), "--overwrite")
    assert person.refused("predict", run.info.run_name, str(images[0]), *taken).startswith("--out must ")
    assert recorded(person, run)["miou"] == pytest.approx(run.data.metrics["test/miou"])
    body = images[0].read_bytes()
    answer = served(person, run, lambda url: requests.post(url, data=body, timeout=60).json())
    files = [base64.b64decode(answer["mask"]), answers(person, run, {"image": [body]})["mask"][0]]
    assert all(np.array_equal(np.asarray(Image.open(io.BytesIO(file))), mask) for file in files)


def test_texts(person: Person) -> None:
    words = ["--epochs", "3", "--val-share", "0.2", "--text.vocabulary", "500"]
    _, run, made = typed(person, "texts", ("--count", "400"), *words)
    assert run.data.metrics["tokens_per_s"] > run.data.metrics["texts_per_s"]
    assert recorded(person, run)["accuracy"] == pytest.approx(run.data.metrics["test/accuracy"])
    rows = list(csv.DictReader((made / "test.csv").read_text().splitlines()))
    told = json.loads(person.succeeds("predict", run.info.run_name, str(made / "test.csv"), "--json").stdout)
    assert [each["text"] for each in told] == [row["text"] for row in rows]
    likeliest = [each["classes"][0][0] for each in told]
    right = sum(label == row["label"] for label, row in zip(likeliest, rows)) / len(rows)
    assert right == pytest.approx(run.data.metrics["chosen/test/accuracy"], abs=0.05)
    text = rows[0]["text"]
    plain, in_json = served(
        person,
        run,
        lambda url: [requests.post(url, timeout=60, **of).json() for of in ({"data": text}, {"json": {"text": text}})],
    )
    assert plain == in_json
    assert plain["classes"][0] == {
        "class": likeliest[0],
        "probability": pytest.approx(told[0]["classes"][0][1], abs=1e-4),
    }
    assert list(answers(person, run, pd.DataFrame(rows)[["text"]]).label) == likeliest


def test_a_table(person: Person) -> None:
    _, run, made = typed(person, "tables", ())
    assert run.data.metrics["best/r2"] >= run.data.metrics["val/r2"]
    table, rows = pd.read_csv(made / "test.csv"), list(csv.DictReader((person.home / "answers.csv").open()))
    assert [row["row"] for row in rows] == [str(number) for number in range(1, 90)]
    told = [float(row["progression"]) for row in rows]
    scored = recorded(person, run, "--checkpoint", "best")
    assert r2_score(table["progression"], told) == pytest.approx(scored["r2"], rel=1e-5)
    shown = table.drop(columns="progression").iloc[:2].to_dict("records")
    best = served(person, run, lambda url: requests.post(url, json=shown, timeout=60).json(), "--checkpoint", "best")
    assert [each["values"]["progression"] for each in best] == pytest.approx(told[:2], rel=1e-5)
    found = answers(person, run, table.astype({"age": int}), "best")["progression"]  # other columns do not matter
    assert found.tolist() == pytest.approx(told, rel=1e-5)
