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
from cifar_ray.config import command_line
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import counted
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import Dataset
from cifar_ray.tracking.study import CHOSEN_BY_NOTHING, CHOSEN_BY_TAG, TASK_TAG
from cifar_ray.training import recipe


def run_tags(config: ResolvedConfig, decided: Decided) -> dict[str, str]:
    """Tags of a run that goes on with this config, and what is decided beside it, on this machine."""
    spec = tasks.spec(config, decided.facts)
    return {
        "topology": decided.topology,
        "world_size": str(decided.world_size),
        "global_batch_size": str(config.global_batch_size),
        "strategy": config.strategy,
        "dataset": config.dataset,
        "model": config.model,
        "seed": str(config.seed),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": "cifar-ray train",
        "cifar_ray.command": recipe.command(config),
        CHOSEN_BY_TAG: "val" if decided.facts.val_size else CHOSEN_BY_NOTHING,
        **({} if spec == tasks.USUAL else {TASK_TAG: json.dumps(asdict(spec))}),
        **origin_tags(),
    }


def note(config: ResolvedConfig, decided: Decided) -> str:
    """What a run is, in Markdown: MLflow shows it as the run's description."""
    unit = tasks.spec(config, decided.facts).unit
    return (
        f"{config.model} on {config.dataset}: topology {decided.topology}, {config.global_batch_size} {unit} per step "
        f"({config.share(decided.world_size)} per worker), {config.strategy}, {counted(config.epochs, 'epoch')}, "
        f"seed {config.seed}\n\n"
        f"    {recipe.command(config)}\n"
    )


def origin_tags() -> dict[str, str]:
    """Tags of the origin of a run's figures: person, machine, versions, commit."""
    tags = {"cifar_ray.machine": f"{platform.node()}, {platform.platform()}"}
    with suppress(KeyError, OSError):  # in a container, a person may have a number only
        tags["mlflow.user"] = os.environ.get(command_line.SUBMITTED_BY) or getpass.getuser()
    for package in ("cifar-ray", "torch", "torchvision", "torchmetrics", "ray", "mlflow"):
        tags[f"version.{package}"] = _version(package)
    tags["version.python"] = platform.python_version()
    if commit := git_commit():
        tags["mlflow.source.git.commit"] = commit
    return tags


def dataset_input(dataset: Dataset) -> DatasetInput:
    """The data set as MLflow lists it among a run's inputs."""
    name = dataset.name
    meta = MetaDataset(CodeDatasetSource({"cifar_ray.dataset": name}), name=name, digest=dataset.spec.digest)
    return DatasetInput(DatasetEntity.from_dictionary(meta.to_dict()), [InputTag("mlflow.data.context", "training")])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def git_commit() -> str:
    """Commit of this program's source, with ``-dirty`` when files differ from it; empty outside a checkout."""
    here = Path(__file__).resolve().parents[2]
    try:
        described = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return described.stdout.strip() if (here / ".git").exists() else ""
