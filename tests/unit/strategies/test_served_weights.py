"""The parameter server by itself: its arithmetic, its bound, and its generations."""

from __future__ import annotations

import copy
import dataclasses
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cifar_ray import models, strategies
from cifar_ray.config.errors import ConfigError
from cifar_ray.data import SPECS
from cifar_ray.data.loader import MicroBatch
from cifar_ray.strategies.gradients import layout
from cifar_ray.strategies.served_weights import Answer, ParameterServer, ServerHandle, ShardedServer, Start, States
from cifar_ray.training import optimizer
from tests.support.helpers import built, resolved

SHAPES = (((2,), (1,)), ((1, 2), (2, 1)))


def sgd(model: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=123.0, momentum=momentum)


def push(server: ParameterServer, rank: int, gradient: float = 1.0, lr: float = 1.0, loss: float = 1.0) -> Answer:
    values = np.full(4, gradient, np.float32)
    values.flags.writeable = False  # as they come out of Ray's object store
    return server.push(rank, values, lr=lr, loss=loss)


def served(**changes: Any) -> ParameterServer:
    usual: dict[str, Any] = {
        "weights": np.zeros(4, np.float32), "layout": SHAPES, "make_optimizer": sgd, "states": {}, "world_size": 2,
        "max_staleness": None, "weighting": "none",
    }  # fmt: skip
    server = ParameterServer()
    server.reset(Start(**{**usual, **changes}))
    return server


def test_a_push_of_every_worker_moves_as_far_as_one_step_with_their_mean() -> None:
    server = served(world_size=4)
    for rank in range(4):
        answer = push(server, rank, rank, lr=0.5)
    assert answer.weights.tolist() == [-0.5 * 1.5] * 4


def test_the_learning_rate_is_divided_and_not_the_gradient() -> None:
    """AdamW's first step is as long as the learning rate, whatever the gradient."""
    server = served(make_optimizer=lambda model: torch.optim.AdamW(model.parameters(), weight_decay=0.0))
    for far in (0.25, 0.5):
        assert push(server, 0, 100.0, lr=0.5).weights.tolist() == pytest.approx([-far] * 4)


def test_staleness_is_the_number_of_updates_by_others_since_the_pull() -> None:
    server = served(world_size=3)
    assert server.pull(0).figures == {}
    for rank in (1, 1, 2):
        push(server, rank)
    # Own pushes are followed by a pull: 0 and 0 of rank 1, 2 of rank 2, 3 of rank 0.
    assert push(server, 0).figures == {"staleness/mean": 5 / 4, "staleness/max": 3.0, "staleness/ahead_max": 2.0}


def test_inverse_weighting_divides_a_step_by_one_more_than_its_staleness() -> None:
    for server, last in ((served(), 1.0), (served(weighting="inverse"), 1.0 / 4)):
        for _ in range(3):
            before = push(server, 0, lr=2.0).weights
        assert before.tolist() == [-3.0] * 4  # fresh gradients count in full
        assert (before - push(server, 1, lr=2.0).weights).tolist() == [last] * 4


def test_what_was_answered_does_not_change_afterwards() -> None:
    server = served(make_optimizer=partial(sgd, momentum=0.9))
    push(server, 0, lr=0.0)
    before, state = server.pull(0).weights, server.states()
    push(server, 1)
    assert before.tolist() == [0.0] * 4
    assert state[0]["momentum_buffer"].tolist() == [1.0, 1.0]


def test_the_losses_are_the_latest_of_every_rank() -> None:
    server = served(world_size=3)
    for loss in (0.5, 0.25):
        push(server, 2, loss=loss)
    assert push(server, 0, loss=2.0).losses == (2.0, None, 0.25)


def test_it_goes_on_from_its_state() -> None:
    make = partial(sgd, momentum=0.9)
    whole, first = (served(make_optimizer=make) for _ in range(2))
    for server in (whole, first):
        push(server, 0)
    rest = served(make_optimizer=make, weights=first.pull(0).weights, states=first.states())
    assert push(rest, 1).weights.tolist() == push(whole, 1).weights.tolist()


def test_a_worker_waits_while_it_is_too_far_ahead_of_the_slowest() -> None:
    server = served(world_size=3, max_staleness=1)
    push(server, 0)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(push, server, 0)
        assert not wait([call], timeout=0.2).done
        push(server, 1)
        assert not wait([call], timeout=0.2).done
        push(server, 2)
        answer = call.result(10)
    assert answer.weights.tolist() == pytest.approx([-4 / 3] * 4)  # the weights of when it may go on
    assert answer.figures["staleness/ahead_max"] == 1.0


@pytest.mark.parametrize("push_every", [1, 3])
def test_a_step_costs_what_the_strategy_says(push_every: int) -> None:
    """Counted where a worker calls its server, in which every call is a message and its answer another."""
    sent: list[int] = []

    class Counting(ParameterServer):
        def push(self, rank: int, gradient: np.ndarray, lr: float, loss: float) -> Answer:
            answer = super().push(rank, gradient, lr, loss)
            sent.extend([gradient.nbytes, answer.weights.nbytes])
            return answer

    usual = {"dataset": "digits", "model": "simple_cnn", "strategy": "parameter_server"}
    config = resolved(usual, strategy_options={"push_every": push_every})
    model = models.build(config, SPECS["digits"])
    worker = built(config, model, server=Counting())
    worker.load(model.state_dict(), None)
    for seed in range(3):
        worker.gradients([MicroBatch(torch.rand(8, 3, 32, 32), torch.arange(8), seed, 8)])
        worker.step()
    symbols = {"G": sum(parameter.numel() * 4 for parameter in model.parameters()), "K": push_every, "S": 1}
    about = strategies.about("parameter_server")
    assert (len(sent) / 3, sum(sent) / 3) == (eval(about.messages, symbols), eval(about.bytes, symbols))


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
def test_the_largest_part_is_as_small_as_can_be(sizes: tuple[int, ...], count: int, largest: int) -> None:
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
def test_servers_that_share_the_parameters_do_what_one_does(name: str, count: int) -> None:
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
