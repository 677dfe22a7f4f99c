"""Models of masks, texts and tables: ``predict``, ``serve`` and the model in MLflow give one answer."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import requests
from PIL import Image

from examples.regression import make_table
from examples.segmentation import make_masks
from examples.text import make_texts
from tests.support.mlflow_store import as_default
from tests.support.person import Person
from tests.support.ports import free_port

pytestmark = pytest.mark.extended


def used(person: Person, words: list[str], file: Path, request: dict[str, Any], table: Any) -> tuple[Any, Any, Any]:
    """What a run of an epoch with these words says of a file, of a request, and of a table in MLflow."""
    person.succeeds("train", *words, "--epochs", "1", "--batch-size", "16", "--run-name", "first")
    predicted = json.loads(person.succeeds("predict", "first", str(file), "--json", "--overwrite").stdout)
    with person.starts("serve", "first", "--port", str(port := free_port())) as command:
        command.until("ready at")
        served = requests.post(f"http://127.0.0.1:{port}/predict", timeout=60, **request).json()
    (model,) = (output.model_id for output in person.run_named("first").outputs.model_outputs)
    with as_default(person.uri):
        return predicted, served, mlflow.pyfunc.load_model(f"models:/{model}").predict(table)


def test_masks(person: Person) -> None:
    make_masks.make(person.home / "made", 60)
    file = next((person.home / "made/test/images").iterdir())
    words = ["--dataset", "masks:made", "--model", "unet", "--model-options.width", "4"]
    (predicted,), served, found = used(person, words, file, {"data": file.read_bytes()}, {"image": [file.read_bytes()]})
    files = [Path(person.home, predicted["mask"]).read_bytes(), base64.b64decode(served["mask"]), found["mask"][0]]
    first, *others = (np.asarray(Image.open(io.BytesIO(content))) for content in files)
    assert (first.shape, first.max() < 11) == ((32, 32), True)
    assert all(np.array_equal(first, other) for other in others)


def test_texts(person: Person) -> None:
    make_texts.make(person.home / "made", 200)
    file = person.home / "made" / "test.csv"
    rows, words = pd.read_csv(file), ["--dataset", "text:made", "--model", "lstm", "--text.vocabulary", "400"]
    predicted, served, found = used(person, words, file, {"json": {"text": rows.text[0]}}, rows[["text"]])
    assert [each["text"] for each in predicted] == list(rows.text)
    label, probability = predicted[0]["classes"][0]
    assert served["classes"][0] == {"class": label, "probability": pytest.approx(probability, abs=1e-4)}
    assert list(found.label) == [each["classes"][0][0] for each in predicted]


def test_a_table(person: Person) -> None:
    make_table.make(person.home / "made")
    file, words = person.home / "made" / "test.csv", ["--dataset", "table:made", "--target", make_table.TARGET]
    table = pd.read_csv(file)
    request = {"json": table.drop(columns=make_table.TARGET).to_dict("records")}
    predicted, served, found = used(person, words, file, request, table.astype({"age": int}))
    values = [dict(each["values"])[make_table.TARGET] for each in predicted]
    assert [each["values"][make_table.TARGET] for each in served] == pytest.approx(values, rel=1e-5)
    assert found[make_table.TARGET].tolist() == pytest.approx(values, rel=1e-5)
