"""``cifar-ray check-cluster``: the shipped files pass, and each rule finds what breaks it."""

from __future__ import annotations

import json
import re
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml

from cifar_ray.cli import main
from cifar_ray.orchestration.cluster import clusterfile

ROOT = Path(__file__).parents[3]
SHIPPED = [ROOT / "cluster.yaml", *sorted((ROOT / "examples").glob("cluster-*.yaml"))]


class Unaliased(yaml.SafeDumper):
    """Writes a value wherever it stands, so that one place can be broken alone."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


def dumped(config: Any) -> str:
    return yaml.dump(config, Dumper=Unaliased, sort_keys=False)


def loaded(name: str) -> dict[str, Any]:
    """A shipped file's values, none of which is in two places."""
    return yaml.safe_load(dumped(yaml.safe_load((ROOT / name).read_text())))


def problems(folder: Path, text: str) -> list[str]:
    """What is wrong with a file of that text."""
    file = folder / "cluster.yaml"
    file.write_text(text)
    return clusterfile.check(file)


def filled_in(file: Path) -> str:
    """A shipped file with the reader's own values."""
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


def change(config: dict[str, Any], words: str) -> None:
    """Break a file: ``KEY:KEY = value``, ``KEY += list entry``, ``KEY del`` or ``KEY sub OLD NEW`` in all entries."""
    path, operation, *rest = words.split(" ", 2)
    *above, last = [int(key) if key.isdecimal() else key for key in path.split(":")]
    place: Any = config
    for key in above:
        place = place[key]
    if operation == "=":
        place[last] = yaml.safe_load(rest[0])
    elif operation == "+=":
        place[last].append(rest[0])
    elif operation == "del":
        del place[last]
    else:
        old, new = shlex.split(rest[0])
        place[last] = [command.replace(old, new) for command in place[last]]


FAULTS = """
worker_start_ray_commands sub 'RAY_AUTH_MODE=token ' '' -> worker_start_ray_commands[1] must set RAY_AUTH_MODE=token
worker_start_ray_commands del -> worker_start_ray_commands must have `ray start` with RAY_AUTH_MODE=token
file_mounts:~/.ray/auth_token del -> file_mounts must bring the token to every node
head_start_ray_commands sub =127.0.0.1 '=$(hostname -I)' -> head_start_ray_commands[1] must open nothing but SSH
head_setup_commands += mlflow server --host 0.0.0.0 -> head_setup_commands[4] must open nothing but SSH
setup_commands += gcloud compute firewall-rules create ray --allow tcp:6379,tcp:10001 --source-ranges ::/0 -> setup_commands[4] must open nothing but SSH
provider:security_group = {IpPermissions: [{FromPort: 8265, ToPort: 8265, IpProtocol: tcp, IpRanges: [{CidrIp: 0.0.0.0/0}]}]} -> provider.security_group.IpPermissions[0] must open nothing but SSH to all addresses, got ports 8265 to 8265
provider:security_group = {IpPermissions: [{IpProtocol: "-1", Ipv6Ranges: [{CidrIpv6: "::/0"}]}]} -> provider.security_group.IpPermissions[0] must open nothing but SSH to all addresses, got ports all to all
"""


@pytest.mark.parametrize("line", FAULTS.strip().splitlines())
def test_a_fault_is_one_sentence(tmp_path: Path, line: str) -> None:
    fault, sentence = line.split(" -> ")
    config = yaml.safe_load(dumped(yaml.safe_load(filled_in(ROOT / "cluster.yaml"))))
    change(config, fault)
    (problem,) = problems(tmp_path, dumped(config))
    assert problem.startswith(sentence)


def test_sound_commands_pass(tmp_path: Path) -> None:
    config = yaml.safe_load(filled_in(ROOT / "cluster.yaml"))
    config["worker_start_ray_commands"] += [
        "export RAY_AUTH_MODE=token; ray start --address=$RAY_HEAD_IP:6379",
        "ufw deny from 0.0.0.0/0 && pip list",
        "gcloud compute firewall-rules create ssh --allow tcp:22 --source-ranges 0.0.0.0/0",
        "gcloud compute firewall-rules create ray --allow tcp:8265 --source-ranges 10.0.0.0/8",
    ]
    assert problems(tmp_path, dumped(config)) == []


def test_what_ray_up_refuses_is_left_to_it(tmp_path: Path) -> None:
    """No mistake of kind ends in a traceback."""
    text = "cluster_name: 1\nprovider: null\navailable_node_types: [a]\nsetup_commands: 3\nfile_mounts: [x]\n"
    first = [problem.split()[0] for problem in problems(tmp_path, text)]
    assert first == ["head_start_ray_commands", "worker_start_ray_commands", "file_mounts"]


@pytest.mark.parametrize(
    "text", ["cluster_name: [1", "a: 1\na: 2\n", "- 1\n", "", "epochs: 3\n", "cluster_name: a\n---\nb: !Ref c\n"]
)
def test_what_is_no_cluster_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    assert main.main(["check-cluster", str(file)]) == 2
    assert re.fullmatch(f"error: .*{file}.*\n", capsys.readouterr().err)


def test_the_command_names_each_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound, broken = tmp_path / "sound.yaml", tmp_path / "broken.yaml"
    sound.write_text(filled_in(ROOT / "cluster.yaml"))
    broken.write_text(sound.read_text().replace("RAY_AUTH_MODE=token", ""))
    assert main.main(["check-cluster", str(broken), str(sound)]) == 2
    said = capsys.readouterr()
    lines = [f"error: {broken}: {part}_start_ray_commands[1] must set" for part in ("head", "worker")]
    assert said.out == ""
    assert [line[: len(start)] for line, start in zip(said.err.splitlines(), lines, strict=True)] == lines
    assert main.main(["check-cluster"]) == 2
