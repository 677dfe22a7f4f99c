from __future__ import annotations

import pytest

from cifar_ray.config import topology
from cifar_ray.config.topology import Node, Topology


def node(name: str, cpus: float, gpus: float = 0) -> Node:
    return Node(name, "10.0.0.1", cpus, gpus)


def test_reads_and_writes_itself() -> None:
    assert topology.parse("2x3") == Topology(2, 3)
    assert str(topology.parse("2x3")) == "2x3"
    assert topology.parse("2x3").world_size == 6


@pytest.mark.parametrize("text", ["", "2", "2x", "0x2", "2x0", "axb", "-1x2", "2X2", " 1x2", "01x2"])
def test_refuses_what_is_not_nodes_by_workers(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be NODESxWORKERS .* such as 1x2"):
        topology.parse(text)


def test_chooses_exactly_so_many_workers_on_each_node() -> None:
    assert topology.choose(Topology(2, 2), [node("a", 4), node("b", 1), node("c", 2)], 1) == ["a", "a", "c", "c"]


def test_names_what_is_missing() -> None:
    for wanted, nodes, each, told in (
        (
            Topology(2, 2),
            [node("a", 4), node("b", 2)],
            {"cpus_per_worker": 2},
            "2 nodes with 4 CPUs .* 1 of them large",
        ),
        (Topology(1, 1), [node("a", 4)], {"gpus_per_worker": 1}, "1 node with 1 CPUs and 1 GPUs each"),
        (Topology(1, 1), [], {}, "0 nodes .none alive"),
    ):
        with pytest.raises(ValueError, match=told):
            topology.choose(wanted, nodes, **{"cpus_per_worker": 1, **each})  # type: ignore[arg-type]
    assert topology.choose(Topology(1, 2), [node("a", 16, 1), node("b", 16, 4)], 1, gpus_per_worker=1) == ["b", "b"]


@pytest.mark.parametrize(
    ("gpus", "each", "count"),
    [(1, 0.25, 4), (1, 0.1, 10), (1, 0.3, 3), (2, 0.4, 4), (1, 0.5001, 1), (0.5, 0.25, 2), (0.2, 0.25, 0), (2.5, 0.5, 5), (2, 1, 2), (3, 2, 1)],
)  # fmt: skip
def test_a_part_of_a_gpu_is_a_part_of_one(gpus: float, each: float, count: int) -> None:
    assert topology.capacity(node("a", 64, gpus), 1, each) == count
    assert topology.copies(Topology(1, 1), [node("a", 64, gpus), node("b", 1, gpus)], 1, each) == count + min(count, 1)


def test_verifies_where_workers_really_are() -> None:
    topology.verify(Topology(2, 2), ["a", "b", "a", "b"])
    for wrong in (["a", "a", "a", "b"], ["a", "a", "a", "a"], ["a", "b", "c", "d"]):
        with pytest.raises(ValueError, match="topology 2x2 was asked for, but the workers were placed as"):
            topology.verify(Topology(2, 2), wrong)


@pytest.mark.parametrize(
    ("wanted", "cpus", "count"), [((1, 2), [3, 5], 3), ((2, 2), [4, 4, 2], 2), ((2, 1), [4], 0), ((2, 1), [9, 1], 1)]
)
def test_counts_how_many_runs_fit_at_once(wanted: tuple[int, int], cpus: list[int], count: int) -> None:
    nodes = [node(str(index), number) for index, number in enumerate(cpus)]
    assert topology.copies(Topology(*wanted), nodes, cpus_per_worker=1) == count


def test_a_range_has_the_most_workers_first_and_of_equals_the_fewest_nodes() -> None:
    low, high = topology.parse_range("1x1:2x2")
    assert [str(one) for one in topology.between(low, high)] == ["2x2", "1x2", "2x1", "1x1"]
    assert [str(one) for one in topology.between(*topology.parse_range("2x2:3x2"))] == ["3x2", "2x2"]


@pytest.mark.parametrize("text", ["2x2", "1x1:2x2:3x3", "1x1:two", "2x1:1x2", "1x2:2x1"])
def test_refuses_what_is_not_a_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be MIN:MAX, two topologies .* got "):
        topology.parse_range(text)
