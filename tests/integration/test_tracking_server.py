"""A run recorded by an MLflow server as it is meant to be kept: PostgreSQL, proxied artifacts, checked host names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from cifar_ray import data
from tests.support import stores
from tests.support.helpers import png
from tests.support.mlflow_store import as_default
from tests.support.person import Person
from tests.support.ports import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL of Debian's package on the loopback interface, with an empty database."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not programs:
        pytest.skip("needs the package postgresql")
    if os.geteuid() != 0:
        pytest.skip("needs root, to become PostgreSQL's own user")
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # a socket needs a short path
    folder.chmod(0o755)
    cluster, port = folder / "data", free_port()

    def postgres(program: str, *words: str) -> None:
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        with (folder.parent / f"{folder.name}.log").open("a") as log:
            path = str(programs[-1].with_name(program))
            subprocess.run([*as_postgres, path, *words], check=True, stdout=log, stderr=log, cwd="/", timeout=180)

    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    try:
        cluster.mkdir()
        subprocess.run(["chown", "postgres", folder, cluster], check=True)
        postgres("initdb", "-D", str(cluster), "--auth=trust", "--username=mlflow", "--no-sync")
        postgres("pg_ctl", "-D", str(cluster), "-w", "-t", "120", "-o", options, "start")
        postgres("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "mlflow", "mlflow")
        yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/mlflow"
    finally:
        try:
            if (cluster / "postmaster.pid").exists():  # it has been started
                postgres("pg_ctl", "-D", str(cluster), "-m", "immediate", "stop")
        finally:
            subprocess.run(["rm", "-rf", folder, f"{folder}.log"], check=True)


@pytest.fixture(scope="module")
def server(database: str) -> Iterator[str]:
    """MLflow's server by the command of docs/storage.md, its artifacts in an object store that only it can reach."""
    port = free_port()
    with stores.s3() as variables:
        words = [
            "server",
            "--backend-store-uri",
            database,
            "--artifacts-destination",
            f"s3://{stores.BUCKET}/artifacts",
        ]
        words += ["--host", "127.0.0.1", "--port", str(port), "--allowed-hosts", f"127.0.0.1:{port}", "--workers", "1"]
        reach = {**variables, "MLFLOW_S3_ENDPOINT_URL": variables["AWS_ENDPOINT_URL"]}
        reach["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        with stores.serving([sys.executable, "-m", "mlflow", *words], f"http://127.0.0.1:{port}/health", reach):
            yield f"http://127.0.0.1:{port}"


def test_a_run_is_recorded_whole_and_found_again(server: str, person: Person) -> None:
    person.uri = server
    words = ["--dataset", "digits", "--model", "simple_cnn", "--epochs", "1", "--batch-size", "32"]
    done = person.succeeds("train", *words, "--run-name", "kept", "--tracking-uri", server, timeout=600)
    run = person.run_named("kept")
    assert run.info.status == "FINISHED"
    assert f"{server}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}" in done.stdout
    assert "View run" not in done.stdout  # MLflow's own lines
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
    names = {file.path for file in person.mlflow.list_artifacts(run.info.run_id)}
    whole = {"config.yaml", "checkpoints.json", "placement.json", "per_class.json"}
    assert names >= whole | {"confusion_matrix.json", "confusion_matrix.png"}
    assert person.steps("kept", "test/accuracy") == [1]
    scored = person.succeeds("evaluate", "kept", "--tracking-uri", server)
    assert f"{run.data.metrics['test/accuracy']:.2%}" in scored.stdout
    (model,) = person.mlflow.get_run(run.info.run_id).outputs.model_outputs
    person.succeeds("register", "kept", "--name", "digits", "--tracking-uri", server)
    versions = person.mlflow.get_logged_model(model.model_id).tags["mlflow.modelVersions"]
    assert json.loads(versions) == [{"name": "digits", "version": 1}]
    with as_default(server):
        loaded = mlflow.pyfunc.load_model(f"models:/{model.model_id}")
    files = [png(pixels) for pixels in data.load("digits").test.inputs[:3]]
    assert [len(each) for each in loaded.predict({"image": files}).probabilities] == [10] * 3


def test_another_host_name_is_refused(server: str) -> None:
    """As a page of somebody else's would have it, whose name leads here."""
    url = f"{server}/api/2.0/mlflow/experiments/search?max_results=1"
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.status == 200
    foreign = urllib.request.Request(url, headers={"Host": "tracking.example.com"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(foreign, timeout=60)
    assert caught.value.code == 403
