"""The times of a run's steps on every rank, and what bounds it, as MLflow has them."""

from __future__ import annotations

from mlflow.exceptions import MlflowException
from pydantic import TypeAdapter
from pydantic_core import to_json

from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking import reading, store
from cifar_ray.training.rank_times import StepTimes

FILE = "step_times.json"
"""Artifact of a finished run: its :class:`StepTimes`."""

_TIMES = TypeAdapter(StepTimes)


def text(times: StepTimes) -> str:
    """What :data:`FILE` holds."""
    return to_json(times, indent=1).decode()


def read(uri: str, run: str) -> tuple[str, StepTimes]:
    """Read the name of a run of that name or MLflow id, and the times of its steps.

    Raises:
        ConfigError: when there is no such run, it has recorded none, or the store does not answer.
    """
    client, known = reading.open_run(uri, run)
    try:
        times = store.read_json(client, known.run_id, FILE)
        if times is not None:
            return known.name, _TIMES.validate_python(times)
    except ValueError:
        raise ConfigError("", f"the times that run {run!r} recorded of its steps ({FILE}) are damaged") from None
    except (MlflowException, OSError) as error:
        raise store.refusal(uri, error) from None
    raise ConfigError("", f"run {run!r} has no times of its steps by rank: they are written when it finishes")
