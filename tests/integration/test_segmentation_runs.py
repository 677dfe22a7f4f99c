"""Segmentation through the whole program: the commands of docs/masks.md, shorter, and what uses the run."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pytest
import requests
from PIL import Image

from tests.support.person import Person
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_commands_of_the_page_train_a_model_that_predicts_masks(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = (ROOT / "docs" / "masks.md").read_text().split("```\n")[1].splitlines()
    made, *commands = [shlex.split(line.replace("--epochs 8", "--epochs 1 --val-share 0.2")) for line in block]
    script = ROOT / "examples" / "segmentation" / made[1]
    subprocess.run([sys.executable, script, *made[2:], "--count", "200"], check=True, cwd=person.home)
    assert [words[:2] for words in commands] == [["cifar-ray", "train"], ["cifar-ray", "predict"]]
    trained, predicted = (person.succeeds(*words[1:]).stdout for words in commands)
    assert re.search(r"^test miou +\d+\.\d\d%$", trained, flags=re.M)
    run = person.run_named("first")
    assert run.data.metrics["best/miou"] == run.data.metrics["val/miou"]
    files = {file.path for file in person.mlflow.list_artifacts(run.info.run_id)}
    assert {"confusion_matrix.png", "per_class.json"} <= files

    images = sorted((person.home / "digits_masks/test/images").iterdir())
    written = sorted((person.home / "predicted").iterdir())
    assert [path.name for path in written] == [path.name for path in images]
    assert len(predicted.splitlines()) == len(images) == 40
    assert Image.open(written[0]).mode == "P"
    mask = np.asarray(Image.open(written[0]))
    assert (mask.shape, mask.max() < 11) == ((32, 32), True)
    taken = ("--out", str(images[0].parent), "--overwrite")
    assert person.refused("predict", "first", str(images[0]), *taken) == (
        f"--out must have one file for each mask, and {images[0]} is another's, or an image"
    )

    scored = json.loads(person.succeeds("evaluate", "first", "--json").stdout)
    assert scored["metrics"]["miou"] == pytest.approx(run.data.metrics["test/miou"])
    with person.starts("serve", "first", "--port", str(port := free_port())) as command:
        command.until("ready at")
        answer = requests.post(f"http://127.0.0.1:{port}/predict", data=images[0].read_bytes(), timeout=60).json()
    served = Image.open(io.BytesIO(base64.b64decode(answer["mask"])))
    assert np.array_equal(np.asarray(served), mask)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", person.uri)
    (model,) = (output.model_id for output in run.outputs.model_outputs)
    rows = mlflow.pyfunc.load_model(f"models:/{model}").predict({"image": [images[0].read_bytes()]})
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(rows["mask"][0]))), mask)

    person.succeeds("report", "first", "--out", "report")
    page = (person.home / "report" / "report.md").read_text()
    assert "mIoU" in page
    assert "ccuracy of" not in page.replace("ixel accuracy of", "")
    person.succeeds("train", *commands[0][2:-1], "second", "--weights", "first")
    assert "mIoU" in person.succeeds("compare", "first", "second").stdout
