"""Starts MLflow's server for the runs of a cluster, on its head's loopback interface.

The variable DATABASE says where its database is:
  ssm:NAME                  in the parameter NAME of AWS's parameter store, a SecureString
  gcp-secret:PROJECT/NAME   in the newest version of a secret in Google's Secret Manager
  anything else             is the address itself, such as postgresql+psycopg2://mlflow@db/mlflow
The address has a password in it, so it reaches MLflow through its environment alone: no file and no list of
processes shows it.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import urllib.request
from pathlib import Path

METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
SECRETS = "https://secretmanager.googleapis.com/v1/projects/{}/secrets/{}/versions/latest:access"


def main() -> None:
    """Look the address up, and become the server."""
    database = os.environ.pop("DATABASE")
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": address(database)}
    mlflow = str(Path(sys.executable).with_name("mlflow"))
    words = [mlflow, "server", "--host", "127.0.0.1", "--port", environment.get("MLFLOW_PORT", "5000")]
    os.execve(mlflow, [*words, "--serve-artifacts"], environment)


def address(database: str) -> str:
    """The database's address."""
    kind, _, name = database.partition(":")
    if kind == "ssm":
        import boto3

        return str(boto3.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])
    if kind == "gcp-secret":
        token = get(METADATA, {"Metadata-Flavor": "Google"})["access_token"]
        found = get(SECRETS.format(*name.split("/")), {"Authorization": f"Bearer {token}"})
        return base64.b64decode(found["payload"]["data"]).decode()
    return database


def get(url: str, headers: dict[str, str]) -> dict:
    """What a JSON address answers."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:  # noqa: S310
        return json.load(answer)


if __name__ == "__main__":
    main()
