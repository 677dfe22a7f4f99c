"""Reports and comparisons from a real store, by way of the command line."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

import cifar_ray
from cifar_ray.cli import main
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import data, draw, exported
from cifar_ray.reporting.contents import Chart
from cifar_ray.tracking import reading, store
from cifar_ray.tracking.study import Run
from tests.support import mlflow_store
from tests.support.studies import of_another_task, trial, without_run

CONFUSION = {"classes": ["cat", "dog"], "counts": [[8, 2], [1, 9]]}
CPU, DISK = "system/0123abcd/cpu_utilization_percentage", "system/0123abcd/disk_usage_percentage"


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a sweep of four cells, of which two have finished, and an older sweep of the same name."""
    client = mlflow_store.new_store(tmp_path_factory.mktemp("store"))
    address = client.tracking_uri
    experiment = store.experiment_id(client, "reports")
    sweep(client, experiment, "scaling", [trial("1x1", 64, training_s=1.0)], "KILLED")
    cells = [
        trial("1x1", 16, training_s=400.0, accuracies=(0.5, 0.8)),
        without_run("FAILED", "out of memory", "1x2", 16),
        trial("2x2", 16, training_s=100.0, accuracies=(0.4, 0.7), images_per_s=3000.0),
        without_run("SKIPPED", "needs 8 CPUs on a node", "1x8", 16),
        without_run("PENDING", "", "1x4", 16),
    ]
    sweep(client, experiment, "scaling", cells, "RUNNING")
    sweep(client, experiment, "nothing", [without_run("PENDING", "", "1x1", 16)], "RUNNING")
    return address


def sweep(client: MlflowClient, experiment: str, name: str, cells: list[Run], status: str) -> None:
    tags = {
        "cifar_ray.kind": "sweep",
        "cifar_ray.sweep": name,
        "cifar_ray.key": name,
        "cifar_ray.hold": "batch",
        "cifar_ray.axes": "topology,batch_size",
        "cifar_ray.command": f"cifar-ray sweep --name {name}",
    }
    parent = client.create_run(experiment, tags=tags, run_name=name).info.run_id
    listed = []
    for cell in cells:
        state = cell.status if cell.status in ("SKIPPED", "PENDING") else "RUN"
        # Of a cell that cannot be, little more is known than where it stands in a table.
        known = {k: cell.params[k] for k in reading._NEEDED} if state == "SKIPPED" else dict(cell.params)
        listed.append({"name": cell.name, "state": state, "reason": cell.reason, "params": known})
    client.log_dict(parent, {"cells": listed}, "cells.json")
    client.log_metric(parent, "sweep/concurrency", 2.0)
    for cell in reversed([cell for cell in cells if cell.run_id]):  # they need not begin in the grid's order
        child(client, experiment, parent, cell)
    if status != "RUNNING":
        client.set_terminated(parent, status)


def child(client: MlflowClient, experiment: str, parent: str, cell: Run) -> None:
    tags = {**cell.tags, "mlflow.parentRunId": parent, "cifar_ray.key": cell.name}
    if cell.status == "FAILED":
        tags["cifar_ray.failure"] = cell.reason
    run_id = client.create_run(experiment, tags=tags, run_name=cell.name).info.run_id
    metrics = [Metric(name, value, 9000, 9) for name, value in cell.metrics.items() if name not in cell.history]
    metrics += [Metric(n, p.value, p.timestamp_ms, p.step) for n, points in cell.history.items() for p in points]
    if cell.finished:
        metrics += [Metric(CPU, 50.0, 1500, 1), Metric(DISK, 70.0, 1500, 1), Metric("train/lr", 0.1, 1500, 1)]
        client.log_dict(run_id, CONFUSION, "confusion_matrix.json")
    metrics = [m for m in metrics if m.key != "test/accuracy"] + [m for m in metrics if m.key == "test/accuracy"]
    params = [Param(k, v) for k, v in cell.params.items()] if cell.finished else []
    client.log_batch(run_id, metrics=metrics, params=params, tags=[RunTag("cifar_ray.machine", "host, Linux")])
    client.set_terminated(run_id, cell.status)


def test_a_sweep_is_read_in_the_grids_order(uri: str) -> None:
    study = reading.sweeps_or_runs(uri, ["scaling"])[0]
    assert [(one.name, one.status, one.reason) for one in study.trials] == [
        ("bs16 1x1 seed0", "FINISHED", ""),
        ("bs16 1x2 seed0", "FAILED", "out of memory"),
        ("bs16 2x2 seed0", "FINISHED", ""),
        ("bs16 1x8 seed0", "SKIPPED", "needs 8 CPUs on a node"),
        ("bs16 1x4 seed0", "PENDING", ""),
    ]
    assert (study.hold, study.axes, study.status) == ("batch", ("topology", "batch_size"), "RUNNING")
    assert study.command == "cifar-ray sweep --name scaling"
    assert study.metrics == {"sweep/concurrency": 2.0}


def test_a_run_is_read_whole(uri: str) -> None:
    first, failed, *_ = reading.sweeps_or_runs(uri, ["scaling"])[0].trials
    assert first.metrics["time/training_s"] == 400.0
    assert [(point.step, point.value) for point in first.history["test/accuracy"]] == [(1, 0.5), (2, 0.8)]
    assert set(first.history) == {"test/accuracy", "epoch_s", CPU}
    assert (first.confusion, first.class_names) == (CONFUSION["counts"], ("cat", "dog"))
    assert failed.run_id
    assert (failed.model, failed.batch_size, failed.confusion) == ("resnet", 16, None)


def test_runs_of_another_task_are_compared_by_its_figures(tmp_path: Path) -> None:
    client = mlflow_store.new_store(tmp_path)
    address = client.tracking_uri
    depths, labels = of_another_task(trial("1x1", 16)), trial("1x2", 16)
    sweep(client, client.create_experiment("cifar_ray"), "both", [depths, labels], "FINISHED")
    read = reading.sweeps_or_runs(address, ["both"])[0].trials[0]
    assert [point.value for point in read.history["test/rmse"]] == [3.0, 5.0, 6.0]
    shown = cifar_ray.compare(depths.name, target=[3.5], tracking_uri=address).data["figures"]
    assert {"test_rmse", "near_percent", "rows_per_s", "to_3.5_s"} <= {*shown.figure}
    with pytest.raises(ConfigError, match="runs of different tasks cannot be compared"):
        cifar_ray.compare(depths.name, labels.name, tracking_uri=address)


def test_no_sweep_is_made_up(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no run or sweep 'scalling' in sqlite:///.*; give its name"):
        reading.sweeps_or_runs(uri, ["scalling"])
    with pytest.raises(ConfigError, match="there is no run or sweep"):
        reading.sweeps_or_runs(f"sqlite:///{tmp_path / 'none.db'}", ["scaling"])
    assert not list(tmp_path.iterdir())


def test_the_same_from_python(uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = cifar_ray.report("scaling", out=str(tmp_path / "out"), tracking_uri=uri)
    assert made.files[0] == tmp_path / "out" / "report.html"
    assert all(file.exists() for file in made.files)
    capsys.readouterr()
    assert main.main(["report", "scaling", "--json", "--tracking-uri", uri]) == 0
    told = json.loads(capsys.readouterr().out)
    for name in ("runs", "figures"):
        assert told[name] == data.records(made.data[name])
        filled = [{key: value for key, value in row.items() if value != ""} for row in told[name]]
        assert filled == data.records(pd.read_csv(tmp_path / "out" / f"{name}.csv"))
    two = ["bs16 1x1 seed0", "bs16 2x2 seed0"]
    compared = cifar_ray.compare(*two, tracking_uri=uri)
    assert main.main(["compare", *two, "--tracking-uri", uri]) == 0
    assert capsys.readouterr().out == f"{compared}\n"
    assert list(compared.data["side_by_side"].loc["topology"]) == ["1x1", "2x2"]
    with pytest.raises(ConfigError) as caught:
        cifar_ray.report("none", tracking_uri=uri)
    assert main.main(["report", "none", "--tracking-uri", uri]) == 2
    assert capsys.readouterr().err == f"error: {caught.value}\n"


def test_histories_are_read_once_and_only_those_that_are_shown(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[tuple[str, str]] = Counter()
    real = MlflowClient.get_metric_history

    def counted(client: MlflowClient, run_id: str, key: str) -> list[Metric]:
        asked[run_id, key] += 1
        return real(client, run_id, key)

    first, _, second, *_ = reading.sweeps_or_runs(uri, ["scaling"])[0].trials
    once = {(one.run_id, name): 1 for one in (first, second) for name in ("test/accuracy", "epoch_s", CPU)}
    monkeypatch.setattr(MlflowClient, "get_metric_history", counted)
    cifar_ray.report("scaling", first.name, first.run_id, hold="batch", tracking_uri=uri)
    assert asked == once
    asked.clear()
    cifar_ray.compare(first.name, second.run_id, first.run_id, tracking_uri=uri)
    assert asked == once
    asked.clear()
    assert main.main(["runs", "--tracking-uri", uri]) == 0
    assert main.main(["runs", "scaling", "--tracking-uri", uri]) == 0
    assert not asked


def test_the_report_command_writes_all_files(uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "report"
    words = ["report", "scaling", "--out", str(out), "--tracking-uri", uri]
    words += ["--baseline", "rangoju_katneni_2025", "--price", "0.53", "--title", "Two nodes"]
    assert main.main(words) == 0
    shown = capsys.readouterr().out
    assert "2x2 (100.00 s), 4.00 times as fast as 1x1 (400.00 s)" in shown
    assert "2 of 4 runs are finished" in shown
    assert "bs16 1x2 seed0 FAILED: out of memory" in shown
    assert {file.suffix for file in (out / "charts").iterdir()} == {".png", ".svg"}
    assert list(out.rglob(".*")) == []
    figures = pd.read_csv(out / "figures.csv")
    training = figures[figures.figure == "training_s"].set_index("topology")
    assert dict(training["mean"]) == {"1x1": 400.0, "2x2": 100.0}
    runs = pd.read_csv(out / "runs.csv")
    assert list(runs.status) == ["FINISHED", "FAILED", "FINISHED", "SKIPPED", "PENDING"]
    assert runs.cost_usd[0] == pytest.approx(figures[figures.figure == "cost_usd"]["mean"].iloc[0])
    page = (out / "report.md").read_text()
    assert page.startswith("# Two nodes\n")
    assert "| 2x2 | 64 | 100.00 | 3,000.0 | 3.00 |" in page
    assert "## Beside Exploring Various Configurations" in page
    assert "cifar-ray sweep --name scaling" in page
    client = MlflowClient(tracking_uri=uri)
    kept = [file.path for file in client.list_artifacts(reading.sweeps_or_runs(uri, ["scaling"])[0].run_id, "report")]
    assert kept == ["report/figures.csv", "report/report.html", "report/runs.csv"]
    own = client.get_run(reading.sweeps_or_runs(uri, ["scaling"])[0].run_id)
    said = own.data.tags[store.NOTE_TAG]
    assert f"/runs/{own.info.run_id}/artifacts/report/report.html" in said
    assert said[said.index("## ") :].removesuffix("\n\n- - -\n\n") in page


def test_a_report_of_a_sweep_that_takes_no_artifacts_is_written_all_the_same(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: str) -> None:
        raise OSError("no room")

    monkeypatch.setattr(MlflowClient, "log_artifact", refuse)
    assert main.main(["report", "nothing", "--out", str(tmp_path / "out"), "--tracking-uri", uri]) == 0
    said = capsys.readouterr().err
    assert "note: MLflow does not take the report as an artifact of the sweep: no room\n" in said
    assert (tmp_path / "out" / "report.html").exists()


def test_a_report_replaces_an_earlier_report_and_no_file_where_there_is_none(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", "scaling", "--out", str(tmp_path), "--tracking-uri", uri, "--style", "paper"]
    (tmp_path / "charts").mkdir()
    for name, taken in (("charts/accuracy.svg", "charts"), ("runs.csv", "runs.csv")):
        (tmp_path / name).write_text("mine")
        assert main.main(words) == 2
        assert f"without {taken}, or with a report" in capsys.readouterr().err
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
        (tmp_path / "charts").rmdir() if taken == "charts" else (tmp_path / name).write_text("mine")
    assert main.main([*words, "--overwrite"]) == 0
    assert (tmp_path / "runs.csv").read_text() != "mine"
    (tmp_path / "own.csv").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    drawn, save = itertools.count(), draw.save

    def stop(chart: Chart, folder: Path, pdf: bool) -> None:
        if next(drawn):
            raise OSError(28, "No space left on device")
        save(chart, folder, pdf)

    with monkeypatch.context() as full:  # a report that ends early leaves the earlier one whole
        full.setattr(draw, "save", stop)
        assert main.main([*words, "--title", "Another"]) == 2
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["charts"]
    assert main.main(["report", "nothing", *words[2:], "--title", "Second"]) == 0
    assert (tmp_path / "report.md").read_text().startswith("# Second")
    assert (tmp_path / "own.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("function", "names", "options", "complaint"),
    [
        (cifar_ray.report, (), {}, "sweeps must "),
        (cifar_ray.compare, (["s"],), {}, "runs must "),
        (cifar_ray.report, ("s",), {"style": "papr", "out": "x"}, "style must "),
        (cifar_ray.compare, ("s",), {"target": ["x"]}, "target must "),
    ],
)
def test_a_mistake_from_python_is_one_sentence(
    function: Callable[..., object], names: tuple[object, ...], options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{complaint}"):
        function(*names, **options)


def test_cells_that_cannot_be_or_whose_list_is_lost_are_read_all_the_same(tmp_path: Path) -> None:
    client = mlflow_store.new_store(tmp_path)
    address, experiment = client.tracking_uri, store.experiment_id(client, "reports")
    odd = without_run("SKIPPED", "topology must be NODESxWORKERS", "1x1", 16)
    odd = replace(odd, name="odd", params={**odd.params, "topology": "2y2"})
    sweep(client, experiment, "odd", [odd, trial("1x1", 32), without_run("PENDING", "", "1x2", 16)], "FINISHED")
    skipped, _, lost = reading.sweeps_or_runs(address, ["odd"])[0].trials
    assert (skipped.status, skipped.topology, skipped.world_size, skipped.batch_size) == ("SKIPPED", "2y2", 1, 16)
    assert lost.status == "PENDING"
    assert main.main(["report", "odd", "--out", str(tmp_path / "out"), "--tracking-uri", address]) == 0
    tags = {"cifar_ray.kind": "sweep", "cifar_ray.sweep": "bare"}
    child(client, experiment, client.create_run(experiment, tags=tags, run_name="bare").info.run_id, trial())
    study = reading.sweeps_or_runs(address, ["bare"])[0]
    assert [(one.name, one.reason) for one in study.trials] == [("bs16 1x1 seed0", "")]
    assert "cells.json, could not be read" in study.cautions[0]


def test_runs_of_one_global_batch_are_compared_by_it(tmp_path: Path) -> None:
    client = mlflow_store.new_store(tmp_path)
    address = client.tracking_uri
    experiment = store.experiment_id(client, "reports")
    sweep(client, experiment, "s", [trial("1x1", 32), trial("1x2", 16), trial("2x2", 16)], "FINISHED")
    names = ["bs32 1x1 seed0", "bs16 1x2 seed0", "bs16 2x2 seed0"]
    assert reading.runs(address, names[:2]).hold == "global_batch"
    assert reading.runs(address, names[1:]).hold == ""


def test_a_sweep_without_a_finished_run_has_a_report(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["report", "nothing", "--out", str(tmp_path), "--tracking-uri", uri]) == 0
    assert "No run has finished, so there is nothing to compare yet" in capsys.readouterr().out
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--target", "60"], "--target must "),
        (["--baseline", "x"], "--baseline must "),
        (["--out", "/dev/null/x"], "--out must "),
        (["--out", ""], "--out must "),
        (["--out", "s3://bucket/x"], "--out must "),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], complaint: str, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["report", "scaling", "--tracking-uri", uri, "--out", str(tmp_path), *words]
    assert main.main(given) == 2
    assert capsys.readouterr().err.startswith(f"error: {complaint}")


def test_a_report_for_a_latex_document(uri: str, tmp_path: Path) -> None:
    words = ["report", "scaling", "--tracking-uri", uri, "--out", str(tmp_path)]
    assert main.main([*words, "--style", "paper", "--latex"]) == 0
    plots = {path.stem for path in (tmp_path / "charts").glob("*.pdf")}
    assert plots == {path.stem for path in (tmp_path / "charts").glob("*.svg")} != set()
    assert "400.00" in (tmp_path / "tables" / "resnet_cifar10_main.tex").read_text()
    with pytest.raises(ConfigError, match="latex writes files, and needs --out, a folder for them"):
        cifar_ray.report("scaling", latex=True, tracking_uri=uri)


def test_a_run_has_a_report_too(uri: str, tmp_path: Path) -> None:
    run = reading.sweeps_or_runs(uri, ["scaling"])[0].trials[0]
    assert main.main(["report", run.name, "--tracking-uri", uri, "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.md").read_text()
    assert page.startswith(f"# {run.name}")
    assert "To run it again:\n\n```\ncifar-ray train --model resnet" in page
    assert "80.00" in page
    file = tmp_path / "run.json"
    assert main.main(["export", run.run_id, "--tracking-uri", uri, "--out", str(file)]) == 0
    assert [one.run_id for one in exported.read(file).trials] == [run.run_id]


@pytest.mark.parametrize(
    ("runs", "complaint"),
    [
        (["none", "other"], "there is no run or sweep 'none'"),
        (["scaling", "nothing"], "there are 2 runs named 'scaling'; take one of their ids"),
        (["nothing", "bs16 1x1 seed0"], "run 'nothing' in sqlite"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    runs: list[str], complaint: str, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["compare", *runs, "--tracking-uri", uri]) == 2
    assert capsys.readouterr().err.startswith(f"error: {complaint}")


def test_figures_are_those_of_mlflow_whatever_came_late(tmp_path: Path) -> None:
    """The latest value of a metric is the one of the highest step, whenever it came."""
    client = mlflow_store.new_store(tmp_path)
    cell = replace(trial("1x1", 16), history={})
    sweep(client, store.experiment_id(client, "reports"), "s", [cell], "FINISHED")
    run_id = reading.find_run(client, cell.name).run_id
    for name in cell.metrics:
        client.log_metric(run_id, name, 0.987, timestamp=10_000, step=8)  # late, and of an earlier step
    (read,) = reading.sweeps_or_runs(client.tracking_uri, ["s"])[0].trials
    assert cell.metrics.items() <= read.metrics.items()
    assert read.metrics.items() <= client.get_run(run_id).data.metrics.items()


def test_runs_are_compared_by_name_or_id(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, run_id = "bs16 1x1 seed0", reading.sweeps_or_runs(uri, ["scaling"])[0].trials[2].run_id
    compared = cifar_ray.compare(name, run_id, name, target=[0.65], price=1.01, tracking_uri=uri)
    rows = compared.data["side_by_side"]
    assert list(rows.loc["Training (s)"]) == ["400.00", "100.00"]
    assert main.main(["compare", name, run_id, "--tracking-uri", uri, "--target", "0.65", "--full"]) == 0
    shown = capsys.readouterr().out
    assert "To 65 % test accuracy" in shown
    assert shown.count(run_id) == 1
