"""Shared by all tests: an empty home folder, small configs, and the command as a subprocess."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# What takes seconds to import is imported where it is used: the process that hands tests to others has no use for it.
if TYPE_CHECKING:
    from cifar_ray import data
    from cifar_ray.config.train import TrainConfig
    from tests.support.person import Person

NO_DATA = "needs real data; set CIFAR_RAY_DATA_DIR to a folder with CIFAR-10 and MNIST"


def pytest_configure(config: pytest.Config) -> None:
    """Only ``-m`` with ``gpu`` in it looks for GPUs: the other tests are about CPUs, whatever a machine has."""
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Registered before anything of the tests, this runs after it. To free every module would take seconds, and
        # nobody reads the status of a process that runs tests for another.
        atexit.register(os._exit, 0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays: passes of the garbage collector leave it out, now and until this process ends.

    Passes are rarer, too: with Python's own threshold they took a fifteenth of the unit tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        gc.enable()
        atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = os.environ.get("CIFAR_RAY_DATA_DIR")
    for item in items:
        if not folder and item.get_closest_marker("data"):
            item.add_marker(pytest.mark.skip(reason=NO_DATA))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tests compute little at a time, and threads that wait for each other take longer."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and none of the variables that would lead elsewhere."""
    from tests.support.person import ELSEWHERE

    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """Somebody with an empty home folder who runs ``cifar-ray``."""
    from tests.support.person import Person

    return Person(tmp_path)


@pytest.fixture(scope="module")
def resident(tmp_path_factory: pytest.TempPathFactory) -> Person:
    """A person whose home folder lasts for all tests of a module."""
    from tests.support.person import Person

    return Person(tmp_path_factory.mktemp("resident"))


@pytest.fixture(scope="session")
def digits() -> data.Dataset:
    from cifar_ray import data

    return data.load("digits")


@pytest.fixture
def small() -> TrainConfig:
    """A resolved config that trains in well under a second."""
    from cifar_ray.config.train import TrainConfig
    from cifar_ray.training import recipe

    usual = {"dataset": "digits", "model": "simple_cnn", "epochs": 2, "precision": "fp32", "log_every": 5}
    usual |= {"global_batch_size": 32, "steps_per_epoch": 11, "lr": 0.05}
    return recipe.resolve(TrainConfig(**usual, cpus_per_worker=1))
