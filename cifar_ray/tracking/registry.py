"""Register a run's model in MLflow's model registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlflow
from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from cifar_ray import tracking
from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking import artifacts, reading, store
from cifar_ray.tracking.store import Client
from cifar_ray.tracking.study import Run
from cifar_ray.tracking.uri import resolve_uri


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
    client, known = reading.open_run(resolve_uri(tracking_uri), run)
    if not known.finished:
        rule = "only a FINISHED run has a model that can be registered"
        raise ConfigError("", f"run {known.name!r} is {known.status}, and {rule}")
    with store.refusing(client.tracking_uri):
        models = artifacts.logged_models(client, client.get_run(known.run_id))
        if not models:
            without = "it was trained with --log-models none, or MLflow did not take it"
            raise ConfigError("", f"run {known.name!r} has no model in MLflow: {without}")
        model = models[-1]
        weights, versions = artifacts.WEIGHTS_TAG, client.search_model_versions(f"run_id = '{known.run_id}'")
        same = [it for it in versions if (it.name, it.tags.get(weights)) == (name, model.tags[weights])]
        try:
            version = same[0] if same else _create(client, name, model, known)
            if alias is not None:
                client.set_registered_model_alias(name, alias, version.version)
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            raise ConfigError("", f"--name and --alias must be what the registry takes: {error.message}") from None
    return Registered(name, int(version.version), known.name, not same)


def _create(client: Client, name: str, model: LoggedModel, run: Run) -> ModelVersion:
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    facts = {name: run.tags[name] for name in ("dataset", "model")}
    tags = {"run": run.name, **facts, artifacts.WEIGHTS_TAG: model.tags[artifacts.WEIGHTS_TAG]}
    with tracking.unchanged():
        mlflow.set_tracking_uri(client.tracking_uri)  # the registry looks the model up by itself
        source = f"models:/{model.model_id}"
        return client.create_model_version(name, source, run_id=run.run_id, tags=tags, model_id=model.model_id)


def refuse_registered(client: Client, runs: Sequence[Run]) -> None:
    """Refuse runs of which the registry has a model.

    Raises:
        ConfigError: naming the model and its version; when the store does not answer.
    """
    with store.refusing(client.tracking_uri):
        for run in runs:
            versions = client.search_model_versions(f"run_id = '{run.run_id}'")
            if named := ", ".join(sorted(f"version {version.version} of {version.name!r}" for version in versions)):
                registered = f"the model of run {run.name!r} is registered as {named}"
                raise ConfigError("", f"{registered}; delete that in MLflow's model registry first")
