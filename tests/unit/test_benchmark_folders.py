"""Temporary folders of benchmarks: one that ends removes its own, not those of another that still runs."""

from __future__ import annotations

import importlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the benchmark needs Linux")
def test_folders_of_a_running_benchmark_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    network = importlib.import_module("slow_network")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / f"{network.PREFIX}{ended.pid}-left").mkdir()
    running = tmp_path / f"{network.PREFIX}{os.getppid()}-used"
    running.mkdir()
    with network.temporary_folder():
        assert len(list(tmp_path.iterdir())) == 3
        network.remove_folders()
        assert list(tmp_path.iterdir()) == [running]
