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

EACH = """
import json, shlex, sys
from cifar_ray.cli import main
for line in json.loads(sys.argv[1]):
    status = main.main(shlex.split(line))
    loaded = [name for name in ("torch", "ray", "mlflow", "pandas", "matplotlib", "sklearn") if name in sys.modules]
    print(json.dumps([line, status, loaded]), file=sys.__stderr__)
"""


def outcomes(lines: list[str], home: Path) -> list[tuple[str, int, list[str]]]:
    """Each command's exit status, and what heavy modules were loaded after it, all in one process."""
    environment = {"HOME": str(home), "PATH": "", "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps(lines)], capture_output=True, text=True, env=environment, cwd=home
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stderr.splitlines() if line.startswith("[")]


def test_a_refusal_loads_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / ".cifar_ray" / "runs" / "mine" / "checkpoints").mkdir(parents=True)
    refused = [
        "nosuch",
        "train --nosuch",
        "train --model nosuch",
        "train --config nosuch.yaml",
        "train --address nosuch",
        "train --address 127.0.0.1:9",
        "train --run-name mine",
        "train --tracking-uri relative.db",
        "resume",
        "sweep nosuch.yaml",
        "sweep --grid lr=0.1 --json",
        "plan --nodes 1 --link fast",
        "plan --nodes 1 --price nosuch",
        "plan --dataset nosuch",
        "plan --topology 1x2",
        "plan --address 127.0.0.1:9",
        "explain",
        "ui --port x",
        "check-cluster nosuch.yaml",
        "submit -- train --nosuch",
        "serve nosuch --port 99999",
        "register nosuch",
    ]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused.append(f"ui --port {taken.getsockname()[1]}")
        assert outcomes(refused, tmp_path) == [(line, 2, []) for line in refused]


def test_a_refused_comparison_loads_pandas_alone(tmp_path: Path) -> None:
    assert outcomes(["compare a --max-slowdown 5"], tmp_path) == [("compare a --max-slowdown 5", 2, ["pandas"])]


def test_strategies_are_listed_without_torch(tmp_path: Path) -> None:
    assert outcomes(["strategies"], tmp_path) == [("strategies", 0, [])]


ANNOUNCED = """
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name in ("torch", "ray", "mlflow"):
            raise KeyboardInterrupt
sys.meta_path.insert(0, Refuse())
from cifar_ray.cli import main
main.main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "train --dataset digits --run-name mine --topology 1x2",
            "run mine: resnet on digits, 1x2, ddp: loading PyTorch and Ray\n",
        ),
        ("sweep --grid batch_size=16,32 --name grid", "sweep grid: loading PyTorch and Ray\n"),
        ("plan --dataset digits --name sizes --nodes 1", "sweep sizes: loading PyTorch and Ray\n"),
    ],
)
def test_the_runs_line_comes_before_the_imports(words: str, line: str, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", ANNOUNCED, *words.split()], capture_output=True, text=True, env=environment
    )
    assert (done.stdout, done.stderr) == (line, "Stopped.\n")


IMAGE = Path(__file__).parents[3] / "docs/studies/vgg11_group_report/charts/confusion.png"

PROGRAM = """
import os
os.getuid = lambda: 4_000_000  # a user without a home folder, as in a container
from cifar_ray.cli import main
if os.environ.get("PRINTS"):
    main.main = lambda: print(os.environ["PRINTS"]) or 0
main.program()
"""


def program(words: list[str], variables: dict[str, str]) -> str:
    """What ``cifar-ray`` prints as a process of its own."""
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path), **variables}
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_help_needs_no_home_folder() -> None:
    assert program(["--help"], {}).startswith("usage: cifar-ray COMMAND [OPTIONS]")


def test_names_are_shown_on_a_terminal_of_ascii() -> None:
    assert program([], {"PRINTS": "größe", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}) == "gr\\xf6\\xdfe\n"


@pytest.mark.parametrize("words", ["delete RUN --yes", "report RUN", f"predict RUN {IMAGE}", "runs RUN", "export RUN"])
def test_a_name_that_is_no_utf8_is_that_of_no_run(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = mlflow_store.new_store(tmp_path).tracking_uri
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
    run, by_path, sweep = known_config("mine"), known_config(str(runs / "mine")), known_config("grid")
    assert run is not None
    assert run.local_nodes == 2
    assert run == by_path
    assert sweep is not None
    assert sweep.address == "127.0.0.1:6379"
    assert known_config("torn") is None
    assert known_config("0123456789abcdef") is None


HELP = """
import sys
from cifar_ray.cli import main
try:
    status = main.main(sys.argv[1:])
except SystemExit as stop:
    status = stop.code
loaded = {"pydantic", "rich", "yaml", "numpy", "pandas", "torch", "ray", "mlflow"} & {*sys.modules}
print(status, *sorted(loaded), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "loaded"),
    [("--help", ""), ("train --help", " pydantic rich yaml"), ("plan --help-all", " pydantic rich yaml")],
)
def test_help_loads_little(words: str, loaded: str) -> None:
    done = subprocess.run([sys.executable, "-c", HELP, *words.split()], capture_output=True, text=True, check=True)
    assert done.stderr == f"0{loaded}\n"
