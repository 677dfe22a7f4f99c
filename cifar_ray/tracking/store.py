"""The tracking store: open it, search it, and read artifacts from it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Experiment, Run
from mlflow.exceptions import MlflowException

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import is_folder, path_of
from cifar_ray.tracking.background import within
from cifar_ray.tracking.study import KEY_TAG
from cifar_ray.tracking.uri import sqlite_path

Client: TypeAlias = MlflowClient  # what speaks to a store

SESSION_TAG = "cifar_ray.session"  # the driver process that last worked on the run
NOTE_TAG = "mlflow.note.content"  # MLflow shows it as a run's description

_LONGEST_NOTE = 7900  # characters above the rule and below; MLflow takes 8,000 as a tag
_RULE = "\n\n- - -\n\n"  # written as few people do
_REMOTE_TIMEOUT_S = 8.0
_MOST = 50_000  # runs or experiments that MLflow gives at once


def connect(uri: str) -> MlflowClient:
    """Return a client of a store that answers.

    Raises:
        ConfigError: when it does not, within 10 s.
    """
    path = sqlite_path(uri)
    try:
        if path is None:  # a server or a database driver may keep a request waiting for minutes
            return within(_REMOTE_TIMEOUT_S, _ask, uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two processes that meet a new database would both create its tables.
        with FileLock(f"{path}.lock", timeout=60):
            # MLflow itself would try for minutes to open what is no database.
            with closing(sqlite3.connect(path, timeout=5)) as database:
                database.execute("PRAGMA schema_version").fetchone()
            return _ask(uri)
    except Exception as error:  # whatever a store's driver raises, the store is not usable
        raise refusal(uri, error) from None


def refusal(uri: str, error: Exception) -> ConfigError:
    """The ConfigError for a store that raised ``error``."""
    return ConfigError("tracking_uri", f"must be a store that answers; {uri} does not ({reason(error)})")


@contextmanager
def refusing(uri: str) -> Iterator[None]:
    """Context manager: turn MLflow's errors into the :func:`refusal` of the store."""
    try:
        yield
    except MlflowException as error:
        raise refusal(uri, error) from None


def reason(error: BaseException) -> str:
    """The first cause of a store's error, in few words."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return " ".join(str(error).split())[:200] or type(error).__name__


def _ask(uri: str) -> MlflowClient:
    client = MlflowClient(tracking_uri=uri)
    client.search_experiments(max_results=1)
    return client


def experiment_id(client: MlflowClient, name: str) -> str:
    """The id of an :func:`active_experiment`, created when it is new."""
    if experiment := active_experiment(client, name):
        return experiment.experiment_id
    path = sqlite_path(client.tracking_uri)
    # MLflow's own default for a database is a folder relative to the working folder.
    location = str(path.parent / "artifacts" / re.sub(r"[^A-Za-z0-9._-]", "_", name)) if path else None
    try:
        return client.create_experiment(name, location, {"mlflow.experimentKind": "custom_model_development"})
    except MlflowException:
        if experiment := active_experiment(client, name):  # another process was first
            return experiment.experiment_id
        raise


def active_experiment(client: MlflowClient, name: str) -> Experiment | None:
    """The experiment of a name, or None.

    Raises:
        ConfigError: when it was deleted, and so can neither be used nor created, or the store does not answer.
    """
    with refusing(client.tracking_uri):
        experiment = client.get_experiment_by_name(name)
    if experiment is not None and experiment.lifecycle_stage != "active":
        raise ConfigError("", f"the experiment of the run is deleted; restore {name!r} in MLflow")
    return experiment


def experiment_name(datasets: Collection[str]) -> str:
    """The experiment of runs: MLFLOW_EXPERIMENT_NAME, ``cifar_ray/DATASET``, or ``cifar_ray`` for several data sets."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "").strip()
    if name or len(datasets) != 1:
        return name or "cifar_ray"
    (dataset,) = datasets
    return f"cifar_ray/{Path(path_of(dataset)).absolute().name if is_folder(dataset) else dataset}"


def take_over(client: MlflowClient, run: Run, session: str) -> Run:
    """Make the driver of this session the owner of a run, and the run RUNNING; return it as it was."""
    client.set_tag(run.info.run_id, SESSION_TAG, session)
    client.update_run(run.info.run_id, status="RUNNING")
    return run


def find_key(client: MlflowClient, key: str) -> Run | None:
    """The run with this key, the oldest if a repeated request made several."""
    runs = search(client, all_experiments(client), f"tags.`{KEY_TAG}` = '{key}'")
    return runs[-1] if runs else None


def escaped(text: str) -> str:
    """Text for a search; a quote would end it, and no name of ours has one, nor bytes that are no UTF-8."""
    return text.replace("'", "").encode(errors="backslashreplace").decode()


def describe(client: MlflowClient, run_id: str, paragraphs: Sequence[str]) -> None:
    """Begin a run's description with paragraphs in Markdown, above a rule, in place of earlier ones."""
    rest = client.get_run(run_id).data.tags.get(NOTE_TAG, "").rpartition(_RULE)[2]
    client.set_tag(run_id, NOTE_TAG, "\n\n".join(paragraphs)[: _LONGEST_NOTE - len(rest)] + _RULE + rest)


def shown(uri: str) -> str:
    """A tracking URI without the home folder's name, for reports."""
    home = files.home().parent
    return uri.replace(f"{home}/", "~/", 1) if home.name else uri


def read_json(client: MlflowClient, run_id: str, name: str) -> Any:
    """What a JSON artifact of a run holds; None when there is no such artifact."""
    if not any(file.path == name for file in client.list_artifacts(run_id)):
        return None
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(Path(client.download_artifacts(run_id, name, folder)).read_text(encoding="utf-8"))


def search(client: MlflowClient, experiments: list[str], condition: str = "") -> list[Run]:
    """All runs of some experiments that meet a condition, newest first."""
    newest_first = ["attributes.start_time DESC"]
    return [*client.search_runs(experiments, condition, order_by=newest_first, max_results=_MOST)]


def all_experiments(client: MlflowClient) -> list[str]:
    """Ids of all experiments that are not deleted."""
    return [experiment.experiment_id for experiment in client.search_experiments(max_results=_MOST)]
