"""Where a run's figures come from: its config, data set, machine, versions and commit."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.meta_dataset import MetaDataset
from mlflow.entities import Dataset as DatasetEntity
from mlflow.entities import DatasetInput, InputTag

from cifar_ray import tasks
from cifar_ray._version import __version__
from cifar_ray.config import command_line
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import Dataset
from cifar_ray.tracking.study import CHOSEN_BY_TAG, TASK_TAG
from cifar_ray.training import recipe


def run_tags(config: ResolvedConfig, decided: Decided) -> dict[str, str]:
    """Tags of a run that goes on with this config, and what is decided beside it, on this machine."""
    spec = tasks.spec(config, decided.facts)
    return {
        "topology": decided.topology,
        "world_size": str(decided.world_size),
        "global_batch_size": str(config.global_batch_size),
        **{name: str(getattr(config, name)) for name in ("strategy", "dataset", "model", "seed")},
        "mlflow.source.name": "cifar-ray train",
        "cifar_ray.command": recipe.command(config),
        CHOSEN_BY_TAG: "val" if decided.facts.val_size else "nothing",
        **({} if spec == tasks.USUAL else {TASK_TAG: json.dumps(asdict(spec))}),
        **origin_tags(),
    }


def origin_tags() -> dict[str, str]:
    """Tags of the origin of a run's figures: person, machine, versions, commit."""
    tags = {
        "mlflow.source.type": "LOCAL",
        "cifar_ray.machine": f"{platform.node()}, {platform.platform()}",
        "version.python": platform.python_version(),
        "version.cifar-ray": __version__,
    }
    for package in ("torch", "torchvision", "torchmetrics", "ray", "mlflow"):
        tags[f"version.{package}"] = metadata.version(package)
    with suppress(KeyError, OSError):  # in a container, a person may have a number only
        tags["mlflow.user"] = os.environ.get(command_line.SUBMITTED_BY) or getpass.getuser()
    if commit := git_commit():
        tags["mlflow.source.git.commit"] = commit
    return tags


def dataset_input(dataset: Dataset) -> DatasetInput:
    """The data set as MLflow lists it among a run's inputs."""
    name = dataset.name
    meta = MetaDataset(CodeDatasetSource({"cifar_ray.dataset": name}), name=name, digest=dataset.spec.digest)
    return DatasetInput(DatasetEntity.from_dictionary(meta.to_dict()), [InputTag("mlflow.data.context", "training")])


def git_commit() -> str:
    """Commit of this program's source, with ``-dirty`` when files differ from it; empty outside a checkout."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():  # git would tell that of a checkout around it
        return ""
    words = ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
