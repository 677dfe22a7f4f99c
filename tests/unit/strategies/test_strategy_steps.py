"""What strategies compute, in this process: one worker, or a process group of one."""

from __future__ import annotations

import copy
import time
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
from cifar_ray.config.train import ResNetOptions, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.data.loader import MicroBatch, TrainLoader
from cifar_ray.strategies import served_weights
from cifar_ray.strategies.pipeline import idle
from cifar_ray.strategies.stopwatch import Stopwatch
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware, optimizer
from tests.support.helpers import Recorder, resolved, train_here

USUAL = {
    "dataset": "digits",
    "model": "resnet",
    "resnet": ResNetOptions((1, 1), 8),
    "global_batch_size": 32,
    "precision": "fp32",
}
config = partial(resolved, USUAL)


class Ready:
    """A strategy with fresh weights, and what feeds it."""

    def __init__(self, wanted: TrainConfig, digits: Dataset, worker: Worker | None = None) -> None:
        self.marks: list[str] = []
        worker = worker or Worker()
        hardware.set_threads(1)
        torch.manual_seed(0)
        self.model = models.build(wanted, digits.spec).to(memory_format=torch.channels_last)
        made = partial(optimizer.build, config=wanted)
        serving = served_weights.ParameterServer() if wanted.strategy == "parameter_server" else None
        context = strategies.StrategyContext(
            wanted, worker, self.model, made, nn.CrossEntropyLoss(), self.marks.append, serving
        )
        self.strategy = strategies.build(context)
        self.strategy.load(self.weights(), None)
        self._loader = TrainLoader(wanted, digits, strategies.of(wanted).data_shard(wanted, worker), worker.device)

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
def test_an_optimizers_state_goes_on_whatever_its_layout_was(
    strategy: str, values: dict[str, object], digits: Dataset
) -> None:
    wanted = config(strategy=strategy, **values)
    first = Ready(wanted, digits).train(0, 1, 2)
    first.strategy.consolidate()
    state = contiguous(copy.deepcopy(first.strategy.state()))
    rest = Ready(wanted, digits)
    rest.strategy.load(first.weights(), state)
    expected, found = first.train(3, 4).weights(), rest.train(3, 4).weights()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_one_shard_of_reproducible_is_plain_training(digits: Dataset) -> None:
    """Weights to the last bit; batch norm's statistics move as far as PyTorch moves them, added up otherwise."""
    plain = Ready(config(strategy="ddp"), digits).train(0, 1, 2).weights()
    sharded = Ready(config(strategy="reproducible", shards=1), digits).train(0, 1, 2).weights()
    running = {name for name in plain if "running" in name}
    assert running
    assert all(torch.equal(sharded[name], plain[name]) for name in plain.keys() - running)
    for name in running:
        torch.testing.assert_close(sharded[name], plain[name], rtol=1e-5, atol=1e-6)


def test_local_sgd_lets_checkpoints_be_made_where_replicas_are_averaged(digits: Dataset, tmp_path: Path) -> None:
    """After every fourth step of an epoch of 11, and at its end."""
    wanted = config(strategy="local_sgd", global_batch_size=128, epochs=2, sync_every=4)
    for every, steps in ((0, [11, 22]), (3, [4, 8, 11, 15, 19, 22]), (5, [8, 11, 15, 22])):
        recorder = Recorder()
        train_here(replace(wanted, checkpoint_every=every), digits, tmp_path / str(every), recorder)
        assert [saved.step for saved in recorder.checkpoints] == steps


@pytest.fixture
def second_of_two(tmp_path: Path) -> Iterator[Worker]:
    """Rank 1 of 2, in a process group of this process alone: what is exchanged is exchanged with itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield Worker(1, 2, 1)
    dist.destroy_process_group()


def gradients(ready: Ready) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in ready.model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("hook", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_comm_hook_sends_gradients_of_half_the_size(
    hook: str, dtype: torch.dtype, digits: Dataset, second_of_two: Worker
) -> None:
    found = {}
    for name in ("none", hook):
        ready = Ready(config(strategy="ddp", topology="1x2", comm_hook=name), digits, second_of_two)
        ready.strategy.gradients(ready.micro_batches(0))
        found[name] = gradients(ready)
    assert all(torch.equal(sent, full.to(dtype).float()) for sent, full in zip(found[hook], found["none"], strict=True))
    assert not all(map(torch.equal, found[hook], found["none"]))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_backward_pass_of_ddp_ends_with_the_last_gradient(
    accumulate: int, digits: Dataset, second_of_two: Worker
) -> None:
    """What it then still waits for is communication."""
    ready = Ready(config(strategy="ddp", topology="1x2", accumulate=accumulate), digits, second_of_two).train(0)
    count = sum(1 for _ in ready.model.parameters())
    passes = ["data", "forward", *["backward"] * (count + 1)] * accumulate
    assert ready.marks == [*passes[:-1], "communication", "optimizer"]


@pytest.mark.parametrize("mib", [1.0, 25.0])
def test_a_bucket_holds_as_much_as_was_asked_for(mib: float, digits: Dataset, second_of_two: Worker) -> None:
    wanted = config(strategy="ddp", topology="1x2", bucket_cap_mb=mib)
    replica: Any = Ready(wanted, digits, second_of_two).strategy._replica  # type: ignore[attr-defined]
    assert replica.bucket_bytes_cap == mib * 2**20


def test_powersgd_sends_matrices_of_rank_1_after_ten_plain_steps(digits: Dataset, second_of_two: Worker) -> None:
    ready = Ready(config(strategy="ddp", topology="1x2", comm_hook="powersgd"), digits, second_of_two)

    def ranks(steps: int) -> int:
        for step in range(steps):
            ready.strategy.gradients(ready.micro_batches(step))
            largest = max(gradients(ready), key=torch.numel)
            ready.strategy.step()
        return int(torch.linalg.matrix_rank(largest.reshape(len(largest), -1), rtol=1e-4))

    assert ranks(10) > 1
    assert ranks(1) == 1
    ready.strategy.load(ready.weights(), None)  # as after an interruption
    assert ranks(10) > 1
    assert ranks(1) == 1


def test_a_pipelines_bubble_is_the_share_of_time_in_which_stages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages that compute for 3 and 2 of 10 seconds wait for 7 and 8 of them."""
    assert idle([3.0, 2.0], 10.0) == pytest.approx(0.75)
    now = iter([0.0, 5.0, 10.0, 12.0, 19.0, 20.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    watch = Stopwatch(lambda part: None, torch.device("cpu"))
    for passes in (1, 2):
        watch.step()
        for _ in range(passes):
            with watch.computing("forward"):  # 0 to 5, which does not count; 10 to 12 and 19 to 20
                pass
    assert watch.read() == (3.0, 10.0)
