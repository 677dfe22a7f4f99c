"""What MLflow has of a run in the end."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from mlflow import MlflowClient
from PIL import Image

from cifar_ray.config import runfile, schema
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.tasks import Figure, TaskSpec
from cifar_ray.tracking import artifacts, origin, pages, store
from cifar_ray.tracking import record as module
from cifar_ray.tracking.run import RunRecord
from cifar_ray.tracking.study import CHOSEN_BY_TAG, FAILURE_TAG, FOLDER_TAG, TASK_TAG
from cifar_ray.training import recipe
from cifar_ray.training.mistakes import Mistake
from cifar_ray.training.observer import Outcome, Row, SavedCheckpoint, Started
from tests.support.helpers import decided_of
from tests.support.mlflow_store import files, only_run, points, steps, text, value

CONFIG = recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", seed=7, topology="1x2", batch_size=16))
DECIDED = decided_of(CONFIG)
BEGUN = 1_000_000.25
CONFUSION = [[row + column for column in range(10)] for row in range(10)]
RECALL = [share / 16 for share in range(10)]


@pytest.fixture(autouse=True)
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process that would end the run if this one were killed."""
    monkeypatch.setattr(module, "Guard", lambda uri, session: SimpleNamespace(conclude=lambda written, _: written))


def created(
    client: MlflowClient, digits: Dataset, *, name: str = "mine", config: ResolvedConfig = CONFIG, **tags: str
) -> RunRecord:
    named = {"name": name, "key": f"key of {name}", "folder": f"/there/{name}"}
    begun = BEGUN + len(name) - len("mine")
    decided = DECIDED if config is CONFIG else decided_of(config)
    return RunRecord(client, config, decided, **named, dataset=digits, begun=begun, tags=tags)


def saved(step: int, epoch: int, best: bool = False) -> SavedCheckpoint:
    return SavedCheckpoint(Path(f"/disk/checkpoints/step-{step:08d}"), step, epoch, f"hash{step}", None, best)


def rows(kind: str, *steps: int) -> list[Row]:
    return [Row(kind, step, 1000 * step, {f"{kind}/figure": step + 0.5}) for step in steps]


def outcome(*history: Row) -> Outcome:
    metrics, times = {"epoch/figure": 2.5, "best/accuracy": 0.75}, {"time/wall_s": 40.5, "time/training_s": 30.0}
    checkpoint, per_class = "/disk/checkpoints/step-00000022", {"recall": RECALL}
    return Outcome(2, metrics, times, BEGUN, "abc", checkpoint, per_class, CONFUSION, history)


def test_a_run_says_from_its_beginning_what_it_is(
    client: MlflowClient, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "git_commit", lambda: "abc-dirty")
    monkeypatch.setenv("LOGNAME", "somebody")
    record = created(client, digits, **{"mlflow.parentRunId": "p"})
    record.end("KILLED")
    found = only_run(client)
    experiment = client.get_experiment(found.info.experiment_id).name
    assert (found.info.run_name, experiment, found.info.start_time) == ("mine", "cifar_ray/digits", 1_000_000_250)
    expected = {
        "cifar_ray.key": "key of mine", "topology": "1x2", "world_size": "2", "global_batch_size": "32", "strategy": "ddp",
        "dataset": "digits", "model": "simple_cnn", "seed": "7", "mlflow.source.type": "LOCAL",
        "mlflow.source.name": "cifar-ray train", "mlflow.source.git.commit": "abc-dirty", "mlflow.parentRunId": "p",
        "cifar_ray.command": recipe.command(CONFIG), FOLDER_TAG: "/there/mine", "mlflow.user": "somebody",
        "mlflow.note.content": f"    {recipe.command(CONFIG)}\n", "version.torch": metadata.version("torch"),
    }  # fmt: skip
    assert expected.items() <= found.data.tags.items()
    params = runfile.params(CONFIG, DECIDED)
    assert found.data.params == {name: params[name] for name in params.keys() - {"precision", "device"}}
    (given,) = found.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("digits", digits.spec.digest)
    assert text(client, record.run_id, "config.yaml") == runfile.to_yaml(CONFIG, DECIDED)
    monkeypatch.setattr(origin.getpass, "getuser", lambda: {}["uid"])  # a number without a name, as in a container
    assert "mlflow.user" not in origin.origin_tags()


def test_what_changes_while_a_run_trains_is_kept(client: MlflowClient, digits: Dataset) -> None:
    """What came before the first step trained nothing that counts."""
    record = created(client, digits)
    wider = replace(DECIDED, topology="1x4", cpus_per_worker=2)
    for decided, step, hardware in ((wider, 0, "old"), (DECIDED, 0, "CPU"), (DECIDED, 11, "CPU"), (wider, 11, "GPU")):
        record.started(Started(decided, step, 11, hardware=hardware))
    record.end("KILLED")
    tags = only_run(client).data.tags
    names = [f"cifar_ray.{name}" for name in ("topology", "hardware", "threads")]
    assert [tags[name] for name in names] == ["1x4", "GPU", "2"]
    assert [tags[f"cifar_ray.earlier.{name}"] for name in names] == ["1x2", "CPU", str(DECIDED.cpus)]


@pytest.mark.parametrize(("convolutions", "recorded"), [("channels_last", None), ("products4", "products4")])
def test_unusual_convolutions_are_recorded(
    convolutions: str, recorded: str | None, client: MlflowClient, digits: Dataset
) -> None:
    record = created(client, digits)
    decided = replace(DECIDED, precision="bf16", convolutions=convolutions)
    for _ in range(2):
        record.started(Started(decided, 0, 11, measured="64 images in bf16: ..."))
    record.end("KILLED")
    run = only_run(client).data
    found = run.params["precision"], run.params.get("convolutions"), run.tags["cifar_ray.precision"]
    assert found == ("bf16", recorded, "64 images in bf16: ...")
    assert schema.build(Decided, schema.to_plain(decided)) == decided


def test_figures_are_written_once_a_checkpoint_has_them(client: MlflowClient, digits: Dataset) -> None:
    record = created(client, digits)
    assert (record.trouble, record.refused, record.page) == ("", [], None)
    record.started(Started(DECIDED, 4, 11, history=tuple(rows("iteration", 2, 4)), hardware="a CPU"))
    record.json("placement.json", [{"rank": 0, "node": "a"}])
    record.failed("no room")
    for row in (*rows("iteration", 6, 8), *rows("epoch", 1)):
        record.row(row)
    record.checkpoint(saved(6, 0))
    record.row(*rows("iteration", 11))
    record.checkpoint(saved(11, 1, best=True))
    for row in (*rows("iteration", 13), *rows("epoch", 2)):
        record.row(row)
    before = int(1000 * time.time())
    record.end("FAILED")
    found = only_run(client)
    assert steps(client, record.run_id) == [
        ("epoch/figure", 1),
        *(("iteration/figure", step) for step in (2, 4, 6, 8, 11)),
    ]
    listed = value(client, record.run_id, "checkpoints.json")["checkpoints"]
    folder = "/there/mine/checkpoints/step-000000"
    assert [(entry["step"], entry["epoch"], entry["path"], entry["weights_sha256"]) for entry in listed] == [
        (6, 0, f"{folder}06", "hash6"),
        (11, 1, f"{folder}11", "hash11"),
    ]
    tags = {"cifar_ray.best_checkpoint": f"{folder}11", "cifar_ray.hardware": "a CPU", FAILURE_TAG: "no room"}
    assert tags.items() <= found.data.tags.items()
    assert found.data.params == runfile.params(CONFIG, DECIDED)
    assert value(client, record.run_id, "placement.json") == [{"rank": 0, "node": "a"}]
    assert found.info.status == "FAILED"
    assert before <= found.info.end_time <= 1000 * time.time()


def test_runs_with_and_without_validation_are_sorted_together(client: MlflowClient, digits: Dataset) -> None:
    """A grid, and beside it a search, of which one run was killed before its first epoch ended."""
    accuracies = {"grid a": 0.5, "grid b": 0.75, "search a": 0.625, "search b": 0.875, "search c": None}
    for name, accuracy in accuracies.items():
        on = "val" if name.startswith("search") else "test"
        record = created(client, digits, name=name, **{CHOSEN_BY_TAG: on})
        if accuracy is not None:
            record.row(Row("epoch", 1, 1000, {f"{on}/loss": 1.0, f"{on}/accuracy": accuracy}))
            record.checkpoint(saved(11, 1))
        record.end("KILLED")
    (home,) = {run.info.experiment_id for run in client.search_runs(store.all_experiments(client))}
    pages.newest("http://here", client)
    view = json.loads(client.get_experiment(home).tags["mlflow.sharedViewState.cifar_ray"])
    order = f"{view['orderByKey']} {'ASC' if view['orderByAsc'] else 'DESC'}"
    listed = [run.info.run_name for run in client.search_runs([home], order_by=[order])]
    assert listed == ["search b", "grid b", "search a", "grid a", "search c"]


def test_a_finished_run_ended_when_its_result_was_there(client: MlflowClient, digits: Dataset) -> None:
    record = created(client, digits)
    record.failed("lost its nodes")
    record.end("FAILED")
    record = created(client, digits)
    record.row(*rows("iteration", 22))  # held, and in the history too
    wrong = (Mistake(3, 1, 2, 0.9876),)
    record.result(replace(outcome(*rows("iteration", 22), *rows("epoch", 1, 2)), mistakes=wrong), digits)
    assert record.end("FINISHED")
    found = only_run(client)
    assert (found.info.status, found.info.end_time) == ("FINISHED", 1_000_040_750)
    assert FAILURE_TAG not in found.data.tags
    written = points(client, record.run_id)
    assert [(name, step) for name, step, _, _ in written] == [
        ("best/accuracy", 2), ("epoch/figure", 1), ("epoch/figure", 2), ("iteration/figure", 22),
        ("time/training_s", 2), ("time/wall_s", 2),
    ]  # fmt: skip
    assert ("epoch/figure", 2, 2000, 2.5) in written  # at the time of the epoch
    tags = {"cifar_ray.weights_sha256": "abc", "cifar_ray.checkpoint": "/there/mine/checkpoints/step-00000022"}
    assert tags.items() <= found.data.tags.items()
    names = list(digits.spec.names)
    confusion = value(client, record.run_id, "confusion_matrix.json")
    (mistake,) = confusion.pop("mistakes")
    assert confusion == {"classes": names, "counts": CONFUSION}
    with Image.open(io.BytesIO(base64.b64decode(mistake.pop("png")))) as picture:
        assert np.array_equal(picture, digits.test.inputs[3])
    assert mistake == {"index": 3, "true": "1", "predicted": "2", "probability": 0.9876}
    per_class = value(client, record.run_id, "per_class.json")
    assert per_class == {"columns": ["class", "recall"], "data": [[*row] for row in zip(names, RECALL)]}
    kept = files(client, record.run_id)
    assert kept == {"config.yaml", "confusion_matrix.json", "confusion_matrix.png", "per_class.json"}


def test_a_run_of_another_task_has_no_classes(client: MlflowClient, digits: Dataset) -> None:
    task = TaskSpec("gone:Depth", (Figure("rmse", "RMSE", "min"),), "scans")
    record = created(client, digits, **{TASK_TAG: json.dumps(asdict(task))})
    record.result(replace(outcome(), metrics={"test/rmse": 3.0}, per_class={}, confusion=[]), digits)
    record.end("FINISHED")
    assert files(client, record.run_id) == {"config.yaml"}


@pytest.mark.parametrize(
    ("share", "tag", "key"), [(CONFIG.val_share, "nothing", "accuracy"), (0.1, "val", "val/accuracy")]
)
def test_a_run_says_on_what_it_was_chosen(
    share: float, tag: str, key: str, client: MlflowClient, digits: Dataset
) -> None:
    record = created(client, digits, config=replace(CONFIG, val_share=share))
    record.checkpoint(replace(saved(11, 1), score=0.5))
    record.end("KILLED")
    assert only_run(client).data.tags["cifar_ray.chosen_by"] == tag
    assert value(client, record.run_id, "checkpoints.json")["checkpoints"][0][key] == 0.5


def test_test_figures_of_the_chosen_checkpoint_stand_at_its_epoch(client: MlflowClient, digits: Dataset) -> None:
    """So MLflow shows them with the model of that epoch; the run's last value is that of the last epoch."""
    record = created(client, digits)
    tested = {"val/accuracy": 0.2, "test/accuracy": 0.25, "chosen/test/accuracy": 0.75, "chosen/epoch": 1.0}
    record.result(replace(outcome(), metrics=tested, per_class={}, confusion=[]), digits)
    for seconds in (-1.0, 61.5):  # a node's load stands at the seconds since the run began
        record.system(round(1000 * (BEGUN + seconds)), {"node/cpu": seconds})
    record.end("FINISHED")
    run = only_run(client)
    found = [(step, number) for name, step, _, number in points(client, run.info.run_id) if name == "test/accuracy"]
    assert (found, run.data.metrics["test/accuracy"]) == ([(1, 0.75), (2, 0.25)], 0.25)
    assert {("system/node/cpu", 0), ("system/node/cpu", 61)} <= {*steps(client, record.run_id)}


def test_a_commit_is_that_of_our_own_checkout_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed below somebody else's checkout, git would tell theirs."""
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(variable, raising=False)
    ours = tmp_path / "ours"
    source = ours / "cifar_ray" / "tracking" / "origin.py"
    source.parent.mkdir(parents=True)
    source.write_text("first")
    monkeypatch.setattr(origin, "__file__", str(source))

    def git(folder: Path, *words: str) -> str:
        author = ["-c", "user.name=n", "-c", "user.email=e"]
        return subprocess.run(["git", "-C", folder, *author, *words], check=True, capture_output=True, text=True).stdout

    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "theirs")
    assert origin.git_commit() == ""
    for words in (["init"], ["add", "."], ["commit", "--message", "ours"], ["tag", "-am", "a release", "v1"]):
        git(ours, *words)
    commit = git(ours, "rev-parse", "HEAD").strip()
    assert origin.git_commit() == commit
    source.write_text("changed")
    assert origin.git_commit() == f"{commit}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert origin.git_commit() == ""


def test_a_description_that_a_person_has_written_stays(client: MlflowClient, digits: Dataset) -> None:
    record = created(client, digits)
    record.end("KILLED")
    client.set_tag(record.run_id, store.NOTE_TAG, "mine\n\n---\n\nmine, too")
    created(client, digits).end("KILLED")
    for paragraphs, shown in (([], ""), (["a", "b"], "a\n\nb\n\n- - -\n\n"), (["c"], "c\n\n- - -\n\n")):
        if paragraphs:
            store.describe(client, record.run_id, paragraphs)
        assert only_run(client).data.tags[store.NOTE_TAG] == f"{shown}mine\n\n---\n\nmine, too"


@pytest.mark.parametrize("name", ["$a^$", "caf\udce9", "\x01"])
def test_a_class_of_any_name_is_drawn(client: MlflowClient, name: str) -> None:
    run_id = client.create_run("0").info.run_id
    with matplotlib.rc_context({"text.usetex": True}):
        artifacts.log_matrix(client, run_id, [[1, 2], [3, 4]], [name, "b"], "images")
    assert files(client, run_id) == {"confusion_matrix.png"}


def test_a_mistake_on_some_of_the_test_images_has_its_index_among_all(digits: Dataset) -> None:
    (record,) = artifacts.mistakes([Mistake(3, 1, 2, 0.9)], digits.tested_on(50))
    assert record["index"] > 3
    shown = Image.open(io.BytesIO(base64.b64decode(record["png"])))
    assert np.array_equal(np.asarray(shown), digits.test.inputs[record["index"]])


def test_the_trace_of_a_rank_is_an_artifact(client: MlflowClient, digits: Dataset, tmp_path: Path) -> None:
    record = created(client, digits)
    (tmp_path / "rank0.json.gz").write_bytes(b"trace")
    record.trace(lambda: nullcontext(tmp_path / "rank0.json.gz"))
    assert record.end("FINISHED")
    assert Path(client.download_artifacts(record.run_id, "profile/rank0.json.gz")).read_bytes() == b"trace"
