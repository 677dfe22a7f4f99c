"""MLflow: record runs and find them again.

The only room that imports MLflow. It runs beside the driver and never stops training.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cifar_ray.config.variables import variables

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Its own defaults of 7 retries and 120 s make a call to an absent server block for minutes; the sink
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
    with variables({name: value for name, value in _SETTINGS.items() if name not in os.environ}):
        yield


@contextmanager
def unchanged() -> Iterator[None]:
    """Context manager: :func:`settings`; variables, warning filters, loggers and MLflow's address stay the caller's."""
    before, loggers = dict(os.environ), _loggers()
    try:
        with settings(), warnings.catch_warnings(), same_address():
            if any(action == "error" for action, *_ in warnings.filters):
                # A warning of Ray or MLflow would end the run, here or in a process that is started.
                warnings.simplefilter("ignore")
                os.environ.pop("PYTHONWARNINGS", None)
            yield
    finally:
        restore_variables(before)
        for name, (level, propagate, handlers) in loggers.items():
            logger = logging.getLogger(name)
            if logger.level != level:  # setting it clears what every logger has cached
                logger.setLevel(level)
            logger.propagate, logger.handlers[:] = propagate, handlers


def _loggers() -> dict[str, tuple[int, bool, list[logging.Handler]]]:
    """Name -> level, propagation and handlers of every logger; ``mlflow.pytorch`` configures even the root, "root"."""
    names = ("root", *logging.root.manager.loggerDict)
    return {
        logger.name: (logger.level, logger.propagate, list(logger.handlers)) for logger in map(logging.getLogger, names)
    }


@contextmanager
def same_address() -> Iterator[None]:
    """Context manager: MLflow's functions that take no client work on the same store afterwards as before."""
    mlflow = sys.modules.get("mlflow")
    environment = dict(os.environ)
    before = mlflow.get_tracking_uri() if mlflow else None
    try:
        yield
    finally:
        mlflow = sys.modules.get("mlflow")
        for address in (None, before):  # without one of its own, MLflow may have the same as before
            if mlflow and mlflow.get_tracking_uri() != before:
                mlflow.set_tracking_uri(address)
                restore_variables(environment, "MLFLOW_TRACKING_URI")


def restore_variables(before: Mapping[str, str], *names: str) -> None:
    """Give environment variables, all without ``names``, the values that they had ``before``."""
    for name in names or {*os.environ, *before}:
        if name not in before:
            os.environ.pop(name, None)
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]
