"""Private parts of Ray: what takes their place where they are missing or switched off."""

from __future__ import annotations

import logging

import pytest
import ray
from ray.train.torch import TorchTrainer

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


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """What the module logs, whatever its level."""
    logger, records = logging.Logger(optional.__name__, logging.DEBUG), []
    monkeypatch.setattr(logger, "handle", records.append)
    monkeypatch.setattr(optional, "_logger", logger)
    return records


def test_a_part_that_is_missing_is_replaced_and_logged(records: list[logging.LogRecord]) -> None:
    assert [gone(), there()] == ["totals", "free"]
    (record,) = records
    assert record.levelno == logging.INFO
    assert "has no gone for this program" in record.getMessage()
    assert "never_there" in record.getMessage()


def test_plain_ray_switches_all_parts_off(monkeypatch: pytest.MonkeyPatch, records: list[logging.LogRecord]) -> None:
    monkeypatch.setenv(optional.PLAIN, "1")
    assert there() == "totals"
    assert not records
    assert optional.draining_nodes() == {}
    assert optional.greeting("127.0.0.1:1", 1.0) == "OK"
    assert optional.head_resource() == {}
    assert optional.refused_bundles(1.0) == []
    assert optional.abandoned_groups() == []
    assert optional.lean(TorchTrainer) is TorchTrainer


@pytest.mark.parametrize(("free", "each"), [(0.0, 0.0), (3.0, 3.0), (8.0, 4.0)])
def test_no_node_has_more_free_than_it_has_and_than_the_cluster_has_free(
    free: float, each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"NodeID": node, "Alive": node != "gone", "Resources": {"CPU": 4.0}} for node in ("a", "b", "gone")]
    monkeypatch.setenv(optional.PLAIN, "1")
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": free} if free else {})
    assert optional.free_resources() == {"a": {"CPU": each}, "b": {"CPU": each}}


def test_what_ray_says_of_the_cluster_is_passed_on() -> None:
    with pytest.raises(ray.exceptions.RpcError, match="does not answer"):
        away()
