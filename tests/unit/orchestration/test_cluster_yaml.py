"""``cifar-ray cluster check``: the shipped files pass, and each rule finds what breaks it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from cifar_ray.cli import main
from cifar_ray.orchestration.cluster import clusterfile
from cifar_ray.reporting import cost

ROOT = Path(__file__).parents[3]
SHIPPED = [ROOT / "cluster.yaml", *sorted((ROOT / "examples").glob("cluster-*.yaml"))]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


class Unaliased(yaml.SafeDumper):
    """Writes a value wherever it stands, so that one place can be broken alone."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


def dumped(config: Any) -> str:
    return yaml.dump(config, Dumper=Unaliased, sort_keys=False)


def loaded(name: str) -> dict[str, Any]:
    """A shipped file's values, none of which is in two places."""
    return yaml.safe_load(dumped(yaml.safe_load((ROOT / name).read_text())))


def check(file: Path) -> clusterfile.Verdict:
    return clusterfile.check(file, lambda kind: cost.of_node_type(kind).words)


def problems(folder: Path, config: dict[str, Any]) -> tuple[str, ...]:
    file = folder / "cluster.yaml"
    file.write_text(dumped(config))
    return check(file).problems


def commands(config: dict[str, Any]) -> str:
    return " ".join(line for key, lines in config.items() if key.endswith("_commands") for line in lines)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_a_shipped_file_is_sound(file: Path) -> None:
    assert check(file).problems == ()


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_a_shipped_file_has_the_versions_that_the_tests_have(file: Path) -> None:
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", CONSTRAINTS, re.MULTILINE))
    text = commands(yaml.safe_load(file.read_text()))
    named = dict(re.findall(r"([\w.-]+)(?:\[\w+\])?==([\w.]+)", text))
    assert all(number == locked.get(name, number) for name, number in named.items())
    assert named.get("ray", version("ray")) == version("ray") == locked["ray"]


@pytest.mark.parametrize("name", ["cluster.yaml", "examples/cluster-gcp.yaml"])
def test_a_cloud_gets_neither_the_history_nor_what_lies_beside_the_checkout(name: str) -> None:
    mounts = loaded(name)["file_mounts"]
    assert mounts.pop("~/.ray/auth_token") == "~/.ray/auth_token"
    package = {"cifar_ray", "examples", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"}
    assert {Path(here).parts[0] for here in mounts.values()} == package


@pytest.mark.parametrize("name", ["cluster.yaml", "examples/cluster-gcp.yaml"])
def test_workers_come_and_go_spot_before_on_demand(name: str) -> None:
    config = loaded(name)
    kinds = config["available_node_types"]
    assert (kinds["head"]["resources"], kinds["head"]["max_workers"]) == ({"CPU": 0}, 0)
    for kind in ("gpu_spot", "gpu_on_demand"):
        assert (kinds[kind]["min_workers"], kinds[kind]["max_workers"]) == (0, 2)
    assert kinds["gpu_spot"]["priority"] > kinds["gpu_on_demand"]["priority"]
    assert (config["max_workers"], config["idle_timeout_minutes"]) == (2, 10)
    (start,) = (command for command in config["head_start_ray_commands"] if "ray start" in command)
    assert int(re.search(r"RAY_JOB_STOP_WAIT_TIME_S=(\d+)", start)[1]) >= 30


def test_the_units_start_again_and_run_without_rights(tmp_path: Path) -> None:
    for unit in (ROOT / "examples" / "nodes").glob("*.service"):
        text = unit.read_text()
        assert "\nUser=ubuntu\n" in text
        assert re.search(r"^Restart=(always|on-failure)$", text, re.MULTILINE)
        assert "\nWantedBy=multi-user.target\n" in text
        (start,) = re.findall(r"^ExecStart=/home/ubuntu/cifar_ray_env/bin/(.+)$", text, re.MULTILINE)
        script = re.fullmatch(r"python /home/ubuntu/cifar_ray/(examples/nodes/\w+\.py)(?: %i)?", start)
        assert (ROOT / script[1]).is_file()


@pytest.mark.parametrize("name", ["cluster.yaml", "examples/cluster-gcp.yaml"])
def test_a_machine_has_few_rights_and_leaves_nothing_behind(name: str) -> None:
    config = loaded(name)
    assert config["provider"]["cache_stopped_nodes"] is False
    for kind in config["available_node_types"].values():
        node = kind["node_config"]
        if config["provider"]["type"] == "aws":
            assert node["IamInstanceProfile"]["Name"].startswith("cifar-ray-")
            assert node["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
            (disk,) = (mapping["Ebs"] for mapping in node["BlockDeviceMappings"])
            assert (disk["Encrypted"], disk["DeleteOnTermination"]) == (True, True)
        else:
            assert all(account["email"].startswith("cifar-ray-") for account in node["serviceAccounts"])
            assert [disk["autoDelete"] for disk in node["disks"]] == [True]


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


def faults(table: str) -> list[tuple[str, str]]:
    """What is changed in a file, and how the sentence on it begins."""
    return [(change, sentence) for change, sentence in (line.split(" -> ") for line in table.strip().splitlines())]


OWN = version("ray")
AWS = faults(f"""
fairness = 1 -> fairness is unknown to Ray
available_node_types:head:max_worker = 1 -> available_node_types.head.max_worker is unknown to Ray; did you mean 'max_workers'?
available_node_types:gpu_spot:resources:GPU = 0.5 -> available_node_types.gpu_spot.resources.GPU: 0.5 is not of type 'integer'
setup_commands = null -> setup_commands: None is not of type 'array'
head_node_type del -> head_node_type must be one of available_node_types
provider del -> provider.type must be aws, gcp or local to be checked, got None
provider:type = azure -> provider.type must be aws, gcp or local to be checked, got 'azure'
setup_commands += echo 'never closed -> setup_commands[4] is not a shell command: unexpected EOF while looking for matching `''
setup_commands += ~/.uv/bin/uv pip install 'ray[default]' -> setup_commands[4] must name a version (==) or a constraints file (-c) for 'ray[default]'
setup_commands += pip install 'torch>=2' -> setup_commands[4] must name a version (==) or a constraints file (-c) for 'torch>=2'
setup_commands += pip install -q -r requirements.txt > log 2>&1 -> setup_commands[4] must name a version (==) or a constraints file (-c) for 'requirements.txt'
setup_commands += bash -lc 'pip install einops' -> setup_commands[4] must name a version (==) or a constraints file (-c) for 'einops'
setup_commands += pipx install ruff # don't -> setup_commands[4] must name a version (==) or a constraints file (-c) for 'ruff'
setup_commands += uv tool install ruff==0.12.* -> setup_commands[4] must name a version (==) or a constraints file (-c) for 'ruff==0.12.*'
setup_commands += pip install 'ray[default] == 2.9.3' -> setup_commands[4] must install ray=={OWN}, which this program runs with, got 2.9.3
setup_commands:1 = python3 -m venv ~/cifar_ray_env -> setup_commands[0] must name the Python version, such as `uv venv --python 3.11.7`, as nodes must agree
head_setup_commands del -> Ray's default head_setup_commands[0] must name a version (==) or a constraints file (-c) for 'boto3>=1.4.8'
docker = {{image: rayproject/ray, container_name: ray}} -> docker.image must have a version's tag or a digest, got 'rayproject/ray'
available_node_types:head:docker = {{worker_image: "rayproject/ray:2.9.3-py311"}} -> available_node_types.head.docker.worker_image must be of Ray {OWN}, which this program runs with, got 'rayproject/ray:2.9.3-py311'
available_node_types:gpu_spot:node_config:ImageId = latest_dlami -> available_node_types.gpu_spot.node_config.ImageId must be the id of one image (ami-...), got 'latest_dlami'
worker_start_ray_commands sub 'RAY_AUTH_MODE=token ' '' -> worker_start_ray_commands[1] must set RAY_AUTH_MODE=token before `ray start`, or anybody may run code there
worker_start_ray_commands del -> Ray's default worker_start_ray_commands[1] must set RAY_AUTH_MODE=token before `ray start`, or anybody may run code there
head_start_ray_commands sub RAY_AUTH_MODE 'RAY_AUTH_TOKEN=secret RAY_AUTH_MODE' -> head_start_ray_commands[1] must not hold the token itself (RAY_AUTH_TOKEN): mount its file
file_mounts:~/.ray/auth_token del -> file_mounts must bring the token to every node, ~/.ray/auth_token: ~/.ray/auth_token
head_start_ray_commands sub =127.0.0.1 '=$(hostname -I)' -> head_start_ray_commands[1] must listen on 127.0.0.1 and be reached through SSH, got $(hostname
head_setup_commands += mlflow server --host 0.0.0.0 -> head_setup_commands[4] must listen on 127.0.0.1 and be reached through SSH, got 0.0.0.0
available_node_types:gpu_spot:node_config:SecurityGroupIds del -> available_node_types.gpu_spot.node_config.SecurityGroupIds must name a group of your own: Ray's lets in SSH from everywhere
available_node_types:gpu_spot:node_config:InstanceType = t3.nano -> available_node_types.gpu_spot has no price: the machine type must be c7i.large,
""")
OPEN = "must open nothing but SSH to all addresses (0.0.0.0/0, ::/0)"
AWS += faults(f"""
provider:security_group = {{IpPermissions: [{{FromPort: 8265, ToPort: 8265, IpProtocol: tcp, IpRanges: [{{CidrIp: 0.0.0.0/0}}]}}]}} -> provider.security_group.IpPermissions[0] {OPEN}, got ports 8265 to 8265
provider:security_group = {{IpPermissions: [{{FromPort: 6000, ToPort: 7000, IpProtocol: tcp, Ipv6Ranges: [{{CidrIpv6: "::/0"}}]}}]}} -> provider.security_group.IpPermissions[0] {OPEN}, got ports 6000 to 7000
provider:security_group = {{IpPermissions: [{{IpProtocol: "-1", IpRanges: [{{CidrIp: 0.0.0.0/0}}]}}]}} -> provider.security_group.IpPermissions[0] {OPEN}, got ports all to all
initialization_commands = ['aws ec2 authorize-security-group-ingress --group-id sg-1 --protocol tcp --port 5000 --cidr 0.0.0.0/0'] -> initialization_commands[0] {OPEN}
""")
GCP = faults(f"""
initialization_commands = ['gcloud compute firewall-rules create ray --allow tcp:6379,tcp:10001 --source-ranges 0.0.0.0/0'] -> initialization_commands[0] {OPEN}
initialization_commands = ['gcloud compute firewall-rules create ray --rules=all --source-ranges=::/0'] -> initialization_commands[0] {OPEN}
""")
GCP += faults("""
available_node_types:gpu_spot:node_config:disks:0:initializeParams:sourceImage = projects/x/global/images/family/common -> available_node_types.gpu_spot.node_config.disks must name one image, not a family that moves on, got 'projects/x/global/images/family/common'
available_node_types:gpu_spot:node_config:networkInterfaces del -> available_node_types.gpu_spot.node_config.networkInterfaces must name a subnetwork of your own: Ray's lets in SSH from everywhere
available_node_types:gpu_spot:node_config:networkInterfaces:0:subnetwork = projects/x/regions/y/subnetworks/default -> available_node_types.gpu_spot.node_config.networkInterfaces must name a subnetwork of your own: Ray's lets in SSH from everywhere
""")
LOCAL = faults("""
provider:worker_ips del -> provider.worker_ips must be given
available_node_types = {head: {node_config: {}, resources: {}}} -> available_node_types must not be given with provider.type local, whose nodes are in worker_ips
head_start_ray_commands sub 'RAY_AUTH_MODE=token ' '' -> head_start_ray_commands[1] must set RAY_AUTH_MODE=token before `ray start`, or anybody may run code there
""")
OF = {"cluster.yaml": AWS, "examples/cluster-gcp.yaml": GCP, "examples/cluster-onprem.yaml": LOCAL}


@pytest.mark.parametrize(("name", "fault", "sentence"), [(name, *each) for name, those in OF.items() for each in those])
def test_a_broken_file_is_refused_with_one_sentence(tmp_path: Path, name: str, fault: str, sentence: str) -> None:
    config = loaded(name)
    change(config, fault)
    (found,) = problems(tmp_path, config)
    assert found.startswith(sentence)


@pytest.mark.parametrize(
    "command",
    [
        "export RAY_AUTH_MODE=token; ray start --address=$RAY_HEAD_IP:6379",
        "pip install 'ray==" + OWN + "'; ~/bin/pip3 install -q --python 3.11 numpy==2.3.1 # exact",
        "pip install -r requirements.txt --constraint constraints.txt ~/cifar_ray",
        "ufw deny from 0.0.0.0/0 && pip list",
        "gcloud compute firewall-rules create ssh --allow tcp:22 --source-ranges 0.0.0.0/0",
        "gcloud compute firewall-rules create ray --allow tcp:8265 --source-ranges 10.0.0.0/8",
    ],
)
def test_a_sound_command_passes(tmp_path: Path, command: str) -> None:
    config = loaded("cluster.yaml")
    config["worker_start_ray_commands"].append(command)
    assert problems(tmp_path, config) == ()


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    config = loaded("cluster.yaml")
    wanted = (
        "setup_commands[4] is not",
        "worker_start",
        "file_mounts",
        "head_setup",
        "available_node_types.gpu_spot has",
    )
    there = [(fault, sentence) for fault, sentence in AWS if sentence.startswith(wanted)]
    for fault, _ in there:
        change(config, fault)
    for found, (_, sentence) in zip(problems(tmp_path, config), there, strict=True):
        assert found.startswith(sentence)


@pytest.mark.parametrize("text", ["cluster_name: [1", "a: 1\na: 2\n", "- 1\n", ""])
def test_what_is_no_cluster_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    assert main.main(["cluster", "check", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert (said.count("\n"), str(file) in said) == (1, True)


def test_the_command_names_each_file_and_goes_on_with_the_next(tmp_path: Path) -> None:
    """Where neither boto3 nor Google's libraries are, and with no network."""
    (tmp_path / "broken.yaml").write_text((ROOT / "cluster.yaml").read_text() + "\nmax_worker: 1\n")
    without = (
        "import socket, sys\n"
        "for name in ('boto3', 'botocore', 'googleapiclient', 'google.auth'): sys.modules[name] = None\n"
        "socket.socket.connect = None\n"
        "from cifar_ray.cli import main\n"
        "sys.exit(main.main(sys.argv[1:]))"
    )
    words = ["cluster", "check", "broken.yaml", "gone.yaml", str(ROOT / "cluster.yaml")]
    done = subprocess.run(
        [sys.executable, "-c", without, *words], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 2, done.stderr
    first, second = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert first == "error: broken.yaml: max_worker is unknown to Ray; did you mean 'max_workers'?"
    assert "gone.yaml" in second
    assert done.stdout == f"{ROOT / 'cluster.yaml'}: ok\n"
    price = "gpu_spot is g4dn.xlarge at 0.22 USD per hour (AWS us-east-1, spot"
    assert f"note: {ROOT / 'cluster.yaml'}: {price}" in done.stderr


def test_lines_with_the_mark_are_noted_until_it_is_gone(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "cluster-onprem.yaml").read_text()
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "  # YOURS" in line]
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    assert check(file).notes == (f"still to be filled in (YOURS): lines {', '.join(map(str, lines))}",)
    file.write_text(re.sub(r"  # YOURS.*", "", text))
    assert check(file).notes == ()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cluster"], "cifar-ray cluster must be followed by check"),
        (["cluster", "chek"], "cifar-ray cluster must be followed by check"),
        (["cluster", "watch"], "cifar-ray cluster must be followed by check, got 'watch' (now examples/nodes/drain_on"),
        (["cluster", "check"], "files must be given"),
    ],
)
def test_the_second_word_must_be_known_and_a_file_be_given(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main.main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


def test_the_help_says_that_a_file_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["cluster", "check", "--help"])
    shown = capsys.readouterr().out
    assert "cluster check FILES ... [OPTIONS]\n" in shown
    assert "(default" not in shown


def test_files_for_something_else_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [tmp_path / name for name in ("a.yaml", "b.yaml")]
    for file in runs:
        file.write_text("epochs: 3\n")
    sound = Path(__file__).parents[3] / "cluster.yaml"
    assert main.main(["cluster", "check", *map(str, [*runs, sound])]) == 0
    said = capsys.readouterr()
    assert said.out == f"{sound}: ok\n"
    assert said.err.endswith(f"note: not for `ray up`, so not checked: {runs[0]}, {runs[1]}\n")
    assert main.main(["cluster", "check", *map(str, runs)]) == 2
    said = capsys.readouterr()
    assert said.err == f"error: not for `ray up`, which needs `cluster_name` and `provider`: {runs[0]}, {runs[1]}\n"


def test_a_template_and_a_manifest_are_files_for_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    examples = Path(__file__).parents[3] / "examples"
    others = [str(examples / name) for name in ("aws-stack.yaml", "rayjob.yaml")]
    assert main.main(["cluster", "check", *others]) == 2
    said = capsys.readouterr().err
    assert said == f"error: not for `ray up`, which needs `cluster_name` and `provider`: {', '.join(others)}\n"


def test_a_cluster_file_of_two_documents_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("cluster_name: a\n---\nprovider: {type: aws}\n")
    assert main.main(["cluster", "check", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"error: cannot read config file {file}: ")
