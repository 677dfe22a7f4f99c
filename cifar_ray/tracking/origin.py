"""Where a run's figures come from: its config, data set, machine, versions and commit."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.http_dataset_source import HTTPDatasetSource
from mlflow.data.meta_dataset import MetaDataset
from mlflow.entities import Dataset as DatasetEntity
from mlflow.entities import DatasetInput, InputTag

from cifar_ray import tasks
from cifar_ray.config import command_line
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import counted
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import Dataset
from cifar_ray.tasks import LOSS, Figure, TaskSpec
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.tracking.study import CHOSEN_BY_NOTHING, CHOSEN_BY_TAG, EARLIER, TASK_TAG
from cifar_ray.training import recipe

_HOMES = {
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "cifar100": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "digits": "https://scikit-learn.org/stable/datasets/toy_dataset.html",
}
_SPEED: Mapping[str, Callable[[float], str]] = {
    "time/iteration_mean_s": lambda seconds: f"iteration {1000 * seconds:,.1f} ms",
    "time/epoch_mean_s": "epoch {:,.2f} s".format,
    "time/training_s": "training {:,.2f} s".format,
    "time/evaluation_s": "evaluation {:,.2f} s".format,
    "time/wall_s": "wall time {:,.2f} s".format,
    "peak_memory_mib": "peak memory of a worker {:,.0f} MiB".format,
}
"""Metric -> how its value is written."""


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


def figures(task: TaskSpec, metrics: Mapping[str, float]) -> list[str]:
    """The figures of a finished run that a person looks for first, as paragraphs in Markdown."""

    def after(words: str, figure: Figure) -> Callable[[float], str]:
        return lambda value: f"{words} {figure.text(value).replace('%', ' %')}"

    primary, *others = task.figures
    test = {figure.result(metrics): after(figure.noun, figure) for figure in (primary, LOSS, *others)}
    chosen = {
        CHOSEN_EPOCH: ("epoch {:.0f}" if primary.best in metrics else "epoch {:.0f} on the test set").format,
        primary.best: after(f"validation {primary.noun}", primary),
    }
    speed = {task.throughput: task.speed, **_SPEED}
    known = {
        title: [text(metrics[name]) for name, text in figures.items() if name in metrics]
        for title, figures in {"Test": test, "Chosen": chosen, "Speed": speed}.items()
    }
    return [f"**{title}**: {', '.join(texts)}" for title, texts in known.items() if texts]


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


def changed_tags(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """The tags that have changed, with their earlier values."""
    changed = {}
    for name, value in now.items():
        if before.get(name) != value:
            changed[name] = value
            if name in before:
                earlier = f"{EARLIER}{name}"
                changed[earlier] = ", ".join(filter(None, (before.get(earlier), before[name])))
    return changed


def dataset_input(dataset: Dataset) -> DatasetInput:
    """The data set as MLflow lists it among a run's inputs."""
    name = dataset.name
    source = HTTPDatasetSource(_HOMES[name]) if name in _HOMES else CodeDatasetSource({"cifar_ray.dataset": name})
    meta = MetaDataset(source, name=name, digest=dataset.spec.digest)
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
