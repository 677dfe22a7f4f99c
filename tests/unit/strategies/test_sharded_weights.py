"""Several parameter servers do what one does, number by number."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.strategies.gradients import layout
from cifar_ray.strategies.served_weights import ParameterServer, ServerHandle, ShardedServer, Start, States
from cifar_ray.training import optimizer, recipe
from tests.support.helpers import resolved

OPTIMIZERS = {
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "lr": 0.1, "weight_decay": 0.1},
}


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(50, 3)).to(memory_format=torch.channels_last)


def start(optimizer_name: str, states: States | None = None) -> Start:
    config = resolved({"dataset": "digits", "model": "simple_cnn"}, **OPTIMIZERS[optimizer_name])
    weights = np.linspace(-1, 1, sum(parameter.numel() for parameter in network().parameters()), dtype=np.float32)
    make = partial(optimizer.build, config=config)
    return Start(weights, layout(network()), make, states or {}, 2, None, "inverse")


def sharded(count: int) -> ShardedServer:
    return ShardedServer([ParameterServer() for _ in range(count)])


def pushed(server: ServerHandle, begin: Start) -> tuple[np.ndarray, States, dict[str, float]]:
    """Three pushes by two workers: the weights, the state and the figures."""
    server.reset(copy.deepcopy(begin))  # an optimizer goes on in the tensors that it is given
    answer = server.pull(0)
    generator = np.random.default_rng(1)
    for rank in (0, 1, 1):
        gradient = generator.standard_normal(len(begin.weights), np.float32)
        answer = server.push(rank, gradient, 0.1, 1.0 + rank)
    assert answer.losses == (1.0, 2.0)
    return answer.weights, server.states(), answer.figures


@pytest.mark.parametrize(
    ("sizes", "count", "largest"),
    [((1, 1, 1, 9), 2, 9), ((5, 4, 3, 3, 5), 2, 11), ((5, 4, 3, 3, 5), 3, 8), ((9, 1, 1, 1), 4, 9), ((2, 2), 2, 2)],
)
def test_the_largest_part_is_as_small_as_whole_parameters_allow(
    sizes: tuple[int, ...], count: int, largest: int
) -> None:
    server = sharded(count)
    layout = tuple(((size,), (1,)) for size in sizes)
    server.reset(dataclasses.replace(start("sgd"), weights=np.zeros(sum(sizes), np.float32), layout=layout))
    held = [len(one.pull(0).weights) for one in server._servers]
    assert (len(held), min(held) > 0, sum(held), max(held)) == (count, True, sum(sizes), largest)


def flat(states: States) -> dict[tuple[int, str], list[float]]:
    return {
        (index, name): torch.as_tensor(value).flatten().tolist()
        for index, of in states.items()
        for name, value in of.items()
    }


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_servers_that_share_the_parameters_do_what_one_does(name: str, count: int) -> None:
    weights, state, figures = pushed(ParameterServer(), start(name))
    found = pushed(sharded(count), start(name))
    assert np.array_equal(found[0], weights)
    assert flat(found[1]) == flat(state)
    assert found[2] == figures


@pytest.mark.parametrize("make", [ParameterServer, lambda: sharded(3)], ids=["one", "three"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_number_of_servers_goes_on_from_the_state_of_two(name: str, make: Callable[[], ServerHandle]) -> None:
    weights, state, _ = pushed(sharded(2), start(name))
    begin = dataclasses.replace(start(name), weights=weights, states=state)
    one, two = pushed(make(), begin), pushed(sharded(2), begin)
    assert np.array_equal(one[0], two[0])
    assert flat(one[1]) == flat(two[1])
    assert not np.array_equal(one[0], pushed(make(), dataclasses.replace(begin, states={}))[0])


def test_more_servers_than_parameters_are_refused() -> None:
    wanted = TrainConfig(
        dataset="digits", model="simple_cnn", strategy="parameter_server", strategy_options={"servers": 99}
    )
    with pytest.raises(
        ConfigError, match=r"strategy_options.servers must be at most \d+, the parameters of this simple_cnn, got 99"
    ):
        recipe.resolve(wanted)
