"""A user's own model and images, from their files to every worker: trained, resumed, used, refused where changed."""

from __future__ import annotations

import dataclasses
import re
import signal
from pathlib import Path

import pytest

from cifar_ray.training import checkpoint
from tests.support.helpers import digest, resolved, train_on_ranks
from tests.support.images import folder_of_digits
from tests.support.person import Person

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"
NETS = "tests.support.nets"
LEARNING = "tests.support.learning"
WORDS = ["train", "--dataset", "folder:images", "--model", "mine:build", "--model-options.width", "8"]
WORDS += ["--batch-size", "32", "--optimizer", "torch.optim:RMSprop", "--optimizer-options.alpha", "0.9"]
WORDS += ["--lr", "1e-3", "--weight-decay", "0"]
WORDS += ["--schedule", "mine:falling", "--augment", "mixup", "--ema", "0.99"]
WORDS += ["--precision", "fp32", "--epochs", "20", "--checkpoint-every", "7", "--topology", "1x2"]


@pytest.fixture
def mine(person: Person) -> Path:
    """The example's file in the person's working folder, and a folder of images."""
    file = person.home / "mine.py"
    file.write_text(f"{EXAMPLE.read_text()}\n\ndef falling(done):\n    return (1 - done) ** 2\n")
    folder_of_digits(person.home / "images")
    return file


def last(folder: Path) -> str:
    newest = checkpoint.latest(folder)
    assert newest is not None
    return digest(newest[1])


@pytest.mark.slow
def test_its_weights_are_the_same_at_any_number_of_workers_and_after_a_stop(tmp_path: Path) -> None:
    folder_of_digits(tmp_path / "images", 300)
    plain: dict[str, object] = {"dataset": f"folder:{tmp_path}/images", "data_dir": str(tmp_path / "decoded")}
    plain |= {"model": f"{NETS}:build", "model_options": {"width": 6}, "log_every": 1}
    plain |= {"optimizer": f"{LEARNING}:Lion", "lr": 1e-3, "weight_decay": 0.1, "schedule": f"{LEARNING}:falling"}
    plain |= {"augment": "cutmix", "ema": 0.9}
    plain |= {"strategy": "reproducible", "epochs": 1, "precision": "fp32", "global_batch_size": 64}
    for topology in ("1x1", "2x2"):
        train_on_ranks(resolved(plain, topology=topology), tmp_path / topology)
    train_on_ranks(resolved(plain, topology="1x2", stream=True), tmp_path / "streamed")
    stopped = resolved(plain, topology="1x2", checkpoint_every=2)
    train_on_ranks(stopped, tmp_path / "resumed", stop_after=3)
    resumed, *_ = train_on_ranks(dataclasses.replace(stopped, topology="1x1"), tmp_path / "resumed")
    assert resumed[1].steps[0] == 3
    assert len({last(tmp_path / name) for name in ("1x1", "2x2", "streamed", "resumed")}) == 1


@pytest.mark.extended
@pytest.mark.fault
def test_a_killed_run_goes_on_and_a_changed_file_is_refused(person: Person, mine: Path) -> None:
    person.succeeds(*WORDS, "--run-name", "calm")
    with person.starts(*WORDS, "--run-name", "killed") as run:
        run.until("epoch 3/20")
        run.kill(signal.SIGKILL)
        run.end()
    one, other = sorted((person.home / "images").glob("train/[01]/*.png"))[::100][:2]
    for file, content, flag in (
        (mine, mine.read_bytes().replace(b"ReLU", b"GELU"), "--model must be as the run began with it"),
        (one, other.read_bytes(), "--dataset "),
    ):
        before = file.read_bytes()
        file.write_bytes(content)
        assert person.refused("resume", "killed").startswith(flag)
        file.write_bytes(before)
    person.succeeds("resume", "killed")
    calm, killed = (person.run_named(name).data for name in ("calm", "killed"))
    assert calm.tags["cifar_ray.weights_sha256"] == killed.tags["cifar_ray.weights_sha256"]
    known = {
        "model": "mine:build",
        "model_options.width": "8",
        "lr": "0.001",
        "dataset": f"folder:{person.home}/images",
    }
    known |= {"data.num_classes": "10", "data.train_size": "1437", "data.test_size": "360", "image_size": "32"}
    assert known.items() <= killed.params.items()
    assert re.fullmatch("[0-9a-f]{16}", killed.params["data.digest"])
    assert re.fullmatch("[0-9a-f]{64}", killed.params["model_source"])
    assert "test accuracy" in person.succeeds("evaluate", "killed").stdout
    mine.unlink()
    assert "--model must name a module that can be imported" in person.refused("evaluate", "killed")
