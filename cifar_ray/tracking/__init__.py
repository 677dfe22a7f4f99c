"""MLflow: record runs and find them again.

The only room that imports MLflow. It runs beside the driver and never stops training.
"""

import logging
import os
import warnings

# Read by MLflow when it is imported or used; what a person has set stays.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
# Its own defaults of 7 retries and 120 s make a call to an absent server block for minutes; the sink
# tries again by itself.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
os.environ.setdefault("MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK", "true")


def quieten(verbose: bool) -> None:
    """Silence MLflow and its database tools unless ``verbose``: they also raise what they log."""
    for name in ("mlflow", "alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.CRITICAL)
    if not verbose:
        # torch's own remark on how it exports a model to MLflow; it concerns nobody who trains.
        warnings.filterwarnings("ignore", module="torch.export", category=UserWarning)
