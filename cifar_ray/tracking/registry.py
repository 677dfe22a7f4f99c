"""Register a run's model in MLflow's model registry."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlflow.entities import LoggedModel, Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from cifar_ray import tracking
from cifar_ray.config import limits
from cifar_ray.config.errors import ConfigError
from cifar_ray.tasks import Figure
from cifar_ray.tracking import artifacts, store
from cifar_ray.tracking.store import Client
from cifar_ray.tracking.study import CHOSEN_BY_TAG, task_of

_LONGEST = 4900  # MLflow takes 5,000 characters
_CHOSEN_BY = "chosen_by"


@dataclass(frozen=True)
class Registered:
    """A version of a registered model, counted from 1; ``fresh`` unless the registry had it before."""

    name: str
    version: int
    run: str
    fresh: bool


def register(run: str, name: str, alias: str | None, tracking_uri: str | None) -> Registered:
    """Register a run's model as a version of the registered model ``name``, created if needed.

    The version refers to the model that training has logged. The same weights of the same run are registered once.
    ``alias`` is set on this version, and taken from any other.

    Raises:
        ConfigError: when there is no such run, it has no model, or the registry does not take the name or the alias.
    """
    if alias is not None and (not re.fullmatch(r"[\w-]{1,255}", alias) or re.fullmatch(r"latest|v\d+", alias.lower())):
        raise ConfigError("alias", f"must be letters, digits, _ or -, other than 'latest' and 'v1', got {alias!r}")
    if not name.strip() or set(name) & set("/:"):
        raise ConfigError("name", f"must be a name without / and :, got {name!r}")
    tracking.quieten(verbose=False)
    client, known = store.open_run(store.resolve_uri(tracking_uri), run)
    if limits.is_halted(known.stopped_by):
        raise ConfigError(
            "", f"run {known.name!r} was stopped by {limits.named(known.stopped_by)}, and only a whole run has a model"
        )
    if known.status != "FINISHED":
        raise ConfigError(
            "", f"run {known.name!r} is {known.status}, and only a FINISHED run has a model that can be registered"
        )
    with store.refusing(client.tracking_uri):
        source = client.get_run(known.run_id)
        models = artifacts.logged_models(client, source)
        if not models:
            raise ConfigError(
                "",
                f"run {known.name!r} has no model in MLflow: it was trained with --log-models none, "
                "or MLflow did not take it",
            )
        tags = _tags(client, source, models[-1])
        same = [
            version
            for version in client.search_model_versions(f"run_id = '{known.run_id}'")
            if version.name == name and version.tags.get(artifacts.WEIGHTS_TAG) == tags[artifacts.WEIGHTS_TAG]
        ]
        version = same[0] if same else _create(client, name, models[-1], tags, task_of(source.data.tags).primary)
        if alias is not None:
            client.set_registered_model_alias(name, alias, version.version)
    return Registered(name, int(version.version), known.name, not same)


def _create(client: Client, name: str, model: LoggedModel, tags: dict[str, str], primary: Figure) -> ModelVersion:
    digest = f" (digest {tags['dataset_digest']})" if "dataset_digest" in tags else ""
    classes = f" Classes: {', '.join(json.loads(tags['classes']))}." if "classes" in tags else ""
    description = (
        f"{tags['model']} on {tags['dataset']}{digest}: test {primary.named(float(tags[f'test_{primary.name}']))}, "
        f"{_chosen(tags, primary)}run {tags['run']}.{classes}"
    )
    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise ConfigError("name", f"must be one that the registry takes, got {name!r} ({error.message})") from None
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    with store.as_default(client.tracking_uri):  # the registry looks the model up by itself
        return client.create_model_version(
            name,
            f"models:/{model.model_id}",
            run_id=model.source_run_id,
            tags=tags,
            description=description,
            model_id=model.model_id,
        )


def _chosen(tags: dict[str, str], primary: Figure) -> str:
    """What a version's description says of the choice of its checkpoint; empty where none was chosen."""
    if (value := tags.get(f"val_{primary.name}")) is not None:
        return f"chosen by a validation {primary.named(float(value))}, "
    return ""


def _tags(client: Client, run: Run, model: LoggedModel) -> dict[str, str]:
    """What a version says of its model."""
    primary, metrics = task_of(run.data.tags).primary, run.data.metrics
    metric, chosen = primary.metric, {}
    if model.tags[artifacts.WHICH_TAG] == "best":
        metric, chosen = primary.result(metrics), {_CHOSEN_BY: run.data.tags[CHOSEN_BY_TAG]}
        if primary.best in metrics:
            chosen[f"val_{primary.name}"] = f"{metrics[primary.best]:.4f}"
    inputs = run.inputs.dataset_inputs if run.inputs else []
    confusion = store.read_json(client, run.info.run_id, "confusion_matrix.json")
    tags = {
        "run": run.info.run_name,
        "dataset": run.data.tags["dataset"],
        "dataset_digest": inputs[0].dataset.digest if inputs else "",
        "model": run.data.tags["model"],
        "classes": json.dumps(confusion["classes"]) if confusion else "",
        f"test_{primary.name}": f"{metrics[metric]:.4f}",
        **chosen,
        artifacts.WEIGHTS_TAG: model.tags[artifacts.WEIGHTS_TAG],
    }
    return {name: value for name, value in tags.items() if 0 < len(value) < _LONGEST}


def refuse_registered(client: Client, runs: Sequence[Run]) -> None:
    """Refuse runs of which the registry has a model.

    Raises:
        ConfigError: naming the model and its version; when the store does not answer.
    """
    with store.refusing(client.tracking_uri):
        for run in runs:
            versions = client.search_model_versions(f"run_id = '{run.info.run_id}'")
            if registered := sorted((version.name, int(version.version)) for version in versions):
                named = ", ".join(f"version {number} of {name!r}" for name, number in registered)
                raise ConfigError(
                    "",
                    f"the model of run {run.info.run_name!r} is registered as {named}; delete that in MLflow's model "
                    "registry first",
                )
