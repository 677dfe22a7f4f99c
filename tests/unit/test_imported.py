"""What each process imports: an import costs every one of a run's processes seconds of CPU time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
