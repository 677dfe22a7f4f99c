"""Addresses of MLflow's pages: by themselves they open as those for chat agents, with no figure in the list of runs."""

from __future__ import annotations

import json
from contextlib import suppress

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from cifar_ray.tracking import store
from cifar_ray.tracking.uri import flag

TRAINING = "workflowType=machine_learning"
"""Ends an address whose page is to be the one for training."""

_VIEW = "cifar_ray"
_VIEW_TAG = f"mlflow.sharedViewState.{_VIEW}"
"""Where MLflow's pages keep a view that is shared: a tag of the experiment, found by the address's share key."""
_METRICS = ("test/accuracy", "images_per_s", "time/training_s")
_PARAMS = ("model", "dataset", "strategy", "topology", "batch_size", "global_batch_size", "seed")
_COLUMNS = [*(f"metrics.`{name}`" for name in _METRICS), *(f"params.`{name}`" for name in _PARAMS)]
_SECTION = "Training"
_CARD = {"deleted": False, "isGenerated": False, "metricSectionId": _SECTION}
_LINE = {
    **_CARD,
    "type": "LINE",
    "xAxisKey": "step",
    "xAxisScaleType": "linear",
    "scaleType": "linear",
    "range": {},
    "lineSmoothness": 0,
    "displayPoints": True,
    "yAxisKey": "metric",
    "yAxisExpressions": [],
    "useGlobalXaxisKey": True,
    "useGlobalLineSmoothing": True,
}
_SPEED = {
    **_CARD,
    "type": "SCATTER",
    "uuid": "speed",
    "displayName": "Images/s by topology",
    "xaxis": {"key": "topology", "type": "PARAM"},
    "yaxis": {"key": "images_per_s", "type": "METRIC", "dataAccessKey": "images_per_s"},
    "runsCountToCompare": 100,
}
_TITLES = {"test/accuracy": "Test accuracy", "test/loss": "Test loss", "train/epoch_loss": "Training loss"}
_FOLDED = ("test", "best", "train", "time", "sweep", "Model metrics", "System metrics")

# Sorted by anything but time, the runs of a sweep are not folded away below its own, which has no figures.
_STATE = {
    "selectedColumns": _COLUMNS,
    "orderByKey": _COLUMNS[0],
    "orderByAsc": False,
    "compareRunCharts": [
        *(
            {**_LINE, "uuid": metric, "metricKey": metric, "displayName": f"{title} by epoch"}
            for metric, title in _TITLES.items()
        ),
        _SPEED,
    ],
    "compareRunSections": [
        {"uuid": name, "name": name, "display": name == _SECTION, "isReordered": False} for name in (_SECTION, *_FOLDED)
    ],
    "isAccordionReordered": True,  # or MLflow would sort the sections by name
    "runsHiddenMode": "SHOW_ALL",
}
"""The columns, and the cards of the chart view; MLflow adds one for every other metric, to the folded sections."""


def run(uri: str, run: Run) -> str | None:
    """Address of a run's page on a tracking server; None for a store that needs ``cifar-ray ui``."""
    if not store.is_server(uri):
        return None
    return f"{uri.rstrip('/')}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}?{TRAINING}"


def way(uri: str, page: str | None) -> str:
    """How to come to a page of the store: its address, or the command that shows the store's pages."""
    return page or f"cifar-ray ui{flag(uri)}"


def newest(server: str, client: MlflowClient) -> str:
    """Address of the experiment with the newest run, with our columns; of all experiments when there is no run.

    Args:
        server: address of the server that has the pages.
        client: of the store; the columns are written into it when it has not got them.
    """
    with store.refusing(client.tracking_uri):
        ours = f"tags.`{store.KEY_TAG}` LIKE '%'"
        runs = client.search_runs(
            store.all_experiments(client), ours, order_by=["attributes.start_time DESC"], max_results=1
        )
        if not runs:
            return f"{server}/#/experiments?{TRAINING}"
        experiment = runs[0].info.experiment_id
        view = json.dumps(_STATE)
        if client.get_experiment(experiment).tags.get(_VIEW_TAG) != view:
            with suppress(MlflowException):  # a store may be for reading only
                client.set_experiment_tag(experiment, _VIEW_TAG, view)
    return f"{server}/#/experiments/{experiment}/runs?{TRAINING}&viewStateShareKey={_VIEW}"
