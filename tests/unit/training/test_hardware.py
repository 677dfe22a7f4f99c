from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cifar_ray import tasks
from cifar_ray.cli import doctor
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import decoded
from cifar_ray.orchestration.cluster import allocation, connection, local
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.training import hardware, recipe

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2, reason="needs Linux and two CPUs"
)


def asks(**values: object) -> Any:
    return recipe.resolve(TrainConfig(dataset="digits", **values))  # type: ignore[arg-type]


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """This process may use one CPU only, as under ``taskset -c 0``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@needs_affinity
@pytest.mark.usefixtures("one_cpu")
def test_the_affinity_counts() -> None:
    """Two workers do not fit where one CPU is allowed; those that share it say so."""
    assert hardware.allowed_cpus() == 1
    processor = next(finding for finding in doctor.examine(TrainConfig()) if finding.subject == "processor")
    assert f", 1 of {os.cpu_count()} CPUs may be used" in processor.state
    two = asks(topology="1x2", batch_size=16, device="cpu")
    here = [Node("here", "127.0.0.1", local.cpus_per_node(two, Decided.asked(two)))]
    with pytest.raises(allocation.TooSmallError, match=r"needs 1 node with 2 CPUs .* --local-nodes 2"):
        allocation.at_topology(two, Decided.asked(two), here)
    shared = TrainConfig(topology="1x2", local_nodes=2)
    assert local.cpus_per_node(shared, Decided.asked(shared)) == 2
    assert connection.shares_a_machine(shared, Decided.asked(shared))
    assert not connection.shares_a_machine(TrainConfig(local_nodes=2), Decided("1x1"))


@pytest.mark.parametrize(("device", "gpus", "told"), [("auto", 1, True), ("cpu", 1, False), ("auto", 0, False)])
def test_a_run_that_finds_too_few_gpus_says_why_it_takes_cpus(device: str, gpus: int, told: bool) -> None:
    asked = asks(topology="1x2", device=device)
    chosen = allocation.at_topology(asked, Decided.asked(asked), [Node("here", "127.0.0.1", 4, gpus)])
    decided, reason = chosen.decided, chosen.unused_gpus
    assert decided.device == "cpu"
    assert reason.startswith("topology 1x2 needs 1 node with 2 CPUs and 2 GPUs each") == told
    lines: list[str] = []
    tags: dict[str, str] = {}
    record: Any = SimpleNamespace(tags=tags.update, task=tasks.USUAL)
    view: Any = SimpleNamespace(heading=lines.append, line=lines.append, doing=lambda _: None)
    folder: Any = SimpleNamespace(name="few")
    RunSession(asked, decided, None, folder, record, view, reason).announce()  # type: ignore[arg-type]
    assert [reason in line for line in lines if "GPU" in line] == [True] * told
    assert tags == ({"cifar_ray.unused_gpus": reason} if told else {})


def test_gpus_are_used_without_a_word_where_the_strategy_can() -> None:
    for strategy, device in (("ddp", "cuda"), ("hogwild", "cpu")):
        asked = asks(topology="1x2", strategy=strategy)
        chosen = allocation.at_topology(asked, Decided.asked(asked), [Node("here", "127.0.0.1", 4, 2)])
        assert (chosen.decided.device, strategy in chosen.unused_gpus) == (device, device == "cpu")


@pytest.mark.parametrize(
    ("least", "largest", "gpus", "free", "said"),
    [("1x1", "1x2", 2, 0, "4 CPUs and 0 GPUs"), ("1x2", "1x4", 1, 1, "1x4 needs 1 node with 4 CPUs and 4 GPUs each")],
)
def test_an_elastic_run_says_that_its_gpus_were_in_use_or_too_few(
    least: str, largest: str, gpus: int, free: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "nodes", lambda: [Node("here", "127.0.0.1", 4, gpus)])
    monkeypatch.setattr(connection, "free_nodes", lambda held=None: [Node("here", "127.0.0.1", 4, free)])
    asked = asks(topology=largest, elastic=f"{least}:{largest}", local_nodes=2)
    chosen = allocation.choose(asked, Decided.asked(asked), {})
    assert (chosen.decided.device, chosen.decided.topology, said in chosen.unused_gpus) == ("cpu", largest, True)


def test_what_a_thread_waits_for_a_cpu_is_counted() -> None:
    if not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("needs Linux with CONFIG_SCHED_INFO")
    before = hardware.cpu_wait_s()
    sum(range(100_000))
    assert 0 < before <= hardware.cpu_wait_s()


def test_data_must_fit_into_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    decoded.check_room("image_size", 500, "its images")
    with pytest.raises(ConfigError, match=r"^image_size must leave room for its images"):
        decoded.check_room("image_size", 501, "its images")
