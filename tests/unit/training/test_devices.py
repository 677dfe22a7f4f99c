"""What is asked of a GPU, and of a CPU, without either being there."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
import ray
import ray.train.collective
import torch
import torch.distributed as dist

from cifar_ray import models, tasks
from cifar_ray.cli import doctor
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset, decoded
from cifar_ray.orchestration.cluster import allocation, connection, local
from cifar_ray.orchestration.run import train_worker
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.strategies import stages
from cifar_ray.training import hardware, recipe
from cifar_ray.training.clock import Clock
from tests.support.helpers import resolved, small_config, train_here

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


def test_steps_on_a_gpu_take_as_long_as_what_they_have_queued(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = iter([0.0, 4.0])
    monkeypatch.setattr("cifar_ray.training.hardware.cpu_wait_s", lambda: next(waited))
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
    assert clock.cpu_wait == 0  # no step is longer because its thread waits for a CPU
    assert clock.seconds["training"] == pytest.approx(27.0)
    assert clock.iterations()["iteration_mean_s"] == pytest.approx(6.0)
    assert clock.parts() == pytest.approx({"forward": 6.0})
    assert queue.events == 1 + 3 * 2
    with clock.phase("evaluation"):
        queue.run(7.0)
    assert clock.seconds["evaluation"] == pytest.approx(7.0)
    assert set(queue.waited) == {GPU}


def test_a_unit_costs_the_median_of_its_passes_but_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 90.0, 100.0, 101.0, 200.0, 203.0, 300.0, 370.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(moments))
    (cost,) = stages.measure([torch.nn.Linear(2, 3)], torch.rand(4, 2), "fp32")
    assert (cost.seconds, cost.shape, cost.dtype) == (3.0, (4, 3), torch.float32)


def test_a_device_is_told_by_its_own_name_or_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    assert hardware.describe(GPU) == "GPU cuda:1"
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(platform, "processor", lambda: "")
    name, generation = "model name\t: Fast 9: the CPU\n\nmodel name\t: Other\n", "cpu family\t: 25\nmodel\t\t: 17\n"
    for listed, told in (
        (name, "Fast 9: the CPU"),
        (generation + name, "Fast 9: the CPU (family 25, model 17)"),
        ("", "aarch64"),
    ):
        monkeypatch.setattr(Path, "read_text", lambda self, encoding, listed=listed: listed)
        assert hardware.describe(CPU) == told


def test_peak_memory_is_in_mib_whatever_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20 if device == GPU else 0)
    assert hardware.peak_memory_mib(GPU) == 3.0
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=5 * 2**20))
    monkeypatch.setattr(sys, "platform", "linux")  # which counts in KiB
    assert hardware.peak_memory_mib(CPU) == 5 * 2**10
    monkeypatch.setattr(sys, "platform", "darwin")  # which counts in bytes
    assert hardware.peak_memory_mib(CPU) == 5.0


def rounding() -> list[str]:
    return [operation.fp32_precision for operation in hardware._CAN_ROUND]


def set_one() -> None:
    torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision = "tf32", "ieee"


def set_old() -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("high")


@pytest.fixture(params=[lambda: setattr(torch.backends, "fp32_precision", "tf32"), set_one, set_old])
def set_switches(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """What a user's file may do, by PyTorch's new switch, that of one operation, or the old ones."""
    before = rounding()
    yield request.param
    torch.backends.fp32_precision = "none"
    for operation, precision in zip(hardware._CAN_ROUND, before):
        operation.fp32_precision = precision


def test_float32_is_float32_whatever_a_users_file_has_set(set_switches: Callable[[], None]) -> None:
    set_switches()
    hardware.use_precision("fp32")
    assert rounding() == ["ieee"] * 6
    assert not torch.backends.cudnn.allow_tf32  # torch.export reads the older switch, which raises if it disagrees
    hardware.use_precision("bf16")
    assert rounding() == ["tf32", "tf32", *["ieee"] * 4]
    assert torch.backends.cudnn.allow_tf32
    set_switches()
    before = rounding()
    with hardware.plain_float32():
        assert rounding() == ["ieee"] * 6
    assert rounding() == before


def test_a_users_switches_do_not_reach_training(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    build = models.build

    def of_the_users_own(*about: Any) -> torch.nn.Module:
        monkeypatch.setattr(torch.backends, "fp32_precision", "tf32")
        model = build(*about)
        model.register_forward_pre_hook(lambda *_: seen.append(rounding()))
        return model

    monkeypatch.setattr(models, "build", of_the_users_own)
    train_here(small_config("ddp", "1x1", epochs=1, steps_per_epoch=1), digits, tmp_path)
    assert {*map(tuple, seen)} == {("ieee",) * 6}


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


def test_who_asks_for_a_gpu_where_there_is_none_hears_what_goes() -> None:
    asked = asks(device="cuda")
    with pytest.raises(allocation.TooSmallError, match=r"0 GPUs.* large enough; --device auto takes CPUs"):
        allocation.at_topology(asked, Decided.asked(asked), [Node("here", "127.0.0.1", 4)])


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
    with pytest.raises(ConfigError, match=r"^image_size must leave room for its images: 3\.0 GiB, of 1\.5 GiB$"):
        decoded.check_room("image_size", 3 * 2**30, "its images", 3 * 2**29)


class Machine:
    """A machine with these cards and a driver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cards = ["NVIDIA L4"]
        self.nvml_error: Exception | None = None
        self.kernel_error: Exception | None = None
        monkeypatch.setattr(pynvml, "nvmlInit", self._init)
        monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(self.cards))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda index: self.cards[index])
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "580.95")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: len(self.cards) > 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: self.cards[index])
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
        monkeypatch.setattr(torch.version, "cuda", "13.2")
        monkeypatch.setattr(hardware.socket, "gethostname", lambda: "ip-10-0-0-7")
        monkeypatch.setattr(hardware.torch, "ones", self._kernel)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self._ones = torch.zeros(2) + 1

    def _init(self) -> None:
        if self.nvml_error:
            raise self.nvml_error

    def _kernel(self, count: int, device: str) -> Any:
        if self.kernel_error:
            raise self.kernel_error
        return self._ones


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_card_that_runs_no_kernel_is_refused_with_its_driver_and_what_pytorch_says(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hardware.gpu_problem([0]) == ""
    machine.kernel_error = RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA k")
    with pytest.raises(ConfigError) as refused:
        hardware.check_gpus([0])
    said = str(refused.value)
    for part in ("ip-10-0-0-7", "NVIDIA L4 with driver 580.95", "no kernel image is available", "sm_75 sm_90"):
        assert part in said
    assert "\n" not in said
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)
    machine.kernel_error = AssertionError("Torch not compiled with CUDA enabled")
    problem = f"Torch not compiled with CUDA enabled (PyTorch {torch.__version__}, CUDA 13.2, has code for no GPU)"
    assert hardware.gpu_problem([0]) == problem


def test_a_worker_computes_on_what_ray_has_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several workers, each may see the GPUs of all."""
    given: list[int | str] = [1]
    monkeypatch.setattr(ray, "get_gpu_ids", lambda: given)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert train_worker.assigned_gpus() == [1]
    for ids, visible, numbers in (([2], "2", [0]), ([1, 0], "0,1", [1, 0]), (["MIG-b"], "MIG-a,MIG-b", [1])):
        given[:] = ids  # type: ignore[assignment]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert train_worker.assigned_gpus() == numbers


def test_the_doctor_names_cards_and_what_is_wrong(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.cards = ["NVIDIA L4", "NVIDIA L4"]
    assert doctor._gpus(TrainConfig()) == "2 x NVIDIA L4 with driver 580.95"
    machine.kernel_error = RuntimeError("CUDA error: invalid device ordinal")
    with pytest.raises(ConfigError, match=r"^2 x NVIDIA L4 with driver 580.95: CUDA error: invalid device ordinal "):
        doctor._gpus(TrainConfig())
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    assert hardware.cuda_versions() == {"gpu_driver": "580.95", "cuda": "13.2", "nccl": "2.27.5"}
    machine.cards[1:] = ["NVIDIA T4"]
    assert hardware.nvml() == ("NVIDIA L4, NVIDIA T4 with driver 580.95", "580.95")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor._gpus(TrainConfig()).endswith("hidden by CUDA_VISIBLE_DEVICES")


def test_nccl_has_twice_the_hang_timeout_and_is_left_alone_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, timedelta]] = []
    ended: list[bool] = []
    monkeypatch.setattr(connection, "choose_interface", lambda: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(ray.train.collective, "broadcast_from_rank_zero", lambda address: address)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout, **_: begun.append((backend, timeout)))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ended.append(True))
    asked = replace(resolved({"dataset": "digits", "topology": "1x2"}), device="cuda", hang_timeout_s=60.0)
    with pytest.raises(RuntimeError, match="wrong"), train_worker.collectives(2, 0, asked, "cuda"):
        raise RuntimeError("wrong")
    assert ended == []  # it would wait for the others
    with train_worker.collectives(2, 0, asked, "cuda"):
        assert begun == [("nccl", timedelta(seconds=120))] * 2
    assert ended == [True]


def has_memory(monkeypatch: pytest.MonkeyPatch, free: float, total: float) -> dict[int, float]:
    """Give card 0 so much memory; returns the share of it that PyTorch is allowed."""
    allowed: dict[int, float] = {}
    monkeypatch.setattr(torch.cuda, "mem_get_info", {0: (int(free), int(total))}.__getitem__)
    monkeypatch.setattr(torch.cuda, "memory_reserved", {0: 0}.__getitem__)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, number: allowed.update({number: share})
    )
    return allowed


def test_runs_that_share_a_card_have_no_more_than_their_part(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    total = 24e9
    allowed = has_memory(monkeypatch, total, total)
    hardware.cap_gpu_memory(0, 0.25)
    assert allowed[0] * total + 600 * 2**20 == pytest.approx(0.25 * total)
    with pytest.raises(ConfigError, match=r"gpus_per_worker must be more than 0.03 on NVIDIA L4"):
        hardware.cap_gpu_memory(0, 0.02)
    has_memory(monkeypatch, total, 4 * hardware._CONTEXT)
    with pytest.raises(ConfigError, match=r"must be more than 0.25 .* 2.5 GB: .* 0.6 GB .* got 0.25$"):
        hardware.cap_gpu_memory(0, 0.25)


def test_a_card_that_others_use_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, told in ((23.3e9, ""), (22.9e9, ""), (13.9e9, "9.5 of 24.0 GB of NVIDIA L4 (number 0)")):
        has_memory(monkeypatch, free, 24e9)
        found = hardware.gpu_in_use(0)
        assert (found.startswith(told), bool(found)) == (True, bool(told))


def test_a_run_with_gpus_takes_the_node_with_the_most_free_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [Node("many-cpus", "127.0.0.1", 60.0, 0.0), Node("free", "127.0.0.1", 8.0, 4.0)]
    monkeypatch.setattr(connection, "nodes", lambda: [replace(node, gpus=4.0) for node in free])
    monkeypatch.setattr(connection, "free_nodes", lambda held=None: free)
    asked = resolved({"dataset": "digits", "model": "simple_cnn", "global_batch_size": 64})
    for device, node in ((Decided.asked(asked).device, "free"), ("cpu", "many-cpus")):
        decided = replace(Decided.asked(asked), device=device)  # type: ignore[arg-type]
        assert allocation.choose(asked, decided, {}).nodes == [node]
