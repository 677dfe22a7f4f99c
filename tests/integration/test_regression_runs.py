"""Regression through the whole program: the commands of docs/tables.md, shorter, and what uses the run."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import mlflow
import pandas as pd
import pytest
import requests
from sklearn.metrics import r2_score

from tests.support.person import Person
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_commands_of_the_page_train_a_model_that_predicts_numbers(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "tables.md").read_text()
    made, *commands = [shlex.split(line) for line in page.split("```\n")[1].splitlines()]
    script = ROOT / "examples" / "regression" / made[1]
    told = subprocess.run(
        [sys.executable, script, *made[2:]], check=True, cwd=person.home, capture_output=True, text=True
    )
    assert re.search(r"^linear regression: R2 0\.520,", told.stdout, flags=re.M)
    assert [words[:2] for words in commands] == [["cifar-ray", "train"], ["cifar-ray", "predict"]]
    trained, predicted = (person.succeeds(*words[1:]) for words in commands)
    assert re.search(r"^test r2 +0\.\d{4}$", trained.stdout, flags=re.M)
    run = person.run_named("first")
    assert run.data.metrics["best/r2"] >= run.data.metrics["val/r2"]
    assert {"chosen/test/r2", "chosen/test/mae", "test/rows", "rows_per_s"} <= run.data.metrics.keys()
    assert "data.mean" not in run.data.params

    table = pd.read_csv(person.home / "diabetes/test.csv")
    rows = list(csv.DictReader((person.home / "answers.csv").open()))
    assert f"note: {person.home}/answers.csv has the answers for 89 rows\n" in predicted.stderr
    assert [row["row"] for row in rows] == [str(number) for number in range(1, 90)]
    answers = [float(row["progression"]) for row in rows]
    scored = json.loads(person.succeeds("evaluate", "first", "--checkpoint", "best", "--json").stdout)
    assert r2_score(table["progression"], answers) == pytest.approx(scored["metrics"]["r2"], rel=1e-5)
    refused = person.refused("predict", "first", str(script))
    assert refused.startswith(f"a table must be CSV or JSONL in UTF-8, and {script} is not: ")

    with person.starts("serve", "first", "--checkpoint", "best", "--port", str(port := free_port())) as command:
        command.until("ready at")
        shown = table.drop(columns="progression").iloc[:2].to_dict("records")
        served = requests.post(f"http://127.0.0.1:{port}/predict", json=shown, timeout=60).json()
    assert [each["values"]["progression"] for each in served] == pytest.approx(answers[:2], rel=1e-5)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", person.uri)
    models = {person.mlflow.get_logged_model(of.model_id).tags["checkpoint"]: of for of in run.outputs.model_outputs}
    loaded = mlflow.pyfunc.load_model(f"models:/{models['best'].model_id}")
    found = loaded.predict(table.astype({"age": int}))["progression"]  # other columns do not matter
    assert found.tolist() == pytest.approx(answers, rel=1e-5)

    person.succeeds("report", "first", "--out", "report")
    words = (person.home / "report" / "report.md").read_text()
    assert "R2" in words
    assert "ccuracy" not in words
    person.succeeds("train", *commands[0][2:-1], "second", "--epochs", "1", "--weights", "first")
    assert "R2" in person.succeeds("compare", "first", "second").stdout
