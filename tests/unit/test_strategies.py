"""What strategies compute, in this process: one worker, or a process group of one."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cifar_ray import models, strategies
from cifar_ray.config import ResNetOptions, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.data.loader import TrainLoader
from cifar_ray.place import Place
from cifar_ray.strategies import server
from cifar_ray.training import hardware, optimizer
from tests.helpers import resolved

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

    def __init__(self, wanted: TrainConfig, digits: Dataset, place: Place | None = None) -> None:
        place = place or Place()
        hardware.set_threads(1)
        torch.manual_seed(0)
        self.model = models.build(wanted, digits.spec).to(memory_format=torch.channels_last)
        made = partial(optimizer.build, config=wanted)
        serving = server.ParameterServer() if wanted.strategy == "parameter_server" else None
        parts = strategies.Parts(wanted, place, self.model, made, nn.CrossEntropyLoss(), lambda part: None, serving)
        self.strategy = strategies.build(parts)
        self.strategy.load(self.weights(), None)
        self._loader = TrainLoader(wanted, digits, strategies.of(wanted).feed(wanted, place), place.device)

    def train(self, *steps: int) -> Ready:
        for step in steps:
            self.strategy.gradients(self._loader.pieces(0, step))
            self.strategy.step()
        return self

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
    first.strategy.publish()
    state = contiguous(copy.deepcopy(first.strategy.state()))
    rest = Ready(wanted, digits)
    rest.strategy.load(first.weights(), state)
    expected, found = first.train(3, 4).weights(), rest.train(3, 4).weights()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
