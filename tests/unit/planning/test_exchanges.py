"""What exchanges cost: links, strategies' bytes, and what a backward pass hides. Figures are worked out by hand."""

from __future__ import annotations

import pytest

from cifar_ray import strategies
from cifar_ray.config.topology import Topology
from cifar_ray.planning import exchange, link
from cifar_ray.planning.exchange import PLANNED, Exchange, Timeline
from cifar_ray.planning.link import Link, Route, Traffic
from cifar_ray.planning.span import Span
from cifar_ray.training.probe import Gradients

GIGABIT = Link(125e6)
# 10 MB in three gradients, of which the last to be ready is the smallest.
GRADIENTS = Gradients((6_000_000, 3_000_000, 1_000_000), (0.2, 0.5, 0.9))


def of(strategy: str, **changes: object) -> Exchange:
    return Exchange(strategy, GRADIENTS, **changes)


def test_a_link_is_read_as_tc_writes_it_and_another_is_refused_with_what_it_may_be() -> None:
    for text, expected in {"400mbit": (5e7, 0), "2.5GBIT:50us": (312.5e6, 5e-5), "1gbit:2ms": (125e6, 2e-3)}.items():
        found = link.parse(text)
        assert (found.bytes_per_s, found.latency_s) == pytest.approx(expected)
    for text in ("", "10", "0gbit", "10gbps", "10gbit:", "10gbit:5", "-1gbit"):
        with pytest.raises(ValueError, match="must be RATE or RATE:LATENCY"):
            link.parse(text)


@pytest.mark.parametrize("world_size", [2, 8])
@pytest.mark.parametrize("name", PLANNED)
def test_the_bytes_are_those_that_the_strategy_states(name: str, world_size: int) -> None:
    stated = strategies.about(name).bytes.replace("G", "G * 1")
    # DDP and all_reduce hand G to a ring, local SGD all that it averages; the others state what they send.
    ring = 2 * (world_size - 1) / world_size
    # Of gather and scatter rank 0 is the busiest: W - 1 times as much as any other.
    factor = {"send_recv": 1.0, "gather_scatter": world_size - 1.0}.get(name, ring)
    variables = {"W": world_size, "G": GRADIENTS.size, "O": 2e7, "B": 0, "N": 4}
    of_strategy = of(name, state_bytes=20_000_000, sync_every=4)
    sent = exchange.traffic(of_strategy, Topology(world_size, 1), Route(GIGABIT, None))
    assert sent.size == pytest.approx(factor * eval(stated, {}, variables))


def test_nothing_is_sent_by_one_worker_nor_without_bytes_nor_out_of_a_node() -> None:
    none, together = Route(None, None), Topology(1, 4)
    for name in PLANNED:
        assert exchange.traffic(of(name), Topology(1, 1), none) == Traffic(0, 0, 0)
        sent = exchange.traffic(of(name), together, none)
        assert sent.wire == 0 < sent.size, name
        nothing = Exchange(name, Gradients((0,), (1.0,)))  # as of runs that do not tell what an exchange costs
        assert exchange.traffic(nothing, together, none).size == 0
        assert exchange.exposed(nothing, together, none, Span.exactly(1.0)) == Span.exactly(0.0)


def test_a_tree_is_taken_where_latency_counts_and_a_ring_where_bytes_do() -> None:
    slow = Route(Link(125e6, 1e-3), None)
    many = Topology(16, 1)
    small, large = (exchange.all_reduce(size, many, slow, has_trees=True) for size in (1e3, 1e8))
    assert (small.messages, large.messages) == (8, 30)
    assert exchange.all_reduce(1e3, many, slow, has_trees=False).messages == 30


def test_buckets_close_when_they_are_full_and_go_one_after_the_other() -> None:
    assert exchange.buckets(of("ddp", bucket_bytes=9_000_000)) == [(9_000_000, 0.5), (1_000_000, 1.0)]
    assert exchange.buckets(of("ddp", bucket_bytes=100_000_000)) == [(10_000_000, 1.0)]
    assert exchange.buckets(of("ddp", bucket_bytes=1)) == [(6_000_000, 0.2), (3_000_000, 0.5), (1_000_000, 1.0)]
    assert Timeline((1.0, 2.0), (0.5, 0.5)).end == 2.5  # the second waits for the pass
    assert Timeline((1.0, 2.0), (3.0, 0.5)).end == 4.5  # the second waits for the first


def test_what_the_backward_pass_hides_is_not_added() -> None:
    route, pair, backward = Route(GIGABIT, None), Topology(2, 1), Span.exactly(1.0)
    # 6 MB from 0.2 s on take 48 ms, 3 MB from 0.5 s on 24 ms; 1 MB after the pass takes 8 ms.
    small = exchange.exposed(of("ddp", bucket_bytes=1), pair, route, backward)
    assert small.mid == pytest.approx(0.008)
    assert exchange.exposed(of("ddp"), pair, route, backward).mid == pytest.approx(0.080)
    assert exchange.exposed(of("all_reduce"), pair, route, backward).mid == pytest.approx(0.080)
    # A pass of 10 ms hides less: the buckets end at 2 + 48 + 24 + 8 ms.
    assert exchange.exposed(of("ddp", bucket_bytes=1), pair, route, Span.exactly(0.01)).mid == pytest.approx(0.072)
    half = exchange.exposed(of("ddp", compression=0.5), pair, route, backward)
    assert half.mid == pytest.approx(0.040)


def test_link_and_worker_overlap_at_best_and_take_turns_at_worst() -> None:
    found = exchange.exposed(of("ddp", bucket_bytes=1), Topology(1, 2), Route(None, GIGABIT), Span.exactly(1.0))
    assert (found.low, found.mid, found.high) == pytest.approx((0.008, 0.044, 0.080))
    found = Route(Link(100.0), Link(50.0)).seconds(Traffic(1, 100, 100))
    assert (found.low, found.mid, found.high) == pytest.approx((2.0, 2.5, 3.0))
