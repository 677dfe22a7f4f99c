"""The parameter server by itself: its arithmetic, its bound, and its generations."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cifar_ray import models, strategies
from cifar_ray.data import SPECS
from cifar_ray.data.loader import MicroBatch
from cifar_ray.strategies.served_weights import Answer, ParameterServer, Start
from tests.support.helpers import built, resolved

SHAPES = (((2,), (1,)), ((1, 2), (2, 1)))


def sgd(model: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=123.0, momentum=momentum)


def start(**changes: Any) -> Start:
    usual: dict[str, Any] = {
        "weights": np.zeros(4, np.float32),
        "layout": SHAPES,
        "make_optimizer": sgd,
        "states": {},
        "world_size": 2,
        "max_staleness": None,
        "weighting": "none",
    }
    return Start(**{**usual, **changes})


def served(**changes: Any) -> ParameterServer:
    server = ParameterServer()
    server.reset(start(**changes))
    return server


def ones(value: float = 1.0) -> np.ndarray:
    gradient = np.full(4, value, np.float32)
    gradient.flags.writeable = False  # as they come out of Ray's object store
    return gradient


def test_a_push_of_every_worker_moves_as_far_as_one_step_with_their_mean() -> None:
    server = served(world_size=4)
    for rank in range(4):
        answer = server.push(rank, ones(rank), lr=0.5, loss=1.0)
    assert answer.weights.tolist() == [-0.5 * 1.5] * 4


def test_the_learning_rate_is_divided_and_not_the_gradient() -> None:
    """AdamW's first step is as long as the learning rate, whatever the gradient."""
    server = served(make_optimizer=lambda model: torch.optim.AdamW(model.parameters(), weight_decay=0.0))
    for gradient, far in ((100.0, 0.25), (100.0, 0.5)):
        answer = server.push(0, ones(gradient), lr=0.5, loss=1.0)
        assert answer.weights.tolist() == pytest.approx([-far] * 4)


def test_staleness_is_the_number_of_updates_by_others_since_the_pull() -> None:
    server = served(world_size=3)
    assert server.pull(0).figures == {}
    for rank in (1, 1, 2):
        server.push(rank, ones(), lr=1.0, loss=1.0)
    figures = server.push(0, ones(), lr=1.0, loss=1.0).figures
    # Own pushes are followed by a pull: 0 and 0 of rank 1, 2 of rank 2, 3 of rank 0.
    assert figures == {"staleness/mean": 5 / 4, "staleness/max": 3.0, "staleness/ahead_max": 2.0}


def test_inverse_weighting_divides_a_step_by_one_more_than_its_staleness() -> None:
    plain, weighted = served(), served(weighting="inverse")
    for server, last in ((plain, 1.0), (weighted, 1.0 / 4)):
        for _ in range(3):
            before = server.push(0, ones(), lr=2.0, loss=1.0).weights
        assert before.tolist() == [-3.0] * 4  # fresh gradients count in full
        after = server.push(1, ones(), lr=2.0, loss=1.0).weights
        assert (before - after).tolist() == [last] * 4


def test_what_was_answered_does_not_change_afterwards() -> None:
    server = served(make_optimizer=partial(sgd, momentum=0.9))
    server.push(0, ones(), lr=0.0, loss=1.0)
    before = server.pull(0).weights
    state = server.states()
    server.push(1, ones(), lr=1.0, loss=1.0)
    assert before.tolist() == [0.0] * 4
    assert state[0]["momentum_buffer"].tolist() == [1.0, 1.0]


def test_the_losses_are_the_latest_of_every_rank() -> None:
    server = served(world_size=3)
    server.push(2, ones(), lr=1.0, loss=0.5)
    server.push(2, ones(), lr=1.0, loss=0.25)
    assert server.push(0, ones(), lr=1.0, loss=2.0).losses == (2.0, None, 0.25)


def test_it_goes_on_from_its_state() -> None:
    whole, first, rest = (ParameterServer() for _ in range(3))
    make = partial(sgd, momentum=0.9)
    for server in (whole, first):
        server.reset(start(make_optimizer=make))
        server.push(0, ones(), lr=1.0, loss=1.0)
    weights, states = first.pull(0).weights, first.states()
    rest.reset(start(make_optimizer=make, weights=weights, states=states))
    expected = whole.push(1, ones(), lr=1.0, loss=1.0).weights.tolist()
    assert rest.push(1, ones(), lr=1.0, loss=1.0).weights.tolist() == expected


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def waits(call: Future[Answer]) -> bool:
    return not wait([call], timeout=0.2).done


def test_a_worker_waits_while_it_is_too_far_ahead_of_the_slowest(pool: ThreadPoolExecutor) -> None:
    server = served(world_size=3, max_staleness=1)
    server.push(0, ones(), lr=1.0, loss=1.0)
    call = pool.submit(server.push, 0, ones(), lr=1.0, loss=1.0)
    assert waits(call)
    server.push(1, ones(), lr=1.0, loss=1.0)
    assert waits(call)
    server.push(2, ones(), lr=1.0, loss=1.0)
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

    config = resolved(
        {"dataset": "digits", "model": "simple_cnn"},
        strategy="parameter_server",
        strategy_options={"push_every": push_every},
    )
    model = models.build(config, SPECS["digits"])
    worker = built(config, model, server=Counting())
    worker.load(model.state_dict(), None)
    for seed in range(3):
        worker.gradients([MicroBatch(torch.rand(8, 3, 32, 32), torch.arange(8), seed, 8)])
        worker.step()
    symbols = {"G": sum(parameter.numel() * 4 for parameter in model.parameters()), "K": push_every, "S": 1}
    about = strategies.about("parameter_server")
    assert (len(sent) / 3, sum(sent) / 3) == (eval(about.messages, symbols), eval(about.bytes, symbols))
