"""A plan that measures the network between nodes, and asks a cluster what its workers compute on."""

from __future__ import annotations

import json
import re

import pytest

from cifar_ray.planning import link
from tests.support.nodes import Head
from tests.support.person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

WORDS = ["--model", "simple_cnn", "--dataset", "digits", "--augment", "none", "--device", "cpu"]
WORDS += ["--global-batch-size", "64", "--epochs", "2", "--strategy", "all_reduce", "--nodes", "1,2"]

HOLD = """
holder = ray.remote(num_cpus=1)(type("Holder", (), {}))
holder = holder.options(name="holder", namespace="test", lifetime="detached").remote()
ray.get(holder.__ray_ready__.remote())
print("held")
"""


def test_the_link_is_measured_between_two_nodes_before_anything_is_trained(person: Person, head: Head) -> None:
    asked = [*WORDS, "--address", head.address, "--link", "measured"]
    sentence = person.refused("plan", *asked)
    assert sentence.startswith("--link cannot be measured, since 2x1 needs 2 nodes with 1 CPUs each, but the cluster ")
    head.add("second")
    head.until_nodes(2)
    sentence = person.refused("plan", *asked, "--price", "g6.xlarge")
    assert re.match("--price must come with --speed-factor, how many times as fast as .+ it is", sentence)
    assert [experiment.name for experiment in person.mlflow.search_experiments()] == ["Default"]

    assert head.says(HOLD) == "held"
    done = person.runs("plan", *asked, "--start-timeout-s", "3")
    assert done.returncode == 1
    assert "2x1 has had no room for 3 s (1 of 2 CPUs are in use); wait until the cluster is free" in done.stderr
    head.says("ray.kill(ray.get_actor('holder', namespace='test'))")

    planned = json.loads(person.succeeds("plan", *asked, "--json", "--name", "sizes").stdout)
    rows = planned["plan"]["rows"]
    assert [row["topology"] for row in rows] == ["1x1", "2x1"]
    assert rows[1]["parts"]["exchange"] > 0
    assert any(note.startswith("The link was measured by all-reduces of 4 KiB to 64 MiB") for note in planned["notes"])
    written = re.search(r"--link ([\w:.]+)", planned["notes"][-1])
    assert written is not None
    assert link.parse(written[1]).bytes_per_s > 0
    repeated = person.succeeds("plan", "--from", "sizes", *WORDS[8:], "--link", written[1], "--json").stdout
    again = json.loads(repeated)["plan"]["rows"]
    assert [row["parts"]["computing"] for row in again] == [row["parts"]["computing"] for row in rows]
    assert again[1]["parts"]["exchange"] == pytest.approx(rows[1]["parts"]["exchange"], rel=0.01)
    assert head.says("print(ray.available_resources()['CPU'])") == "2.0"  # nothing is held any more
