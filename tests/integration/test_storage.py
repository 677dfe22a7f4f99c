"""Object stores as folders: what lies in them, and what of it is trusted. Against real servers of their interfaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cifar_ray import storage, tasks
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.runs import checkpoints
from cifar_ray.runs.folder import CHECKPOINTS, RunFolder
from cifar_ray.storage import Folder, Lock, StorageError
from cifar_ray.storage import folder as folders
from cifar_ray.training import checkpoint
from cifar_ray.training.checkpoint import WEIGHTS, Snapshot
from tests.support import stores
from tests.support.helpers import decided_of


@pytest.fixture(scope="module", params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    with getattr(stores, request.param)() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield f"{request.param}://{stores.BUCKET}"


@pytest.fixture
def folder(bucket: str, home: Path, request: pytest.FixtureRequest) -> Folder:
    found = storage.at(f"{bucket}/some/prefix/{request.node.originalname}")
    assert not found.local
    return found


@pytest.fixture
def snapshot(small: TrainConfig) -> Snapshot:
    weights = {"w": torch.arange(6.0).reshape(2, 3)}
    config = replace(small, val_share=0.1)
    decided = decided_of(config)
    return Snapshot(
        config=config,
        decided=decided,
        task=tasks.USUAL,
        step=10,
        epoch=1,
        score=0.5,
        weights=weights,
        optimizer={"state": {}},
        clock={},
        epoch_loss=1.5,
        history=[],
    )


def test_files_are_written_read_listed_and_removed(folder: Folder, tmp_path: Path) -> None:
    assert (folder.exists(), folder.names()) == (False, [])
    folder.make()
    folder.write("a.txt", "first")
    folder.write("a.txt", "zweites, größer")
    folder.below("deep").below("er").write("b.txt", "")
    assert folder.read("a.txt") == "zweites, größer"
    assert folder.names() == ["a.txt", "deep"]
    with pytest.raises(FileNotFoundError):
        folder.read("none.txt")
    (tmp_path / "c.bin").write_bytes(bytes(range(256)) * 400)
    folder.upload(tmp_path / "c.bin")
    folder.download("c.bin", tmp_path / "below")
    assert (tmp_path / "below" / "c.bin").read_bytes() == (tmp_path / "c.bin").read_bytes()
    folder.delete("a.txt")
    folder.delete("a.txt")
    assert folder.names() == ["c.bin", "deep"]
    folder.remove()
    folder.remove()
    assert not folder.exists()


def test_checkpoints_come_back_as_they_were_and_are_removed_there_too(
    folder: Folder, snapshot: Snapshot, tmp_path: Path
) -> None:
    store = folder.below(CHECKPOINTS)
    with checkpoints.writing(folder) as writer:
        for step, accuracy in ((10, 0.9), (20, 0.5), (30, 0.6), (40, 0.7)):
            writer.keep(checkpoint.save(replace(snapshot, step=step, score=accuracy), writer.path).path)
    assert not writer.path.exists()
    assert store.names() == ["step-00000010", "step-00000030", "step-00000040"]  # the best, and the latest two
    with checkpoints.reading(folder) as here:
        newest = checkpoint.latest(here)
        assert newest is not None
        assert newest[1].step == 40
        assert torch.equal(newest[1].weights["w"], snapshot.weights["w"])
        assert [saved.best for saved in checkpoint.existing(here)] == [True, False, False]
    with checkpoints.reading(folder) as here:
        assert checkpoint.load(here / "step-00000010").score == 0.9
    with checkpoints.reading(folder) as here:
        assert checkpoint.load(here / "step-00000030").step == 30
    with checkpoints.writing(folder) as writer:  # a later process knows the best one, too
        saved = checkpoint.save(replace(snapshot, step=50, score=0.8), writer.path)
        writer.keep(saved.path)
    assert not saved.best
    assert store.names() == ["step-00000010", "step-00000040", "step-00000050"]


def test_what_is_damaged_or_half_written_is_passed_over(folder: Folder, snapshot: Snapshot, tmp_path: Path) -> None:
    store = folder.below(CHECKPOINTS)
    with checkpoints.writing(folder) as writer:
        for step in (10, 20):
            writer.keep(checkpoint.save(replace(snapshot, step=step, score=None), writer.path).path)
    (tmp_path / WEIGHTS).write_bytes(b"damaged")
    store.below("step-00000020").upload(tmp_path / WEIGHTS)
    store.below("step-00000030").upload(tmp_path / WEIGHTS)  # its writer was killed before the manifest
    with checkpoints.reading(folder) as here:
        found = checkpoint.latest(here)
        assert found is not None
        assert found[0].name == "step-00000010"
        assert [problem.split(" ")[2].split("/")[-2] for problem in found[2]] == ["step-00000020"]
    assert "step-00000030" in store.names()  # who only looks changes nothing
    with checkpoints.writing(folder) as writer:
        saved = checkpoint.save(replace(snapshot, step=20), writer.path)
        writer.keep(saved.path)
        assert "step-00000030" in store.names()  # it may be another driver's, who is writing it just now
        with checkpoints.reading(folder) as here:
            found = checkpoint.latest(here)
        assert found is not None
        assert (found[1].step, found[2]) == (20, ())
        writer.keep(checkpoint.save(replace(snapshot, step=40), writer.path).path)
        assert store.names() == ["step-00000020", "step-00000040"]


def test_a_driver_that_was_taken_over_removes_nothing_newer(folder: Folder, snapshot: Snapshot) -> None:
    store = folder.below(CHECKPOINTS)
    with checkpoints.writing(folder) as stale:
        with checkpoints.writing(folder) as writer:
            for step in (10, 20):
                writer.keep(checkpoint.save(replace(snapshot, step=step), writer.path).path)
        stale.keep(checkpoint.save(replace(snapshot, step=10), stale.path).path)
    assert store.names() == ["step-00000010", "step-00000020"]


def test_a_checkpoint_that_cannot_be_kept_is_an_error_that_names_it(
    folder: Folder, snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_PAUSES_S", (0.0,))
    gone = replace(folder, path="no-such-bucket/runs")
    writer = checkpoints.Writer(tmp_path, gone)
    saved = checkpoint.save(snapshot, tmp_path)
    with pytest.raises(StorageError, match=rf"^storage: {gone.address}/step-00000010 cannot be written: "):
        writer.keep(saved.path)


TAKEN = ConfigError("", "taken")


def test_one_driver_of_a_machine_at_a_time(folder: Folder) -> None:
    with Lock(folder, TAKEN), pytest.raises(ConfigError, match="taken"):
        Lock(folder, TAKEN)
    with Lock(folder, TAKEN):
        assert folder.names() == []


def test_who_comes_second_to_a_name_leaves_the_first_ones_folder(
    folder: Folder, small: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(small, storage=folder.address, run_name="mine")
    first, held = RunFolder.create(config, decided_of(config))
    before = {name: first.folder.read(name) for name in first.folder.names()}
    monkeypatch.setattr(Folder, "exists", lambda _: False)  # as when both have looked before either has written
    with pytest.raises(ConfigError, match="run 'mine' is being trained by another process"):
        RunFolder.create(config, decided_of(config))
    assert {name: first.folder.read(name) for name in first.folder.names()} == before
    held.release()
    with pytest.raises(ConfigError, match="run_name must be new, and 'mine' is in "):
        RunFolder.create(config, decided_of(config))
    assert first.folder.names() == ["config.yaml", "run.json"]
    assert RunFolder.at(first.address) == first


def test_an_address_has_no_secret_and_no_query() -> None:
    for address in ("s3://", "s3://bucket?x=1", "s3://key:secret@bucket/x", "gs://b/a//b", "s3://b/../c", "hdfs://h/x"):
        with pytest.raises(
            ConfigError, match=r"storage must be a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"
        ) as e:
            storage.at(address)
        assert "secret" not in str(e.value)
