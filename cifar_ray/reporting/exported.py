"""A study as one file, from which its report can be made again anywhere, and several of them as one study."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking.study import Point, Study, Trial

SUFFIX = ".json"
VERSION = 1
"""It changes when an old file would mean something else."""

_COMMIT = "mlflow.source.git.commit"


def text(study: Study) -> str:
    """A study as JSON, with all that a report needs of its runs: no weights, and no addresses of MLflow's pages.

    A history is three lists, ``step``, ``timestamp_ms`` and ``value``. A value that is no number, or infinite, is the
    text ``nan``, ``inf`` or ``-inf``.
    """
    whole = dataclasses.asdict(study) | {"page": None, "trials": [_trial(trial) for trial in study.trials]}
    return json.dumps({"cifar_ray_study": VERSION, **_finite(whole)}, indent=None, separators=(",", ":")) + "\n"


def read(path: Path) -> Study:
    """The study of a file that :func:`text` has made; its store is the file's name.

    Raises:
        ConfigError: when the file cannot be read, or is none of these.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole.pop("cifar_ray_study") != VERSION:
            raise ValueError(f"version {VERSION} is needed")
        trials = [_read_trial(trial) for trial in whole.pop("trials")]
        axes, cautions, metrics = (whole.pop(name) for name in ("axes", "cautions", "metrics"))
        whole |= {"axes": tuple(axes), "cautions": tuple(cautions), "metrics": _numbers(metrics), "store": path.name}
        return Study(trials=trials, **whole)
    except OSError as error:
        raise ConfigError("", f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError("", f"{path} is no study that `cifar-ray export` has written ({error})") from None


def together(studies: Sequence[Study]) -> Study:
    """Several studies as one: runs that differ in the seed alone are one configuration, wherever they were trained.

    Whatever else differs between runs tells configurations apart, also the hardware, so that times of different
    machines never share a mean.

    Raises:
        ConfigError: when some hold the batch per worker and others the global batch.
    """
    if len(studies) == 1:
        return studies[0]
    if len({study.hold for study in studies}) > 1:
        held = "; ".join(f"{study.name}: {study.hold or 'neither'}" for study in studies)
        raise ConfigError("", f"studies in one report must hold the same batch size as workers change, got {held}")
    states = {study.status for study in studies}
    return Study(
        name=", ".join(dict.fromkeys(study.name for study in studies)),
        trials=[trial for study in studies for trial in study.trials],
        store=", ".join(dict.fromkeys(study.store for study in studies)),
        command="\n".join(dict.fromkeys(filter(None, (study.command for study in studies)))),
        hold=studies[0].hold,
        status="FINISHED" if states == {"FINISHED"} else (states - {"FINISHED"}).pop(),
        cautions=tuple(dict.fromkeys(caution for study in studies for caution in study.cautions)),
    )


def _trial(trial: Trial) -> dict[str, Any]:
    history = {
        name: {key: [getattr(point, key) for point in points] for key in ("step", "timestamp_ms", "value")}
        for name, points in trial.history.items()
    }
    tags = {name: value for name, value in trial.tags.items() if name == _COMMIT or not name.startswith("mlflow.")}
    return dataclasses.asdict(dataclasses.replace(trial, history={})) | {"history": history, "tags": tags, "page": None}


def _read_trial(whole: dict[str, Any]) -> Trial:
    history = {
        name: [Point(*one) for one in zip(its["step"], its["timestamp_ms"], map(float, its["value"]), strict=True)]
        for name, its in whole.pop("history").items()
    }
    metrics, names = _numbers(whole.pop("metrics")), tuple(whole.pop("class_names"))
    made = Trial(history=history, metrics=metrics, class_names=names, **whole)
    for needed in ("model", "dataset", "topology", "batch_size", "global_batch_size", "seed"):
        getattr(made, needed)  # raises on a parameter that is not there, or no number
    return made


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become text."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
