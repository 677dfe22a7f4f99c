"""Register a run's model in MLflow's model registry."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from mlflow.entities import LoggedModel, Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from cifar_ray import tracking
from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking import artifacts, store
from cifar_ray.tracking.store import Client

_LONGEST = 4900  # MLflow takes 5,000 characters
_ALREADY_THERE, _REFUSED = "RESOURCE_ALREADY_EXISTS", "INVALID_PARAMETER_VALUE"


@dataclass(frozen=True)
class Registered:
    """A version in the registry.

    Attributes:
        name: of the registered model.
        version: counts from 1.
        run: name of the run that the model is of.
        fresh: whether it was made just now, and not there before.
    """

    name: str
    version: int
    run: str
    fresh: bool


def register(run: str, name: str, alias: str | None, tracking_uri: str | None) -> Registered:
    """Register a run's model as a version of a registered model, creating that if needed.

    The version refers to the model that training has logged. It has a description, and as tags the run, its data set
    with the digest, the classes in the order of the model's outputs, the architecture, the test accuracy and the
    SHA-256 of the weights. The same weights of the same run are registered once.

    Args:
        run: its name or MLflow id.
        name: of the registered model.
        alias: set on this version, and taken from any other.
        tracking_uri: MLflow store that has the run.

    Raises:
        ConfigError: when there is no such run, it has no model, or the registry does not take the name or the alias.
    """
    if alias is not None and (not re.fullmatch(r"[\w-]{1,255}", alias) or re.fullmatch(r"latest|v\d+", alias.lower())):
        raise ConfigError("alias", f"must be letters, digits, _ or -, other than 'latest' and 'v1', got {alias!r}")
    if not name.strip() or set(name) & set("/:"):
        raise ConfigError("name", f"must be a name without / and :, got {name!r}")
    tracking.quieten(verbose=False)
    client, known = store.open_run(store.resolve_uri(tracking_uri), run)
    if known.status != "FINISHED":
        raise ConfigError(
            "", f"run {known.name!r} is {known.status}, and only a FINISHED run has a model that can be registered"
        )
    try:
        found = client.get_run(known.run_id)
        model = _model(client, found)
        # A model that an older version has logged is the final one, and has no tags.
        weights = model.tags.get(artifacts.WEIGHTS_TAG, found.data.tags.get("cifar_ray.weights_sha256", ""))
        versions = client.search_model_versions(f"run_id = '{known.run_id}'")
        same = (one for one in versions if one.name == name and one.tags.get(artifacts.WEIGHTS_TAG) == weights)
        version = next(same, None)
        fresh = version is None
        if version is None:
            version = _create(client, name, found, model, weights)
        if alias is not None:
            client.set_registered_model_alias(name, alias, version.version)
    except MlflowException as error:
        if error.error_code != _REFUSED:
            raise store.refusal(client.tracking_uri, error) from None
        raise ConfigError("name", f"must be one that the registry takes, got {name!r} ({error.message})") from None
    return Registered(name, int(version.version), known.name, fresh)


def refuse_registered(client: Client, runs: Sequence[Run]) -> None:
    """Refuse runs of which the registry has a model.

    Raises:
        ConfigError: naming the model and its version; when the store does not answer.
    """
    with store.refusing(client.tracking_uri):
        for run in runs:
            versions = client.search_model_versions(f"run_id = '{run.info.run_id}'")
            if versions:
                named = ", ".join(f"version {one.version} of {one.name!r}" for one in sorted(versions, key=_named))
                raise ConfigError(
                    "",
                    f"the model of run {run.info.run_name!r} is registered as {named}; delete that in MLflow's model "
                    "registry first",
                )


def _named(version: ModelVersion) -> tuple[str, int]:
    return version.name, int(version.version)


def _model(client: Client, run: Run) -> LoggedModel:
    """The run's final model, or its best if it has only that."""
    models = artifacts.logged_models(client, run)
    if not models:
        raise ConfigError(
            "",
            f"run {run.info.run_name!r} has no model in MLflow: it was trained with --log-models none, "
            "or MLflow did not take it",
        )
    return models[-1]


def _create(client: Client, name: str, run: Run, model: LoggedModel, weights: str) -> ModelVersion:
    best = model.tags.get(artifacts.WHICH_TAG) == "best"
    accuracy = run.data.metrics["best/accuracy" if best else "test/accuracy"]
    architecture, dataset = run.data.tags["model"], run.data.tags["dataset"]
    given = run.inputs.dataset_inputs if run.inputs else []
    digest = given[0].dataset.digest if given else ""
    classes = (store.read_json(client, run.info.run_id, "confusion_matrix.json") or {}).get("classes", [])
    listed = f" Classes: {', '.join(classes)}." if classes else ""
    description = textwrap.shorten(
        f"{architecture} on {dataset}{f' (digest {digest})' if digest else ''}: test accuracy {accuracy:.2%}, "
        f"run {run.info.run_name}.{listed}",
        _LONGEST,
        placeholder=" ...",
    )
    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code != _ALREADY_THERE:
            raise
    tags = {
        "run": run.info.run_name,
        "dataset": dataset,
        "model": architecture,
        "test_accuracy": f"{accuracy:.4f}",
        artifacts.WEIGHTS_TAG: weights,
    }
    known = {"dataset_digest": digest, "classes": json.dumps(classes) if classes else ""}
    tags |= {key: value for key, value in known.items() if 0 < len(value) < _LONGEST}
    with store.as_default(client.tracking_uri):  # the registry looks the model up by itself
        return client.create_model_version(
            name,
            f"models:/{model.model_id}",
            run_id=run.info.run_id,
            tags=tags,
            description=description,
            model_id=model.model_id,
        )
