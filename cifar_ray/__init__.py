"""Distributed training of image classifiers: Ray places and keeps the workers, MLflow keeps the record.

from cifar_ray import TrainConfig, train

result = train(TrainConfig(dataset="digits", epochs=3, topology="1x2"))
print(result.metrics["test/accuracy"], result.run_id)
"""

import time
from typing import TYPE_CHECKING, Any

from cifar_ray._version import __version__ as __version__

if TYPE_CHECKING:
    from cifar_ray.config.sweep import SweepConfig
    from cifar_ray.config.train import TrainConfig
    from cifar_ray.orchestration.run.driver import resume, train
    from cifar_ray.orchestration.run.listeners import Callback
    from cifar_ray.orchestration.run.mlflow_run import MLflowRun
    from cifar_ray.orchestration.run.train_result import TrainResult
    from cifar_ray.orchestration.sweep.driver import SweepResult, sweep
    from cifar_ray.reporting.compare import compare
    from cifar_ray.reporting.report import report

__all__ = [
    "Callback",
    "MLflowRun",
    "SweepConfig",
    "SweepResult",
    "TrainConfig",
    "TrainResult",
    "compare",
    "report",
    "resume",
    "sweep",
    "train",
]

IMPORTED_AT = time.time()
"""When this process began, as far as this package can tell: start-up is counted from here."""

_HOMES = {
    "Callback": "cifar_ray.orchestration.run.listeners",
    "MLflowRun": "cifar_ray.orchestration.run.mlflow_run",
    "SweepConfig": "cifar_ray.config.sweep",
    "SweepResult": "cifar_ray.orchestration.sweep.driver",
    "TrainConfig": "cifar_ray.config.train",
    "TrainResult": "cifar_ray.orchestration.run.train_result",
    "compare": "cifar_ray.reporting.compare",
    "report": "cifar_ray.reporting.report",
    "resume": "cifar_ray.orchestration.run.driver",
    "sweep": "cifar_ray.orchestration.sweep.driver",
    "train": "cifar_ray.orchestration.run.driver",
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the training code must import where Ray and MLflow are not installed.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
