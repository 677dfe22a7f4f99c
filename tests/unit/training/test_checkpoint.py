from __future__ import annotations

import hashlib
import json
import pickle
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cifar_ray import models, tasks
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.training import checkpoint, predictor, recipe
from cifar_ray.training.checkpoint import STATE, WEIGHTS, Snapshot
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.observer import MANIFEST, Row, SavedCheckpoint
from tests.support.helpers import decided_of, forge

TENSORS = {
    "b.weight": torch.randn(3, 4),
    "a": torch.arange(5),
    "scalar": torch.tensor(7),
    "half": torch.randn(2, 2).bfloat16(),
    "none": torch.zeros(0, 3),
    "flags": torch.tensor([True, False]),
    "strided": torch.randn(4, 6).t(),
}


def snapshot(step: int, accuracy: float | None = None, **values: object) -> Snapshot:
    usual = {"dataset": "digits", "model": "simple_cnn", "val_share": 0.1}
    config = recipe.resolve(TrainConfig(**{**usual, **values}))  # type: ignore[arg-type]
    return Snapshot(
        config=config,
        decided=decided_of(config),
        step=step,
        epoch=step // 10,
        score=accuracy,
        weights={"w": torch.full((2, 2), float(step))},
        optimizer={"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        clock={"seconds": {"training": 1.5}, "steps": torch.tensor([0.1, 0.2])},
        epoch_loss=2.5,
        history=[Row("iteration", step, 1234, {"train/loss": 0.5})],
        task=tasks.USUAL,
    )


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    """The second of two checkpoints."""
    checkpoint.save(snapshot(10), tmp_path)
    return checkpoint.save(snapshot(20), tmp_path).path


def passed_over(newest: Path) -> str:
    """What is said of the newest of two checkpoints, of which the older one is taken."""
    found = checkpoint.latest(newest.parent)
    assert found is not None
    (problem,) = found[2]
    assert (found[1].step, len(problem.splitlines())) == (10, 1)
    assert [saved.step for saved in checkpoint.existing(newest.parent)] in ([10], [10, 20])
    return problem.replace(str(newest), "NEWEST")


def test_every_kind_of_tensor_comes_back_and_equal_weights_are_equal_bytes(tmp_path: Path) -> None:
    one = checkpoint.save(replace(snapshot(10), weights=TENSORS), tmp_path / "one")
    two = checkpoint.save(replace(snapshot(10), weights=dict(reversed(TENSORS.items()))), tmp_path / "two")
    assert one.weights_sha256 == two.weights_sha256
    for loaded in (safetensors.torch.load_file(one.path / WEIGHTS), checkpoint.load(one.path).weights):
        assert {name: each.dtype for name, each in loaded.items()} == {n: each.dtype for n, each in TENSORS.items()}
        assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())


def weights_file(header: str, content: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + content


TENSOR = '{"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, %s]}}'
NO_WEIGHTS = {
    "empty": b"",
    "a header longer than the file": b"\xff" * 8 + b"{}",
    "deep": weights_file("[" * 100_000),
    "cut off": weights_file(TENSOR % 16, bytes(8)),
}


@pytest.mark.parametrize("content", NO_WEIGHTS.values(), ids=NO_WEIGHTS.keys())
def test_weights_that_are_none_are_passed_over(newest: Path, content: bytes) -> None:
    forge(newest, WEIGHTS, content)
    assert passed_over(newest).startswith("checkpoint NEWEST cannot be read: ")


def state_file(folder: Path, changes: object) -> bytes:
    state = {"optimizer": {}, "clock": {}, "epoch_loss": 1.5, "history": [], "encoding": ""}
    torch.save({**state, **changes} if isinstance(changes, dict) else changes, folder / "state")
    return (folder / "state").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        b"PK",
        pickle.dumps({"optimizer": {}}, protocol=2),
        [],
        {"optimizer": 3},
        {"epoch_loss": "high"},
        {"history": [3]},
        {"history": [{"kind": "epoch", "step": 1, "timestamp_ms": 1, "metrics": {"test/accuracy": "high"}}]},
    ],
)
def test_a_state_that_is_none_is_passed_over(newest: Path, tmp_path: Path, changes: object) -> None:
    forge(newest, STATE, changes if isinstance(changes, bytes) else state_file(tmp_path, changes))
    assert passed_over(newest).startswith("checkpoint NEWEST cannot be read: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"score": float("inf")},
        {"step": None},
        {"step": 30},
        {"step": 10**400},
        {"epoch": 1.5},
        {"decided": [5]},
        {"config": {"lr": "fast"}},
        {"config": {"version": 99}},
        {"state_sha256": 4},
        {"task": {}},
    ],
)
def test_a_manifest_with_a_wrong_value_is_passed_over(changes: dict[str, object], newest: Path) -> None:
    forge(newest, **{"score": 0.5, **changes})
    assert MANIFEST in passed_over(newest)
    assert checkpoint.best(newest.parent) is None


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "\udcff", "lacks step", "lacks score", "lacks config"])
def test_a_manifest_that_is_none_or_lacks_something_is_passed_over(text: str, newest: Path) -> None:
    if text.startswith("lacks"):
        values = json.loads((newest / MANIFEST).read_text())
        text = json.dumps({name: value for name, value in values.items() if name != text.split()[1]})
    (newest / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    assert passed_over(newest).startswith(f"checkpoint NEWEST has a {MANIFEST} that cannot be used: ")


@pytest.mark.parametrize("file", [WEIGHTS, STATE])
def test_a_damaged_or_missing_file_is_passed_over(newest: Path, file: str) -> None:
    content = bytearray((newest / file).read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (content[:-7], content):
        (newest / file).write_bytes(damaged)
        assert passed_over(newest).startswith(f"checkpoint file NEWEST/{file} is damaged: ")
    (newest / file).unlink()
    assert passed_over(newest).startswith(f"checkpoint file NEWEST/{file} cannot be read: ")


def test_a_checkpoint_of_a_run_that_learns_otherwise_is_passed_over(newest: Path) -> None:
    record = snapshot(0).config
    for moved in (record, replace(record, topology="1x2", precision="auto")):
        found = checkpoint.latest(newest.parent, moved)  # where it goes on is not what it learns
        assert found is not None
        assert found[0] == newest
    decided = found[1].decided
    elsewhere = replace(decided, data=replace(decided.facts, digest="0" * 64))
    with pytest.raises(CheckpointError, match="was made with data "):
        checkpoint.latest(newest.parent, record, elsewhere)
    forge(newest, config={**json.loads((newest / MANIFEST).read_text())["config"], "lr": 0.15})
    found = checkpoint.latest(newest.parent, record)
    assert found is not None
    assert (found[1].step, "was made with lr 0.15, and this run has 0.05" in found[2][0]) == (10, True)


def test_a_checkpoint_gives_back_everything(tmp_path: Path) -> None:
    written = snapshot(20, accuracy=0.5)
    saved = checkpoint.save(written, tmp_path)
    digest = hashlib.sha256((tmp_path / "step-00000020" / WEIGHTS).read_bytes()).hexdigest()
    assert saved == SavedCheckpoint(tmp_path / "step-00000020", 20, 2, digest, 0.5, best=True)
    assert checkpoint.existing(tmp_path) == [saved]
    for read in (checkpoint.load(saved.path), pickle.loads(pickle.dumps(written))):  # as ranks send it
        for one, other in ((read.weights, written.weights), (read.clock, written.clock)):
            assert repr(one) == repr(other)
        assert repr(read.optimizer) == repr(written.optimizer)
        alike = {"weights": {}, "optimizer": {}, "clock": {}, "weights_sha256": "", "state_sha256": ""}
        assert replace(read, **alike) == replace(written, **alike)  # type: ignore[arg-type]


@pytest.mark.parametrize(("val_share", "kept", "best"), [(0.1, [20, 30, 40], 20), (None, [30, 40], None)])
def test_the_latest_are_kept_and_where_something_chooses_the_best(
    val_share: float | None, kept: list[int], best: int | None, tmp_path: Path
) -> None:
    """Of equals, the earlier is the best."""
    for step, accuracy in ((10, 0.3), (20, 0.9), (25, None), (30, 0.4), (40, 0.9)):
        checkpoint.save(snapshot(step, accuracy, keep_checkpoints=2, val_share=val_share), tmp_path)
    assert [path.name for path in checkpoint.every(tmp_path)] == [f"step-{step:08d}" for step in kept]
    assert checkpoint.best(tmp_path) == (tmp_path / f"step-{best:08d}" if best else None)


def test_when_no_checkpoint_can_be_used_that_is_said(tmp_path: Path) -> None:
    for step in (10, 20):
        (checkpoint.save(snapshot(step), tmp_path).path / MANIFEST).write_text("{")
    with pytest.raises(CheckpointError, match=r"no usable checkpoint in .*step-00000020"):
        checkpoint.latest(tmp_path)
    assert checkpoint.latest(tmp_path / "nowhere") is None


def test_another_versions_checkpoint_is_refused(newest: Path) -> None:
    manifest = json.loads((newest / MANIFEST).read_text())
    for changes, said in (({"format": 99}, "format 99"), ({"config": {"version": 99}}, "version must be 2, got 99")):
        forge(newest, **{"format": manifest["format"], **changes})
        with pytest.raises(CheckpointError, match=said):
            checkpoint.load(newest)


def test_loading_executes_nothing(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "exploded"),))  # type: ignore[return-value]

    path = checkpoint.save(snapshot(10), tmp_path).path
    torch.save({"optimizer": Bomb()}, tmp_path / "state")
    forge(path, STATE, (tmp_path / "state").read_bytes())
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(path)
    assert not (tmp_path / "exploded").exists()


def test_only_what_is_whole_and_newest_is_there_after_a_save(tmp_path: Path) -> None:
    (tmp_path / ".step-00000005.partial").mkdir()  # of a process that was killed
    path = checkpoint.save(snapshot(10), tmp_path).path
    (path / WEIGHTS).write_bytes(b"")
    checkpoint.save(snapshot(10), tmp_path)  # in place of the damaged one
    assert checkpoint.load(path).step == 10
    broken = replace(snapshot(20), weights={"w": torch.zeros(2, device="meta")})
    with pytest.raises(NotImplementedError):
        checkpoint.save(broken, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_no_room_is_said_and_leaves_the_earlier_ones(tmp_path: Path) -> None:
    checkpoint.save(snapshot(10), tmp_path)
    large = replace(snapshot(20), weights={"w": torch.zeros(50_000)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(CheckpointError, match="step-00000020 cannot be written: File too large"):
            checkpoint.save(large, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_a_folder_is_one_processs_alone_and_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_LOCK_WAIT_S", 0.1)
    with checkpoint.lock(tmp_path / "new" / "run") as held:
        assert held.is_locked
        with pytest.raises(CheckpointError, match=f"^another process is training into {tmp_path}/new/run$"):
            checkpoint.lock(tmp_path / "new" / "run")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"^checkpoints cannot be written to {tmp_path}/file: File exists$"):
        checkpoint.lock(tmp_path / "file")


def test_a_damaged_newer_checkpoint_does_not_count_among_those_kept(tmp_path: Path) -> None:
    for step in (10, 30, 20):
        checkpoint.save(snapshot(step, keep_checkpoints=1 if step == 20 else 2), tmp_path)
    assert [path.name for path in checkpoint.every(tmp_path)] == ["step-00000020", "step-00000030"]


def test_a_damaged_checkpoint_hides_neither_the_best_nor_the_others(tmp_path: Path) -> None:
    for step, accuracy in ((10, 0.3), (20, 0.5), (30, 0.9), (40, 0.4)):
        checkpoint.save(snapshot(step, accuracy, keep_checkpoints=4), tmp_path)
    for step in (10, 40):
        (tmp_path / f"step-{step:08d}" / MANIFEST).write_text("{")
    assert checkpoint.best(tmp_path) == tmp_path / "step-00000030"
    assert [(saved.step, saved.best) for saved in checkpoint.existing(tmp_path)] == [(20, False), (30, True)]


def test_weights_that_are_not_those_of_the_config_are_no_classifier(tmp_path: Path) -> None:
    whole = replace(snapshot(10), weights=models.build(snapshot(10).config, SPECS["digits"]).state_dict())
    restored = predictor.of(tmp_path, whole).model
    assert not restored.training
    assert all(torch.equal(tensor, whole.weights[name]) for name, tensor in restored.state_dict().items())
    with pytest.raises(CheckpointError, match="does not fit its own config"):
        predictor.of(tmp_path, replace(whole, weights={}))
