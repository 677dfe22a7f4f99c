"""What the workers of one node hold in memory."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from cifar_ray import data
from tests.support.person import Person


def held(person: Person, dataset: str) -> list[tuple[int, int]]:
    """Bytes that each of two workers has for itself, and has touched of Ray's object store, in steps of ``dataset``."""
    words = f"--dataset {dataset} --model simple_cnn --topology 1x2 --global-batch-size 64 --steps-per-epoch 20"
    words += f" --test-images 64 --epochs 100000 --log-models none --run-name {dataset}"
    with person.starts("train", *words.split()) as run:
        run.until("epoch 2/")
        memory = [_memory(worker["pid"]) for worker in person.placement(dataset)]
        run.kill(signal.SIGINT)
        assert run.end() == 130
    return memory


def _memory(pid: int) -> tuple[int, int]:
    own = shared = 0
    in_store = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):  # the first line of a mapping ends with what is mapped
            in_store = "plasma" in line
        elif name in ("Private_Clean:", "Private_Dirty:") and not in_store:
            own += int(rest[0]) << 10
        elif name == "Rss:" and in_store:
            shared += int(rest[0]) << 10
    return own, shared


@pytest.mark.data
@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_images_are_in_a_nodes_memory_once_for_all_its_workers(person: Person) -> None:
    images = data.load("cifar10").train.inputs.nbytes
    small, large = held(person, "digits"), held(person, "cifar10")
    for (own, _), (more, shared) in zip(small, large, strict=True):
        assert more - own < images / 2, "a worker has a copy of its own"
        assert shared > 0, "the images are read from the object store"
