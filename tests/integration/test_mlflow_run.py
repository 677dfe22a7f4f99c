"""MLflow for a Ray Train script of the user's own, whose workers and driver are really killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run

from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking import store
from cifar_ray.tracking.job import JOB_TAG, JobRecord
from cifar_ray.tracking.study import FAILURE_TAG
from tests.support.person import Person, Started

EXAMPLE = Path(__file__).parents[2] / "examples" / "mlflow_for_ray_train.py"
EPOCHS = list(range(1, 11))
SLOW = """
def report(*words, checkpoint=None, said=ray.train.report, **others):
    import time
    time.sleep(0.3)
    said(*words, checkpoint=checkpoint, **others)
    FAULT
ray.train.report = report
"""
KILLER = """
import os, signal, time

class Killer(ray.train.UserCallback):
    '''Kills the driver after Ray has kept a checkpoint and before the callbacks that follow hear of it.'''

    def __init__(self, epoch):
        self.driver, self.epoch = os.getpid(), epoch

    def after_report(self, run_context, metrics, checkpoint):
        if metrics[0]["epoch"] == self.epoch:
            os.kill(self.driver, signal.SIGKILL)
            time.sleep(60)  # Ray ends this process
"""


def script(person: Person, name: str, fault: str = "pass", killed_at: int | None = None) -> Path:
    """The example with pauses, in which it can be killed, a fault after every report, and an epoch that kills it."""
    head, loop = EXAMPLE.read_text().split("    images, labels =", 1)
    pauses = "".join(f"    {line}\n" for line in SLOW.replace("FAULT", fault).strip().splitlines())
    file = person.home / f"{name}.py"
    lean = loop.replace("    with MLflowRun(", "    ray.init(include_dashboard=False)\n    with MLflowRun(")
    lean = lean.replace("callbacks=[", f"callbacks=[Killer({killed_at}), ")
    head = head.replace("def loop", f"{KILLER}\ndef loop").replace('"epochs": 20', f'"epochs": {len(EPOCHS)}')
    file.write_text(f"{head}{pauses}    images, labels ={lean}".replace('"digits"', f'"{name}"'))
    return file


def started(person: Person, file: Path) -> contextlib.AbstractContextManager[Started]:
    """The script under way, beside whatever cluster another test has."""
    return person.starts_program(sys.executable, str(file), RAY_ADDRESS="local")


def ends_well(person: Person, file: Path) -> None:
    with started(person, file) as process:
        assert process.end(400) == 0, process.output[-3000:]


def until(condition: Callable[[], bool], process: Started) -> None:
    end = time.monotonic() + 300
    while True:
        with contextlib.suppress(Exception):  # the store or the run is not there yet
            if condition():
                return
        assert time.monotonic() < end, process.output[-3000:]
        time.sleep(0.2)


def assert_complete(person: Person, name: str) -> Run:
    run = person.run_named(name)  # there is one
    assert run.info.status == "FINISHED"
    for metric in ("loss", "test.accuracy"):
        assert person.steps(name, metric) == EPOCHS
    assert FAILURE_TAG not in run.data.tags
    kept = json.loads(person.artifact(name, "checkpoints.json").read_text())["checkpoints"]
    assert [each["step"] for each in kept] == EPOCHS
    assert Path(kept[-1]["path"]).is_dir()
    assert run.data.tags["cifar_ray.checkpoint"] == kept[-1]["path"]
    return run


@pytest.mark.extended
@pytest.mark.fault
def test_one_run_though_a_worker_and_then_the_driver_are_killed(person: Person) -> None:
    file = script(person, "victim", killed_at=6)
    with started(person, file) as process:
        until(lambda: max(person.steps("victim", "loss")) >= 3, process)
        worker = next(pid for pid, words in person.processes().items() if words.startswith("ray::RayTrainWorker"))
        os.kill(worker, signal.SIGKILL)
        assert process.end(300) == -signal.SIGKILL
        until(lambda: person.run_named("victim").info.status == "KILLED", process)
    first = person.run_named("victim").info.run_id
    ends_well(person, script(person, "victim"))
    run = assert_complete(person, "victim")
    assert run.info.run_id == first
    assert run.data.params == {"epochs": "10", "optimizer.name": "sgd", "optimizer.lr": "0.05", "hidden": "[64]"}
    assert run.data.tags["mlflow.source.name"] == str(file)


@pytest.mark.extended
def test_a_job_that_fails_says_why_and_the_next_goes_on(person: Person) -> None:
    file = script(person, "fails", "if words[0]['epoch'] == 2: raise ValueError('two is enough')")
    file.write_text(file.read_text().replace("max_failures=3", "max_failures=0"))
    with started(person, file) as process:
        assert process.end(400) == 1
    run = person.run_named("fails")
    assert run.info.status == "FAILED"
    assert "ValueError: two is enough" in run.data.tags[FAILURE_TAG]
    ends_well(person, script(person, "fails"))
    assert assert_complete(person, "fails").info.run_id == run.info.run_id
    ends_well(person, file)  # Ray's own snapshot says that there is nothing left to do
    names = [each.info.run_name for each in person.mlflow.search_runs(["1"])]
    assert names == ["fails", "fails"], "a finished run is left as it is"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


def opened(uri: str, name: str = "job", **params: Any) -> JobRecord:
    return JobRecord.open(uri, "jobs", name, params)


def test_the_run_of_a_job_is_continued_until_it_is_finished(uri: str) -> None:
    first = opened(uri, a=1)
    first.report(1, 1000, {"loss": 2.0, "nested": {"x": 1}, "name": "text", "bad": float("nan")})
    assert first.end("FAILED")
    second = opened(uri, a=1, b=3)
    second.report(1, 2000, {"loss": 5.0})
    second.report(2, 3000, {"loss": 1.0})
    assert second.end("FINISHED")
    third = opened(uri, a=1)
    assert third.end("KILLED")
    again = opened(uri, a=1)
    assert (again.run_id, again.end("KILLED")) == (third.run_id, True)
    assert opened(uri, a=4).end("KILLED")
    assert first.run_id == second.run_id
    client = store.connect(uri)
    assert len(client.search_runs(["1"])) == 3, "a finished run is left as it is, and one with other parameters"
    run = client.get_run(second.run_id)
    assert (run.info.status, run.data.params) == ("FINISHED", {"a": "1", "b": "3"})
    assert run.data.metrics == {"loss": 1.0, "nested.x": 1.0}
    points = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value) for each in points] == [(1, 2.0), (2, 1.0)]
    assert run.data.tags[JOB_TAG] == "job"
    assert opened(uri, "another").end("FINISHED")


def test_nested_configs_become_parameters_and_what_is_none_is_refused(uri: str) -> None:
    config: Any = [1, 2]
    with pytest.raises(ConfigError, match="params must be a mapping, such as"):
        JobRecord.open(uri, "jobs", "job", config)
    record = JobRecord.open(uri, "jobs", "job", {"a": {"b": [1, 2], 3: None}, "x y!": "z" * 7000})
    assert record.end("FINISHED")
    params = store.connect(uri).get_run(record.run_id).data.params
    assert params == {"a.b": "[1, 2]", "a.3": "None", "x y_": "z" * 6000}
