"""`make` installs with uv where it can, and with pip where it cannot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
# Stand-ins that write down how they were called; `python -m venv DIR` brings a pip.
PYTHON = """#!/bin/sh
mkdir -p "$3/bin" && cp "$TOOLS/pip" "$3/bin/pip"
"""
PIP = """#!/bin/sh
echo "pip $*" >> "$TOOLS/calls"
case "$*" in *uv) cp "$TOOLS/new-uv" "$(dirname "$0")/uv" ;; esac
"""
UV = """#!/bin/sh
echo "uv $* into $VIRTUAL_ENV" >> "$TOOLS/calls"
"""
BROKEN = UV + "exit 1\n"
PACKAGES = "--quiet --constraint constraints.txt --editable .[dev]"


@pytest.mark.parametrize(
    ("uv", "calls"),
    [
        ({"uv": UV}, [f"uv pip install {PACKAGES}"]),
        ({}, ["pip install --quiet uv", f"pip install {PACKAGES}"]),
        ({"uv": BROKEN}, [f"uv pip install {PACKAGES}", f"pip install {PACKAGES}"]),
    ],
)
def test_make_installs_with_uv_or_else_with_pip(tmp_path: Path, uv: dict[str, str], calls: list[str]) -> None:
    for name, script in {"python": PYTHON, "pip": PIP, **uv}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TOOLS": str(tmp_path), "HOME": str(tmp_path)}
    venv = tmp_path / "venv"
    words = ["make", f"{venv}/installed", f"VENV={venv}", f"PYTHON={tmp_path / 'python'}"]
    subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=60)
    said = (tmp_path / "calls").read_text().splitlines()
    assert said == [call + (f" into {venv}" if call.startswith("uv") else "") for call in calls]
    assert (venv / "installed").exists()
