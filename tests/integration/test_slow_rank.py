"""A rank that is really slowed is the one that is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.extended]  # of a busy machine it cannot be told

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the benchmark needs Linux")
@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        ("stopped", "slow rank: rank 1 on node0 takes"),
        ("loader", "slow data: rank 1 on node0 takes"),
    ],
)
def test_a_rank_that_is_stopped_time_and_again_or_sleeps_is_named(case: str, verdict: str) -> None:
    """By the benchmark, which stops one of two ranks for half of the time, or delays its batches."""
    words = ["--only", case, "--slowed", "1", "--slower", "1", "--dry"]
    words += ["--dataset", "digits", "--images", "128", "--steps", "11", "--epochs", "8"]
    command = [sys.executable, str(ROOT / "benchmarks" / "bottlenecks.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (sentence,) = re.findall(rf"^{case}: (.+)$", done.stdout, re.MULTILINE)
    if sentence.startswith("too few CPUs"):
        pytest.skip("other programs leave the ranks no CPUs")
    assert sentence.startswith(verdict), sentence
    assert "named in 1 (1 of 1)" in done.stdout
