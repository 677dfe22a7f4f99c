"""The manifest for Kubernetes, held against the facts of KubeRay's schema; tests/kuberay.py tells where those are from."""

from __future__ import annotations

import copy
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from cifar_ray._version import __version__
from tests.support import kuberay

ROOT = Path(__file__).parents[3]
FACTS = yaml.safe_load(kuberay.FACTS.read_text())


@pytest.fixture
def job() -> dict[str, Any]:
    return copy.deepcopy(kuberay.rayjob())


def test_the_manifest_fits_the_schema(job: dict[str, Any]) -> None:
    assert kuberay.problems(job, FACTS) == []
    assert f"--version {FACTS['kuberay']} " in kuberay.MANIFEST.read_text()
    job["spec"]["backOffLimit"] = 2
    job["spec"]["ttlSecondsAfterFinished"] = "5 min"
    job["spec"]["rayClusterSpec"]["authOptions"]["mode"] = "tokens"
    del job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["groupName"]
    assert [problem.split()[0].rpartition(".")[2] for problem in kuberay.problems(job, FACTS)] == [
        *("ttlSecondsAfterFinished", "mode", "backOffLimit", "groupName")
    ]


def test_the_run_begins_once_and_its_cluster_does_not_outlive_it(job: dict[str, Any]) -> None:
    spec = job["spec"]
    (gpu,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert (gpu["minReplicas"], gpu["maxReplicas"], spec["shutdownAfterJobFinishes"]) == (0, 2, True)
    name = re.findall(r"cifar-ray resume (\S+) .*cifar-ray train --run-name (\S+) ", spec["entrypoint"])
    assert name == [("kubernetes", "kubernetes")]


def test_the_versions_are_those_of_the_tests(job: dict[str, Any]) -> None:
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == version("ray")
    assert f"\nFROM rayproject/ray:{version('ray')}-py311\n" in (ROOT / "examples" / "Dockerfile").read_text()
    images = {value for path, value in kuberay.fields(job) if path.endswith(".image")}
    assert images == {f"YOURS-REGISTRY/cifar-ray:{__version__}"}


def test_no_container_has_rights(job: dict[str, Any]) -> None:
    cluster = job["spec"]["rayClusterSpec"]
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    assert all(pod["securityContext"]["runAsUser"] == 1000 for pod in pods)
    none = {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for room in (*(container for pod in pods for container in pod["containers"]), cluster["autoscalerOptions"]):
        assert none.items() <= room["securityContext"].items()
    assert cluster["authOptions"] == {"mode": "token"}
