"""Which model of a run is registered, and how often."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput, LoggedModelStatus

from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking import quieten, registry, store
from cifar_ray.tracking.study import CHOSEN_BY_TAG, KEY_TAG, STOPPED_BY_TAG
from tests.support import mlflow_store

CHOSEN = {"test/accuracy": 0.5, "best/accuracy": 0.75, "chosen/epoch": 1.0, "chosen/test/accuracy": 0.625}


def finished(client: MlflowClient, name: str = "mine", metrics: Mapping[str, float] = CHOSEN) -> str:
    """The id of a finished run, which has no model yet."""
    tags = {"dataset": "digits", "model": "resnet", KEY_TAG: "k", CHOSEN_BY_TAG: "val"}
    run_id = client.create_run(store.experiment_id(client, "test"), run_name=name, tags=tags).info.run_id
    for metric, value in metrics.items():
        client.log_metric(run_id, metric, value)
    client.set_terminated(run_id, "FINISHED")
    return run_id


def log(client: MlflowClient, run_id: str, which: str, weights: str, ready: bool = True) -> str:
    """The id of a model of the run, whose files are left out."""
    tags = {"checkpoint": which, "weights_sha256": weights}
    experiment = client.get_run(run_id).info.experiment_id
    model = client.create_logged_model(experiment, name="m", source_run_id=run_id, tags=tags)
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    if ready:
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return model.model_id


@pytest.mark.parametrize(
    ("logged", "weights"),
    [
        ([("final", "f"), ("best", "b")], "f"),
        ([("best", "b"), ("final", "f", False)], "b"),  # which was not logged to its end
    ],
)
def test_the_final_model_is_registered_or_else_the_best(
    client: MlflowClient, logged: list[tuple[Any, ...]], weights: str
) -> None:
    run_id = finished(client)
    model, *_ = [log(client, run_id, *one) for one in logged]
    done = registry.register("mine", "digits", "v1a", client.tracking_uri)
    assert done == registry.Registered("digits", 1, "mine", True)
    version = client.get_model_version_by_alias("digits", "v1a")
    assert (int(version.version), version.run_id, version.source) == (1, run_id, f"models:/{model}")
    assert version.tags == {"run": "mine", "dataset": "digits", "model": "resnet", "weights_sha256": weights}


def test_the_same_weights_of_a_run_are_registered_once_under_each_name(client: MlflowClient) -> None:
    run_id = finished(client)
    log(client, run_id, "best", "b")
    found = [registry.register("mine", name, None, client.tracking_uri) for name in ("digits", "digits", "other")]
    assert [(one.version, one.fresh) for one in found] == [(1, True), (1, False), (1, True)]
    log(client, run_id, "final", "f")
    log(client, finished(client, "twin"), "final", "f")
    found = [registry.register(run, "digits", None, client.tracking_uri) for run in ("mine", "twin", "mine")]
    assert [(one.version, one.fresh) for one in found] == [(2, True), (3, True), (2, False)]
    assert client.get_registered_model("digits").aliases == {}


@pytest.mark.parametrize(
    ("name", "alias"),
    [*(("n", alias) for alias in ("LATEST", "V12", "a b", "", "a" * 256)), ("a/b", None), (" ", None)],
)
def test_a_name_or_an_alias_that_leads_elsewhere_is_refused(name: str, alias: str | None, client: MlflowClient) -> None:
    log(client, finished(client), "final", "f")
    with pytest.raises(ConfigError, match=r"^--name and --alias must be what the registry takes: "):
        registry.register("mine", name, alias, client.tracking_uri)


def test_a_run_without_a_model_or_an_end_has_nothing_to_register(client: MlflowClient) -> None:
    def refused(told: str) -> None:
        with pytest.raises(ConfigError, match=told):
            registry.register("mine", "digits", None, client.tracking_uri)

    run_id = finished(client)
    refused("^run 'mine' has no model in MLflow")
    client.set_tag(run_id, STOPPED_BY_TAG, "max_time")
    refused("^run 'mine' is STOPPED, and only a FINISHED run has a model")
    client.delete_tag(run_id, STOPPED_BY_TAG)
    client.update_run(run_id, "KILLED")
    refused("^run 'mine' is KILLED, and only a FINISHED run has a model")
    client.update_run(run_id, "FINISHED")
    log(client, run_id, "final", "f")
    mlflow_store.refuse(client, "INSERT ON model_versions")
    refused(rf"{client.tracking_uri} does not \(Model Version creation error")


@pytest.mark.parametrize(("verbose", "level", "heard"), [(True, logging.INFO, 3), (False, logging.CRITICAL, 2)])
def test_mlflow_and_its_databases_are_silent_unless_asked(verbose: bool, level: int, heard: int) -> None:
    remarks = (UserWarning, "torch.export"), (DeprecationWarning, "torch.export"), (UserWarning, "torch")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        quieten(verbose)
        for kind, module in remarks:
            warnings.warn_explicit("a remark", kind, "file.py", 1, module)
    assert [logging.getLogger(name).level for name in ("mlflow", "alembic", "sqlalchemy")] == [level] * 3
    assert len(warned) == heard
    quieten(False)
