"""``cifar-ray cluster check``: the shipped files pass, and each fault is told by its own sentence."""

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
from cifar_ray.orchestration.cluster import schema
from cifar_ray.orchestration.clusterfile import shell

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


def told(folder: Path, config: Any) -> tuple[str, ...]:
    file = folder / "cluster.yaml"
    file.write_text(config if isinstance(config, str) else dumped(config))
    return schema.check(file).problems


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_a_shipped_file_is_sound(file: Path) -> None:
    assert schema.check(file).problems == ()


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_a_shipped_file_has_the_versions_that_the_tests_have(file: Path) -> None:
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", CONSTRAINTS, re.MULTILINE))
    text = " ".join(command.text for command in shell.commands(yaml.safe_load(file.read_text())))
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


def gpu(config: dict[str, Any]) -> dict[str, Any]:
    return config["available_node_types"]["gpu_spot"]["node_config"]


def start(config: dict[str, Any], which: str, old: str, new: str) -> None:
    key = f"{which}_start_ray_commands"
    config[key] = [command.replace(old, new) for command in config[key]]


AWS: list[tuple[Break, str]] = [
    (lambda c: c.update(fairness=1), "fairness is unknown to Ray"),
    (
        lambda c: c["available_node_types"]["head"].update(max_worker=1),
        "available_node_types.head.max_worker is unknown to Ray; did you mean 'max_workers'?",
    ),
    (
        lambda c: c["available_node_types"]["gpu_spot"]["resources"].update(GPU=0.5),
        "available_node_types.gpu_spot.resources.GPU: 0.5 is not of type 'integer'",
    ),
    (lambda c: c.pop("head_node_type"), "`head_node_type` must be one of `available_node_types`."),
    (
        lambda c: c["provider"].update(cache_stoped_nodes=False),
        "provider.cache_stoped_nodes is unknown; did you mean 'cache_stopped_nodes'?",
    ),
    (
        lambda c: c["provider"].update(aws_credentials={"aws_secret_access_key": "x"}),
        "provider.aws_credentials must not be in the file: put credentials where the cloud's own tools look for them",
    ),
    (
        lambda c: gpu(c).update(InstanceTyp="g5.xlarge"),
        "available_node_types.gpu_spot.node_config.InstanceTyp is unknown; did you mean 'InstanceType'?",
    ),
    (
        lambda c: gpu(c)["BlockDeviceMappings"][0]["Ebs"].update(VolumSize=1),
        "available_node_types.gpu_spot.node_config.BlockDeviceMappings[0].Ebs.VolumSize is unknown; "
        "did you mean 'VolumeSize'?",
    ),
    (
        lambda c: gpu(c)["BlockDeviceMappings"][0]["Ebs"].update(VolumeSize="100 GB"),
        "available_node_types.gpu_spot.node_config.BlockDeviceMappings[0].Ebs.VolumeSize must be of the type integer, "
        "got '100 GB'",
    ),
    (
        lambda c: gpu(c).update(ImageId="latest_dlami"),
        "available_node_types.gpu_spot.node_config.ImageId must be the id of one image (ami-...), got 'latest_dlami'",
    ),
    (
        lambda c: c["setup_commands"].append("~/.uv/bin/uv pip install 'ray[default]'"),
        "setup_commands[4] must name a version (==) or a constraints file (-c) for 'ray[default]'",
    ),
    (
        lambda c: c["setup_commands"].append("pip install 'ray[default]==2.9.3'"),
        f"setup_commands[4] must install ray=={version('ray')}, which this program runs with, got 2.9.3",
    ),
    (
        lambda c: c["setup_commands"].append("pip install -c c.txt -r requirements.txt https://x/latest/ray.whl"),
        "setup_commands[4] must name a version (==) or a constraints file (-c) for 'https://x/latest/ray.whl'",
    ),
    (
        lambda c: c["setup_commands"].__setitem__(1, "python3 -m venv ~/cifar_ray_env"),
        "setup_commands[0] must name the Python version, such as `uv venv --python 3.11.7`, as nodes must agree",
    ),
    (
        lambda c: c.pop("head_setup_commands"),
        "head_setup_commands must be given: Ray's own default installs packages that are not pinned",
    ),
    (
        lambda c: c.update(docker={"image": "rayproject/ray", "container_name": "ray"}),
        "docker.image must have a version's tag or a digest (@sha256:...), got 'rayproject/ray'",
    ),
    (
        lambda c: c.update(docker={"image": "rayproject/ray:2.9.3-py311", "container_name": "ray"}),
        f"docker.image must be of Ray {version('ray')}, which this program runs with, got 'rayproject/ray:2.9.3-py311'",
    ),
    (
        lambda c: c["provider"].update(
            security_group={
                "IpPermissions": [{"FromPort": 8265, "ToPort": 8265, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
            }
        ),
        "provider.security_group.IpPermissions[0].IpRanges must not open ports 8265 to 8265 to everybody (0.0.0.0/0)",
    ),
    (
        lambda c: c["provider"].update(
            security_group={"IpPermissions": [{"FromPort": 22, "ToPort": 22, "Ipv6Ranges": [{"CidrIpv6": "::/0"}]}]}
        ),
        "provider.security_group.IpPermissions[0].Ipv6Ranges must not open ports 22 to 22 to everybody (::/0)",
    ),
    (
        lambda c: gpu(c).pop("SecurityGroupIds"),
        "available_node_types.gpu_spot.node_config.SecurityGroupIds must name a group of your own: "
        "Ray's opens SSH (port 22) to 0.0.0.0/0",
    ),
    (
        lambda c: gpu(c).pop("IamInstanceProfile"),
        "available_node_types.gpu_spot.node_config.IamInstanceProfile must name a profile of few rights: "
        "Ray's own has all of EC2 and S3",
    ),
    (
        lambda c: start(c, "head", "127.0.0.1", "0.0.0.0"),
        "head_start_ray_commands[1] must keep --dashboard-host on 127.0.0.1 and be reached through SSH, got 0.0.0.0",
    ),
    (
        lambda c: start(c, "worker", "RAY_AUTH_MODE=token ", ""),
        "worker_start_ray_commands[1] must set RAY_AUTH_MODE=token before `ray start`, "
        "or anybody who reaches it may run code",
    ),
    (
        lambda c: c["file_mounts"].pop("~/.ray/auth_token"),
        "file_mounts must bring the token to every node, ~/.ray/auth_token: ~/.ray/auth_token",
    ),
    (
        lambda c: start(c, "head", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN=secret RAY_AUTH_MODE"),
        "head_start_ray_commands[1] must not hold the token itself (RAY_AUTH_TOKEN); mount its file",
    ),
    (
        lambda c: c.pop("worker_start_ray_commands"),
        "worker_start_ray_commands must start Ray itself: Ray's own default starts it without a token",
    ),
    (
        lambda c: c["provider"].pop("cache_stopped_nodes"),
        "provider.cache_stopped_nodes must be false: machines that are stopped, not ended, cost money",
    ),
    (
        lambda c: gpu(c)["MetadataOptions"].update(HttpTokens="optional"),
        "available_node_types.gpu_spot.node_config.MetadataOptions.HttpTokens must be required (IMDSv2), "
        "or any request gives away the credentials",
    ),
    (
        lambda c: gpu(c)["MetadataOptions"].update(HttpTokens="always"),
        "available_node_types.gpu_spot.node_config.MetadataOptions.HttpTokens must be optional or required, "
        "got 'always'",
    ),
    (
        lambda c: gpu(c)["BlockDeviceMappings"][0]["Ebs"].update(Encrypted=False),
        "available_node_types.gpu_spot.node_config.BlockDeviceMappings[0].Ebs.Encrypted must be true",
    ),
    (
        lambda c: c["setup_commands"].append("echo 'never closed"),
        "setup_commands[4] is not a shell command: unexpected EOF while looking for matching `''",
    ),
    (
        lambda c: gpu(c).update(InstanceType="t3.nano"),
        "available_node_types.gpu_spot.node_config has no price here: the machine type must be c7i.large, ",
    ),
    (
        lambda c: c.pop("idle_timeout_minutes"),
        "idle_timeout_minutes must be given, since nodes of gpu_on_demand come and go",
    ),
    (
        lambda c: c["provider"].update(type="azure"),
        "provider.type must be aws, gcp or local to be checked, got 'azure'",
    ),
    (
        lambda c: c["setup_commands"].append("pip install 'ray[default] == 2.9'"),
        f"setup_commands[4] must install ray=={version('ray')}, which this program runs with, got 2.9",
    ),
    (
        lambda c: c["setup_commands"].append("pip install 'torch>=2; python_version > \"3\"'"),
        "setup_commands[4] must name a version (==) or a constraints file (-c) for 'torch>=2; python_version > \"3\"'",
    ),
    (
        lambda c: c["setup_commands"].append("conda install -y -c conda-forge pytorch"),
        "setup_commands[4] must name a version (=) for 'pytorch'",
    ),
    (
        lambda c: c["setup_commands"].append("~/.uv/bin/uv tool install ruff"),
        "setup_commands[4] must name a version (==) or a constraints file (-c) for 'ruff'",
    ),
    (
        lambda c: c["setup_commands"].append("pipx install ruff"),
        "setup_commands[4] must name a version (==) or a constraints file (-c) for 'ruff'",
    ),
    (
        lambda c: c["setup_commands"].append("bash -lc 'pip install einops'"),
        "setup_commands[4] must name a version (==) or a constraints file (-c) for 'einops'",
    ),
    (
        lambda c: c["setup_commands"].append("pip install einops # don't"),
        "setup_commands[4] must name a version (==) or a constraints file (-c) for 'einops'",
    ),
    (
        lambda c: c["setup_commands"].append("pip install -c c.txt git+https://example.org/x@main"),
        "setup_commands[4] must name a commit (@ and its 40 digits) for 'git+https://example.org/x@main', "
        "whose branches and tags move on",
    ),
    (
        lambda c: c["setup_commands"].append("~/.uv/bin/uv venv --python 3.10.2 ~/other"),
        "setup_commands[4] must name the same Python as the others, got 3.11.7 and 3.10.2",
    ),
    (
        lambda c: (
            c["setup_commands"].append("python3 -m venv ~/other"),
            start(c, "worker", "~/cifar_ray_env/bin", "~/other/bin"),
        ),
        "setup_commands[4] must name the Python version, such as `uv venv --python 3.11.7`, as nodes must agree",
    ),
    (
        lambda c: c["setup_commands"].append("cat > ~/x <<'END'\nit's\nEND"),
        "setup_commands[4] cannot be judged (No closing quotation): write it plainly, or put it into a file of file_m",
    ),
    (
        lambda c: c["setup_commands"].append("bash <<END\npip install einops\nEND"),
        "setup_commands[4] cannot be judged (a here-document): write it plainly, or put it into a file of file_mounts",
    ),
    (
        lambda c: c["setup_commands"].append('sh -c "echo \'open"'),
        "setup_commands[4] cannot be judged (No closing quotation): write it plainly, or put it into a file of file_m",
    ),
    (
        lambda c: start(c, "worker", "RAY_AUTH_MODE=token ", "RAY_AUTH_MODE=token sudo "),
        "worker_start_ray_commands[1] must set RAY_AUTH_MODE=token before `ray start`, ",
    ),
    *[
        (
            lambda c, allowed=allowed: c["provider"].update(security_group={"IpPermissions": [allowed]}),
            f"provider.security_group.IpPermissions[0].{sentence}",
        )
        for allowed, sentence in (
            (
                {"FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/1"}, {"CidrIp": "128.0.0.0/1"}]},
                "IpRanges must not open ports 22 to 22 to everybody (128.0.0.0/1); a range is /16 at most",
            ),
            (
                {"FromPort": 22, "ToPort": 22, "Ipv6Ranges": [{"CidrIpv6": "2001:db8::/32"}]},
                "Ipv6Ranges must not open ports 22 to 22 to everybody (2001:db8::/32); a range is /48 at most",
            ),
            (
                {"FromPort": 8265, "ToPort": 8265, "IpRanges": [{"CidrIp": "203.0.113.7/32"}]},
                "IpRanges must not open ports 8265 to 8265 to 203.0.113.7/32; SSH (port 22) alone is for addresses",
            ),
            (
                {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "203.0.113.7/32"}]},
                "IpRanges must not open all ports to 203.0.113.7/32; SSH (port 22) alone is for addresses",
            ),
            (
                {"FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "me"}]},
                "IpRanges must be ranges of addresses such as 203.0.113.7/32, got me",
            ),
        )
    ],
    (
        lambda c: gpu(c).update(IamInstanceProfile={"Name": "ray-autoscaler-v1"}),
        "available_node_types.gpu_spot.node_config.IamInstanceProfile must not be Ray's own, ray-autoscaler-v1, "
        "which has all of EC2 and S3",
    ),
    *[
        (
            lambda c, command=command: c["head_setup_commands"].append(command),
            f"head_setup_commands[4] must keep {flag} on 127.0.0.1 and be reached through SSH, got {address}",
        )
        for command, flag, address in (
            ("mlflow server -h 0.0.0.0", "-h", "0.0.0.0"),
            ("python -m mlflow server --host=10.0.0.5 --port 1", "--host", "10.0.0.5"),
            ("gunicorn --bind 0.0.0.0:80 app", "--bind", "0.0.0.0:80"),
            ("nohup uvicorn --host $HOST app", "--host", "$HOST"),
        )
    ],
    (
        lambda c: c["head_setup_commands"].append("LISTEN=0.0.0.0 serve"),
        "head_setup_commands[4] must listen on 127.0.0.1 and be reached through SSH, got 0.0.0.0",
    ),
    (
        lambda c: start(c, "head", "=127.0.0.1", "=0"),
        "head_start_ray_commands[1] must keep --dashboard-host on 127.0.0.1 and be reached through SSH, got 0",
    ),
    (
        lambda c: start(c, "head", "=127.0.0.1", "=$(hostname -I)"),
        "head_start_ray_commands[1] must keep --dashboard-host on 127.0.0.1 and be reached through SSH, got $",
    ),
    (
        lambda c: c.update(docker={"run_options": ["-p 0.0.0.0:8265:8265"]}),
        "docker.run_options must publish ports on 127.0.0.1 alone, got -p 0.0.0.0:8265:8265",
    ),
    (
        lambda c: c.update(docker={"run_options": ["--privileged"]}),
        "docker.run_options must not have --privileged, with which a container owns the machine",
    ),
    (
        lambda c: gpu(c)["BlockDeviceMappings"][0].pop("Ebs"),
        "available_node_types.gpu_spot.node_config.BlockDeviceMappings must list the disk that the machine boots from, "
        "/dev/sda1 or /dev/xvda, with Encrypted: true",
    ),
    (
        lambda c: gpu(c)["BlockDeviceMappings"][0].update(DeviceName="/dev/sdb"),
        "available_node_types.gpu_spot.node_config.BlockDeviceMappings must list the disk that the machine boots from, "
        "/dev/sda1 or /dev/xvda, with Encrypted: true",
    ),
    (
        lambda c: gpu(c)["BlockDeviceMappings"][0]["Ebs"].pop("Encrypted"),
        "available_node_types.gpu_spot.node_config.BlockDeviceMappings[0].Ebs.Encrypted must be true",
    ),
    *[
        (lambda c, source=source: c["file_mounts"].update(there=source), sentence)
        for source, sentence in (
            ("~/.aws", "file_mounts must not copy ~/.aws: its keys open more than this cluster"),
            ("~/.ssh/id_rsa", "file_mounts must not copy ~/.ssh/id_rsa: its keys open more than this cluster"),
            (".", "file_mounts must not copy all of ., with whatever lies in it: name the pieces"),
            ("~/", "file_mounts must not copy all of ~/, with whatever lies in it: name the pieces"),
        )
    ],
    (
        lambda c: c["setup_commands"].append("AWS_SECRET_ACCESS_KEY=abc aws s3 ls"),
        "setup_commands[4] must not hold AWS_SECRET_ACCESS_KEY: give the machine a role, or have it look the value up",
    ),
    (
        lambda c: c["setup_commands"].append("psql postgresql://user:password@db/mlflow"),
        "setup_commands[4] must not hold an address with a password: have the machine look it up",
    ),
    (
        lambda c: start(c, "head", " --head", ""),
        "head_start_ray_commands[1] must give `ray start` --head, or Ray looks for a head elsewhere",
    ),
    (
        lambda c: start(c, "head", "--autoscaling-config=~/ray_bootstrap_config.yaml", ""),
        "head_start_ray_commands[1] must give `ray start` --autoscaling-config, or no worker is ever started",
    ),
    (
        lambda c: start(c, "worker", "--address=$RAY_HEAD_IP:6379", ""),
        "worker_start_ray_commands[1] must give `ray start` --address=$RAY_HEAD_IP:6379, ",
    ),
    (
        lambda c: c["provider"].update(availability_zone="us-west-2a,us-east-1b"),
        "provider.availability_zone must be in the region us-west-2, got us-east-1b",
    ),
    (
        lambda c: c["setup_commands"].append("echo AWS_DEFAULT_REGION=eu-west-1"),
        "setup_commands[4] must name the region of provider.region, us-west-2, got eu-west-1",
    ),
    (lambda c: c.pop("provider"), "provider.type must be given"),
]


@pytest.mark.parametrize(("fault", "sentence"), AWS, ids=[sentence[:60] for _, sentence in AWS])
def test_a_fault_is_told(tmp_path: Path, fault: Break, sentence: str) -> None:
    config = loaded("cluster.yaml")
    fault(config)
    problems = told(tmp_path, config)
    assert [problem for problem in problems if problem.startswith(sentence)], problems


GCP: list[tuple[Break, str]] = [
    (
        lambda c: c["provider"].update(zone="us-central1-a"),
        "provider.zone is unknown",
    ),
    (
        lambda c: gpu(c)["scheduling"].update(preemptable=True),
        "available_node_types.gpu_spot.node_config.scheduling.preemptable is unknown; did you mean 'preemptible'?",
    ),
    (
        lambda c: gpu(c)["disks"][0]["initializeParams"].update(sourceImage="projects/x/global/images/family/common"),
        "available_node_types.gpu_spot.node_config.disks[0].initializeParams.sourceImage must be one image, not a "
        "family that moves on, got 'projects/x/global/images/family/common'",
    ),
    (
        lambda c: gpu(c).update(scheduling="SPOT"),
        "available_node_types.gpu_spot.node_config.scheduling must be a mapping, got 'SPOT'",
    ),
    (
        lambda c: gpu(c).pop("networkInterfaces"),
        "available_node_types.gpu_spot.node_config.networkInterfaces must name a subnetwork of your own: "
        "the default one lets SSH in from everywhere",
    ),
    (
        lambda c: gpu(c).pop("serviceAccounts"),
        "available_node_types.gpu_spot.node_config.serviceAccounts must name an account of few rights: "
        "Ray's own may administer all machines",
    ),
    (
        lambda c: gpu(c)["networkInterfaces"][0].update(subnetwork="projects/x/regions/y/subnetworks/default"),
        "available_node_types.gpu_spot.node_config.networkInterfaces must name a subnetwork of your own: "
        "the default one lets SSH in from everywhere",
    ),
    *[
        (
            lambda c, email=email: gpu(c)["serviceAccounts"][0].update(email=email),
            "available_node_types.gpu_spot.node_config.serviceAccounts must name an account of few rights, "
            f"which {email} is not",
        )
        for email in (
            "default",
            "ray-autoscaler-sa-v1@x.iam.gserviceaccount.com",
            "1-compute@developer.gserviceaccount.com",
        )
    ],
    (
        lambda c: gpu(c).pop("disks"),
        "available_node_types.gpu_spot.node_config.disks must list the disk that the machine boots from (boot: true), "
        "with its image",
    ),
    (
        lambda c: c["provider"].update(availability_zone="europe-west4-a"),
        "provider.availability_zone must be in the region us-central1, got europe-west4-a",
    ),
]


@pytest.mark.parametrize(("fault", "sentence"), GCP, ids=[sentence[:60] for _, sentence in GCP])
def test_a_fault_on_gcp_is_told(tmp_path: Path, fault: Break, sentence: str) -> None:
    config = loaded("examples/cluster-gcp.yaml")
    fault(config)
    assert told(tmp_path, config) == (sentence,)


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        ("pip install -q x==1 > log 2>&1 && ray stop", [("pip", "install", "-q", "x==1"), ("ray", "stop")]),
        ("A=1 sudo B=2 /usr/bin/ray start; (cd /; ls)", [("ray", "start"), ("cd", "/"), ("ls",)]),
        ("pip install 'a>=1; python_version > \"3\"'", [("pip", "install", 'a>=1; python_version > "3"')]),
        ("first \\\n  word\nsecond", [("first", "word"), ("second",)]),
        ("echo 'open", []),
        ("sudo -u ubuntu env X=1 ray start", [("ray", "start")]),
        ("timeout -k 5 60 ray start; nice -n 5 ls", [("ray", "start"), ("ls",)]),
        ("ls a#b # it's\nid", [("ls", "a#b"), ("id",)]),
        ("if id; then { ray stop; }; fi", [("id",), ("ray", "stop"), ("}",), ("fi",)]),
    ],
)
def test_a_command_is_the_programs_that_it_calls(command: str, calls: list[tuple[str, ...]]) -> None:
    assert [call.words for call in shell.Command("", command).calls()] == calls


@pytest.mark.parametrize(
    "command",
    [
        "sudo -u ubuntu env RAY_AUTH_MODE=token ray start --address=$RAY_HEAD_IP:6379",
        "RAY_AUTH_MODE=token timeout 60 ray start --address=$RAY_HEAD_IP:6379",
        "pip install 'ray==" + version("ray") + '; python_version>"3"\'',
        "pip install git+https://example.org/x@" + "0" * 40,
        "conda install -y -c conda-forge numpy=2.3.1  # it's exact",
        "mlflow server --host 127.0.0.1; uvicorn --host localhost app; gunicorn -b [::1]:80 app",
        "psql -h $HOST mlflow && ufw deny from 0.0.0.0/0",
        "PGPASSWORD=$(cat password) psql postgresql://mlflow:$PASSWORD@db/mlflow",
    ],
)
def test_a_sound_command_passes(tmp_path: Path, command: str) -> None:
    config = loaded("cluster.yaml")
    config["worker_start_ray_commands"].append(command)
    assert told(tmp_path, config) == ()


LOCAL = """
cluster_name: desk
provider: {type: local, head_ip: 192.0.2.1, worker_ips: [192.0.2.2]}
auth: {ssh_user: ubuntu}
min_workers: 1
max_workers: 1
file_mounts: {~/.ray/auth_token: ~/.ray/auth_token}
head_start_ray_commands: [ray stop, RAY_AUTH_MODE=token ray start --head --autoscaling-config=~/ray_bootstrap_config.yaml]
worker_start_ray_commands: ['export RAY_AUTH_MODE=token; ray start --address=$RAY_HEAD_IP:6379']
"""


def test_machines_that_one_has_are_neither_priced_nor_ended(tmp_path: Path) -> None:
    assert told(tmp_path, LOCAL) == ()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("worker_ips: [192.0.2.2]", "workers: []", "provider.worker_ips must be given"),
        ("head_ip:", "head_ips: 1, head_ip:", "provider.head_ips is unknown; did you mean 'head_ip'?"),
        (
            "auth:",
            "available_node_types: {head: {node_config: {}, resources: {}}}\nauth:",
            "available_node_types must not be given with provider.type local, whose nodes are in worker_ips",
        ),
        (
            "auth: {ssh_user: ubuntu}",
            "auth: {}",
            "auth.ssh_user must be given: the user that Ray logs in as on every machine",
        ),
        (
            "worker_ips: [192.0.2.2]",
            "worker_ips: []",
            "provider.worker_ips must name one machine or more; without workers no `ray up` is needed",
        ),
        (
            "[192.0.2.2]",
            "[192.0.2.1]",
            "provider.worker_ips must not have the head's address, 192.0.2.1: it trains without that",
        ),
        ("max_workers: 1", "max_workers: 2", "max_workers must be 1, as many as worker_ips, got 2"),
        (
            "min_workers: 1",
            "min_workers: 0",
            "min_workers must be 1 to 1, got 0: with 0 no worker is there when a run looks",
        ),
    ],
)
def test_a_fault_in_a_file_for_machines_that_one_has_is_told(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert sentence in told(tmp_path, LOCAL.replace(old, new))


@pytest.mark.parametrize(
    "key", ["available_node_types", "provider", "auth", "file_mounts", "setup_commands", "head_start_ray_commands"]
)
@pytest.mark.parametrize("value", [None, "x", [None]])
def test_a_value_of_the_wrong_kind_is_told(tmp_path: Path, key: str, value: Any) -> None:
    config = loaded("cluster.yaml")
    config[key] = value
    assert [problem for problem in told(tmp_path, config) if key in problem]


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    config = loaded("cluster.yaml")
    for fault, _ in AWS[:2] + AWS[4:7]:
        fault(config)
    assert {sentence for _, sentence in AWS[:2] + AWS[4:7]} <= set(told(tmp_path, config))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cluster_name: [1", "is no YAML: expected ',' or ']', but got '<stream end>' in line 1"),
        ("a: 1\nb: x: y\n", "is no YAML: mapping values are not allowed here in line 2"),
        ("a: 1\na: 2\n", "cannot be read: it has the key 'a' twice"),
        ("- 1\n", "must be a mapping of keys to values"),
        ("", "must be a mapping of keys to values"),
    ],
)
def test_what_is_no_cluster_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    assert main.main(["cluster", "check", str(file)]) == 2
    assert capsys.readouterr().err == f"error: {file} {sentence}\n"


def test_the_command_tells_an_unknown_key_and_goes_on_with_the_next_file(tmp_path: Path) -> None:
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
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: broken.yaml: max_worker is unknown to Ray; did you mean 'max_workers'?",
        "error: gone.yaml cannot be read: No such file or directory",
    ]
    assert done.stdout == f"{ROOT / 'cluster.yaml'}: ok\n"
    assert f"note: {ROOT / 'cluster.yaml'}: 8 values are still to be filled in: provider.region, " in done.stderr
    assert "note: broken.yaml: gpu_spot is g4dn.xlarge at 0.22 USD per hour (AWS us-east-1, spot" in done.stderr


@pytest.mark.parametrize("words", [["cluster"], ["cluster", "chek"]])
def test_the_second_word_must_be_known(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main.main(words) == 2
    assert capsys.readouterr().err.startswith("error: cifar-ray cluster must be followed by check")


def test_the_help_says_that_a_file_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["cluster", "check", "--help"])
    shown = capsys.readouterr().out
    assert "[-h] FILE [FILE ...]\n" in shown
    assert "(default" not in shown


def test_there_must_be_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["cluster", "check"]) == 2
    assert capsys.readouterr().err.startswith("error: cifar-ray cluster check needs one or more cluster files")


def test_a_value_is_filled_in_when_its_mark_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    file = tmp_path / "cluster.yaml"
    file.write_text(LOCAL.replace("ssh_user: ubuntu}", "ssh_user: ubuntu}  # YOURS").replace("desk", "YOURS-desk"))
    assert schema.check(file).notes == ("2 values are still to be filled in: cluster_name, auth.ssh_user",)
    file.write_text(LOCAL)
    assert schema.check(file).notes == ()


def test_a_mount_that_is_not_here_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "cluster.yaml"
    file.write_text(LOCAL)
    verdict = schema.check(file)
    assert verdict.problems == ()
    assert verdict.notes == ("file_mounts copies ~/.ray/auth_token, which is not here: `ray up` fails without it",)
