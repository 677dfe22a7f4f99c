"""``cifar-ray cluster check``: the shipped files pass, and each rule finds what breaks it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
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
Break = Callable[[dict[str, Any]], object]


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
    assert {name: locked[name] for name in named if name in locked} == {
        name: number for name, number in named.items() if name in locked
    }
    assert named.get("ray", version("ray")) == version("ray") == locked["ray"]


@pytest.mark.parametrize("name", ["cluster.yaml", "examples/cluster-gcp.yaml"])
def test_a_cloud_gets_neither_the_history_nor_what_lies_beside_the_checkout(name: str) -> None:
    mounts = loaded(name)["file_mounts"]
    assert mounts.pop("~/.ray/auth_token") == "~/.ray/auth_token"
    assert {Path(here).parts[0] for here in mounts.values()} == {
        "cifar_ray",
        "examples",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "constraints.txt",
    }


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
        assert "\nRestart=always\n" in text
        assert "\nWantedBy=multi-user.target\n" in text
        (start,) = re.findall(r"^ExecStart=/home/ubuntu/cifar_ray_env/bin/(.+)$", text, re.MULTILINE)
        assert start in ("python /home/ubuntu/cifar_ray/examples/nodes/mlflow_server.py", "cifar-ray cluster watch")


@pytest.mark.parametrize("name", ["cluster.yaml", "examples/cluster-gcp.yaml"])
def test_a_machine_has_few_rights_and_leaves_nothing_behind(name: str) -> None:
    config = loaded(name)
    assert config["provider"]["cache_stopped_nodes"] is False
    for kind in config["available_node_types"].values():
        node = kind["node_config"]
        if config["provider"]["type"] == "aws":
            assert node["IamInstanceProfile"]["Name"].startswith("cifar-ray-")
            assert node["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
            assert [(d["Ebs"]["Encrypted"], d["Ebs"]["DeleteOnTermination"]) for d in node["BlockDeviceMappings"]] == [
                (True, True)
            ]
        else:
            assert all(account["email"].startswith("cifar-ray-") for account in node["serviceAccounts"])
            assert [disk["autoDelete"] for disk in node["disks"]] == [True]


def gpu(config: dict[str, Any]) -> dict[str, Any]:
    return config["available_node_types"]["gpu_spot"]["node_config"]


def start(config: dict[str, Any], which: str, old: str, new: str) -> None:
    key = f"{which}_start_ray_commands"
    config[key] = [command.replace(old, new) for command in config[key]]


OWN = version("ray")
AWS: list[tuple[Break, str]] = [
    # Ray's schema
    (lambda c: c.update(fairness=1), "fairness is unknown to Ray"),
    (
        lambda c: c["available_node_types"]["head"].update(max_worker=1),
        "available_node_types.head.max_worker is unknown to Ray; did you mean 'max_workers'?",
    ),
    (
        lambda c: c["available_node_types"]["gpu_spot"]["resources"].update(GPU=0.5),
        "available_node_types.gpu_spot.resources.GPU: 0.5 is not of type 'integer'",
    ),
    (lambda c: c.update(setup_commands=None), "setup_commands: None is not of type 'array'"),
    (lambda c: c.pop("head_node_type"), "head_node_type must be one of available_node_types"),
    (lambda c: c.pop("provider"), "provider.type must be aws, gcp or local to be checked, got None"),
    (
        lambda c: c["provider"].update(type="azure"),
        "provider.type must be aws, gcp or local to be checked, got 'azure'",
    ),
    # commands that bash can read
    (
        lambda c: c["setup_commands"].append("echo 'never closed"),
        "setup_commands[4] is not a shell command: unexpected EOF while looking for matching `''",
    ),
    # pinned versions
    *[
        (
            lambda c, command=command: c["setup_commands"].append(command),
            f"setup_commands[4] must name a version (==) or a constraints file (-c) for '{word}'",
        )
        for command, word in (
            ("~/.uv/bin/uv pip install 'ray[default]'", "ray[default]"),
            ("pip install 'torch>=2'", "torch>=2"),
            ("pip install -q -r requirements.txt > log 2>&1", "requirements.txt"),
            ("bash -lc 'pip install einops'", "einops"),
            ("pipx install ruff # don't", "ruff"),
            ("uv tool install ruff==0.12.*", "ruff==0.12.*"),
        )
    ],
    (
        lambda c: c["setup_commands"].append("pip install 'ray[default] == 2.9.3'"),
        f"setup_commands[4] must install ray=={OWN}, which this program runs with, got 2.9.3",
    ),
    (
        lambda c: c["setup_commands"].__setitem__(1, "python3 -m venv ~/cifar_ray_env"),
        "setup_commands[0] must name the Python version, such as `uv venv --python 3.11.7`, as nodes must agree",
    ),
    (
        lambda c: c.pop("head_setup_commands"),
        "Ray's default head_setup_commands[0] must name a version (==) or a constraints file (-c) for 'boto3>=1.4.8'",
    ),
    (
        lambda c: c.update(docker={"image": "rayproject/ray", "container_name": "ray"}),
        "docker.image must have a version's tag or a digest, got 'rayproject/ray'",
    ),
    (
        lambda c: c["available_node_types"]["head"].update(docker={"worker_image": "rayproject/ray:2.9.3-py311"}),
        f"available_node_types.head.docker.worker_image must be of Ray {OWN}, which this program runs with, "
        "got 'rayproject/ray:2.9.3-py311'",
    ),
    (
        lambda c: gpu(c).update(ImageId="latest_dlami"),
        "available_node_types.gpu_spot.node_config.ImageId must be the id of one image (ami-...), got 'latest_dlami'",
    ),
    # the token
    (
        lambda c: start(c, "worker", "RAY_AUTH_MODE=token ", ""),
        "worker_start_ray_commands[1] must set RAY_AUTH_MODE=token before `ray start`, or anybody may run code there",
    ),
    (
        lambda c: c.pop("worker_start_ray_commands"),
        "Ray's default worker_start_ray_commands[1] must set RAY_AUTH_MODE=token before `ray start`, "
        "or anybody may run code there",
    ),
    (
        lambda c: start(c, "head", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN=secret RAY_AUTH_MODE"),
        "head_start_ray_commands[1] must not hold the token itself (RAY_AUTH_TOKEN): mount its file",
    ),
    (
        lambda c: c["file_mounts"].pop("~/.ray/auth_token"),
        "file_mounts must bring the token to every node, ~/.ray/auth_token: ~/.ray/auth_token",
    ),
    # nothing open but SSH
    (
        lambda c: start(c, "head", "=127.0.0.1", "=$(hostname -I)"),
        "head_start_ray_commands[1] must listen on 127.0.0.1 and be reached through SSH, got $(hostname",
    ),
    (
        lambda c: c["head_setup_commands"].append("mlflow server --host 0.0.0.0"),
        "head_setup_commands[4] must listen on 127.0.0.1 and be reached through SSH, got 0.0.0.0",
    ),
    (
        lambda c: gpu(c).pop("SecurityGroupIds"),
        "available_node_types.gpu_spot.node_config.SecurityGroupIds must name a group of your own: "
        "Ray's lets in SSH from everywhere",
    ),
    # a price
    (
        lambda c: gpu(c).update(InstanceType="t3.nano"),
        "available_node_types.gpu_spot has no price: the machine type must be c7i.large, ",
    ),
]


GCP: list[tuple[Break, str]] = [
    (
        lambda c: gpu(c)["disks"][0]["initializeParams"].update(sourceImage="projects/x/global/images/family/common"),
        "available_node_types.gpu_spot.node_config.disks must name one image, not a family that moves on, "
        "got 'projects/x/global/images/family/common'",
    ),
    *[
        (
            fault,
            "available_node_types.gpu_spot.node_config.networkInterfaces must name a subnetwork of your own: "
            "Ray's lets in SSH from everywhere",
        )
        for fault in (
            lambda c: gpu(c).pop("networkInterfaces"),
            lambda c: gpu(c)["networkInterfaces"][0].update(subnetwork="projects/x/regions/y/subnetworks/default"),
        )
    ],
]


LOCAL: list[tuple[Break, str]] = [
    (lambda c: c["provider"].pop("worker_ips"), "provider.worker_ips must be given"),
    (
        lambda c: c.update(available_node_types={"head": {"node_config": {}, "resources": {}}}),
        "available_node_types must not be given with provider.type local, whose nodes are in worker_ips",
    ),
    (
        lambda c: start(c, "head", "RAY_AUTH_MODE=token ", ""),
        "head_start_ray_commands[1] must set RAY_AUTH_MODE=token before `ray start`, or anybody may run code there",
    ),
]


@pytest.mark.parametrize(
    ("name", "fault", "sentence"),
    [
        *[("cluster.yaml", *each) for each in AWS],
        *[("examples/cluster-gcp.yaml", *each) for each in GCP],
        *[("examples/cluster-onprem.yaml", *each) for each in LOCAL],
    ],
)
def test_a_broken_file_is_refused_with_one_sentence(tmp_path: Path, name: str, fault: Break, sentence: str) -> None:
    config = loaded(name)
    fault(config)
    (found,) = problems(tmp_path, config)
    assert found.startswith(sentence)


@pytest.mark.parametrize(
    "command",
    [
        "export RAY_AUTH_MODE=token; ray start --address=$RAY_HEAD_IP:6379",
        "pip install 'ray==" + OWN + "'; ~/bin/pip3 install -q --python 3.11 numpy==2.3.1 # exact",
        "pip install -r requirements.txt --constraint constraints.txt ~/cifar_ray",
        "ufw deny from 0.0.0.0/0 && pip list",
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
    faults = [(fault, sentence) for fault, sentence in AWS if sentence.startswith(wanted)]
    for fault, _ in faults:
        fault(config)
    for found, (_, sentence) in zip(problems(tmp_path, config), faults, strict=True):
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
    assert (
        f"note: {ROOT / 'cluster.yaml'}: gpu_spot is g4dn.xlarge at 0.22 USD per hour (AWS us-east-1, spot"
        in done.stderr
    )


def test_lines_with_the_mark_are_noted_until_it_is_gone(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "cluster-onprem.yaml").read_text()
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "  # YOURS" in line]
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    assert check(file).notes == (f"still to be filled in (YOURS): lines {', '.join(map(str, lines))}",)
    file.write_text(re.sub(r"  # YOURS.*", "", text))
    assert check(file).notes == ()


@pytest.mark.parametrize("words", [["cluster"], ["cluster", "chek"]])
def test_the_second_word_must_be_known(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main.main(words) == 2
    assert capsys.readouterr().err.startswith("error: cifar-ray cluster must be followed by check")


def test_the_help_says_that_a_file_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["cluster", "check", "--help"])
    shown = capsys.readouterr().out
    assert "cluster check FILES ... [OPTIONS]\n" in shown
    assert "(default" not in shown


def test_there_must_be_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["cluster", "check"]) == 2
    assert capsys.readouterr().err.startswith("error: the following arguments are required: files")
