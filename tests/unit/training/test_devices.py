"""What is asked of a GPU, and of a CPU, without either being there."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cifar_ray.strategies import stages, stopwatch
from cifar_ray.training import hardware
from cifar_ray.training.clock import Clock

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


class Queue:
    """A GPU on which everything takes its time: the host is ahead until it waits."""

    def __init__(self) -> None:
        self.host_s = self.device_s = 0.0
        self.waited: list[torch.device] = []
        self.events = 0

    def run(self, seconds: float) -> None:
        self.device_s += seconds

    def synchronize(self, device: torch.device) -> None:
        self.waited.append(device)
        self.host_s = max(self.host_s, self.device_s)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    made = Queue()

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing
            made.events += 1

        def record(self) -> None:
            self.at = made.device_s

        def elapsed_time(self, end: Event) -> float:
            return (end.at - self.at) * 1000

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr("time.perf_counter", lambda: made.host_s)
    return made


def test_steps_on_a_gpu_take_as_long_as_what_they_have_queued(queue: Queue) -> None:
    clock = Clock(GPU, 0.0)
    clock.start()
    for seconds in (5.0, 1.0, 3.0):
        queue.run(seconds)
        clock.mark("forward")
        queue.run(2 * seconds)
        clock.mark("forward")  # the same event again
        clock.lap()
    assert queue.waited == []  # nothing waits inside a step
    clock.stop()
    assert clock.seconds["training"] == pytest.approx(27.0)
    assert clock.iterations()["iteration_mean_s"] == pytest.approx(6.0)
    assert clock.parts() == pytest.approx({"forward": 6.0})
    assert queue.events == 1 + 3 * 2
    with clock.phase("evaluation"):
        queue.run(7.0)
    assert clock.seconds["evaluation"] == pytest.approx(7.0)
    assert set(queue.waited) == {GPU}


def test_a_stage_on_a_gpu_computes_as_long_as_its_events_are_apart(queue: Queue) -> None:
    watch = stopwatch.Stopwatch(lambda part: None, GPU)
    for scale in (100.0, 1.0):  # the first step does not count
        watch.step()
        for seconds in (1.0, 2.0, 3.0):
            with watch.computing("forward"):
                queue.run(scale * seconds)
            queue.run(scale * 10.0)
    assert queue.waited == []
    assert watch.read() == pytest.approx((6.0, 26.0))
    assert queue.waited == [GPU]
    watch.step()
    with watch.computing("forward"):
        queue.run(4.0)
    assert watch.read() == pytest.approx((10.0, 30.0))


def test_a_units_passes_on_a_gpu_are_waited_for(queue: Queue) -> None:
    queue.run(5.0)
    assert stages._now(GPU) == 5.0
    assert queue.waited == [GPU]
    queue.run(5.0)
    assert stages._now(CPU) == 5.0


def test_a_unit_costs_the_median_of_its_passes_but_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 90.0, 100.0, 101.0, 200.0, 203.0, 300.0, 370.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(moments))
    (cost,) = stages.measure([torch.nn.Linear(2, 3)], torch.rand(4, 2), "fp32")
    assert (cost.seconds, cost.shape, cost.dtype) == (3.0, (4, 3), torch.float32)


@pytest.mark.parametrize(
    ("generation", "told"),
    [("", "Fast 9: the CPU"), ("cpu family\t: 25\nmodel\t\t: 17\n", "Fast 9: the CPU (family 25, model 17)")],
)
def test_a_device_is_told_by_its_own_name(generation: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    assert hardware.describe(GPU) == "GPU cuda:1"
    listed = f"processor\t: 0\nvendor_id\t: X\n{generation}model name\t: Fast 9: the CPU\n\nmodel name\t: Other\n"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: listed if str(self) == "/proc/cpuinfo" else "")
    assert hardware.describe(CPU) == told


@pytest.mark.parametrize(("processor", "told"), [("arm", "arm"), ("", "aarch64")])
def test_a_cpu_without_a_name_is_told_by_its_kind(processor: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path, encoding: str) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert hardware.describe(CPU) == told


def test_peak_memory_is_in_mib_whatever_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20 if device == GPU else 0)
    assert hardware.peak_memory_mib(GPU) == 3.0
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=5 * 2**20))
    monkeypatch.setattr(sys, "platform", "linux")  # which counts in KiB
    assert hardware.peak_memory_mib(CPU) == 5 * 2**10
    monkeypatch.setattr(sys, "platform", "darwin")  # which counts in bytes
    assert hardware.peak_memory_mib(CPU) == 5.0


@pytest.mark.parametrize(("count", "allowed"), [(6, 6), (None, 1)])
def test_where_there_is_no_affinity_every_cpu_counts(
    count: int | None, allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert hardware.allowed_cpus(tmp_path / "none", tmp_path) == allowed


def test_fp32_keeps_cudnn_from_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    hardware.use_precision("fp32")
    assert not torch.backends.cudnn.allow_tf32
    hardware.use_precision("bf16")
    assert torch.backends.cudnn.allow_tf32
