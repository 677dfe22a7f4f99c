"""Texts through the whole program: the commands of docs/texts.md, shorter, and what uses the run."""

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

from tests.support.person import Person
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_commands_of_the_page_train_a_model_that_answers_for_texts(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "texts.md").read_text()
    short = page.split("```\n")[1].replace("--epochs 8", "--epochs 3 --val-share 0.2 --text.vocabulary 500")
    made, *commands = [shlex.split(line) for line in short.splitlines()]
    script = ROOT / "examples" / "text" / made[1]
    subprocess.run([sys.executable, script, *made[2:], "--count", "400"], check=True, cwd=person.home)
    assert [words[:2] for words in commands] == [["cifar-ray", "train"], ["cifar-ray", "predict"]]
    trained, predicted = (person.succeeds(*words[1:]).stdout for words in commands)
    assert "2 classes, 256 training, 64 validation and 80 test texts" in trained
    assert re.search(r"^test accuracy +\d+\.\d\d%$", trained, flags=re.M)
    assert re.search(r"^tokens +[\d,]+ tokens/s; \d+\.\d % of what is computed is padding$", trained, flags=re.M)
    assert re.search(r": (good|bad) \d+\.\d%, (good|bad) \d+\.\d%$", predicted, flags=re.M)
    name = commands[0][commands[0].index("--run-name") + 1]
    run = person.run_named(name)
    assert run.data.metrics["tokens_per_s"] > run.data.metrics["texts_per_s"]
    files = {file.path for file in person.mlflow.list_artifacts(run.info.run_id)}
    assert {"confusion_matrix.json", "confusion_matrix.png", "per_class.json"} <= files
    scored = json.loads(person.succeeds("evaluate", name, "--json").stdout)
    assert scored["metrics"]["accuracy"] == pytest.approx(run.data.metrics["test/accuracy"])

    test = person.home / made[2] / "test.csv"
    rows = list(csv.DictReader(test.read_text().splitlines()))
    answers = json.loads(person.succeeds("predict", name, str(test), "--json").stdout)
    assert [answer["text"] for answer in answers] == [row["text"] for row in rows]
    likeliest = [answer["classes"][0][0] for answer in answers]
    right = sum(label == row["label"] for label, row in zip(likeliest, rows))
    assert right / len(rows) == pytest.approx(run.data.metrics["chosen/test/accuracy"], abs=0.05)

    with person.starts("serve", name, "--port", str(port := free_port())) as command:
        command.until("ready at")
        url = f"http://127.0.0.1:{port}/predict"
        bodies = [requests.post(url, data=rows[0]["text"].encode(), timeout=60)]
        bodies.append(requests.post(url, json={"text": rows[0]["text"]}, timeout=60))
        refused = requests.post(url, json={"words": ""}, timeout=60)
    served = [body.json()["classes"][0] for body in bodies]
    assert served[0] == served[1]
    assert served[0]["class"] == likeliest[0]
    assert served[0]["probability"] == pytest.approx(answers[0]["classes"][0][1], abs=1e-4)
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        'cannot read the body as a text: it must be plain, or {"text": "..."}, in UTF-8 and not empty',
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", person.uri)
    (model,) = (output.model_id for output in run.outputs.model_outputs)
    table = mlflow.pyfunc.load_model(f"models:/{model}").predict(pd.DataFrame(rows)[["text"]])
    assert list(table.label) == likeliest

    person.succeeds("report", name, "--out", "report")
    page = (person.home / "report" / "report.md").read_text()
    assert "Misread texts" in page
    wrong = [row["text"].lower() in page for label, row in zip(likeliest, rows) if label != row["label"]]
    assert sum(wrong) == min(len(wrong), 16)
    assert person.refused("predict", name, str(ROOT / "README.md")) == (
        f"a file of texts must be .csv, .jsonl or .txt, got {ROOT}/README.md"
    )
    again = [*commands[0][2:], "--weights", name]
    again[again.index("--run-name") + 1] = "second"
    assert "of the parameters" in person.succeeds("train", *again).stdout
