"""Several parameter servers do what one does, number by number."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from cifar_ray.config.errors import ConfigError
from cifar_ray.strategies.gradients import layout
from cifar_ray.strategies.served_weights import ParameterServer, ServerHandle, ShardedServer, Start, States
from cifar_ray.training import optimizer
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


@pytest.mark.parametrize(("sizes", "count", "largest"), [((1, 1, 1, 9), 2, 9), ((5, 4, 3, 3, 5), 3, 8), ((2, 2), 2, 2)])
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


@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_servers_that_share_the_parameters_do_what_one_does_and_go_on_from_each_others_state(
    name: str, count: int
) -> None:
    weights, state, figures = pushed(ParameterServer(), start(name))
    found = pushed(sharded(count), start(name))
    assert np.array_equal(found[0], weights)
    assert (flat(found[1]), found[2]) == (flat(state), figures)
    begin = dataclasses.replace(start(name), weights=weights, states=found[1])
    one, several = pushed(ParameterServer(), begin), pushed(sharded(count), begin)
    assert np.array_equal(one[0], several[0])
    assert flat(one[1]) == flat(several[1])
    assert not np.array_equal(one[0], pushed(sharded(count), dataclasses.replace(begin, states={}))[0])


def test_more_servers_than_parameters_are_refused() -> None:
    usual = {"dataset": "digits", "model": "simple_cnn", "strategy": "parameter_server"}
    with pytest.raises(ConfigError, match=r"strategy_options.servers must be at most \d+, .* got 99"):
        resolved(usual, strategy_options={"servers": 99})
