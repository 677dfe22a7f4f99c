"""What strategies compute, in this process: one worker, or a process group of one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from cifar_ray import models, strategies
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.data.loader import MicroBatch, TrainLoader
from cifar_ray.strategies.served_weights import ParameterServer
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import optimizer
from tests.support.helpers import Recorder, built, resolved, train_here

MODEL = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}}
USUAL = {"dataset": "digits", **MODEL, "global_batch_size": 32, "precision": "fp32"}
config = partial(resolved, USUAL)


class Ready:
    """A strategy with fresh weights, and what feeds it."""

    def __init__(self, wanted: TrainConfig, digits: Dataset, worker: Worker | None = None) -> None:
        worker = worker or Worker()
        torch.manual_seed(0)
        self.model = models.build(wanted, digits.spec).to(memory_format=torch.channels_last)
        server = ParameterServer() if wanted.strategy == "parameter_server" else None
        self.strategy = built(wanted, self.model, worker, server=server)
        self.strategy.load(self.weights(), None)
        shard = strategies.of(wanted).data_shard(wanted, worker)
        self._loader = TrainLoader(wanted, Decided.asked(wanted), digits, shard, worker.device)

    def train(self, *steps: int) -> Ready:
        for step in steps:
            self.strategy.gradients(self.micro_batches(step))
            self.strategy.step()
        return self

    def micro_batches(self, step: int) -> Iterator[MicroBatch]:
        return self._loader.micro_batches(0, step)

    def weights(self) -> dict[str, Tensor]:
        return copy.deepcopy(self.model.state_dict())


def contiguous(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state as fsdp saves it, whose model is not laid out channels last."""
    each = {
        index: {name: value.clone(memory_format=torch.contiguous_format) for name, value in of.items()}
        for index, of in state["state"].items()
    }
    return {**state, "state": each}


@pytest.mark.parametrize("strategy", ["ddp", "parameter_server", "hogwild", "reproducible", "local_sgd"])
@pytest.mark.parametrize("values", [{"optimizer": "adamw", "lr": 0.01}, {"optimizer": "sgd"}], ids=["adamw", "sgd"])
def test_an_optimizers_state_goes_on(strategy: str, values: dict[str, object], digits: Dataset) -> None:
    wanted = config(strategy=strategy, **values)
    first = Ready(wanted, digits).train(0, 1, 2)
    first.strategy.consolidate()
    state = contiguous(copy.deepcopy(first.strategy.state()))
    rest = Ready(wanted, digits)
    rest.strategy.load(first.weights(), state)
    expected, found = first.train(3, 4).weights(), rest.train(3, 4).weights()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


ALONE = ["gather_scatter", "send_recv", "all_reduce", "ddp", "fsdp", "local_sgd", "parameter_server", "hogwild"]


@pytest.mark.parametrize("strategy", [*ALONE, "data_parallel", "reproducible"])
def test_one_worker_is_plain_training(strategy: str, digits: Dataset) -> None:
    """To the last bit; the batch statistics of reproducible's one shard are added up otherwise."""
    options = {"reproducible": {"strategy_options": {"shards": 1}}, "data_parallel": {"gpus_per_worker": 2}}
    ready = Ready(config(strategy=strategy, **options.get(strategy, {})), digits)
    plain = Ready(config(strategy="ddp"), digits)
    makes = optimizer.build(plain.model, config(strategy="ddp"))
    for step in range(3):
        (batch,) = plain.micro_batches(step)
        loss = nn.functional.cross_entropy(plain.model(batch.inputs), batch.targets)
        loss.backward()
        makes.step()
        makes.zero_grad()
        own = ready.strategy.gradients(ready.micro_batches(step))
        ready.strategy.step()
        assert [own.item(), *ready.strategy.losses(own)] == [loss.item()] * 2
    ready.strategy.consolidate()
    found, expected = ready.weights(), plain.weights()
    rounded = {name for name in expected if "running" in name and strategy == "reproducible"}
    assert all(torch.equal(found[name], expected[name]) for name in expected.keys() - rounded)
    for name in rounded:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)
    names = {"hogwild": ("mean", "max"), "parameter_server": ("mean", "max", "ahead_max")}.get(strategy, ())
    assert ready.strategy.figures() == {f"staleness/{name}": 0.0 for name in names}


@pytest.mark.parametrize(("every", "steps"), [(3, [4, 5, 7, 9, 10]), (7, [5, 7, 10])])
def test_local_sgd_keeps_checkpoints_where_it_averages(
    every: int, steps: list[int], digits: Dataset, tmp_path: Path
) -> None:
    """After every second step of an epoch of 5, and at its end."""
    few = replace(digits, test=digits.test.at(slice(8)))
    wanted = config(strategy="local_sgd", epochs=2, steps_per_epoch=5, strategy_options={"sync_every": 2})
    train_here(replace(wanted, checkpoint_every=every), few, tmp_path, recorder := Recorder())
    assert [saved.step for saved in recorder.checkpoints] == steps


@pytest.fixture
def second_of_two(tmp_path: Path) -> Iterator[Worker]:
    """Rank 1 of 2, in a process group of this process alone: what is exchanged is exchanged with itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield Worker(1, 2, 1)
    dist.destroy_process_group()


def gradients(ready: Ready) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in ready.model.parameters() if parameter.grad is not None]


def ddp(digits: Dataset, worker: Worker, hook: str = "none", mib: float | None = None) -> Ready:
    options = {} if mib is None else {"bucket_cap_mb": mib}
    return Ready(
        config(strategy="ddp", topology="1x2", strategy_options={"comm_hook": hook}, **options), digits, worker
    )


def test_a_comm_hook_sends_gradients_of_half_the_size(digits: Dataset, second_of_two: Worker) -> None:
    found = {}
    for name in ("none", "fp16", "bf16"):
        ready = ddp(digits, second_of_two, name)
        ready.strategy.gradients(ready.micro_batches(0))
        found[name] = gradients(ready)
    for hook, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        assert all(torch.equal(sent, full.to(dtype).float()) for sent, full in zip(found[hook], found["none"]))
        assert not all(map(torch.equal, found[hook], found["none"]))


def test_a_bucket_holds_as_much_as_was_asked_for(digits: Dataset, second_of_two: Worker) -> None:
    for mib in (1.0, 25.0):
        assert ddp(digits, second_of_two, mib=mib).strategy._call.bucket_bytes_cap == mib * 2**20


def test_powersgd_sends_matrices_of_rank_1_after_ten_plain_steps(digits: Dataset, second_of_two: Worker) -> None:
    ready = ddp(digits, second_of_two, "powersgd")

    def ranks(steps: int) -> int:
        for step in range(steps):
            ready.strategy.gradients(ready.micro_batches(step))
            largest = max(gradients(ready), key=torch.numel)
            ready.strategy.step()
        return int(torch.linalg.matrix_rank(largest.reshape(len(largest), -1), rtol=1e-4))

    for _ in range(2):
        assert ranks(10) > 1
        assert ranks(1) == 1
        ready.strategy.load(ready.weights(), None)  # as after an interruption
