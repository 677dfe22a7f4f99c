"""MLflow's pages: by themselves they open as those for chat agents, with no figure in the list of runs."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from cifar_ray import tracking
from cifar_ray.config import imports
from cifar_ray.tasks import LOSS, SUBSETS, Subset, TaskSpec
from cifar_ray.tracking import store
from cifar_ray.tracking.study import CHOSEN_BY_TAG, KEY_TAG, MEASURED, task_of
from cifar_ray.tracking.uri import flag, is_server, sqlite_path

TRAINING = "workflowType=machine_learning"
"""Ends an address whose page is to be the one for training."""

_KEY = "cifar_ray"
_VIEW_TAG = f"mlflow.sharedViewState.{_KEY}"
"""Where MLflow's pages keep a view that is shared: a tag of the experiment, found by the address's share key."""
_PARAMS = ("model", "dataset", "strategy", "topology", "batch_size", "global_batch_size", "seed")
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
_FOLDED = (
    *("measured", "val", "test", "best", "chosen", "chosen/test", "train", "time", "sweep"),
    *("Model metrics", "System metrics"),
)


def _view(task: TaskSpec, measured: Sequence[Subset]) -> dict[str, Any]:
    """The columns, and the cards of the chart view; MLflow adds one for every other metric, to the folded sections.

    Sorted by anything but time, the runs of a sweep are not folded away below its own, which has no figures.
    ``measured``: the images that runs are measured on after every epoch; MLflow sorts by one metric, so where some runs
    are measured on the test and some on validation images, it is the one that both have.
    """
    primary, speed = task.primary, task.throughput
    first = f"{MEASURED}{primary.name}" if len(measured) > 1 else primary.on(measured[0])
    names = dict.fromkeys((first, *map(primary.on, measured), primary.metric, speed, "time/training_s"))
    titles = {of.on(on): f"{SUBSETS[on].capitalize()} {of.noun}" for of in (primary, LOSS) for on in measured}
    lines = [
        {**_LINE, "uuid": metric, "metricKey": metric, "displayName": f"{title} by epoch"}
        for metric, title in {**titles, "train/epoch_loss": "Training loss"}.items()
    ]
    scatter = {
        **_CARD,
        "type": "SCATTER",
        "uuid": "speed",
        "displayName": f"{task.unit.capitalize()}/s by topology",
        "xaxis": {"key": "topology", "type": "PARAM"},
        "yaxis": {"key": speed, "type": "METRIC", "dataAccessKey": speed},
        "runsCountToCompare": 100,
    }
    return {
        "selectedColumns": [*(f"metrics.`{name}`" for name in names), *(f"params.`{name}`" for name in _PARAMS)],
        "orderByKey": f"metrics.`{first}`",
        "orderByAsc": primary.better == "min",
        "compareRunCharts": [*lines, scatter],
        "compareRunSections": [
            {"uuid": name, "name": name, "display": name == _SECTION, "isReordered": False}
            for name in (_SECTION, *_FOLDED)
        ],
        "isAccordionReordered": True,  # or MLflow would sort the sections by name
        "runsHiddenMode": "SHOW_ALL",
    }


def run(uri: str, run: Run) -> str | None:
    """Address of a run's page on a tracking server; None for a store that needs ``cifar-ray ui``."""
    if not is_server(uri):
        return None
    return f"{uri.rstrip('/')}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}?{TRAINING}"


def way(uri: str, page: str | None) -> str:
    """How to come to a page of the store: its address, or the command that shows the store's pages."""
    return page or f"cifar-ray ui{flag(uri)}"


def newest(server: str, client: MlflowClient) -> str:
    """Address of the experiment with the newest run, with columns of its task; of all experiments when there is no run.

    ``server`` has the pages; the columns are written into the store when it has not got them.
    """
    with store.refusing(client.tracking_uri):
        ours, newest_first = f"tags.`{KEY_TAG}` LIKE '%'", ["attributes.start_time DESC"]
        runs = client.search_runs(store.all_experiments(client), ours, order_by=newest_first, max_results=200)
        if not runs:
            return f"{server}/#/experiments?{TRAINING}"
        experiment = runs[0].info.experiment_id
        of_it = [run.data.tags for run in runs if run.info.experiment_id == experiment]
        on_val = {tags.get(CHOSEN_BY_TAG) == "val" for tags in of_it}
        view = json.dumps(_view(task_of(of_it[0]), [subset for subset in SUBSETS if (subset == "val") in on_val]))
        if client.get_experiment(experiment).tags.get(_VIEW_TAG) != view:
            with suppress(MlflowException):  # a store may be for reading only
                client.set_experiment_tag(experiment, _VIEW_TAG, view)
    return f"{server}/#/experiments/{experiment}/runs?{TRAINING}&viewStateShareKey={_KEY}"


def serve(uri: str, port: int, browse: bool) -> None:
    """Print the address of MLflow's pages, and replace this process by its server on the loopback interface.

    Of a store that is a server itself, only the address is printed. ``browse`` opens it in a browser, too.

    Raises:
        ConfigError: when the store does not answer.
    """
    tracking.quieten(verbose=False)
    client = store.connect(uri)
    page = newest(uri.rstrip("/") if is_server(uri) else f"http://127.0.0.1:{port}", client)
    if is_server(uri):
        print(f"open {page}", flush=True)
        if browse:
            webbrowser.open(page)
        return
    print(f"MLflow starts on {uri} within seconds; Ctrl-C ends it\nopen {page}", flush=True)
    server = os.getpid()
    if browse and os.fork() == 0:
        try:
            while os.getppid() == server:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    webbrowser.open(page)
                    break
                time.sleep(0.2)
        finally:
            os._exit(0)
    args = ["server", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    if path := sqlite_path(uri):
        os.chdir(path.parent)  # a file in the working folder may have the name of a library
    os.execv(sys.executable, imports.python("mlflow", *args, "--uvicorn-opts", "--log-level warning"))
