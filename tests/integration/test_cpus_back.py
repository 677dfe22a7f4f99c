"""The CPUs of a run that is stopped or killed are free again, in a program whose Ray lives on."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
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


def train(
    dataset: ray.ObjectRef,
    folder: Path,
    handle: Callable[[Any], None],
    topology: str = "1x2",
) -> None:
    """Train on both CPUs, by two workers of Ray Train or one without it."""
    cpus = 2 if topology == "1x1" else 1
    asked = TrainConfig(
        dataset="digits", model="simple_cnn", epochs=500, precision="fp32", topology=topology, cpus_per_worker=cpus
    )
    config = recipe.resolve(asked)
    folder.mkdir()
    (folder / "run.json").touch()  # a folder exists when something is in it
    with allocation.NodeAllocator(lambda *_: None, lambda: None) as allocator:
        home, inbox = storage.at(str(folder)), events.open_mailbox()
        run = Run(config, cpus, home, dataset, handle, lambda *_: False, allocator, inbox, Meter(home), lambda _: "")
        run.train(allocation.at_topology(config, Decided.asked(config)), Launch(time.time(), 0.0))


def all_back() -> None:
    end = time.monotonic() + BACK_S
    while ray.available_resources().get("CPU", 0.0) < 2.0:
        assert time.monotonic() < end, "the run still holds CPUs"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("event", "topology"),
    [
        (EpochRecord, "1x2"),
        *(
            pytest.param(*each, marks=pytest.mark.extended)
            for each in ((Placed, "1x2"), (Joined, "1x2"), (Joined, "1x1"), (EpochRecord, "1x1"))
        ),
    ],
)
def test_a_stopped_run_gives_its_cpus_back(event: type, topology: str, dataset: ray.ObjectRef, tmp_path: Path) -> None:
    """While its workers start, when they have just started, and while they train."""

    def handle(seen: Any) -> None:
        if isinstance(seen, event):
            raise LeaveError

    with pytest.raises(LeaveError):
        train(dataset, tmp_path / "run", handle, topology=topology)
    all_back()


@pytest.mark.parametrize("topology", ["1x2", pytest.param("1x1", marks=pytest.mark.extended)])
def test_a_run_that_is_stopped_while_it_waits_for_room_does_not_take_it_later(
    topology: str, dataset: ray.ObjectRef, tmp_path: Path
) -> None:
    other = placement_group([{"CPU": 2.0}])
    assert other.wait(60)
    shown: list[NoRoom] = []

    def handle(seen: Any) -> None:
        if isinstance(seen, NoRoom):
            shown.append(seen)
            raise LeaveError

    with pytest.raises(LeaveError):
        train(dataset, tmp_path / "run", handle, topology=topology)
    assert shown[0].seconds > 0
    remove_placement_group(other)
    all_back()
    time.sleep(2)  # workers that start now end at once
    all_back()


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


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.extended)])
def test_a_signal_to_train_in_a_program_with_a_ray_of_its_own_gives_the_cpus_back(
    signum: signal.Signals, dataset: ray.ObjectRef, home: Path
) -> None:
    class Interrupting(cifar_ray.Callback):
        def epoch(self, record: EpochRecord) -> None:
            if record.row.step == 1:  # a second one would end the workers
                os.kill(os.getpid(), signum)

    short = {"epochs": 3000, "steps_per_epoch": 1}  # epochs, in which a worker says nothing of its progress
    config = TrainConfig(dataset="digits", model="simple_cnn", precision="fp32", cpus_per_worker=1, **short)
    before = signal.getsignal(signum)
    with pytest.raises(InterruptedRunError) as stopped:
        cifar_ray.train(config, callbacks=[Interrupting()])
    assert stopped.value.signum == signum
    all_back()
    assert ray.is_initialized()
    assert signal.getsignal(signum) is before


@pytest.mark.slow
@pytest.mark.extended
def test_trials_whose_processes_are_killed_leave_their_cpus_to_the_next(person: Person) -> None:
    """One worker's, and the one that Ray Tune runs for a trial; Ray kills with SIGKILL, too, when memory runs out."""
    cpus = hardware.allowed_cpus()
    words = ["--dataset", "digits", "--model", "simple_cnn", "--topology", f"1x{cpus}", "--cpus-per-worker", "1"]
    words += ["--max-concurrent", "1", "--max-failures", "0", "--precision", "fp32"]
    person.environment["CIFAR_RAY_START_TIMEOUT_S"] = "60"
    with person.starts("sweep", "--name", "killed", *words, "--grid", "epochs=5001,5002,1") as sweep:
        for epochs, title in ((5001, "ray::RayTrainWorker"), (5002, "ray::ResourceTrainable")):
            sweep.until(f"epochs{epochs} 1x{cpus} seed0: epoch 2/")
            os.kill(next(pid for pid, words in person.processes().items() if words.startswith(title)), signal.SIGKILL)
        assert sweep.end() == 1
    assert re.search(r"^runs +2 failed, 1 finished$", sweep.output, flags=re.MULTILINE), sweep.output
    assert f"epochs5001 1x{cpus} seed0: failed, " in sweep.output
    assert f"epochs5002 1x{cpus} seed0: failed, the process that drove it has died" in sweep.output


def test_a_run_that_finds_no_room_says_who_has_it(
    dataset: ray.ObjectRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIFAR_RAY_START_TIMEOUT_S", "1")
    own = placement_group([{"CPU": 2.0}])
    assert own.wait(60)
    try:
        with pytest.raises(RunFailedError, match="2 of 2 CPUs are in use"):
            train(dataset, tmp_path / "run", lambda _: None, "1x1")
    finally:
        remove_placement_group(own)
    all_back()


def test_an_error_that_nobody_expected_is_the_reason_of_the_runs_end(
    dataset: ray.ObjectRef, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("no result today")

    monkeypatch.setattr(RunRecord, "result", broken)
    config = TrainConfig(dataset="digits", model="simple_cnn", epochs=1, precision="fp32", cpus_per_worker=1)
    with pytest.raises(ValueError, match="no result today"):
        cifar_ray.train(config)
    client = store.connect(resolve_uri(None))
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert (run.info.status, run.data.tags[FAILURE_TAG]) == ("FAILED", "ValueError: no result today")
