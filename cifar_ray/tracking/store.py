"""The tracking store: which it is, whether it answers, and the runs in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from cifar_ray.strict import ConfigError

KEY_TAG = "cifar_ray.key"
"""Tag that identifies a run of this program, chosen before MLflow gives it an id."""

FOLDER_TAG = "cifar_ray.folder"
"""Tag with the run's folder: its config and its checkpoints."""

SESSION_TAG = "cifar_ray.session"
"""Tag of the driver process that last worked on the run."""


_CONNECT_TIMEOUT_S = "5"


@dataclass(frozen=True)
class KnownRun:
    """A run found in the tracking store."""

    run_id: str
    name: str
    key: str
    folder: Path
    status: str


def resolve_uri(given: str | None) -> str:
    """The tracking URI: the one given, ``MLFLOW_TRACKING_URI``, or SQLite at one place in the home folder.

    Raises:
        ConfigError: when it is relative, since it would then mean another place in every process.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return f"sqlite:///{(Path.home() / '.cifar_ray' / 'mlflow.db').absolute()}"
    scheme = uri.split(":", 1)[0] if "://" in uri else ""
    if not scheme or scheme == "file" or (scheme == "sqlite" and _sqlite_path(uri) is None):
        raise ConfigError(
            "tracking_uri", f"must be http(s)://HOST:PORT or sqlite:////absolute/path.db (four slashes), got {uri!r}"
        )
    return uri


def connect(uri: str) -> MlflowClient:
    """A client whose store has just answered.

    Raises:
        ConfigError: when it does not, within 10 s.
    """
    path = _sqlite_path(uri)
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        # Two processes that meet a new database would both create its tables.
        with _impatience(), FileLock(f"{path}.lock", timeout=60) if path is not None else nullcontext():
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
    except Exception as error:  # whatever a store's driver raises, the store is not usable
        reason = " ".join(str(_root(error)).split())[:200]
        raise ConfigError("tracking_uri", f"must be a store that answers; {uri} does not ({reason})") from None
    return client


def experiment_id(client: MlflowClient, name: str) -> str:
    """The id of an experiment, created when it is new.

    Raises:
        ConfigError: when it was deleted, and so can neither be used nor created.
    """
    found = client.get_experiment_by_name(name)
    if found is None:
        path = _sqlite_path(client.tracking_uri)
        # MLflow's own default for a database is a folder relative to the working folder.
        location = str(path.parent / "artifacts" / _safe(name)) if path is not None else None
        try:
            return client.create_experiment(name, artifact_location=location)
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another process was first
            if found is None:
                raise
    if found.lifecycle_stage != "active":
        raise ConfigError("experiment", f"must not be a deleted one; restore {name!r} in MLflow, or take another")
    return found.experiment_id


def find_key(client: MlflowClient, key: str) -> Run | None:
    """The run with this key, the oldest if a repeated request made several."""
    runs = client.search_runs(
        _all_experiments(client), f"tags.`{KEY_TAG}` = '{key}'", order_by=["attributes.start_time ASC"], max_results=1
    )
    return runs[0] if runs else None


def find(client: MlflowClient, run: str) -> KnownRun:
    """A run of this program by its name or MLflow id.

    Raises:
        ConfigError: when there is none, or several of that name.
    """
    matches: list[Run] = []
    if re.fullmatch(r"[0-9a-f]{32}", run):
        try:
            matches = [client.get_run(run)]
        except MlflowException:
            matches = []
    if not matches:
        quoted = run.replace("'", "")
        matches = list(client.search_runs(_all_experiments(client), f"attributes.run_name = '{quoted}'"))
    matches = [match for match in matches if KEY_TAG in match.data.tags]
    if not matches:
        raise ConfigError(
            "", f"there is no run {run!r} in {client.tracking_uri}; a run is named by its name or MLflow id"
        )
    if len(matches) > 1:
        ids = ", ".join(match.info.run_id for match in matches)
        raise ConfigError("", f"there are {len(matches)} runs named {run!r}; take one of their ids: {ids}")
    return _known(matches[0])


def _known(run: Run) -> KnownRun:
    tags = run.data.tags
    return KnownRun(run.info.run_id, run.info.run_name, tags[KEY_TAG], Path(tags.get(FOLDER_TAG, "")), run.info.status)


@contextmanager
def _impatience() -> Iterator[None]:
    """Within it, MLflow waits for a server's answer for a few seconds only."""
    name = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    before = os.environ[name]
    os.environ[name] = _CONNECT_TIMEOUT_S
    try:
        yield
    finally:
        os.environ[name] = before


def exists(uri: str) -> bool:
    """Whether a SQLite store has been made yet; any other store is taken to be there."""
    path = _sqlite_path(uri)
    return path is None or path.exists()


def _root(error: BaseException) -> BaseException:
    """What an error came from in the first place."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def _all_experiments(client: MlflowClient) -> list[str]:
    return [experiment.experiment_id for experiment in client.search_experiments()]


def _sqlite_path(uri: str) -> Path | None:
    """The file of an absolute SQLite URI; None for any other URI."""
    match = re.fullmatch(r"sqlite:///(/[^?]+)(\?.*)?", uri)
    return Path(match[1]) if match else None


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)
