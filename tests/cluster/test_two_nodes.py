"""Several Ray nodes on this machine: placement, joining, and nodes that leave."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import ray

from cifar_ray.config.errors import ConfigError
from cifar_ray.orchestration.cluster import servers
from tests.support.images import folder_of_digits
from tests.support.nodes import Head
from tests.support.person import Person

pytestmark = pytest.mark.cluster

WORDS = ["train", "--dataset", "digits", "--model", "simple_cnn", "--global-batch-size", "64"]
WORDS += ["--precision", "fp32", "--log-every", "5"]
OWN_MODEL = Path(__file__).parents[2] / "examples" / "own_model.py"
HERE = ["--local-nodes", "2"]


def losses(person: Person, name: str) -> list[float]:
    run_id = person.run_named(name).info.run_id
    return [point.value for point in person.mlflow.get_metric_history(run_id, "train/loss")]


@pytest.mark.compat
def test_two_nodes_of_two_come_to_the_losses_of_one_worker(person: Person) -> None:
    for topology, extra in (("1x1", []), ("2x2", HERE)):
        done = person.succeeds(*WORDS, "--epochs", "2", "--topology", topology, *extra, "--run-name", f"t{topology}")
    assert losses(person, "t2x2") == pytest.approx(losses(person, "t1x1"), rel=1e-4)
    assert len(losses(person, "t2x2")) == 8
    assert Counter(Counter(worker["node_id"] for worker in person.placement("t2x2")).values()) == {2: 2}
    tags = person.run_named("t2x2").data.tags
    assert (tags["times_are_a_clusters"], tags["local_nodes"]) == ("false", "2")
    assert "do not read the times as a cluster's" in done.stdout
    assert person.leftovers() == []


@pytest.mark.extended
@pytest.mark.compat
def test_a_run_joins_a_cluster_and_leaves_it_running(person: Person, head: Head) -> None:
    head.add("second")
    head.until_nodes(2)
    (person.home / "mine.py").write_text(OWN_MODEL.read_text())  # sent to the cluster
    folder_of_digits(person.home / "images")
    own = ["--model", "mine:build", "--dataset", "folder:images"]
    joined = [*WORDS, *own, "--epochs", "1", "--topology", "2x1", "--run-name", "joined"]
    assert "joining Ray" in person.succeeds(*joined, RAY_ADDRESS=head.address).stdout
    assert len({worker["node_id"] for worker in person.placement("joined")}) == 2
    assert "times_are_a_clusters" not in person.run_named("joined").data.tags
    version = "ray.get(ray.remote(num_cpus=0)(lambda: ray.__version__).remote())"  # of its workers, too
    assert head.says(f"print(int(ray.cluster_resources()['CPU']), {version})") == f"2 {ray.__version__}"
    assert person.refused(*WORDS, "--local-nodes", "2", RAY_ADDRESS=head.address).startswith("--local-nodes ")


@pytest.mark.compat
@pytest.mark.fault
def test_a_node_that_leaves_is_replaced_by_another(person: Person, head: Head) -> None:
    """The selectors of the first start name a node that is gone; those of the second do not."""
    head.add("second")
    head.until_nodes(2)
    long = [*WORDS, "--model", "resnet", "--model-options.blocks", "1,1", "--model-options.width", "8"]
    long += ["--epochs", "10", "--topology", "2x1", "--address", head.address]
    with person.starts(*long, "--run-name", "moved") as run:
        run.until("epoch 2/10")
        before = {worker["node_id"] for worker in person.placement("moved")}
        head.remove("second")
        head.add("third")
        assert run.end() == 0, run.output
        assert "failure 1 of at most 3" in run.output
    after = {worker["node_id"] for worker in person.placement("moved")}
    assert len(after) == 2
    assert len(before & after) == 1
    assert person.steps("moved", "test/accuracy") == list(range(1, 11))


@pytest.fixture
def hasty(person: Person) -> Person:
    """Who waits for room for 90 s alone, on the cluster's nodes too."""
    person.environment["CIFAR_RAY_START_TIMEOUT_S"] = "90"
    return person


@pytest.mark.extended
@pytest.mark.fault
def test_a_sweep_on_two_nodes_says_once_that_its_cluster_has_lost_one(hasty: Person, head: Head) -> None:
    head.add("b")
    words = ["--name", "small", *WORDS[1:5], "--precision", "fp32", "--epochs", "300", "--address", head.address]
    words += ["--grid", "topology=2x1", "lr=0.1,0.01,0.05"]
    with hasty.starts("sweep", *words) as run:
        run.until("lr0.1 2x1 seed0: epoch 2/300")
        assert len({worker["node_id"] for worker in hasty.placement("lr0.1 2x1 seed0")}) == 2
        head.remove("b")
        assert run.end() == 1
    assert run.output.count("seed0: failed, ") == 1  # the run that was there when the node left
    assert run.output.count("the cluster has lost nodes (") == 1
    assert "2 runs could not begin: topology 2x1 needs 2 nodes" in run.output
    assert "`cifar-ray sweep --resume small" in run.output
    assert hasty.run_named("small").info.status == "FAILED"


@pytest.mark.compat
def test_an_address_where_nothing_listens_is_refused(person: Person) -> None:
    for address in ("127.0.0.1:9", "nowhere.invalid:6379", "localhost", "ray://127.0.0.1:10001"):
        with pytest.raises(ConfigError, match="must be "):
            servers.reach_chosen(address)
    assert person.refused(*WORDS, "--address", "127.0.0.1:9").startswith("--address must be ")
    assert not (person.home / ".cifar_ray").exists()
