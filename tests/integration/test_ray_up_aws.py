"""``ray up`` and ``ray down`` of cluster.yaml and its stack, against a server that speaks AWS's protocols.

Everything is Ray's own but the two programs at its edge: where ``ssh`` and ``rsync`` would reach for a machine, programs
of the same names keep a folder per address, write down every command, and carry out those that only touch that folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import sqlalchemy
import yaml

from tests.support.ports import free_port
from tests.support.stores import serving

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
OPERATOR = "203.0.113.7/32"
REGION = "us-west-2"

SSH = """#!{python}
import json, os, shlex, subprocess, sys
at = next(i for i, word in enumerate(sys.argv) if word.startswith("ubuntu@"))
host = sys.argv[at].partition("@")[2]
home = os.path.join({nodes!r}, host)
os.makedirs(home, exist_ok=True)
open(home + "/.bashrc", "a").close()
command = shlex.split(" ".join(sys.argv[at + 1:]))[-1]
with open({log!r}, "a") as log:
    print(json.dumps([host, command]), file=log)
if "(mkdir -p " in command or "chmod 600 " in command:
    sys.exit(subprocess.run(["bash", "-c", command], env={{**os.environ, "HOME": home}}).returncode)
"""

RSYNC = """#!{python}
import json, os, sys
words = sys.argv[1:]
at = words.index("--rsh")
del words[at : at + 2]
host, _, path = words[-1].partition("@")[2].partition(":")
home = os.path.join({nodes!r}, host)
words[-1] = path.replace("~", home, 1)
os.makedirs(os.path.dirname(words[-1]), exist_ok=True)
with open({log!r}, "a") as log:
    print(json.dumps([host, "rsync " + path]), file=log)
os.execv("/usr/bin/rsync", ["rsync", *words])
"""

# One request at a time: moto's own command answers several at once, and its tables are not made for that.
AWS = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
"""

# What the head's autoscaler does when it wants a node: Ray's own launcher and installer, with what `ray up` has left
# on the head.
WORKERS = """
import sys, time
from ray.autoscaler._private.providers import _get_node_provider
from ray.autoscaler.v2.instance_manager.config import FileConfigReader
from ray.autoscaler.v2.instance_manager.node_provider import NodeProviderAdapter
from ray.autoscaler.v2.instance_manager.ray_installer import RayInstaller
from ray.core.generated.instance_manager_pb2 import Instance

reader = FileConfigReader("ray_bootstrap_config.yaml")
config = reader.get_cached_autoscaling_config()
adapter = NodeProviderAdapter(_get_node_provider(config.get_config("provider"), config.get_config("cluster_name")), reader)
adapter.launch({kind: 1 for kind in ("gpu_spot", "gpu_on_demand")}, "request")
for _ in range(600):
    workers = {n.node_type: n for n in adapter.get_non_terminated().values() if n.node_type != "head"}
    errors = adapter.poll_errors()
    assert not errors, errors
    if len(workers) == 2:
        break
    time.sleep(0.1)
node = workers["gpu_spot"]
RayInstaller(adapter.v1_provider, config).install_ray(
    Instance(instance_type="gpu_spot", cloud_instance_id=node.cloud_instance_id), "10.1.2.3"
)
"""


@dataclasses.dataclass
class Cloud:
    """A cloud of this machine, and a person who uses it.

    Attributes:
        folder: where everything of it is.
        environment: of the person's commands.
        endpoint: address of the server that stands for AWS.
    """

    folder: Path
    environment: dict[str, str]
    endpoint: str

    @property
    def nodes(self) -> Path:
        return self.folder / "nodes"

    @property
    def file(self) -> Path:
        return self.folder / "cluster.yaml"

    def client(self, name: str) -> Any:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client(name, region_name=REGION, endpoint_url=self.endpoint, **keys)

    def runs(self, *words: str, cwd: Path = ROOT, **variables: str) -> str:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=600, cwd=cwd, env={**self.environment, **variables}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def ray(self, *words: str) -> str:
        return self.runs(sys.executable, "-m", "ray.scripts.scripts", *words)

    def log(self) -> list[tuple[str, str]]:
        """Host and command, in the order of their coming."""
        return [tuple(json.loads(line)) for line in (self.folder / "log").read_text().splitlines()]

    def instances(self, *states: str) -> dict[str, dict[str, Any]]:
        """Node type -> machine."""
        wanted = [{"Name": "instance-state-name", "Values": list(states)}]
        found = self.client("ec2").describe_instances(Filters=wanted)["Reservations"]
        machines = [machine for reservation in found for machine in reservation["Instances"]]
        return {tags(machine)["ray-user-node-type"]: machine for machine in machines}


def tags(machine: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in machine["Tags"]}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("aws")
    port = free_port()
    (folder / "bin").mkdir()
    (folder / "home" / ".ray").mkdir(parents=True)
    (folder / "log").touch()
    paths = {"python": sys.executable, "nodes": str(folder / "nodes"), "log": str(folder / "log")}
    for name, text in (("ssh", SSH), ("rsync", RSYNC)):
        (folder / "bin" / name).write_text(text.format(**paths))
        (folder / "bin" / name).chmod(0o755)
    token = folder / "home" / ".ray" / "auth_token"
    token.write_text("0" * 64)
    token.chmod(0o644)  # as Ray writes it
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RAY_"))}
    environment |= {
        "HOME": str(folder / "home"),
        "PATH": f"{folder / 'bin'}:{environment['PATH']}",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
    }
    with serving([sys.executable, "-c", AWS, str(port)], f"http://127.0.0.1:{port}/moto-api/"):
        yield Cloud(folder, environment, f"http://127.0.0.1:{port}")


@pytest.fixture(scope="module")
def outputs(cloud: Cloud) -> dict[str, str]:
    """What examples/aws-stack.yaml tells of what it has made."""
    network = cloud.client("ec2").describe_subnets(Filters=[{"Name": "availability-zone", "Values": [f"{REGION}a"]}])[
        "Subnets"
    ][0]
    given = {"VpcId": network["VpcId"], "OperatorCidr": OPERATOR, "DatabasePassword": "x" * 40}
    formation = cloud.client("cloudformation")
    formation.create_stack(
        StackName="cifar-ray",
        TemplateBody=(ROOT / "examples" / "aws-stack.yaml").read_text(),
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
        Capabilities=["CAPABILITY_NAMED_IAM"],
    )
    (stack,) = formation.describe_stacks(StackName="cifar-ray")["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]} | {"Subnet": network["SubnetId"]}


@pytest.fixture(scope="module")
def up(cloud: Cloud, outputs: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The machines after `ray up`, and after the head has rented one worker of each type."""
    image = cloud.client("ec2").describe_images(Filters=[{"Name": "name", "Values": ["ubuntu*"]}])["Images"][0][
        "ImageId"
    ]
    text = (ROOT / "cluster.yaml").read_text()
    for mark, value in {
        r"ami-0+\d": image,
        "sg-0+": outputs["SecurityGroup"],
        "subnet-0+": outputs["Subnet"],
        "YOURS-BUCKET": outputs["Bucket"],
        "YOURS-REGION": REGION,
        r"  # YOURS[^\n]*": "",
    }.items():
        text, replaced = re.subn(mark, value, text)
        assert replaced, mark
    cloud.file.write_text(text)
    said = cloud.runs(sys.executable, "-m", "cifar_ray.cli", "check-cluster", str(cloud.file))
    assert f"{cloud.file}: ok" in said
    assert "to be filled in" not in said
    cloud.ray("up", "-y", "--no-config-cache", str(cloud.file))
    (head,) = cloud.nodes.iterdir()
    cloud.runs(sys.executable, "-c", WORKERS, cwd=head, HOME=str(head))
    return cloud.instances("pending", "running")


def test_the_stack_lets_in_ssh_from_the_operator_and_its_own_members(cloud: Cloud, outputs: dict[str, str]) -> None:
    groups = cloud.client("ec2").describe_security_groups()["SecurityGroups"]
    by_name = {group["GroupName"]: group["IpPermissions"] for group in groups}
    among, ssh = sorted(by_name["cifar-ray"], key=lambda rule: rule["IpProtocol"])
    assert (ssh["FromPort"], ssh["ToPort"], [allowed["CidrIp"] for allowed in ssh["IpRanges"]]) == (22, 22, [OPERATOR])
    assert (ssh["Ipv6Ranges"], ssh["UserIdGroupPairs"]) == ([], [])
    assert (among["IpProtocol"], among["IpRanges"], among["Ipv6Ranges"]) == ("-1", [], [])
    assert [pair["GroupId"] for pair in among["UserIdGroupPairs"]] == [outputs["SecurityGroup"]]
    (database,) = by_name["cifar-ray-database"]
    assert (database["FromPort"], database["ToPort"], database["IpRanges"]) == (5432, 5432, [])
    assert [pair["GroupId"] for pair in database["UserIdGroupPairs"]] == [outputs["SecurityGroup"]]


def test_the_stack_gives_few_rights(cloud: Cloud, outputs: dict[str, str]) -> None:
    iam = cloud.client("iam")

    def statements(role: str) -> list[dict[str, Any]]:
        assert iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"] == []
        names = iam.list_role_policies(RoleName=role)["PolicyNames"]
        documents = [iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"] for name in names]
        # The server hands the template's policies back as text.
        return [statement for document in documents for statement in yaml.safe_load(str(document))["Statement"]]

    allowed = [
        (action, s["Resource"], s.get("Condition")) for s in statements("cifar-ray-worker") for action in s["Action"]
    ]
    bucket = f"arn:aws:s3:::{outputs['Bucket']}"
    assert {resource for _, resource, _ in allowed} == {bucket, f"{bucket}/runs/*"}
    assert {action.split(":")[0] for action, _, _ in allowed} == {"s3"}
    # With a condition on the prefix, S3 answers the question for a file that is not there with 403 in place of 404.
    assert [each for each in allowed if each[0] == "s3:ListBucket"] == [("s3:ListBucket", bucket, None)]
    types = [
        s["Condition"]["StringEquals"]["ec2:InstanceType"]
        for s in statements("cifar-ray-head")
        if "ec2:RunInstances" in s["Action"] and "Condition" in s
    ]
    kinds = yaml.safe_load((ROOT / "cluster.yaml").read_text())["available_node_types"]
    assert types == list({kind["node_config"]["InstanceType"] for name, kind in kinds.items() if name != "head"})
    head = {action: s for s in statements("cifar-ray-head") for action in s["Action"] if not action.startswith("s3:")}
    assert head["ec2:TerminateInstances"]["Condition"] == {
        "StringEquals": {"aws:ResourceTag/ray-cluster-name": "cifar-ray"}
    }
    assert head["iam:PassRole"]["Resource"].endswith(":role/cifar-ray-worker")
    assert head["ssm:GetParameter"]["Resource"].endswith(":parameter/cifar-ray/*")
    allowed = "DescribeInstances DescribeInstanceTypes DescribeImages RunInstances CreateTags TerminateInstances"
    assert set(head) == {*(f"ec2:{each}" for each in allowed.split()), "iam:PassRole", "ssm:GetParameter"}


def test_the_machines_are_what_the_file_says(
    cloud: Cloud, outputs: dict[str, str], up: dict[str, dict[str, Any]]
) -> None:
    kinds = {
        "head": ("m7i.xlarge", None, 40),
        "gpu_spot": ("g6.xlarge", "spot", 100),
        "gpu_on_demand": ("g6.xlarge", None, 100),
    }
    assert set(up) == set(kinds)
    for name, machine in up.items():
        role, found = "head" if name == "head" else "worker", tags(machine)
        assert machine["IamInstanceProfile"]["Arn"].endswith(f":instance-profile/cifar-ray-{role}")
        metadata = machine["MetadataOptions"]
        assert (metadata["HttpTokens"], metadata["HttpPutResponseHopLimit"]) == ("required", 1)
        assert [group["GroupId"] for group in machine["SecurityGroups"]] == [outputs["SecurityGroup"]]
        assert machine["SubnetId"] == outputs["Subnet"]
        assert (found["ray-cluster-name"], found["ray-node-type"]) == ("cifar-ray", role)
        (disk,) = [mapping["Ebs"] for mapping in machine["BlockDeviceMappings"]]
        (volume,) = cloud.client("ec2").describe_volumes(VolumeIds=[disk["VolumeId"]])["Volumes"]
        assert (machine["InstanceType"], machine.get("InstanceLifecycle"), volume["Size"]) == kinds[name]
        assert (volume["Encrypted"], volume["VolumeType"], disk["DeleteOnTermination"]) == (True, "gp3", True)
    assert tags(up["head"])["ray-node-status"] == tags(up["gpu_spot"])["ray-node-status"] == "up-to-date"


@pytest.mark.parametrize("name", ["head", "gpu_spot"])
def test_a_node_gets_its_commands_in_their_order_the_token_for_itself_alone_and_the_package(
    cloud: Cloud, up: dict[str, dict[str, Any]], name: str
) -> None:
    config = yaml.safe_load(cloud.file.read_text())
    address = up[name]["PublicIpAddress" if name == "head" else "PrivateIpAddress"]
    sent = [command for host, command in cloud.log() if host == address]
    part = "head" if name == "head" else "worker"
    expected = [
        "rsync ~/.ray/auth_token",
        *config["initialization_commands"],
        *config["setup_commands"],
        *config[f"{part}_setup_commands"],
        *config[f"{part}_start_ray_commands"],
    ]
    # Ray reads its own, complete file once more on the head, and so sends the commands for all nodes to a worker twice:
    # what is in them must bear that.
    place = -1
    for wanted in expected:
        places = [at for at, command in enumerate(sent) if wanted in command]
        assert len(places) == (2 if part == "worker" and wanted in config["setup_commands"] else 1), (wanted, sent)
        assert places[0] > place, wanted
        place = places[0]
    (start,) = [command for command in sent if "ray start" in command]
    assert "RAY_AUTH_MODE=token " in start
    assert '{"CPU":0}' in start.replace("\\", "") if name == "head" else "RAY_HEAD_IP=10.1.2.3" in start
    home = cloud.nodes / address
    token = home / ".ray" / "auth_token"
    assert token.read_text() == "0" * 64
    assert [stat.S_IMODE(path.stat().st_mode) for path in (token, token.parent)] == [0o600, 0o700]
    copied = {str(path.relative_to(home / "cifar_ray")) for path in (home / "cifar_ray").rglob("*")}
    assert {"pyproject.toml", "constraints.txt", "cifar_ray/cli/main.py", "examples/nodes/profile.sh"} <= copied
    assert not [path for path in copied if re.search(r"\.git\b|venv|__pycache__|\.pem|\.env", path)]


def test_mlflow_gets_its_database_from_the_parameter_store(cloud: Cloud, tmp_path: Path) -> None:
    """The program of the head's unit, with a stand-in for MLflow's that tells what it was given."""
    address = "postgresql+psycopg2://mlflow:secret@db/mlflow"
    cloud.client("ssm").put_parameter(Name="/cifar-ray/mlflow-database", Value=address, Type="SecureString")
    settings = dict(re.findall(r"(DATABASE|AWS_DEFAULT_REGION)=(\S+)", cloud.file.read_text()))
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "mlflow").write_text('#!/bin/sh\necho "$*"; echo "$MLFLOW_BACKEND_STORE_URI"; echo "$DATABASE"\n')
    (tmp_path / "mlflow").chmod(0o755)
    program = str(ROOT / "examples" / "nodes" / "mlflow_server.py")
    said = cloud.runs(str(tmp_path / "python"), program, PYTHONPATH=sysconfig.get_path("purelib"), **settings)
    assert said == f"server --host 127.0.0.1 --port 5000 --serve-artifacts\n{address}\n\n"
    assert (
        sqlalchemy.create_engine(said.splitlines()[1]).driver == "psycopg2"
    )  # loads the driver, and connects to nobody


def test_ray_down_leaves_nothing_that_is_paid_for(cloud: Cloud, up: dict[str, dict[str, Any]]) -> None:
    ec2 = cloud.client("ec2")
    cloud.ray("down", "-y", str(cloud.file))
    assert cloud.instances("pending", "running", "stopping", "stopped", "shutting-down") == {}
    assert set(cloud.instances("terminated")) == set(up)
    assert ec2.describe_volumes()["Volumes"] == []
    assert ec2.describe_addresses()["Addresses"] == []
