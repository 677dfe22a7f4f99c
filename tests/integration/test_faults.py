"""What a run survives, and how truthfully it ends when it does not."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cifar_ray.config import flags, runfile
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import recipe
from tests.support import stores
from tests.support.helpers import train_on_ranks
from tests.support.person import Person
from tests.support.ports import free_port

pytestmark = pytest.mark.fault

# Seconds of training on one worker per CPU, with something to lose at any moment.
LONG = ["train", "--dataset", "digits", "--model", "resnet"]
LONG += ["--model-options.blocks", "1,1", "--model-options.width", "8"]
LONG += ["--epochs", "20", "--precision", "fp32"]
LONG += ["--batch-size", "32", "--topology", "1x2", "--cpus-per-worker", "1"]
LONG += ["--checkpoint-every", "7", "--log-every", "5", "--log-models", "none", "--run-name", "victim"]
EPOCHS = list(range(1, 21))
ITERATIONS = list(range(5, 20 * 22 + 1, 5))


def assert_complete(person: Person, undisturbed: str) -> None:
    """The run is finished with the weights of one that nothing has happened to, and every figure is there once."""
    assert person.run_named("victim").info.status == "FINISHED"
    assert person.steps("victim", "test/accuracy") == EPOCHS
    assert person.steps("victim", "train/loss") == ITERATIONS
    assert person.run_named("victim").data.tags["cifar_ray.weights_sha256"] == undisturbed


def wait_for_status(person: Person, status: str) -> None:
    end = time.monotonic() + 60
    while person.run_named("victim").info.status != status:
        assert time.monotonic() < end, f"still {person.run_named('victim').info.status}"
        time.sleep(0.3)


def wait_for_nothing_left(person: Person) -> None:
    """Ray's own helpers notice the end of what they served after a while."""
    end = time.monotonic() + 150
    while left := person.leftovers():
        assert time.monotonic() < end, left
        time.sleep(0.5)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SHA-256 of the weights of a run that nothing has happened to, without Ray."""
    given = flags.parse(TrainConfig, LONG[1:], "cifar-ray train")
    config = recipe.resolve(runfile.load(None, given))
    (outcome, _), _ = train_on_ranks(config, tmp_path_factory.mktemp("calm"))
    assert outcome is not None
    return outcome.weights_sha256


@pytest.mark.extended
@pytest.mark.parametrize(
    "where", [pytest.param("", marks=pytest.mark.compat), "--topology 2x1 --local-nodes 2"], ids=["here", "nodes"]
)
def test_a_run_killed_at_a_random_moment_and_resumed_equals_an_undisturbed_one(
    where: str, person: Person, undisturbed: str
) -> None:
    until = f"epoch {random.randint(1, 12)}/20" if where else "starting the workers"
    moment = random.uniform(0, 0.3)
    with person.starts(*LONG, *where.split()) as run:
        run.until(until)
        time.sleep(moment)
        run.kill(signal.SIGKILL)
        run.end()
    before = ""
    with contextlib.suppress(ValueError):  # MLflow has not heard of it yet, and its folder alone tells of it
        wait_for_status(person, "KILLED")
        before = person.run_named("victim").info.run_id
    done = person.runs("resume", "victim")
    assert done.returncode == 0, f"killed {moment:.2f} s after {until!r}: {done.stdout}{done.stderr}"
    assert person.run_named("victim").info.run_id == before or not before
    assert_complete(person, undisturbed)
    if not where:  # it takes Ray's helpers a minute
        wait_for_nothing_left(person)


@pytest.mark.extended
@pytest.mark.compat
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_run_told_to_end_is_killed_in_mlflow_and_goes_on_where_it_was(
    signum: signal.Signals, person: Person, undisturbed: str
) -> None:
    """By Ctrl-C, or by SIGTERM to the command and all that it has started, as ``timeout`` sends it."""
    with person.starts(*LONG) as run:
        run.until("epoch 3/20")
        run.kill(signum) if signum == signal.SIGINT else os.killpg(run.process.pid, signum)
        assert run.end() == 128 + signum
        last = run.output.splitlines()[-1]
        assert re.fullmatch(r"Stopped after epoch \d+\. Continue with: cifar-ray resume victim", last), run.output
        assert "Traceback" not in run.output
    assert person.run_named("victim").info.status == "KILLED"
    wait_for_nothing_left(person)
    assert "continuing after step " in person.succeeds("resume", "victim").stdout
    assert_complete(person, undisturbed)


@pytest.mark.extended
def test_a_sweep_that_loses_ray_by_the_signal_ends_too(person: Person) -> None:
    """Ray answers no more where the signal has ended it before the driver looked."""
    with person.starts("sweep", *LONG[1:-2], "--name", "victims", "--grid", "seed=1,2", "--max-concurrent", "1") as run:
        run.until("epoch 3/20")
        os.killpg(run.process.pid, signal.SIGTERM)
        assert run.end() == 128 + signal.SIGTERM
        last = run.output.splitlines()[-1]
        assert re.fullmatch(r"Stopped after 0 of 2 runs\. Continue with: cifar-ray sweep --resume victims", last), last
        assert "Traceback" not in run.output
    wait_for_nothing_left(person)
    assert person.run_named("victims").info.status == person.run_named("bs32 1x2 seed1").info.status == "KILLED"


def worker_pids(person: Person) -> list[int]:
    run_id = person.run_named("victim").info.run_id
    end = time.monotonic() + 60
    while not any(file.path == "placement.json" for file in person.mlflow.list_artifacts(run_id)):
        assert time.monotonic() < end, "no placement.json"
        time.sleep(0.1)
    return [worker["pid"] for worker in person.placement("victim")]


@pytest.mark.compat
def test_a_worker_that_is_killed_is_replaced(person: Person, undisturbed: str) -> None:
    with person.starts(*LONG) as run:
        run.until("epoch 2/20")
        os.kill(worker_pids(person)[1], signal.SIGKILL)
        assert run.end() == 0, run.output
        assert "restarting from the newest checkpoint, failure 1 of at most 3" in run.output
    assert_complete(person, undisturbed)
    assert person.run_named("victim").data.tags["cifar_ray.worker_failures"] == "1"


HANGS = """
import ctypes, os, pathlib
import torch

class Net(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer = torch.nn.Linear(features, 10)
        self.steps = 0

    def forward(self, images):
        self.steps += self.training
        mark = pathlib.Path(MARK)
        if self.steps == 40 and not mark.exists():
            mark.touch()
            in_a_library_that_keeps_the_lock()
        return self.layer(images.flatten(1))

def in_a_library_that_keeps_the_lock():
    ctypes.PyDLL(None).sleep(3600)

def build(image_size, channels, classes):
    return Net(channels * image_size**2)
"""


@pytest.mark.extended
def test_where_a_worker_hangs_is_named_and_kept(person: Person) -> None:
    """Its Python thread cannot answer, since the interpreter's lock is held."""
    (person.home / "mine.py").write_text(HANGS.replace("MARK", repr(str(person.home / "mark"))))
    words = "train --dataset digits --model mine:build --epochs 4 --topology 1x2 --batch-size 32 --precision fp32"
    done = person.succeeds(*words.split(), "--run-name", "hangs", "--hang-timeout-s", "20")
    hung = re.search(r"rank (\d): its process has not answered for 20 s \(--hang-timeout-s\) ", done.stdout)
    assert hung, done
    assert "(in_a_library_that_keeps_the_lock in mine.py, line 20)" in " ".join(done.stdout.split())
    stacks = person.artifact("hangs", f"hangs/failure1_rank{hung[1]}.txt").read_text()
    assert "line 20 in in_a_library_that_keeps_the_lock" in stacks


@pytest.mark.extended
@pytest.mark.compat
def test_without_failures_to_spare_a_killed_worker_fails_the_run_truthfully(person: Person) -> None:
    with person.starts(*LONG, "--max-failures", "0") as run:
        run.until("epoch 2/20")
        os.kill(worker_pids(person)[0], signal.SIGKILL)
        assert run.end() == 1
        assert "Traceback" not in run.output
        assert "error: rank 0: " in run.output
    run_now = person.run_named("victim")
    assert run_now.info.status == "FAILED"
    assert "rank 0" in run_now.data.tags["cifar_ray.failure"]
    assert max(person.steps("victim", "test/accuracy")) >= 2
    wait_for_nothing_left(person)


def the_process(person: Person, command: str) -> int:
    """The pid of the one process of this person's whose command line begins as the pattern says."""
    (pid,) = [pid for pid, words in person.processes().items() if re.match(command, words)]
    return pid


@pytest.mark.parametrize("part", ["raylet", pytest.param("gcs_server", marks=pytest.mark.extended)])
def test_a_run_whose_ray_is_killed_fails_truthfully(part: str, person: Person) -> None:
    with person.starts(*LONG, "--topology", "1x1", "--epochs", "100000") as run:
        run.until("epoch 1/")
        os.kill(the_process(person, rf"\S+/{part} "), signal.SIGKILL)
        assert run.end() == 1
        sentence = f"Ray's {part} process on this machine has ended: "
        assert f"error: {sentence}" in run.output
        assert "Traceback" not in run.output
    run_now = person.run_named("victim")
    assert run_now.info.status == "FAILED"
    assert run_now.data.tags["cifar_ray.failure"].startswith(sentence)


@pytest.mark.extended
def test_a_mailbox_that_is_killed_starts_again(person: Person, undisturbed: str) -> None:
    with person.starts(*LONG) as run:
        run.until("epoch 2/20")
        os.kill(the_process(person, "ray::_Mailbox"), signal.SIGKILL)
        assert run.end() == 0, run.output
        assert "epoch 20/20" in run.output
        assert "workers failed" not in run.output
    assert_complete(person, undisturbed)


def test_three_quick_signals_end_the_run_with_a_sentence(person: Person) -> None:
    with person.starts(*LONG, "--topology", "1x1", "--epochs", "100000") as run:
        run.until("starting the workers")
        for _ in range(3):
            run.kill(signal.SIGINT)
            time.sleep(0.1)
        assert run.end() == 130
        assert run.output.endswith("\nStopped within the first epoch. Continue with: cifar-ray resume victim\n")
        assert "Traceback" not in run.output
    wait_for_status(person, "KILLED")


@pytest.mark.compat
def test_an_interruption_before_the_first_step_leaves_the_name_free(person: Person) -> None:
    with person.starts(*LONG) as run:
        run.until("starting Ray")
        run.kill(signal.SIGTERM)
        assert run.end() == 143
        assert run.output.endswith("\nStopped by SIGTERM before training began.\n")
    assert list((person.home / ".cifar_ray" / "runs").iterdir()) == []
    wait_for_nothing_left(person)


@pytest.mark.extended
def test_a_reader_that_goes_away_does_not_end_the_run(person: Person, undisturbed: str) -> None:
    command = subprocess.Popen(
        person.command(*LONG), stdout=subprocess.PIPE, env=person.environment, cwd=person.home, start_new_session=True
    )
    assert command.stdout is not None
    command.stdout.readline()
    command.stdout.close()
    assert command.wait(timeout=240) == 0
    assert_complete(person, undisturbed)


def test_a_tracking_server_that_goes_away_and_comes_back_has_everything(
    person: Person, tmp_path: Path, undisturbed: str
) -> None:
    port = str(free_port())
    person.uri = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "mlflow", "server", "--port", port, "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{tmp_path}/m.db", "--artifacts-destination", f"{tmp_path}/a"]
    jobs = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with contextlib.ExitStack() as server:
        server.enter_context(stores.serving(words, f"{person.uri}/health", jobs))
        with person.starts(*LONG, "--tracking-uri", person.uri) as run:
            run.until("epoch 2/20")
            server.close()
            run.until("MLflow does not answer")
            run.until("epoch 10/20")
            server.enter_context(stores.serving(words, f"{person.uri}/health", jobs))
            assert run.end() == 0, run.output
        found = person.run_named("victim").info
        assert f" {person.uri}/#/experiments/{found.experiment_id}/runs/{found.run_id}?" in run.output
        assert_complete(person, undisturbed)


@pytest.mark.extended
def test_a_database_that_is_deleted_does_not_stop_training_and_the_run_is_recorded_anew(
    person: Person, undisturbed: str
) -> None:
    with person.starts(*LONG) as run:
        run.until("epoch 2/20")
        (person.home / ".cifar_ray" / "mlflow.db").unlink()
        assert run.end() == 0, run.output
        assert f" {undisturbed}\n" in run.output
        assert "`cifar-ray resume victim` writes it when the store is back" in run.output
        assert "Traceback" not in run.output
    scored = person.succeeds("evaluate", "victim")
    assert "does not have run 'victim', which is in " in scored.stderr
    person.succeeds("resume", "victim")
    assert_complete(person, undisturbed)
