from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.support import mlflow_store


@pytest.fixture
def client(tmp_path: Path) -> MlflowClient:
    """An empty MLflow store of the test's own."""
    return mlflow_store.new_store(tmp_path)
