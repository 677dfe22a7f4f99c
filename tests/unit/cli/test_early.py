"""A mistake is told before torch, Ray and MLflow are imported, and a run is announced before them."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cifar_ray.cli import main
from cifar_ray.cli.train import known_config
from tests.support import mlflow_store

IMAGE = Path(__file__).parents[3] / "docs/studies/vgg11_group_report/charts/confusion.png"
HEAVY = {"torch", "ray", "mlflow", "pandas", "matplotlib", "sklearn"}


def python(code: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment)


EACH = """
import json, os, shlex, sys
from cifar_ray.cli import main
os.chdir(os.environ["HOME"])
for line in json.loads(sys.argv[1]):
    try:
        status = main.main(shlex.split(line))
    except SystemExit as stop:
        status = stop.code
    print(json.dumps([line, status, [*sys.modules]]), file=sys.__stderr__)
"""
REFUSED = """
nosuch
train --nosuch
train --config nosuch.yaml
train --address nosuch
train --address 127.0.0.1:9
train --run-name mine
train --tracking-uri relative.db
resume
sweep nosuch.yaml
plan --nodes 1 --link fast
check-cluster nosuch.yaml
submit -- train --nosuch
serve nosuch --port 99999
register nosuch
ui --port PORT
compare a --max-slowdown 5
"""


def test_help_and_refusals_load_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / ".cifar_ray" / "runs" / "mine" / "checkpoints").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = REFUSED.strip().replace("PORT", str(taken.getsockname()[1])).splitlines()
        lines = ["--help", "train --help", "plan --help-all", "strategies", *refused]
        done = python(EACH, json.dumps(lines), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    ends = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]
    assert {line: status for line, status, _ in ends} == dict.fromkeys(lines, 0) | dict.fromkeys(refused, 2)
    loaded = {line: {*modules} for line, _, modules in ends}
    assert {line: HEAVY & loaded[line] for line in lines if HEAVY & loaded[line]} == {lines[-1]: {"pandas"}}
    assert not {"pydantic", "rich", "yaml", "numpy"} & loaded["--help"]
    assert "numpy" not in loaded["plan --help-all"]


ANNOUNCED = """
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name in ("torch", "ray", "mlflow"):
            raise KeyboardInterrupt
sys.meta_path.insert(0, Refuse())
from cifar_ray.cli import main
for words in sys.argv[1:]:
    main.main(words.split())
"""


def test_the_runs_line_comes_before_the_imports(tmp_path: Path) -> None:
    commands = {
        "train --dataset digits --run-name mine --topology 1x2": "run mine: resnet on digits, 1x2, ddp",
        "sweep --grid batch_size=16,32 --name grid": "sweep grid",
        "plan --dataset digits --name sizes --nodes 1": "sweep sizes",
    }
    done = python(ANNOUNCED, *commands, HOME=str(tmp_path))
    assert done.stdout.splitlines() == [f"{line}: loading PyTorch and Ray" for line in commands.values()]
    assert done.stderr == 3 * "Stopped.\n"


PROGRAM = """
import os
os.getuid = lambda: 4_000_000  # a user without a home folder, as in a container
from cifar_ray.cli import main
if os.environ.get("PRINTS"):
    main.main = lambda: print(os.environ["PRINTS"]) or 0
main.program()
"""


def test_help_needs_no_home_folder_and_names_are_shown_on_a_terminal_of_ascii() -> None:
    done = python(PROGRAM, "--help")
    assert (done.returncode, done.stdout[:35], done.stderr) == (0, "usage: cifar-ray COMMAND [OPTIONS]\n", "")
    done = python(PROGRAM, PRINTS="größe", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "gr\\xf6\\xdfe\n", "")


def test_a_name_that_is_no_utf8_is_that_of_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = mlflow_store.new_store(tmp_path).tracking_uri
    for words in ("delete RUN --yes", "report RUN", f"predict RUN {IMAGE}", "runs RUN", "export RUN"):
        assert main.main([*words.replace("RUN", "a\udcff").split(), "--tracking-uri", where]) == 2
        assert re.match(r"error: there is no [a-z ]+ 'a\\udcff' in ", capsys.readouterr().err)


def test_where_a_run_or_a_sweep_that_is_continued_has_been_is_known_before_ray(home: Path) -> None:
    runs = home / ".cifar_ray" / "runs"
    for name, file, text in (
        ("mine", "config.yaml", "dataset: digits\nlocal_nodes: 2\n"),
        ("grid", "sweep.yaml", "name: grid\ngrid: {lr: [0.1]}\ntrain: {dataset: digits, address: 127.0.0.1:6379}\n"),
        ("torn", "config.yaml", "dataset: ["),
    ):
        (runs / name).mkdir(parents=True)
        (runs / name / file).write_text(text)
    run, sweep = known_config("mine"), known_config("grid")
    assert run == known_config(str(runs / "mine"))
    assert (run.local_nodes, sweep.address) == (2, "127.0.0.1:6379")
    assert known_config("torn") is known_config("0123456789abcdef") is None
