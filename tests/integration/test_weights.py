"""Runs that start from given weights: of a run, of a file, of a library; exact, resumed, and refused where wrong."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

from cifar_ray import models
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.runs import weights
from cifar_ray.training import checkpoint, initial_weights, recipe
from cifar_ray.training.__main__ import main
from tests.support.helpers import digest, resolved, train_on_ranks
from tests.support.person import Person

SHUFFLENET = "torchvision:shufflenet_v2_x0_5"
WORDS = ["train", "--dataset", "digits", "--model", "simple_cnn", "--precision", "fp32", "--cpus-per-worker", "1"]
OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}


def network(model: str, dataset: str, seed: int) -> dict[str, torch.Tensor]:
    """Its weights after no training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return models.build(TrainConfig(model=model), SPECS[dataset]).state_dict()  # type: ignore[arg-type]


def last(folder: Path) -> str:
    newest = checkpoint.latest(folder)
    assert newest is not None
    return digest(newest[1])


@pytest.mark.slow
def test_a_fine_tuned_network_is_the_same_at_any_number_of_workers(tmp_path: Path) -> None:
    """With batch norm and dropout; its head, which had 100 classes, starts fresh."""
    model = "torchvision:mobilenet_v3_small"
    content, _ = initial_weights.pack(network(model, "cifar100", seed=3))
    plain: dict[str, object] = {"dataset": "digits", "model": model, "model_options": {"dropout": 0.3}}
    plain["weights"] = "theirs"
    plain |= {"strategy": "reproducible", "epochs": 1, "steps_per_epoch": 4, "global_batch_size": 32, "log_every": 1}
    usual = resolved(plain, checkpoint_every=2)
    for topology in ("1x1", "1x2", "2x2"):
        config = dataclasses.replace(usual, topology=topology)
        train_on_ranks(config, tmp_path / topology, test_images=32, initial=content)
    two = dataclasses.replace(usual, topology="1x2")
    train_on_ranks(two, tmp_path / "resumed", stop_after=3, test_images=32, initial=content)
    one = dataclasses.replace(two, topology="1x1")
    resumed, *_ = train_on_ranks(one, tmp_path / "resumed", test_images=32)  # without the weights
    assert resumed[1].steps[0] == 3
    train_on_ranks(dataclasses.replace(two, weights=None), tmp_path / "fresh", test_images=32)
    assert len({last(tmp_path / name) for name in ("1x1", "1x2", "2x2", "resumed")}) == 1
    assert last(tmp_path / "fresh") != last(tmp_path / "1x1")


def found(config: TrainConfig, person: Person) -> str:
    """The digest of a config's weights."""
    return weights.find_weights(recipe.resolve(config), person.uri, lambda sentence: None)[1]


def test_a_file_is_found_from_any_folder_and_told_from_another(
    resident: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(resident.home)
    torch.save(network("simple_cnn", "digits", seed=1), "mine.pt")
    config = resolved({"dataset": "digits", "model": "simple_cnn", "weights": "mine.pt"})
    assert config.weights == f"{resident.home}/mine.pt"
    first = found(config, resident)
    assert found(config, resident) == first
    torch.save(network("simple_cnn", "digits", seed=2), "mine.pt")
    assert found(config, resident) != first


@pytest.mark.extended
@pytest.mark.fault
def test_a_finished_run_is_extended_and_a_killed_one_goes_on_without_its_source(resident: Person) -> None:
    resident.succeeds(*WORDS, "--epochs", "1", "--run-name", "source")
    source = resident.run_named("source").data
    words = [*WORDS, "--weights", "source", "--epochs", "12", "--checkpoint-every", "3", "--topology", "1x2"]
    words += ["--val-share", "0.1"]  # by which the best checkpoint is chosen
    assert "weights of source: 100.0% of" in resident.succeeds(*words, "--run-name", "calm").stdout
    params = resident.run_named("calm").data.params
    assert (params["weights"], params["weights_digest"]) == ("source", source.tags["cifar_ray.weights_sha256"])
    kept = checkpoint.best(resident.home / ".cifar_ray" / "runs" / "calm" / "checkpoints")
    assert kept is not None
    config = resolved({"dataset": "digits", "model": "simple_cnn", "weights": "calm:best"})
    assert found(config, resident) == checkpoint.read(kept).weights_sha256
    with resident.starts(*words, "--run-name", "killed") as run:
        run.until("epoch 2/12")
        run.kill(signal.SIGKILL)
        run.end()
    resident.succeeds("delete", "source", "--yes")
    next((resident.home / ".cifar_ray" / "runs" / "killed").glob("initial-*")).unlink()
    resident.succeeds("resume", "killed")
    ends = {resident.run_named(name).data.tags["cifar_ray.weights_sha256"] for name in ("calm", "killed")}
    assert len(ends) == 1


@pytest.mark.extended
def test_a_librarys_weights_are_taken_from_its_cache_or_refused_offline(resident: Person) -> None:
    home = resident.home / "torch"
    file = home / "hub" / "checkpoints" / "shufflenetv2_x0.5-f707e7126e.pth"
    words = ["train", "--dataset", "digits", "--model", SHUFFLENET, "--epochs", "1", "--steps-per-epoch", "2"]
    words += ["--weights", "IMAGENET1K_V1", "--precision", "fp32"]
    elsewhere = {**OFFLINE, "TORCH_HOME": str(home)}
    unread = "can be neither read from TORCH_HOME"
    assert unread in resident.refused(*words, **elsewhere)
    assert "did you mean 'IMAGENET1K_V1'?" in resident.refused(*words, "--weights", "IMAGENET1K_V3", **elsewhere)
    file.parent.mkdir(parents=True, exist_ok=True)
    state = network(SHUFFLENET, "cifar100", seed=4)
    torch.save(state, file)
    shown = resident.succeeds(*words, "--run-name", "tuned", **elsewhere).stdout
    assert "weights of IMAGENET1K_V1: 97.1% of the parameters; randomly initialised: fc\n" in shown
    assert resident.run_named("tuned").data.params["weights_digest"] == initial_weights.pack(state)[1]
    file.write_bytes(file.read_bytes()[:5000])
    assert unread in resident.refused(*words, **elsewhere)


@pytest.mark.extended
def test_weights_of_another_model_or_that_are_not_there_are_refused_before_a_run(resident: Person) -> None:
    torch.save(network("simple_cnn", "digits", seed=1), resident.home / "small.pt")
    sentence = resident.refused(*WORDS, "--model", "resnet", "--weights", "small.pt")
    assert sentence.startswith("--weights must fit at least half of the parameters of resnet")
    assert resident.refused(*WORDS, "--weights", "nobody").startswith("--weights must be a run or a file")
    with pytest.raises(ConfigError, match="is for `cifar-ray train`"):
        main(["--dataset", "digits", "--weights", "small.pt"], 0.0)


@pytest.mark.extended
def test_runs_of_a_sweep_start_from_weights(resident: Person) -> None:
    state = network("simple_cnn", "digits", seed=1)
    torch.save(state, resident.home / "start.pt")
    words = ["--dataset", "digits", "--model", "simple_cnn", "--precision", "fp32", "--batch-size", "32"]
    words += ["--epochs", "1", "--steps-per-epoch", "2", "--cpus-per-worker", "1"]
    done = resident.succeeds("sweep", "--name", "starts", *words, "--grid", "weights=None,start.pt", "seed=0,1")
    assert done.stdout.count("start.pt: 100.0% of the parameters") == 1
    folder = resident.home / ".cifar_ray" / "runs" / "starts"
    cells = json.loads((folder / "cells.json").read_text())
    digests = [cell["decided"]["weights_digest"] for cell in cells]
    assert sorted(digests, key=str) == [*[initial_weights.pack(state)[1]] * 2, None, None]
    assert len([*folder.rglob("initial-*.safetensors")]) == 1
    shutil.rmtree(folder)
