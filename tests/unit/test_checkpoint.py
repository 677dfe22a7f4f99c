from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cifar_ray.config import TrainConfig
from cifar_ray.training import checkpoint, recipe
from cifar_ray.training import safetensors as ours
from cifar_ray.training.checkpoint import MANIFEST, STATE, WEIGHTS, Snapshot
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.observer import Row

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
    config = recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", **values))  # type: ignore[arg-type]
    return Snapshot(
        config=config,
        step=step,
        epoch=step // 10,
        accuracy=accuracy,
        class_names=("0", "1"),
        weights={"w": torch.full((2, 2), float(step))},
        optimizer={"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        clock={"seconds": {"training": 1.5}, "iterations": torch.tensor([0.1, 0.2])},
        epoch_loss=2.5,
        history=[Row("iteration", step, 1234, {"train/loss": 0.5})],
    )


def test_weights_are_read_by_the_library_and_the_librarys_by_us(tmp_path: Path) -> None:
    ours.save(TENSORS, tmp_path / "ours")
    safetensors.torch.save_file({k: v.contiguous() for k, v in TENSORS.items()}, tmp_path / "theirs", {"made": "by"})
    for loaded in (safetensors.torch.load_file(tmp_path / "ours"), ours.load(tmp_path / "theirs")):
        assert loaded.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert loaded[name].dtype == tensor.dtype
            assert torch.equal(loaded[name], tensor)


def test_equal_weights_are_equal_bytes(tmp_path: Path) -> None:
    ours.save(TENSORS, tmp_path / "one")
    ours.save(dict(reversed(TENSORS.items())), tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    "content",
    [b"", b"1234567", b"\xff" * 8 + b"{}", b"\x02" + b"\0" * 7 + b"[]", b"\x10" + b"\0" * 7 + b"no json at all.."],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ValueError, match="is not a safetensors file"):
        ours.load(tmp_path / "bad")


def test_a_tensor_outside_the_file_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (tmp_path / "short").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(ValueError, match="offsets and shapes disagree"):
        ours.load(tmp_path / "short")


def test_a_checkpoint_gives_back_everything(tmp_path: Path) -> None:
    written = snapshot(20, accuracy=0.5)
    saved = checkpoint.save(written, tmp_path)
    read = checkpoint.load(saved.path)
    assert saved.path.name == "step-00000020"
    assert saved.best
    assert torch.equal(read.weights["w"], written.weights["w"])
    assert torch.equal(read.optimizer["state"][0]["momentum_buffer"], torch.ones(3))
    assert torch.equal(read.clock["iterations"], written.clock["iterations"])
    assert (read.config, read.step, read.epoch, read.accuracy) == (written.config, 20, 2, 0.5)
    assert (read.history, read.epoch_loss, read.class_names) == (written.history, 2.5, ("0", "1"))


def test_the_latest_and_the_best_are_kept(tmp_path: Path) -> None:
    for step, accuracy in ((10, 0.3), (20, 0.9), (25, None), (30, 0.4), (40, 0.9)):
        checkpoint.save(snapshot(step, accuracy, keep_checkpoints=2), tmp_path)
    assert [path.name for path in checkpoint.every(tmp_path)] == ["step-00000020", "step-00000030", "step-00000040"]
    best = checkpoint.best(tmp_path)
    assert best is not None
    assert best.name == "step-00000020"  # the earlier of equals


@pytest.mark.parametrize("victim", [WEIGHTS, STATE])
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, victim: str, damage: str) -> None:
    checkpoint.save(snapshot(10), tmp_path)
    path = checkpoint.save(snapshot(20), tmp_path).path / victim
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "flip":
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[:-7])
    else:
        path.unlink()
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    found, read, problems = newest
    assert (found.name, read.step) == ("step-00000010", 10)
    assert len(problems) == 1
    assert str(path) in problems[0]


def test_when_no_checkpoint_can_be_used_that_is_said(tmp_path: Path) -> None:
    for step in (10, 20):
        (checkpoint.save(snapshot(step), tmp_path).path / MANIFEST).write_text("{")
    with pytest.raises(CheckpointError, match=r"no usable checkpoint in .*step-00000020 has no readable manifest"):
        checkpoint.latest(tmp_path)
    assert checkpoint.latest(tmp_path / "nowhere") is None


def test_another_versions_checkpoint_is_refused(tmp_path: Path) -> None:
    path = checkpoint.save(snapshot(10), tmp_path).path
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match="has format 99, written by another version"):
        checkpoint.load(path)
    (path / MANIFEST).write_text(json.dumps({**manifest, "config": {"version": 99}}))
    with pytest.raises(CheckpointError, match="version must be 1, got 99"):
        checkpoint.load(path)


def test_loading_executes_nothing(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "exploded"),))  # type: ignore[return-value]

    path = checkpoint.save(snapshot(10), tmp_path).path
    torch.save({"optimizer": Bomb()}, path / STATE)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][STATE] = checkpoint._describe(path / STATE)
    (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "files", [None, [], {}, {WEIGHTS: {}}, {WEIGHTS: {"sha256": "0"}, STATE: {"sha256": "0", "bytes": "x"}}]
)
def test_a_manifest_that_lacks_something_is_passed_over(files: object, tmp_path: Path) -> None:
    checkpoint.save(snapshot(10), tmp_path)
    path = checkpoint.save(snapshot(20), tmp_path).path
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**manifest, "files": files}))
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    assert newest[1].step == 10
    assert str(path) in newest[2][0]


def test_what_a_killed_process_left_unfinished_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".step-00000005.partial").mkdir()
    checkpoint.save(snapshot(10), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_a_damaged_newer_checkpoint_does_not_count_among_those_kept(tmp_path: Path) -> None:
    for step in (10, 30):
        checkpoint.save(replace(snapshot(step), accuracy=None), tmp_path)
    only = replace(snapshot(20), accuracy=None, config=replace(snapshot(20).config, keep_checkpoints=1))
    checkpoint.save(only, tmp_path)
    assert [path.name for path in checkpoint.every(tmp_path)] == ["step-00000020", "step-00000030"]


def test_a_write_that_fails_leaves_the_earlier_ones(tmp_path: Path) -> None:
    checkpoint.save(snapshot(10), tmp_path)
    broken = replace(snapshot(20), weights={"w": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(KeyError):
        checkpoint.save(broken, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    path = checkpoint.save(snapshot(10), tmp_path).path
    (path / WEIGHTS).write_bytes(b"")
    checkpoint.save(snapshot(10), tmp_path)
    assert checkpoint.load(path).step == 10
