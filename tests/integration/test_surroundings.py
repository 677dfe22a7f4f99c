"""What a user's own files and settings do not change, and what of theirs a run leaves as it was."""

from __future__ import annotations

import json
import pwd
import subprocess
import sys

import pytest

from cifar_ray import TrainConfig, train
from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking import uri
from tests.support.person import Person

MEDDLER = """
import os
import warnings
import mlflow
from torch import nn


store = f"sqlite:///{os.environ['HOME']}/theirs.db"
os.environ["MLFLOW_REGISTRY_URI"] = store
os.environ["MLFLOW_EXPERIMENT_NAME"] = "theirs"
mlflow.set_tracking_uri(store)
mlflow.set_experiment("theirs")
mlflow.start_run(run_name="theirs")
mlflow.autolog()
os.chdir("/")
warnings.simplefilter("error")


def build(image_size, channels, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, classes))
"""
WORDS = ["--dataset", "digits", "--model", "meddler:build", "--epochs", "1", "--steps-per-epoch", "2"]
FROM_PYTHON = """
from cifar_ray import TrainConfig, train
train(TrainConfig(dataset="digits", model="meddler:build", epochs=1, steps_per_epoch=2, run_name="ours"))
"""
FROM_COMMAND = f"""
from cifar_ray.cli import main
assert main.main(["train", *{WORDS}, "--run-name", "ours"]) == 0
"""
AS_BEFORE = """
import json, os
import mlflow, ray  # which set variables of their own
before = dict(os.environ)
{work}
changed = {{name: os.environ.get(name) for name in {{*before, *os.environ}} if os.environ.get(name) != before.get(name)}}
print(json.dumps([changed, mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")]))
"""


@pytest.mark.parametrize("work", [FROM_PYTHON, FROM_COMMAND], ids=["python", "command"])
def test_a_module_that_sets_mlflow_warnings_and_the_folder_for_itself_does_not_change_the_run(
    person: Person, work: str
) -> None:
    (person.home / "meddler.py").write_text(MEDDLER)
    (person.home / "script.py").write_text(AS_BEFORE.format(work=work))
    given = {**person.environment, "MLFLOW_TRACKING_URI": person.uri, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, timeout=300, env=given, cwd=person.home
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [{}, person.uri, person.uri]
    run = person.run_named("ours")
    assert (run.info.status, len(run.outputs.model_outputs)) == ("FINISHED", 1)
    assert person.artifact("ours", "per_class.json").exists()


@pytest.mark.slow
@pytest.mark.cluster
def test_nodes_start_below_a_long_folder_beside_a_head_that_is_there(person: Person) -> None:
    folder = person.home / (110 * "a") / "tmp"
    address = folder / "ray" / "ray_current_cluster"  # of the head
    address.parent.mkdir(parents=True)
    address.write_text("10.0.0.1:6379")
    words = ["--dataset", "digits", "--model", "simple_cnn", "--epochs", "1", "--steps-per-epoch", "2"]
    words += ["--local-nodes", "2", "--topology", "2x1", "--oversubscribe"]
    person.succeeds("train", *words, TMPDIR=str(folder))
    assert address.read_text() == "10.0.0.1:6379"


def test_without_a_home_folder_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ConfigError, match=r"^this user has no home folder: set HOME"):
        train(TrainConfig(dataset="digits"))
    assert uri.flag("sqlite:////data/m.db") == " --tracking-uri sqlite:////data/m.db"
