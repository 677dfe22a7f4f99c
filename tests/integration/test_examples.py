"""The examples do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cifar_ray import config as configs
from cifar_ray.training import recipe
from tests.person import Person

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_is_a_run_that_can_be_started(file: Path) -> None:
    config = recipe.resolve(configs.load(file))
    assert config != recipe.resolve(configs.TrainConfig())


def test_the_digits_are_learned(person: Person) -> None:
    done = person.runs("train", "--config", str(EXAMPLES / "digits.yaml"))
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"^test accuracy +([\d.]+)%$", done.stdout, flags=re.MULTILINE)
    assert accuracy is not None
    assert float(accuracy[1]) > 95


@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in FILES if file.stem != "digits"], ids=lambda file: file.stem)
def test_a_file_trains(file: Path, person: Person) -> None:
    """One epoch of a small data set rather than what the file asks for, which takes long on a CPU."""
    done = person.runs("train", "--config", str(file), "--epochs", "1", "--dataset", "digits", "--topology", "1x2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^images evaluated +360$", done.stdout, flags=re.MULTILINE)


@pytest.mark.slow
def test_from_python(person: Person) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "from_python.py")],
        capture_output=True,
        text=True,
        timeout=300,
        env=person.environment,
        cwd=person.home,
    )
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^(1x\d): accuracy [\d.]+%, [\d,]+ images/s, MLflow run (\w{32})$", done.stdout, flags=re.M)
    assert [topology for topology, _ in shown] == ["1x1", "1x2"]
    client = person.mlflow
    sizes = [client.get_run(run_id).data.params["global_batch_size"] for _, run_id in shown]
    assert sizes == ["64", "64"]
