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


def test_what_does_not_fit_is_told(job: dict[str, Any]) -> None:
    job["spec"]["backOffLimit"] = 2
    job["spec"]["ttlSecondsAfterFinished"] = "5 min"
    job["spec"]["rayClusterSpec"]["authOptions"]["mode"] = "tokens"
    del job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["groupName"]
    assert kuberay.problems(job, FACTS) == [
        "spec.ttlSecondsAfterFinished must be integer, got '5 min'",
        "spec.rayClusterSpec.authOptions.mode must be one of disabled|token, got 'tokens'",
        "spec.backOffLimit is unknown",
        "spec.rayClusterSpec.workerGroupSpecs[].groupName is missing",
    ]


def test_the_run_begins_once_and_its_cluster_does_not_outlive_it(job: dict[str, Any]) -> None:
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    (gpu,) = cluster["workerGroupSpecs"]
    assert (gpu["minReplicas"], gpu["maxReplicas"]) == (0, 2)
    assert spec["shutdownAfterJobFinishes"] is True
    name = re.findall(r"cifar-ray resume (\S+) .*cifar-ray train --run-name (\S+) ", spec["entrypoint"])
    assert name == [("kubernetes", "kubernetes")]


def test_the_versions_are_those_of_the_tests(job: dict[str, Any]) -> None:
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == version("ray")
    dockerfile = (ROOT / "examples" / "Dockerfile").read_text()
    assert f"\nFROM rayproject/ray:{version('ray')}-py311\n" in dockerfile
    images = {value for path, value in kuberay.fields(job) if path.endswith(".image")}
    assert images == {f"YOURS-REGISTRY/cifar-ray:{__version__}"}


def test_no_container_has_rights(job: dict[str, Any]) -> None:
    cluster = job["spec"]["rayClusterSpec"]
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    assert all(pod["securityContext"]["runAsUser"] == 1000 for pod in pods)
    rooms = [container for pod in pods for container in pod["containers"]] + [cluster["autoscalerOptions"]]
    for room in rooms:
        assert room["securityContext"]["runAsNonRoot"] is True
        assert room["securityContext"]["allowPrivilegeEscalation"] is False
        assert room["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert cluster["authOptions"] == {"mode": "token"}


def test_the_image_finds_the_driver_where_gke_mounts_it(job: dict[str, Any]) -> None:
    dockerfile = (ROOT / "examples" / "Dockerfile").read_text()
    assert re.search(r"^ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64", dockerfile, re.MULTILINE)
    assert "runtimeClassName: nvidia" in kuberay.MANIFEST.read_text()  # a comment: most clusters have no such class
    (gpu,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert "runtimeClassName" not in gpu["template"]["spec"]
