"""Functions of the user's own, beside files that have the names of libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cifar_ray.config import imports


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_no_library_is_taken_from_the_working_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "numbers", "json", "pydantic", "sqlite3", "tabnanny"):
        (here / f"{name}.py").write_text("raise SystemExit(3)\n")
    (here / "nets.py").write_text("import pydantic\nimport tabnanny\ndef build(): ...\n")
    subprocess.run(imports.python("cifar_ray.tracking.pages"), check=True, timeout=60)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert imports.load("nets:build", "model").__name__ == "build"
