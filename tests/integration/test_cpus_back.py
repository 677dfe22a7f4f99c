"""The CPUs of a run that is stopped or killed are free again, in a program whose Ray lives on."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

import cifar_ray
from cifar_ray import data, storage
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import InterruptedRunError, RunFailedError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import allocation
from cifar_ray.orchestration.run import events
from cifar_ray.orchestration.run.events import Joined, NoRoom, Placed, WorkersFailed
from cifar_ray.orchestration.run.limits import Meter
from cifar_ray.orchestration.run.restarts import Run
from cifar_ray.tracking import store
from cifar_ray.tracking.run import RunRecord
from cifar_ray.tracking.study import FAILURE_TAG
from cifar_ray.tracking.uri import resolve_uri
from cifar_ray.training import hardware, recipe
from cifar_ray.training.observer import EpochRecord, Launch
from tests.support.person import Person

pytestmark = pytest.mark.fault
BACK_S = 60.0


class LeaveError(Exception):
    """What ends an attempt."""


@pytest.fixture(scope="module")
def dataset() -> Iterator[ray.ObjectRef]:
    """The data set in a Ray with two CPUs."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray.put(data.load("digits"))
    ray.shutdown()


def config(**values: Any) -> TrainConfig:
    usual = {"dataset": "digits", "model": "simple_cnn", "precision": "fp32", "cpus_per_worker": 1}
    return TrainConfig(**{**usual, **values})


def train(dataset: ray.ObjectRef, folder: Path, handle: Callable[[Any], None], topology: str = "1x2") -> None:
    """Train on both CPUs, by two workers of Ray Train or one without it."""
    cpus = 2 if topology == "1x1" else 1
    asked = recipe.resolve(config(epochs=500, topology=topology, cpus_per_worker=cpus))
    folder.mkdir()
    (folder / "run.json").touch()  # a folder exists when something is in it
    with allocation.NodeAllocator(lambda *_: None, lambda: None) as allocator:
        home, inbox = storage.at(str(folder)), events.open_mailbox()
        run = Run(asked, cpus, home, dataset, handle, lambda *_: False, allocator, inbox, Meter(home), lambda _: "")
        run.train(allocation.at_topology(asked, Decided.asked(asked)), Launch(time.time(), 0.0))


def leaves_at(event: type) -> Callable[[Any], None]:
    def handle(seen: Any) -> None:
        if isinstance(seen, event):
            raise LeaveError

    return handle


def all_back() -> None:
    end = time.monotonic() + BACK_S
    while ray.available_resources().get("CPU", 0.0) < 2.0:
        assert time.monotonic() < end, "the run still holds CPUs"
        time.sleep(0.1)


@contextmanager
def taken() -> Iterator[None]:
    """Context manager: somebody else has both CPUs."""
    other = placement_group([{"CPU": 2.0}])
    assert other.wait(60)
    yield
    remove_placement_group(other)
    all_back()


@pytest.mark.extended
@pytest.mark.parametrize(("event", "topology"), [(EpochRecord, "1x2"), (Placed, "1x2"), (Joined, "1x1")])
def test_a_stopped_run_gives_its_cpus_back(event: type, topology: str, dataset: ray.ObjectRef, tmp_path: Path) -> None:
    """While its workers train, and while they start."""
    with pytest.raises(LeaveError):
        train(dataset, tmp_path / "run", leaves_at(event), topology)
    all_back()


def test_a_run_that_waits_for_room_says_who_has_it(
    dataset: ray.ObjectRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIFAR_RAY_START_TIMEOUT_S", "1")
    with taken(), pytest.raises(RunFailedError, match="2 of 2 CPUs are in use"):
        train(dataset, tmp_path / "run", lambda _: None, "1x1")


@pytest.mark.extended
def test_a_run_that_is_stopped_while_it_waits_for_room_does_not_take_it_later(
    dataset: ray.ObjectRef, tmp_path: Path
) -> None:
    with taken(), pytest.raises(LeaveError):
        train(dataset, tmp_path / "run", leaves_at(NoRoom))
    time.sleep(2)  # workers that start now end at once
    all_back()


@pytest.mark.extended
def test_a_run_whose_controller_is_killed_starts_again(dataset: ray.ObjectRef, tmp_path: Path) -> None:
    """Its placement group is removed, or there would be no room."""
    failed: list[WorkersFailed] = []

    def handle(seen: Any) -> None:
        if isinstance(seen, WorkersFailed):
            failed.append(seen)
        elif isinstance(seen, EpochRecord):
            if failed:
                raise LeaveError
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if "ray::TrainController" in " ".join(process.cmdline()):
                        process.kill()

    with pytest.raises(LeaveError):
        train(dataset, tmp_path / "run", handle)
    assert "Ray Train's controller has died: its process was killed, or its node has left" in failed[0].verdict.reason
    all_back()


def test_a_signal_to_train_in_a_program_with_a_ray_of_its_own_gives_the_cpus_back(
    dataset: ray.ObjectRef, home: Path
) -> None:
    class Interrupting(cifar_ray.Callback):
        def epoch(self, record: EpochRecord) -> None:
            if record.row.step == 1:  # a second one would end the workers
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(InterruptedRunError) as stopped:
        # Epochs in which a worker says nothing of its progress
        cifar_ray.train(config(epochs=3000, steps_per_epoch=1), callbacks=[Interrupting()])
    assert stopped.value.signum == signal.SIGINT
    all_back()
    assert ray.is_initialized()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_that_nobody_expected_is_the_reason_of_the_runs_end(
    dataset: ray.ObjectRef, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("no result today")

    monkeypatch.setattr(RunRecord, "result", broken)
    with pytest.raises(ValueError, match="no result today"):
        cifar_ray.train(config(epochs=1))
    client = store.connect(resolve_uri(None))
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert (run.info.status, run.data.tags[FAILURE_TAG]) == ("FAILED", "ValueError: no result today")


@pytest.mark.extended
def test_trials_whose_processes_are_killed_leave_their_cpus_to_the_next(person: Person) -> None:
    """One worker's, and the one that Ray Tune runs for a trial; Ray kills with SIGKILL, too, when memory runs out."""
    cpus = hardware.allowed_cpus()
    words = f"--dataset digits --model simple_cnn --topology 1x{cpus} --cpus-per-worker 1 --max-concurrent 1"
    words += " --max-failures 0 --precision fp32 --grid epochs=5001,5002,1"
    person.environment["CIFAR_RAY_START_TIMEOUT_S"] = "60"
    with person.starts("sweep", "--name", "killed", *words.split()) as sweep:
        for epochs, title in ((5001, "ray::RayTrainWorker"), (5002, "ray::ResourceTrainable")):
            sweep.until(f"epochs{epochs} 1x{cpus} seed0: epoch 2/")
            os.kill(next(pid for pid, words in person.processes().items() if words.startswith(title)), signal.SIGKILL)
        assert sweep.end() == 1
    assert re.search(r"^runs +2 failed, 1 finished$", sweep.output, flags=re.MULTILINE), sweep.output
    assert f"epochs5001 1x{cpus} seed0: failed, " in sweep.output
    assert f"epochs5002 1x{cpus} seed0: failed, the process that drove it has died" in sweep.output
