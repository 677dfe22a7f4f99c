"""What each process imports: an import costs every one of a run's processes seconds of CPU time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cifar_ray.config import imports

LIBRARIES = {
    "jsonschema", "matplotlib", "mlflow", "numpy", "pandas", "pyarrow", "ray", "scipy", "sklearn", "torch", "torchmetrics", "torchvision",
}  # fmt: skip
OF_A_DRIVER = {"jsonschema", "mlflow", "numpy", "pandas", "pyarrow", "ray", "scipy", "torch"}  # MLflow imports scipy
IMPORTED = {
    "cifar_ray.cli.main": set(),  # of --help, too
    "cifar_ray.training.loop": {"numpy", "torch"},
    "cifar_ray.orchestration.run.train_worker": {"jsonschema", "numpy", "ray", "torch"},
    "cifar_ray.orchestration.run.driver": OF_A_DRIVER,
    "cifar_ray.orchestration.sweep.cell": OF_A_DRIVER,
}

# Each needs what those before it have imported, and more; the controller of a run has no use for the loop.
IMPORTS = """
import importlib, json, sys
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
    print(module, *LIBRARIES & {*sys.modules})
for name in [name for name in sys.modules if name.startswith("cifar_ray")]:
    del sys.modules[name]
import cifar_ray.orchestration.run.attempt
assert "cifar_ray.training.loop" not in sys.modules
"""


@pytest.mark.slow
def test_a_process_imports_only_the_libraries_that_it_needs() -> None:
    code = f"LIBRARIES = {LIBRARIES!r}{IMPORTS}"
    words = [sys.executable, "-c", code, json.dumps(list(IMPORTED))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {module: {*libraries} for module, *libraries in map(str.split, done.stdout.splitlines())} == IMPORTED


@pytest.mark.slow
def test_no_library_is_taken_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("random", "numbers", "json", "pydantic", "sqlite3", "tabnanny"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "nets.py").write_text("import pydantic\nimport tabnanny\ndef build(): ...\n")
    subprocess.run(imports.python("cifar_ray.tracking.pages"), check=True, timeout=60)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert imports.load("nets:build", "model").__name__ == "build"
