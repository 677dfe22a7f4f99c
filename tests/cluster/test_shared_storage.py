"""Storage that not every node can use, on two Ray nodes of which the second sees other disks."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.support import stores
from tests.support.nodes import Head
from tests.support.person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

WORDS = ["train", "--dataset", "digits", "--model", "simple_cnn", "--epochs", "1", "--topology", "2x1"]
APART = """
mount --make-rprivate / && mount -t tmpfs tmpfs {home}/own &&
mount --bind {home}/sealed {home}/sealed && mount -o remount,ro,bind {home}/sealed && exec "$@"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person who joins two nodes; the second has a folder ``own`` of its own, and cannot write to ``sealed``."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"]).returncode:
        pytest.skip("needs root and the right to mount")
    person = Person(tmp_path_factory.mktemp("cluster"))
    for name in ("own", "sealed", "shared"):
        (person.home / name).mkdir()
    person.environment |= {**Head.VARIABLES, **stores.KEYS, "RAY_AUTH_MODE": "token"}
    with contextlib.closing(Head(person)) as head:
        head.until_nodes(1)
        head.add("apart", "unshare", "-m", "sh", "-c", APART.format(home=person.home), "sh")
        person.environment["RAY_ADDRESS"] = head.address
        yield person


def test_a_node_that_cannot_use_the_folder_is_named(cluster: Person) -> None:
    for name, problem in (("own", "cannot read"), ("sealed", "cannot write to")):
        folder = cluster.home / name
        sentence = cluster.refused(*WORDS, "--storage", str(folder), timeout=400)
        assert sentence.startswith("--storage must be a folder that all nodes share and can write; node ")
        assert f" {problem} {folder}/" in sentence
        assert list(folder.iterdir()) == []
    assert [experiment.name for experiment in cluster.mlflow.search_experiments()] == ["Default"]


def test_a_store_that_all_nodes_reach_is_taken(cluster: Person) -> None:
    """The nodes are told where the store is; keys are their own."""
    with stores.s3() as variables:
        where = ["--storage", f"s3://{stores.BUCKET}/runs", "--run-name", "reached"]
        cluster.succeeds(*WORDS, *where, timeout=600, **variables)
    assert cluster.run_named("reached").info.status == "FINISHED"
