"""docs/cluster.md, typed line by line on two hosts with a real sshd: from `ray up` to a served model, and off again.

The page is the script: every line of its fenced blocks is typed on the laptop, as it stands there. What is replaced is
in REPLACED, and concerns the cluster file alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support import hosts
from tests.support.hosts import ROOT, Answer, Network, Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

PAGE = ROOT / "docs" / "cluster.md"
CHAPTER = "Two machines under a desk"
NOT_TYPED = "Once"
"""The part that makes two machines of two boxes; tests/support/hosts.py does it in its own way."""
SUBNET = "192.168.1"
"""As on the page; this network reaches nobody."""
REPLACED = {
    # Nothing is installed: every host sees this machine's own virtual environment.
    "python3 -m venv ~/.uv && ~/.uv/bin/pip install -q uv==0.13.9": f"ln -sfn {sys.prefix} ~/cifar_ray_env",
    "~/.uv/bin/uv pip install": ": ~/.uv/bin/uv pip install",
    # A host takes all of this machine for its own; it shall count two CPUs, and not most of the memory.
    "bin/ray start": "bin/ray start --num-cpus=2 --object-store-memory=200000000",
}
"""Text of examples/cluster-onprem.yaml -> what stands in its place."""
REPEATED = {
    # Ray gives a node 30 s to start, which a busy machine can exceed.
    "ray up --yes mine.yaml": "To terminate the cluster",
    "ray exec mine.yaml 'ray status'": "2 local.cluster.node",
}
"""A line that the page says to repeat -> until it shows this."""
TIMEOUT_S = 600
RECORDS = """python -c "
import json, mlflow, pathlib
client = mlflow.MlflowClient('http://127.0.0.1:5000')
for run in client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]):
    file = pathlib.Path(client.download_artifacts(run.info.run_id, 'placement.json'))
    print('RECORD', json.dumps([run.info.run_name, run.info.status, run.data.tags, json.loads(file.read_text())]))
" """


@dataclass
class Evening:
    """What came of the chapter.

    Attributes:
        network: the machines, still on.
        answers: line -> what came of it, in the order in which they were typed.
        listening: addresses and ports that the head listened on while the model was served.
        running: host -> what ran on it at that time.
        records: run -> status, tags and placement in MLflow.
    """

    network: Network
    answers: dict[str, Answer] = field(default_factory=dict)
    listening: set[str] = field(default_factory=set)
    running: dict[str, list[str]] = field(default_factory=dict)
    records: dict[str, tuple[str, dict[str, str], list[dict[str, object]]]] = field(default_factory=dict)

    def said(self, beginning: str) -> str:
        """The output of the one line that begins so."""
        (answer,) = (answer for line, answer in self.answers.items() if line.startswith(beginning))
        return answer.output


def chapter() -> list[tuple[str, list[str]]]:
    """The parts of the chapter: heading, and the lines of its fenced blocks."""
    (text,) = (part for part in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE) if part.startswith(CHAPTER))
    parts = [part.partition("\n") for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]]
    blocks = {heading: re.findall(r"```bash\n(.*?)```", body, flags=re.DOTALL) for heading, _, body in parts}
    assert NOT_TYPED in blocks
    return [(heading, "".join(found).splitlines()) for heading, found in blocks.items() if heading != NOT_TYPED]


@pytest.fixture(scope="module")
def evening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evening]:
    if reason := hosts.lacking():
        pytest.skip(reason)
    with hosts.network(tmp_path_factory.mktemp("hosts"), ("head", "worker"), SUBNET) as network:
        happened = Evening(network)
        terminal = Terminal(network.laptop)
        unpack(terminal)
        for heading, lines in chapter():
            if heading == "Everything off":
                look(happened, terminal)
            for line in lines:
                happened.answers[line] = typed(terminal, line)
        yield happened
        terminal.close()


def unpack(terminal: Terminal) -> None:
    """A checkout on the laptop, whose cluster file has what the hosts need."""
    file = ROOT / "examples" / "cluster-onprem.yaml"
    text = file.read_text()
    for old, new in REPLACED.items():
        assert old in text, f"{file.name} has no {old!r} any more"
        text = text.replace(old, new)
    text = re.sub(r"  # YOURS.*", "", text)  # the values are this network's
    excluded = "--exclude=.git --exclude=.venv --exclude='.*_cache' --exclude=__pycache__"
    for line in (
        f"rsync -a {excluded} {ROOT}/ ~/cifar_ray && cd ~/cifar_ray && export PYTHONPATH=$PWD",
        f"cat > examples/{file.name} <<'END'\n{text}END",
    ):
        answer = terminal.types(line)
        assert answer.status == 0, answer.output


def typed(terminal: Terminal, line: str) -> Answer:
    """Type a line of the page, which must succeed; one that is repeated, until it shows what it is repeated for."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        answer = terminal.types(line, TIMEOUT_S)
        if answer.status == 0 and REPEATED.get(line, "") in answer.output:
            return answer
        assert line in REPEATED, f"`{line}` has ended with {answer.status}:\n{answer.output}"
        assert time.monotonic() < end, f"`{line}` does not show {REPEATED[line]!r}:\n{answer.output}"
        time.sleep(1)


def look(happened: Evening, terminal: Terminal) -> None:
    """What there is while everything is on."""
    head, _ = happened.network.hosts
    listed = subprocess.run(
        ["nsenter", f"--target={head.pid}", "--net", "ss", "-Hltn"], capture_output=True, text=True, check=True
    )
    happened.listening = {line.split()[3] for line in listed.stdout.splitlines()}
    happened.running = {host.name: host.processes() for host in happened.network.hosts}
    told = typed(terminal, RECORDS)
    for line in told.output.splitlines():
        if line.startswith("RECORD "):
            name, *rest = json.loads(line.removeprefix("RECORD "))
            happened.records[name] = tuple(rest)


def test_head_and_worker_join_by_ray_up_alone(evening: Evening) -> None:
    assert "2 local.cluster.node" in evening.said("ray exec mine.yaml 'ray status'")
    for host in evening.network.hosts:
        assert any("raylet" in process for process in evening.running[host.name])
    assert any("mlflow" in process for process in evening.running["head"])


def test_the_runs_stand_where_their_topology_says(evening: Evening) -> None:
    head, worker = (host.address for host in evening.network.hosts)
    on = {name: sorted(str(place["address"]) for place in placed) for name, (_, _, placed) in evening.records.items()}
    assert on.pop("one") in ([head], [worker])
    assert on == {"two": sorted([head, worker]), "four": sorted([head, head, worker, worker])}
    assert {status for status, _, _ in evening.records.values()} == {"FINISHED"}
    for name in ("two", "four"):  # gloo finds the interface, though the host's name means loopback
        placed = {(place["host"], place["interface"]) for place in evening.records[name][2]}
        assert placed == {("head", "eth0"), ("worker", "eth0")}


def test_one_two_and_four_workers_come_to_the_same_weights(evening: Evening) -> None:
    (weights,) = {tags["cifar_ray.weights_sha256"] for _, tags, _ in evening.records.values()}
    for line in ("ray job logs", "ray exec mine.yaml 'cifar-ray train", "ray job submit"):
        assert weights in evening.said(line)


def test_jobs_are_listed_runs_are_compared_and_the_model_answers(evening: Evening) -> None:
    assert "submission_id='one'" in evening.said("ray job list")
    assert all(name in evening.said("cifar-ray compare") for name in ("1x1", "2x1", "2x2"))
    assert len(json.loads(evening.said("curl -sS --data-binary"))["classes"]) == 3
    assert "models:/digits/1" in evening.said("cifar-ray register")


def test_pages_jobs_and_models_are_reached_through_ssh_alone(evening: Evening) -> None:
    for port in (8265, 5000, 8000):
        assert {address for address in evening.listening if address.endswith(f":{port}")} == {f"127.0.0.1:{port}"}


def test_nothing_runs_any_more_on_either_host(evening: Evening) -> None:
    for answer in list(evening.answers.values())[-2:]:
        assert answer.output == "nothing"
    assert {host.name: host.processes() for host in evening.network.hosts} == {"head": [], "worker": []}
