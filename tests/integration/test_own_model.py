"""A user's own model and images, from their files to every worker: trained, resumed, used, refused where changed."""

from __future__ import annotations

import dataclasses
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cifar_ray.training import checkpoint
from tests.support.helpers import digest, resolved, train_on_ranks, weights_on_ranks
from tests.support.images import folder_of_digits
from tests.support.person import Person

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"
NETS = "tests.support.nets"
LEARNING = "tests.support.learning"
WORDS = [
    "train",
    "--dataset",
    "folder:images",
    "--model",
    "mine:build",
    "--model-options.width",
    "8",
    "--batch-size",
    "32",
]
WORDS += [
    "--optimizer",
    "torch.optim:RMSprop",
    "--optimizer-options.alpha",
    "0.9",
    "--lr",
    "1e-3",
    "--weight-decay",
    "0",
]
WORDS += ["--schedule", "mine:falling", "--augment", "mixup", "--ema", "0.99"]
WORDS += ["--precision", "fp32", "--epochs", "40", "--checkpoint-every", "7", "--topology", "1x2"]


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


def test_a_layer_with_two_names_is_kept_in_checkpoints(tmp_path: Path) -> None:
    config = resolved({"dataset": "digits", "model": f"{NETS}:Tied", "epochs": 1, "steps_per_epoch": 2})
    train_on_ranks(config, tmp_path)
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    weights = newest[1].weights
    assert torch.equal(weights["head.weight"], weights["layers.1.weight"])


def test_a_function_that_gives_every_worker_another_model_trains_that_of_rank_0(tmp_path: Path) -> None:
    config = resolved({"dataset": "digits", "model": f"{NETS}:by_rank", "topology": "1x2", "epochs": 1})
    first, second = weights_on_ranks(config, tmp_path)
    assert first == second


def refused_while_changed(person: Person, mine: Path, *words: str) -> None:
    """Change the model's file, then an image; ``words`` are refused each time, and all is undone."""
    kept = mine.read_text()
    mine.write_text(kept.replace("ReLU", "GELU"))
    sentence = "--model must be as the run began with it: the file of mine:build has changed since; undo that, "
    assert person.refused(*words).startswith(sentence)
    mine.write_text(kept)
    one, other = sorted((person.home / "images").glob("train/[01]/*.png"))[::100][:2]
    image = one.read_bytes()
    one.write_bytes(other.read_bytes())
    changed = (
        f"--dataset must have the images that the run began with, and those of folder:{person.home}/images have changed"
    )
    assert person.refused(*words).startswith(changed)
    one.write_bytes(image)


@pytest.mark.extended
@pytest.mark.fault
def test_a_killed_run_goes_on_and_a_changed_file_is_refused(person: Person, mine: Path) -> None:
    person.succeeds(*WORDS, "--run-name", "calm")
    with person.starts(*WORDS, "--run-name", "killed") as run:
        run.until("epoch 3/40")
        run.kill(signal.SIGKILL)
        run.end()
    refused_while_changed(person, mine, "resume", "killed")
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
    assert person.refused("evaluate", "killed") == (
        f"--model must name a module that can be imported in {person.home}, and mine fails: "
        "ModuleNotFoundError: No module named 'mine'"
    )


@pytest.mark.slow
@pytest.mark.extended
def test_a_sweep_goes_on_with_the_files_that_it_began_with(person: Person, mine: Path) -> None:
    words = [*WORDS[1:], "--name", "held", "--max-concurrent", "1", "--grid", "seed=0,1"]
    with person.starts("sweep", *words) as run:
        run.until("seed0: epoch 3/40")
        run.kill(signal.SIGKILL)
        run.end()
    refused_while_changed(person, mine, "sweep", "--resume", "held")
    assert "sweep held: 2 finished" in person.succeeds("sweep", "--resume", "held").stdout


@pytest.mark.slow
@pytest.mark.extended
def test_the_example_from_python_and_in_a_sweep(person: Person) -> None:
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=person.environment, cwd=person.home)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^(1x\d): accuracy ([\d.]+)%, MLflow run \w{32}$", done.stdout, flags=re.M)
    assert [topology for topology, _ in shown] == ["1x1", "1x2"]
    assert all(float(accuracy) > 90 for _, accuracy in shown)
    (person.home / "own_model.py").write_text(EXAMPLE.read_text())
    words = ["--name", "widths", "--dataset", "digits", "--model", "own_model:build", "--epochs", "1"]
    person.succeeds("sweep", *words, "--grid", "model_options.width=8,16", "strategy=ddp,gpipe", "topology=1x2")
    person.succeeds("report", "widths", "--out", "report")
    assert "model_options.width=8" in (person.home / "report" / "report.md").read_text()
