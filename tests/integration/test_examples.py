"""The examples do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cifar_ray.config import runfile, sweepfile, yaml
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import recipe
from tests.support.person import Person

EXAMPLES = Path(__file__).parents[2] / "examples"
OTHERS = {"aws-stack", "cluster-gcp", "cluster-onprem", "rayjob"}
"""What is for other programs than this one; tests of their own hold them."""
YAML = sorted(file for file in EXAMPLES.glob("*.yaml") if file.stem not in OTHERS)
SWEEPS = [file for file in YAML if "grid" in yaml.read(file)]
FILES = [file for file in YAML if file not in SWEEPS]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_is_a_run_that_can_be_started(file: Path) -> None:
    config = recipe.resolve(runfile.load(file))
    assert config != recipe.resolve(TrainConfig())


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_a_file_is_a_sweep_whose_cells_can_be(file: Path) -> None:
    sweep = sweepfile.from_mapping(sweepfile.merge(sweepfile.load(file), {}, str(file)))
    cells = sweeps.cells(sweep, sweeps.combinations(sweep))
    assert len(cells) > 1
    assert all(recipe.resolve(cell.config) for cell in cells if cell.config)
    assert [cell.name for cell in cells if cell.config is None] == []


def test_the_digits_are_swept_and_reported(person: Person) -> None:
    """What ``make quickstart`` does, with one cell of its four."""
    grid = ["--grid", "batch_size=16", "topology=1x2"]
    done = person.runs("sweep", str(EXAMPLES / "digits_sweep.yaml"), *grid, timeout=900)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^runs +2 finished$", done.stdout, flags=re.MULTILINE)
    told = person.runs("report", "digits_sweep", "--out", "out")
    assert told.returncode == 0, told.stderr
    written = {str(path.relative_to(person.home / "out")) for path in (person.home / "out").rglob("[!.]*.*")}
    assert {"report.html", "report.md"} <= written
    assert {Path(name).suffix for name in written} == {".html", ".md", ".csv", ".png", ".svg"}
    page = (person.home / "out/report.html").read_text()
    assert "bs16 1x2 seed1" in page
    assert "±" in page


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.cluster
def test_the_paper_grid_runs(person: Person) -> None:
    """Its settings with one and two nodes, on digits rather than CIFAR-10."""
    grid = "--dataset digits --grid model=simple_cnn batch_size=64 topology=1x1,2x2"
    done = person.runs("sweep", str(EXAMPLES / "paper_grid.yaml"), *grid.split(), timeout=900)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^runs +2 finished$", done.stdout, flags=re.MULTILINE)
    told = person.runs("report", "paper_grid", "--baseline", "rangoju_katneni_2025")
    assert told.returncode == 0, told.stderr
    assert "not those of a cluster" in done.stdout


@pytest.mark.extended
@pytest.mark.slow
def test_strategies_are_compared(person: Person) -> None:
    """The settings of its sweep with two strategies, on digits; a pipeline of one worker is skipped."""
    words = "--dataset digits --model simple_cnn --steps-per-epoch 4 --log-every 2 --skip-infeasible"
    grid = "--grid strategy=all_reduce,gpipe topology=1x1,1x2"
    done = person.runs("sweep", str(EXAMPLES / "strategies.yaml"), *words.split(), *grid.split(), timeout=600)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^runs +3 finished, 1 skipped$", done.stdout, flags=re.MULTILINE)
    told = person.runs("report", "strategies", "--out", "out")
    assert told.returncode == 0, told.stderr
    report = (person.home / "out/report.md").read_text()
    for heading in (
        "Seconds per iteration by strategy",
        "Test loss by strategy and rank",
        "Where a step's time goes",
        "Pipeline bubble",
    ):
        assert heading in report


def test_the_digits_are_learned(person: Person) -> None:
    done = person.runs("train", "--config", str(EXAMPLES / "digits.yaml"))
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"^test accuracy +([\d.]+)%$", done.stdout, flags=re.MULTILINE)
    assert accuracy is not None
    assert float(accuracy[1]) > 95


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in FILES if file.stem != "digits"], ids=lambda file: file.stem)
def test_a_file_trains(file: Path, person: Person) -> None:
    """One epoch of a small data set rather than what the file asks for, which takes long on a CPU."""
    done = person.runs("train", "--config", str(file), "--epochs", "1", "--dataset", "digits", "--topology", "1x2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^images evaluated +360$", done.stdout, flags=re.MULTILINE)


@pytest.mark.slow
def test_from_python(person: Person) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "from_python.py")],
        capture_output=True,
        text=True,
        timeout=300,
        env=person.environment,
        cwd=person.home,
    )
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^(1x\d): accuracy [\d.]+%, [\d,]+ images/s, MLflow run (\w{32})$", done.stdout, flags=re.M)
    assert [topology for topology, _ in shown] == ["1x1", "1x2"]
    client = person.mlflow
    sizes = [client.get_run(run_id).data.params["global_batch_size"] for _, run_id in shown]
    assert sizes == ["64", "64"]
