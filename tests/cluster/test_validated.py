"""The validation of the planner: what it predicts of runs that it makes afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.data, pytest.mark.extended]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "validated.py"


def validated(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), *words, "--models", "simple_cnn", "--folder", str(folder)]
    return subprocess.run(line, capture_output=True, text=True, timeout=900)


def test_it_predicts_and_then_runs_what_it_has_predicted(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("tc") is None:
        pytest.skip("network namespaces take root on Linux, and tc")
    probed = validated(tmp_path, "probe")
    assert probed.returncode == 0, probed.stdout + probed.stderr
    assert validated(tmp_path, "predict").returncode == 0
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    planned = {"ddp", "all_reduce", "gather_scatter", "local_sgd"}
    assert {cell["strategy"] for cell in predictions["cells"]} == planned
    assert "must be committed before anything is run" in validated(tmp_path, "run").stderr
    assert not (tmp_path / "runs.json").exists()

    chosen = [cell for cell in predictions["cells"] if cell["topology"] in ("1x1", "4x1")]
    predictions["cells"] = chosen[:3]
    (tmp_path / "predictions.json").write_text(json.dumps(predictions))
    run = validated(tmp_path, "run", "--dry")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "round" not in validated(tmp_path, "run", "--dry").stdout  # all of it has been run
    table = validated(tmp_path, "compare", "--dry")
    assert table.stdout.count("simple_cnn") >= 2
    assert not list(Path("/run/netns").glob("cifar-ray-slow-*"))
