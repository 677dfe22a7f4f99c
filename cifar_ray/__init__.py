"""Distributed training of image classifiers: Ray places and keeps the workers, MLflow keeps the record.

from cifar_ray import TrainConfig, train

result = train(TrainConfig(dataset="digits", epochs=3, topology="1x2"))
print(result.metrics["test/accuracy"], result.run_id)
"""

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cifar_ray.config import TrainConfig
    from cifar_ray.orchestration.sweep import SweepResult, sweep
    from cifar_ray.orchestration.trainer import TrainResult, resume, train
    from cifar_ray.sweeps import SweepConfig

__version__ = "0.1.0"
__all__ = ["SweepConfig", "SweepResult", "TrainConfig", "TrainResult", "resume", "sweep", "train"]

IMPORTED_AT = time.time()
"""When this process began, as far as this package can tell: start-up is counted from here."""

_HOMES = {
    "SweepConfig": "cifar_ray.sweeps",
    "SweepResult": "cifar_ray.orchestration.sweep",
    "TrainConfig": "cifar_ray.config",
    "TrainResult": "cifar_ray.orchestration.trainer",
    "resume": "cifar_ray.orchestration.trainer",
    "sweep": "cifar_ray.orchestration.sweep",
    "train": "cifar_ray.orchestration.trainer",
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the training code must import where Ray and MLflow are not installed.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
