"""Text, masks and tables: the commands at the beginning of their pages, as a person types them."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.person import Person

ROOT = Path(__file__).parents[2]
KINDS = {
    "text": ("texts", ["--epochs", "3", "--val-share", "0.2", "--text.vocabulary", "500"], ["--count", "400"]),
    "segmentation": ("masks", ["--epochs", "1"], ["--count", "200"]),
    "regression": ("tables", [], []),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_of_a_pages_beginning_train_and_predict(kind: str, resident: Person) -> None:
    page, shorter, fewer = KINDS[kind]
    block = (ROOT / "docs" / f"{page}.md").read_text().split("```\n")[1]
    made, train, predict = (shlex.split(line) for line in block.splitlines())
    script = ROOT / "examples" / kind / made[1]
    subprocess.run([sys.executable, script, *made[2:], *fewer], check=True, cwd=resident.home, capture_output=True)
    name, commands = f"{kind}-first", ([*train[1:], *shorter], predict[1:])
    _, predicted = (
        resident.succeeds(*(name if word in ("outlines", "rows", "liked") else word for word in words))
        for words in commands
    )
    run = resident.run_named(name)
    scored = json.loads(resident.succeeds("evaluate", name, "--json").stdout)["metrics"]
    figure = {"text": "accuracy", "segmentation": "miou", "regression": "r2"}[kind]
    assert scored[figure] == pytest.approx(run.data.metrics[f"test/{figure}"], rel=1e-4)
    assert run.info.status == "FINISHED"
    if kind == "text":
        assert re.findall(r": (good|bad) \d+\.\d%, (?:good|bad) \d+\.\d%$", predicted.stdout, flags=re.M)[1:]
    elif kind == "segmentation":
        written = sorted((resident.home / "predicted").iterdir())
        images = sorted((resident.home / "digits_masks/test/images").iterdir())
        assert [path.name for path in written] == [path.name for path in images]
        mask = np.asarray(Image.open(written[0]))
        assert (mask.shape, mask.max() < 11) == ((32, 32), True)
    else:
        answers = list(csv.DictReader((resident.home / "answers.csv").open()))
        assert [row["row"] for row in answers] == [str(number) for number in range(1, 90)]
