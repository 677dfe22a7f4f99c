"""Where MLflow's pages are, and how its server is started."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from cifar_ray.config import imports
from cifar_ray.tasks import Figure, TaskSpec
from cifar_ray.tracking import pages, store
from cifar_ray.tracking.study import KEY_TAG, TASK_TAG

VIEW = "mlflow.sharedViewState.cifar_ray"


def begun(client: MlflowClient, experiment: str, began: int) -> str:
    """An experiment of that name with a run of this program."""
    made = store.experiment_id(client, experiment)
    client.create_run(made, began, {KEY_TAG: f"{experiment} {began}"})
    return made


def test_a_runs_page_is_one_of_the_training_view(client: MlflowClient, home: Path) -> None:
    run = client.create_run("0")
    page = f"/#/experiments/0/runs/{run.info.run_id}?workflowType=machine_learning"
    for server in ("http://store:5000", "https://store"):
        assert pages.run(f"{server}/", run) == f"{server}{page}"
    assert pages.run(client.tracking_uri, run) is None
    assert pages.way("http://store", "http://store/page") == "http://store/page"
    assert pages.way(client.tracking_uri, None) == f"cifar-ray ui --tracking-uri {client.tracking_uri}"
    assert pages.way(f"sqlite:///{home}/.cifar_ray/mlflow.db", None) == "cifar-ray ui"


def test_the_experiment_of_the_newest_run_opens_with_figures_in_its_list(client: MlflowClient) -> None:
    assert pages.newest("http://here", client) == "http://here/#/experiments?workflowType=machine_learning"
    client.create_run("0", 9)  # somebody else's
    made = [begun(client, name, began) for name, began in (("first", 1), ("newest", 3), ("second", 2))]
    address = f"http://here/#/experiments/{made[1]}/runs?workflowType=machine_learning&viewStateShareKey=cifar_ray"
    assert pages.newest("http://here", client) == address
    view = json.loads(client.get_experiment(made[1]).tags[VIEW])
    columns = ["metrics.`test/accuracy`", "metrics.`images_per_s`"]
    assert (view["orderByKey"], view["orderByAsc"], view["selectedColumns"][:2]) == (columns[0], False, columns)
    assert {"params.`model`", "params.`topology`", "params.`global_batch_size`"} <= set(view["selectedColumns"])
    shown = [one.get("metricKey") or one["yaxis"]["key"] for one in view["compareRunCharts"]]
    assert sorted(shown) == ["images_per_s", "test/accuracy", "test/loss", "train/epoch_loss"]
    line, scatter = view["compareRunCharts"][0], view["compareRunCharts"][-1]
    assert (line["type"], line["uuid"], line["displayName"]) == ("LINE", "test/accuracy", "Test accuracy by epoch")
    place = {"key": "topology", "type": "PARAM"}
    speed = {"key": "images_per_s", "type": "METRIC", "dataAccessKey": "images_per_s"}
    assert (scatter["type"], scatter["xaxis"], scatter["yaxis"]) == ("SCATTER", place, speed)
    sections = view["compareRunSections"]
    assert [one["display"] for one in sections] == [True] + [False] * (len(sections) - 1)
    assert {one["metricSectionId"] for one in view["compareRunCharts"]} == {sections[0]["uuid"]}
    assert all(one.keys() == {"uuid", "name", "display", "isReordered"} for one in sections)
    assert (view["isAccordionReordered"], view["runsHiddenMode"]) == (True, "SHOW_ALL")
    assert all(VIEW not in client.get_experiment(other).tags for other in ("0", made[0], made[2]))


@pytest.mark.parametrize(
    ("tags", "order", "charts"),
    [
        (
            {TASK_TAG: json.dumps(asdict(TaskSpec("gone:Depth", (Figure("rmse", "RMSE", "min"),), "scans")))},
            ("metrics.`test/rmse`", True),
            {"Test RMSE by epoch", "Scans/s by topology"},
        ),
        ({"cifar_ray.chosen_by": "val"}, ("metrics.`val/accuracy`", False), {"Validation accuracy by epoch"}),
    ],
)
def test_the_columns_are_those_of_the_newest_runs_task_and_of_what_it_was_chosen_by(
    tags: dict[str, str], order: tuple[str, bool], charts: set[str], client: MlflowClient
) -> None:
    home = begun(client, "depth", 1)
    for tag in tags.items():
        client.set_tag(client.search_runs([home])[0].info.run_id, *tag)
    pages.newest("http://here", client)
    view = json.loads(client.get_experiment(home).tags[VIEW])
    assert (view["orderByKey"], view["orderByAsc"]) == order
    assert charts <= {one["displayName"] for one in view["compareRunCharts"]}


def test_the_server_is_for_this_machine_alone(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "true")
    monkeypatch.setattr(os, "execv", lambda path, words: started.append((path, words)))
    uri = client.tracking_uri
    pages.serve(uri, 5123, browse=False)
    words = f"server --backend-store-uri {uri} --host 127.0.0.1 --port 5123 --workers 1 --uvicorn-opts"
    words_of_all = imports.python("mlflow", *words.split(), "--log-level warning")
    assert started == [(sys.executable, words_of_all)]
    assert Path.cwd() == Path(uri.removeprefix("sqlite:///")).parent  # no file of the user's hides a library
    assert os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert "open http://127.0.0.1:5123/#/experiments" in capsys.readouterr().out


@pytest.mark.parametrize("browse", [False, True])
def test_a_server_is_only_opened(browse: bool, client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(store, "connect", lambda uri: client)
    pages.serve("http://there:1/", 5123, browse)
    assert opened == ["http://there:1/#/experiments?workflowType=machine_learning"] * browse
