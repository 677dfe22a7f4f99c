"""The cluster file, as far as it can be checked without a cloud."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> dict:
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


def test_rays_own_schema_accepts_it(cluster: dict) -> None:
    validate_config(prepare_config(cluster))
    with pytest.raises(Exception, match="unexpected"):
        validate_config(prepare_config({**cluster, "unexpected": 1}))


def test_it_says_that_it_is_not_yet_proven() -> None:
    assert "NOT YET PROVEN" in (ROOT / "cluster.yaml").read_text()


def test_versions_are_pinned_to_those_of_the_tests(cluster: dict) -> None:
    setup = " ".join(cluster["setup_commands"])
    assert f"'ray[default]=={ray.__version__}'" in setup
    assert "-c ~/cifar_ray/constraints.txt ~/cifar_ray " in setup
    assert f"\nray=={ray.__version__}" in (ROOT / "constraints.txt").read_text()


def test_the_security_group_is_not_one_that_ray_opens_to_everyone(cluster: dict) -> None:
    """Ray adds SSH from 0.0.0.0/0 to every group that it makes, and leaves those alone that are named."""
    assert "security_group" not in cluster["provider"]
    assert all(kind["node_config"]["SecurityGroupIds"] for kind in cluster["available_node_types"].values())


def test_ray_wants_its_token_and_shows_its_pages_to_the_head_alone(cluster: dict) -> None:
    starts = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    assert all("RAY_AUTH_MODE=token" in command for command in starts if " ray start" in command.replace("/", " "))
    assert "--dashboard-host=127.0.0.1" in " ".join(starts)


def test_every_command_is_shell(cluster: dict) -> None:
    keys = ("initialization_commands", "setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
    for command in (command for key in keys for command in cluster[key]):
        subprocess.run(["bash", "-n", "-c", command], check=True)
