"""A sweep whose cluster loses nodes for good."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.nodes import Head
from tests.support.person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.extended, pytest.mark.fault]

WORDS = ["--dataset", "digits", "--model", "simple_cnn", "--precision", "fp32", "--epochs", "300"]
WORDS += ["--grid", "topology=2x1", "lr=0.1,0.01,0.05"]


def test_a_sweep_says_once_that_its_cluster_has_lost_nodes(person: Person) -> None:
    person.environment |= {**Head.VARIABLES, "CIFAR_RAY_START_TIMEOUT_S": "90"}
    with contextlib.closing(Head(person)) as head:
        head.add("b")
        with person.starts("sweep", "--name", "small", *WORDS, "--address", head.address) as run:
            run.until("lr0.1 2x1 seed0: epoch 2/300")
            head.remove("b")
            assert run.end() == 1
    assert run.output.count("seed0: failed, ") == 1  # the run that was there when the node left
    assert run.output.count("the cluster has lost nodes (") == 1
    last = run.output.splitlines()[-1]
    assert last.startswith("error: the cluster has lost nodes, and 2 runs could not begin: topology 2x1 needs 2 nodes")
    assert "`cifar-ray sweep --resume small" in run.output
    assert person.run_named("small").info.status == "FAILED"
