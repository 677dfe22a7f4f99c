"""MLflow: record runs and find them again.

The only room that imports MLflow. It runs beside the driver and never stops training.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from cifar_ray.tracking.variables import restore, variables

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Its own defaults of 7 retries and 120 s make a call to an absent server block for minutes; a record
    # tries again by itself.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # its lines would break into the display
}
"""Variables that MLflow reads at each use; what a person has set stays."""


def quieten(verbose: bool) -> None:
    """Silence MLflow and its database tools unless ``verbose``: they also raise what they log."""
    for name in ("mlflow", "alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.CRITICAL)
    if not verbose:
        # torch's own remarks on how it exports a model to MLflow; they concern nobody who trains.
        warnings.filterwarnings("ignore", module="torch.export", category=UserWarning)
        warnings.filterwarnings("ignore", message="The tensor attributes .* were assigned during export")


@contextmanager
def settings() -> Iterator[None]:
    """Context manager: MLflow works with this program's settings where a person has not set others."""
    unset = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    theirs = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    past = "*" if theirs == "*" else f"{theirs},localhost,127.0.0.1,::1"  # a server of this machine is asked directly
    with variables({**unset, "no_proxy": past}):
        yield


@contextmanager
def unchanged() -> Iterator[None]:
    """Context manager: :func:`settings`; variables, warning filters, loggers and MLflow's address stay the caller's."""
    before, mlflow = dict(os.environ), sys.modules.get("mlflow")
    address = mlflow.get_tracking_uri() if mlflow else None
    # mlflow.pytorch configures even the root logger, which is named "root".
    loggers = [logging.getLogger(name) for name in ("root", *logging.root.manager.loggerDict)]
    configured = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    try:
        with settings(), warnings.catch_warnings():
            if any(action == "error" for action, *_ in warnings.filters):
                # A warning of Ray or MLflow would end the run, here or in a process that is started.
                warnings.simplefilter("ignore")
                os.environ.pop("PYTHONWARNINGS", None)
            yield
    finally:
        restore(before, {*os.environ, *before})
        mlflow = sys.modules.get("mlflow")
        for given in (None, address):  # without one of its own, MLflow may have the same as before
            if mlflow and mlflow.get_tracking_uri() != address:
                mlflow.set_tracking_uri(given)
                restore(before, ["MLFLOW_TRACKING_URI"])
        for logger, level, propagate, handlers in configured:
            logger.propagate, logger.handlers = propagate, handlers
            if logger.level != level:  # setting it clears what all loggers have cached
                logger.setLevel(level)
