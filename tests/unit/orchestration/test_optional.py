"""Private parts of Ray: what takes their place where they are missing or switched off."""

from __future__ import annotations

import logging

import pytest
import ray

from cifar_ray.orchestration.cluster import optional


def _totals() -> str:
    return "totals"


@optional.part(_totals)
def gone() -> str:
    return optional.find("ray._private.state:never_there")()


@optional.part(_totals)
def there() -> str:
    return "free"


@optional.part(_totals)
def away() -> str:
    raise ray.exceptions.RpcError("the head does not answer")


def test_a_part_that_is_missing_is_replaced_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert [gone(), gone(), there()] == ["totals", "totals", "free"]
    ((_, level, text),) = caplog.record_tuples
    assert level == logging.INFO
    assert "has no gone for this program" in text
    assert "never_there" in text


def test_plain_ray_switches_all_parts_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(optional.PLAIN, "1")
    with caplog.at_level(logging.DEBUG):
        assert there() == "totals"
    assert not caplog.records
    assert optional.draining_nodes() == {}
    assert optional.greeting("127.0.0.1:1", 1.0) is None
    assert optional.refused_bundles(1.0) == []
    assert optional.abandoned_groups() == []


@pytest.mark.parametrize(
    ("nodes", "free"), [(["a"], {"a": {"CPU": 1.0}}), (["a", "b"], {"a": {"CPU": 4.0}, "b": {"CPU": 4.0}})]
)
def test_without_what_is_free_on_each_node_the_whole_nodes_count(
    nodes: list[str], free: dict[str, dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [{"NodeID": node, "Alive": True, "Resources": {"CPU": 4.0}} for node in nodes]
    gone = {"NodeID": "gone", "Alive": False, "Resources": {}}
    monkeypatch.setenv(optional.PLAIN, "1")
    monkeypatch.setattr(ray, "nodes", lambda: [*there, gone])
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 1.0})
    assert optional.free_resources() == free


def test_what_ray_says_of_the_cluster_is_passed_on() -> None:
    with pytest.raises(ray.exceptions.RpcError, match="does not answer"):
        away()
