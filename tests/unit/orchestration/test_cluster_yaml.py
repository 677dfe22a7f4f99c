"""The shipped files for clusters, and ``cifar-ray check-cluster``, each of whose rules finds what breaks it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml

from cifar_ray._version import __version__
from cifar_ray.cli import main
from cifar_ray.orchestration.cluster import clusterfile
from tests.support import kuberay

ROOT = Path(__file__).parents[3]
SHIPPED = [ROOT / "cluster.yaml", *sorted((ROOT / "examples").glob("cluster-*.yaml"))]


def loaded(name: str) -> dict[str, Any]:
    """A shipped file's values with the reader's own, none of which is in two places, so that one can be broken alone."""
    return json.loads(json.dumps(yaml.safe_load(filled_in(ROOT / name))))


def problems(folder: Path, text: str) -> list[str]:
    file = folder / "cluster.yaml"
    file.write_text(text)
    return clusterfile.check(file)


def filled_in(file: Path) -> str:
    return re.sub(r"  # YOURS.*", "", file.read_text()).replace("YOURS-", "my-")


def commands(config: dict[str, Any]) -> str:
    return " ".join(line for key, lines in config.items() if key.endswith("_commands") for line in lines)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_a_shipped_file_is_sound_but_for_the_readers_own_values(tmp_path: Path, file: Path) -> None:
    numbered = enumerate(file.read_text().splitlines(), 1)
    lines = ", ".join(str(number) for number, line in numbered if re.search("  # YOURS|YOURS-", line))
    assert problems(tmp_path, file.read_text()) == [f"your own values (YOURS) are missing in lines {lines}"]
    assert problems(tmp_path, filled_in(file)) == []


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_a_shipped_file_follows_rays_schema_and_has_the_versions_of_the_tests(file: Path) -> None:
    schema = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
    config = yaml.safe_load(file.read_text())
    text = " ".join(line for key, lines in config.items() if key.endswith("_commands") for line in lines)
    if config["provider"]["type"] == "local":
        config.pop("min_workers")  # as Ray does before
    jsonschema.Draft7Validator(json.loads(schema.read_text())).validate(config)
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    named = dict(re.findall(r"([\w.-]+)(?:\[\w+\])?==([\w.]+)", text))
    assert all(number == locked.get(name, number) for name, number in named.items())
    assert named.get("ray", version("ray")) == version("ray") == locked["ray"]


@pytest.mark.parametrize("name", ["cluster.yaml", "examples/cluster-gcp.yaml"])
def test_a_cloud_gets_the_package_and_nodes_that_come_and_go_with_few_rights(name: str) -> None:
    config = loaded(name)
    kinds, mounts = config["available_node_types"], config["file_mounts"]
    assert mounts.pop("~/.ray/auth_token") == "~/.ray/auth_token"
    package = {"cifar_ray", "examples", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"}
    assert {Path(here).parts[0] for here in mounts.values()} == package
    assert (kinds["head"]["resources"], kinds["head"]["max_workers"]) == ({"CPU": 0}, 0)
    workers = [kinds[kind] for kind in ("gpu_spot", "gpu_on_demand")]
    assert [(kind["min_workers"], kind["max_workers"]) for kind in workers] == [(0, 2)] * 2
    assert workers[0]["priority"] > workers[1]["priority"]
    assert (config["max_workers"], config["idle_timeout_minutes"]) == (2, 10)
    (start,) = (command for command in config["head_start_ray_commands"] if "ray start" in command)
    assert int(re.search(r"RAY_JOB_STOP_WAIT_TIME_S=(\d+)", start)[1]) >= 30
    assert config["provider"]["cache_stopped_nodes"] is False
    for node in (kind["node_config"] for kind in kinds.values()):
        if config["provider"]["type"] == "aws":
            assert node["IamInstanceProfile"]["Name"].startswith("cifar-ray-")
            assert node["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
            (disk,) = (mapping["Ebs"] for mapping in node["BlockDeviceMappings"])
            assert (disk["Encrypted"], disk["DeleteOnTermination"]) == (True, True)
        else:
            assert all(account["email"].startswith("cifar-ray-") for account in node["serviceAccounts"])
            assert [disk["autoDelete"] for disk in node["disks"]] == [True]


def test_the_units_start_again_and_run_without_rights() -> None:
    for unit in (ROOT / "examples" / "nodes").glob("*.service"):
        text = unit.read_text()
        assert "\nUser=ubuntu\n" in text
        assert re.search(r"^Restart=(always|on-failure)$", text, re.MULTILINE)
        (script,) = re.findall(r"^ExecStart=\S+/bin/python /home/ubuntu/cifar_ray/(\S+\.py)", text, re.MULTILINE)
        assert (ROOT / script).is_file()


def sub(config: dict[str, Any], node: str, old: str, new: str) -> None:
    key = f"{node}_start_ray_commands"
    config[key] = [command.replace(old, new) for command in config[key]]


SSH = "must open nothing but SSH"
OPEN = {"FromPort": 8265, "ToPort": 8265, "IpProtocol": "tcp", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
ALL = {"IpProtocol": "-1", "Ipv6Ranges": [{"CidrIpv6": "::/0"}]}
RULE = "gcloud compute firewall-rules create ray --allow tcp:22,tcp:10001 --source-ranges ::/0"
GROUP = f"provider.security_group.IpPermissions[0] {SSH} to all addresses, got ports"


@pytest.mark.parametrize(
    ("fault", "start"),
    [
        (
            lambda config: sub(config, "worker", "RAY_AUTH_MODE=token ", ""),
            "worker_start_ray_commands[1] must set RAY_AUTH",
        ),
        (lambda config: config.pop("worker_start_ray_commands"), "worker_start_ray_commands must have `ray start`"),
        (lambda config: config["file_mounts"].pop("~/.ray/auth_token"), "file_mounts must bring the token to every"),
        (lambda config: sub(config, "head", "=127.0.0.1", "=$(hostname -I)"), f"head_start_ray_commands[1] {SSH}"),
        (lambda config: config["head_setup_commands"].append("x --host 0.0.0.0"), f"head_setup_commands[4] {SSH}"),
        (lambda config: config["setup_commands"].append(RULE), f"setup_commands[4] {SSH}"),
        (lambda config: config["provider"].update(security_group={"IpPermissions": [OPEN]}), f"{GROUP} 8265 to 8265"),
        (lambda config: config["provider"].update(security_group={"IpPermissions": [ALL]}), f"{GROUP} all to all"),
    ],
)
def test_a_fault_is_one_sentence(tmp_path: Path, fault: Callable[[dict[str, Any]], Any], start: str) -> None:
    config = loaded("cluster.yaml")
    fault(config)
    (problem,) = problems(tmp_path, json.dumps(config))
    assert problem.startswith(start)


def test_sound_commands_pass_and_what_ray_up_refuses_is_left_to_it(tmp_path: Path) -> None:
    config = loaded("cluster.yaml")
    config["worker_start_ray_commands"] += [
        "export RAY_AUTH_MODE=token; ray start --address=$RAY_HEAD_IP:6379",
        "ufw deny from 0.0.0.0/0 && pip list",
        "gcloud compute firewall-rules create ssh --allow tcp:22 --source-ranges 0.0.0.0/0",
        "gcloud compute firewall-rules create ray --allow tcp:8265 --source-ranges 10.0.0.0/8",
    ]
    assert problems(tmp_path, json.dumps(config)) == []
    text = "cluster_name: 1\nprovider: null\navailable_node_types: [a]\nsetup_commands: 3\nfile_mounts: [x]\n"
    first = [problem.split()[0] for problem in problems(tmp_path, text)]
    assert first == ["head_start_ray_commands", "worker_start_ray_commands", "file_mounts"]


def test_the_command_names_each_fault_of_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound, broken = tmp_path / "sound.yaml", tmp_path / "broken.yaml"
    sound.write_text(filled_in(ROOT / "cluster.yaml"))
    broken.write_text(sound.read_text().replace("RAY_AUTH_MODE=token", ""))
    assert main.main(["check-cluster", str(broken), str(sound)]) == 2
    said = capsys.readouterr()
    lines = [f"error: {broken}: {part}_start_ray_commands[1] must set" for part in ("head", "worker")]
    assert said.out == ""
    assert [line[: len(start)] for line, start in zip(said.err.splitlines(), lines, strict=True)] == lines
    assert main.main(["check-cluster"]) == 2
    capsys.readouterr()
    for text in ("cluster_name: [1", "a: 1\na: 2\n", "- 1\n", "", "epochs: 3\n", "cluster_name: a\n---\nb: !Ref c\n"):
        broken.write_text(text)
        assert main.main(["check-cluster", str(broken)]) == 2
        assert re.fullmatch(f"error: .*{broken}.*\n", capsys.readouterr().err)


@pytest.fixture
def job() -> dict[str, Any]:
    return copy.deepcopy(kuberay.rayjob())


def test_the_manifest_for_kubernetes_fits_the_facts_of_kuberays_schema(job: dict[str, Any]) -> None:
    facts = yaml.safe_load(kuberay.FACTS.read_text())
    assert kuberay.problems(job, facts) == []
    assert f"--version {facts['kuberay']} " in kuberay.MANIFEST.read_text()
    job["spec"]["backOffLimit"] = 2
    job["spec"]["ttlSecondsAfterFinished"] = "5 min"
    job["spec"]["rayClusterSpec"]["authOptions"]["mode"] = "tokens"
    del job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["groupName"]
    wrong = [problem.split()[0].rpartition(".")[2] for problem in kuberay.problems(job, facts)]
    assert wrong == ["ttlSecondsAfterFinished", "mode", "backOffLimit", "groupName"]


def test_the_job_on_kubernetes_begins_once_ends_with_its_cluster_and_has_no_rights(job: dict[str, Any]) -> None:
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    (gpu,) = cluster["workerGroupSpecs"]
    assert (gpu["minReplicas"], gpu["maxReplicas"], spec["shutdownAfterJobFinishes"]) == (0, 2, True)
    name = re.findall(r"cifar-ray resume (\S+) .*cifar-ray train --run-name (\S+) ", spec["entrypoint"])
    assert name == [("kubernetes", "kubernetes")]
    assert (cluster["rayVersion"], cluster["authOptions"]) == (version("ray"), {"mode": "token"})
    assert f"\nFROM rayproject/ray:{version('ray')}-py311\n" in (ROOT / "examples" / "Dockerfile").read_text()
    images = {value for path, value in kuberay.fields(job) if path.endswith(".image")}
    assert images == {f"YOURS-REGISTRY/cifar-ray:{__version__}"}
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], gpu)]
    assert [pod["securityContext"]["runAsUser"] for pod in pods] == [1000, 1000]
    none = {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for room in (*(container for pod in pods for container in pod["containers"]), cluster["autoscalerOptions"]):
        assert none.items() <= room["securityContext"].items()
