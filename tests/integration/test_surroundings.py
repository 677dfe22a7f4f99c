"""What a user's own files and settings do not change, and what of theirs a run leaves as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
SHORT = ["--dataset", "digits", "--epochs", "1", "--steps-per-epoch", "2"]
WORDS = [*SHORT, "--model", "meddler:build"]
FROM_PYTHON = """
from cifar_ray import SweepConfig, TrainConfig, sweep, train
imported = state()
short = TrainConfig(dataset="digits", model="meddler:build", epochs=1, steps_per_epoch=2)
train(dataclasses.replace(short, run_name="ours"))
sweep(SweepConfig("two", {"lr": [0.1]}, short))
"""
FROM_COMMAND = f"""
from cifar_ray.cli import main
import cifar_ray.orchestration.run.driver  # with libraries that have filters of their own
imported = state()
assert main.main(["train", *{WORDS}, "--run-name", "ours"]) == 0
"""
AS_BEFORE = """
import dataclasses, json, logging, os, signal, sys, warnings
import matplotlib, mlflow, ray, torch  # which set variables of their own

def state():
    loggers = [logging.getLogger(name) for name in ("root", "alembic", "mlflow", "ray", "ray.tune", "torch")]
    return {{
        **{{f"logger {{it.name}}": [it.level, it.propagate, repr(it.handlers)] for it in loggers}},
        "signals": [repr(signal.getsignal(it)) for it in (signal.SIGINT, signal.SIGTERM)],
        "matplotlib": repr(matplotlib.rcParams),
        "warnings": repr(warnings.filters),
        "mlflow": [mlflow.get_tracking_uri(), mlflow.get_registry_uri()],
        "path": repr(sys.path),
        "random numbers": torch.get_rng_state().tolist(),
        "ray": ray.is_initialized(),
    }}

before = dict(os.environ)
{work}
now = {{**os.environ, **state()}}
before |= imported
print(json.dumps([name for name in {{*before, *now}} if now.get(name) != before.get(name)]))
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    "work",
    [pytest.param(FROM_PYTHON, id="python"), pytest.param(FROM_COMMAND, id="command")],
)
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
    assert json.loads(done.stdout.splitlines()[-1]) == []
    run = person.run_named("ours")
    assert (run.info.status, len(run.outputs.model_outputs)) == ("FINISHED", 1)
    assert person.artifact("ours", "per_class.json").exists()


LIBRARIES = ("code", "numbers", "pandas", "random", "ray", "statistics", "torch", "torchmetrics", "yaml")


def named_like_libraries(folder: Path) -> None:
    for name in LIBRARIES:
        (folder / f"{name}.py").write_text("raise SystemExit(3)\n")


@pytest.mark.extended
def test_under_uv_run_workers_start_as_without_it(person: Person) -> None:
    """Ray's hook would send them the working folder, and start each by the uv of the command line, which is none here."""
    (person.home / "run").write_text('"$@"; exit $?\n')
    words = ["bash", "-c", 'exec -a uv bash run "$@"', "bash", *person.command("train", *SHORT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=person.environment, cwd=person.home)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.cluster
@pytest.mark.extended
def test_nodes_start_below_a_long_folder_beside_a_head_that_is_there(person: Person) -> None:
    folder = person.home / (110 * "a") / "tmp"
    address = folder / "ray" / "ray_current_cluster"  # of the head
    address.parent.mkdir(parents=True)
    address.write_text("10.0.0.1:6379")
    named_like_libraries(person.home)
    (person.home / "meddler.py").write_text(MEDDLER)
    words = ["--local-nodes", "2", "--topology", "2x1"]
    person.succeeds("train", *WORDS, *words, TMPDIR=str(folder))
    assert address.read_text() == "10.0.0.1:6379"


NO_HOME = """
import os, pwd
def unknown(uid):
    raise KeyError(f"uid not found: {uid}")
pwd.getpwuid = unknown
os.environ.pop("HOME")
from cifar_ray.cli import main
raise SystemExit(main.main(["runs", "--tracking-uri", "sqlite:////data/m.db"]))
"""


def test_without_a_home_folder_the_way_out_is_named() -> None:
    """As in a container whose user has only a number; MLflow cannot be imported then."""
    done = subprocess.run([sys.executable, "-c", NO_HOME], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("error: this user has no home folder: set HOME")
