"""The cluster file, as far as it can be checked without a cloud."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from cifar_ray import __version__

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
    assert f"'cifar-ray=={__version__}'" in setup
    assert f"'ray[default,train,tune]=={ray.__version__}'" in setup


def test_only_ssh_is_open_and_not_to_everyone(cluster: dict) -> None:
    (rule,) = cluster["provider"]["security_group"]["IpPermissions"]
    assert (rule["FromPort"], rule["ToPort"]) == (22, 22)
    assert all(not entry["CidrIp"].endswith("/0") for entry in rule["IpRanges"])
    starts = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    assert all("RAY_AUTH_MODE=token" in command for command in starts if " ray start" in command.replace("/", " "))
    assert "--dashboard-host=127.0.0.1" in " ".join(starts)


def test_every_command_is_shell(cluster: dict) -> None:
    keys = ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
    for command in (command for key in keys for command in cluster[key]):
        subprocess.run(["bash", "-n", "-c", command], check=True)
