"""What a sweep measures before its runs train."""

from __future__ import annotations

import ray

from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.orchestration.sweep import shared_arithmetic


def failed(cause: Exception) -> ray.exceptions.RayError:
    """What Ray raises for an error of a task."""
    return ray.exceptions.RayTaskError("_measure", str(cause), cause, "p", 1, "ip").as_instanceof_cause()


def test_a_model_that_does_not_compile_says_why() -> None:
    cause = ConfigError("compile", "must be left out for --model resnet: it branches")
    assert shared_arithmetic._refusal(failed(cause)) is cause


def test_a_measurement_that_fails_says_why() -> None:
    refusal = shared_arithmetic._refusal(failed(OSError("no disk")))
    assert isinstance(refusal, RunFailedError)
    assert str(refusal) == "the speeds could not be measured: no disk"
