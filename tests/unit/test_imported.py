"""What each process imports: an import costs every one of a run's processes seconds of CPU time."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARIES = {
    "jsonschema", "matplotlib", "mlflow", "numpy", "pandas", "pyarrow", "ray", "scipy", "sklearn", "torch", "torchmetrics", "torchvision",
}  # fmt: skip
OF_RAY_TRAIN = {"jsonschema", "numpy", "pandas", "pyarrow", "ray", "torch"}
IMPORTED = {
    "cifar_ray.cli.main": set(),  # of --help, too
    "cifar_ray.training.loop": {"numpy", "torch"},
    "cifar_ray.orchestration.run.train_worker": {"jsonschema", "numpy", "ray", "torch"},
    "cifar_ray.orchestration.sweep.trial": OF_RAY_TRAIN,
    "cifar_ray.orchestration.run.driver": {*OF_RAY_TRAIN, "mlflow", "scipy"},  # MLflow imports scipy
}


@pytest.mark.parametrize("module", IMPORTED)
def test_a_process_imports_only_the_libraries_that_it_needs(module: str) -> None:
    code = f"import {module}, sys; print(*{LIBRARIES!r} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert {*done.stdout.split()} == IMPORTED[module]
