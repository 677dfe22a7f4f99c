"""Which GPUs PyTorch can use: a stand-in answers what is asked of NVML and of ``torch.cuda``."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pynvml
import pytest
import ray
import ray.train.collective
import torch
import torch.distributed as dist

from cifar_ray.cli import doctor
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import allocation, connection
from cifar_ray.orchestration.run import train_worker
from cifar_ray.training import hardware
from tests.support.helpers import resolved


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


def test_a_card_that_runs_no_kernel_is_refused_with_its_driver_and_what_pytorch_says(machine: Machine) -> None:
    assert hardware.gpu_problem([0]) == ""
    machine.kernel_error = RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA k")
    with pytest.raises(ConfigError) as refused:
        hardware.check_gpus([0])
    said = str(refused.value)
    for part in ("ip-10-0-0-7", "NVIDIA L4 with driver 580.95", "no kernel image is available", "sm_75 sm_90"):
        assert part in said
    assert "\n" not in said


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


def test_the_doctor_names_the_cards_and_what_is_wrong_with_them(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.cards = ["NVIDIA L4", "NVIDIA L4"]
    assert doctor._gpus(TrainConfig()) == "2 x NVIDIA L4 with driver 580.95"
    machine.kernel_error = RuntimeError("CUDA error: invalid device ordinal")
    with pytest.raises(ConfigError, match=r"^2 x NVIDIA L4 with driver 580.95: CUDA error: invalid device ordinal "):
        doctor._gpus(TrainConfig())
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
    """Give cards so much memory; returns the share of it that PyTorch is allowed."""
    allowed: dict[int, float] = {}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (int(free), int(total)))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda number: 0)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, number: allowed.update({number: share})
    )
    return allowed


def test_runs_that_share_a_card_have_no_more_than_their_part_with_what_cuda_takes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 24e9
    allowed = has_memory(monkeypatch, total, total)
    hardware.cap_gpu_memory(0, 0.25)
    assert allowed[0] * total + 600 * 2**20 == pytest.approx(0.25 * total)
    with pytest.raises(ConfigError, match=r"gpus_per_worker must be more than 0.03 on NVIDIA L4"):
        hardware.cap_gpu_memory(0, 0.02)


def test_a_card_that_others_use_is_told_with_how_much_they_have(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
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
