"""Which model of a run is registered, and how often."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.entities import LoggedModelStatus

from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking import quieten, registry, store
from tests.support.tracked import Store


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store with one finished run, which has no model yet."""
    made: Any = Store()
    made.models = {}
    run = made.create_run("1", {"dataset": "digits", "model": "resnet", store.KEY_TAG: "k"}, "mine", status="FINISHED")
    run.data.tags["cifar_ray.weights_sha256"] = "of the run"
    run.data.metrics.update({"test/accuracy": 0.5, "best/accuracy": 0.75})
    monkeypatch.setattr(store, "resolve_uri", lambda given: "http://store:5000")
    monkeypatch.setattr(store, "open_run", lambda uri, name: (made, store._known(run)))
    return made


def log(client: Any, which: str | None, weights: str | None, ready: bool = True) -> None:
    tags = {"checkpoint": which, "weights_sha256": weights}
    model_id = f"m{len(client.models)}"
    status = LoggedModelStatus.READY if ready else LoggedModelStatus.PENDING
    kept = {name: value for name, value in tags.items() if value}
    client.models[model_id] = SimpleNamespace(model_id=model_id, tags=kept, status=status)
    outputs = [SimpleNamespace(model_id=one) for one in client.models]
    client.runs["id0"].outputs = SimpleNamespace(model_outputs=outputs)


@pytest.mark.parametrize(
    ("logged", "model", "weights", "accuracy"),
    [
        ([("final", "f"), ("best", "b")], "m0", "f", "0.5000"),
        ([("best", "b")], "m0", "b", "0.7500"),
        ([("best", "b"), ("final", "f", False)], "m0", "b", "0.7500"),  # which was not logged to its end
        ([(None, None)], "m0", "of the run", "0.5000"),  # by an older version
    ],
)
def test_the_final_model_is_registered_or_the_best_where_it_is_the_only_one(
    client: Any, logged: list[tuple[Any, ...]], model: str, weights: str, accuracy: str
) -> None:
    for one in logged:
        log(client, *one)
    assert registry.register("mine", "digits", "champion", None) == registry.Registered("digits", 1, "mine", True)
    (version,) = client.versions
    assert (version.source, version.model_id, version.run_id) == (f"models:/{model}", model, "id0")
    assert version.tags == {
        "run": "mine", "dataset": "digits", "model": "resnet", "test_accuracy": accuracy, "weights_sha256": weights,
    }  # fmt: skip
    assert client.aliases == {("digits", "champion"): 1}


def test_the_same_weights_of_a_run_are_registered_once_under_each_name(client: Any) -> None:
    log(client, "best", "b")
    found = [registry.register("mine", name, None, None) for name in ("digits", "digits", "other")]
    assert [(one.version, one.fresh) for one in found] == [(1, True), (1, False), (1, True)]
    log(client, "final", "f")
    again = registry.register("mine", "digits", None, None)
    assert (again.version, again.fresh) == (2, True)
    assert client.aliases == {}


@pytest.mark.parametrize("name", ["a/b", "a:b", "/", " "])
def test_a_name_that_leads_elsewhere_is_refused(client: Any, name: str) -> None:
    with pytest.raises(ConfigError, match="must be a name without / and :") as caught:
        registry.register("mine", name, None, None)
    assert caught.value.key == "name"


def test_a_run_without_a_model_says_why_there_is_none(client: Any) -> None:
    with pytest.raises(ConfigError, match="run 'mine' has no model in MLflow: it was trained with --log-models none"):
        registry.register("mine", "digits", None, None)


def test_a_run_that_has_not_finished_has_nothing_to_register(client: Any) -> None:
    client.runs["id0"].info.status = "KILLED"
    with pytest.raises(ConfigError) as caught:
        registry.register("mine", "digits", None, None)
    assert str(caught.value) == "run 'mine' is KILLED, and only a FINISHED run has a model that can be registered"


@pytest.mark.parametrize(("verbose", "level"), [(True, logging.INFO), (False, logging.CRITICAL)])
def test_mlflow_and_its_databases_are_silent_unless_asked(verbose: bool, level: int) -> None:
    quieten(verbose)
    assert [logging.getLogger(name).level for name in ("mlflow", "alembic", "sqlalchemy")] == [level] * 3
    quieten(False)
