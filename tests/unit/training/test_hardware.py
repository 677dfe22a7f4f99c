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
    assert hardware.allowed_cpus() == 1


@needs_affinity
@pytest.mark.usefixtures("one_cpu")
def test_two_workers_do_not_fit_where_one_cpu_is_allowed() -> None:
    two = recipe.resolve(TrainConfig(dataset="digits", topology="1x2", batch_size=16, device="cpu"))
    here = [Node("here", "127.0.0.1", local.cpus_per_node(two, Decided.asked(two)))]
    with pytest.raises(allocation.TooSmallError, match=r"needs 1 node with 2 CPUs .* --local-nodes 2 starts that many"):
        allocation.at_topology(two, Decided.asked(two), here)


@needs_affinity
@pytest.mark.usefixtures("one_cpu")
def test_workers_that_share_the_one_cpu_allowed_say_so() -> None:
    two = TrainConfig(topology="1x2", local_nodes=2)
    assert local.cpus_per_node(two, Decided.asked(two)) == 2
    assert connection.shares_a_machine(two, Decided.asked(two))
    assert not connection.shares_a_machine(TrainConfig(local_nodes=2), Decided("1x1"))


@pytest.mark.parametrize(("device", "gpus", "told"), [("auto", 1, True), ("cpu", 1, False), ("auto", 0, False)])
def test_a_run_that_finds_too_few_gpus_says_why_it_takes_cpus(device: str, gpus: int, told: bool) -> None:
    asked = recipe.resolve(TrainConfig(dataset="digits", topology="1x2", device=device))  # type: ignore[arg-type]
    nodes = [Node("here", "127.0.0.1", 4, gpus)]
    chosen = allocation.at_topology(asked, Decided.asked(asked), nodes)
    decided, reason = chosen.decided, chosen.unused_gpus
    assert decided.device == "cpu"
    assert reason.startswith("topology 1x2 needs 1 node with 2 CPUs and 2 GPUs each") == told
    lines: list[str] = []
    tags: dict[str, str] = {}
    record: Any = SimpleNamespace(tags=tags.update, task=tasks.USUAL)
    view: Any = SimpleNamespace(heading=lines.append, line=lines.append, doing=lambda _: None)
    folder: Any = SimpleNamespace(name="few")
    RunSession(asked, decided, None, folder, record, view, reason).announce()  # type: ignore[arg-type]
    assert [line for line in lines if "GPU" in line] == (
        [f"note: training on CPUs, though there are GPUs: {reason}"] if told else []
    )
    assert tags == ({"cifar_ray.unused_gpus": reason} if told else {})


def test_enough_gpus_are_used_without_a_word() -> None:
    asked = recipe.resolve(TrainConfig(dataset="digits", topology="1x2"))
    nodes = [Node("here", "127.0.0.1", 4, 2)]
    chosen = allocation.at_topology(asked, Decided.asked(asked), nodes)
    assert (chosen.decided.device, chosen.unused_gpus) == ("cuda", "")


def test_a_strategy_without_gpus_is_the_reason_to_leave_them_unused() -> None:
    asked = recipe.resolve(TrainConfig(dataset="digits", topology="1x2", strategy="hogwild"))
    chosen = allocation.at_topology(asked, Decided.asked(asked), [Node("here", "127.0.0.1", 4, 2)])
    assert chosen.decided.device == "cpu"
    assert "hogwild" in chosen.unused_gpus


def test_an_elastic_run_says_that_its_gpus_were_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "nodes", lambda: [Node("here", "127.0.0.1", 4, 2)])
    monkeypatch.setattr(connection, "free_nodes", lambda held=None: [Node("here", "127.0.0.1", 4, 0)])
    asked = recipe.resolve(TrainConfig(dataset="digits", topology="1x2", elastic="1x1:1x2", local_nodes=2))
    chosen = allocation.choose(asked, Decided.asked(asked), {})
    assert (chosen.decided.device, chosen.decided.topology) == ("cpu", "1x2")
    assert "4 CPUs and 0 GPUs" in chosen.unused_gpus


def test_an_elastic_run_names_its_largest_topology_when_the_gpus_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node("here", "127.0.0.1", 4, 1)]
    monkeypatch.setattr(connection, "nodes", lambda: nodes)
    monkeypatch.setattr(connection, "free_nodes", lambda held=None: nodes)
    asked = recipe.resolve(TrainConfig(dataset="digits", topology="1x4", elastic="1x2:1x4", local_nodes=2))
    chosen = allocation.choose(asked, Decided.asked(asked), {})
    assert (chosen.decided.device, chosen.decided.topology) == ("cpu", "1x4")
    assert chosen.unused_gpus.startswith("topology 1x4 needs 1 node with 4 CPUs and 4 GPUs each")


@needs_affinity
@pytest.mark.usefixtures("one_cpu")
def test_the_doctor_tells_how_many_cpus_may_be_used() -> None:
    processor = next(finding for finding in doctor.examine(TrainConfig()) if finding.subject == "processor")
    assert f", 1 of {os.cpu_count()} CPUs may be used" in processor.state


def test_what_a_thread_waits_for_a_cpu_is_counted() -> None:
    if not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("needs Linux with CONFIG_SCHED_INFO")
    before = hardware.cpu_wait_s()
    sum(range(100_000))
    assert 0 < before <= hardware.cpu_wait_s()


def test_data_must_fit_into_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    decoded.check_room("image_size", 500, "its images")
    with pytest.raises(ConfigError, match=r"^image_size must leave room for its images: 0.0 GiB"):
        decoded.check_room("image_size", 501, "its images")
