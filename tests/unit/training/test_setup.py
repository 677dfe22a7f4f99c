"""What a loop starts from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from cifar_ray import data, strategies
from cifar_ray.config.decided import Decided
from cifar_ray.data import Dataset, augment
from cifar_ray.orchestration.sweep import preparation
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import recipe, setup
from cifar_ray.training.observer import Launch, Outcome
from tests.support.helpers import resolved
from tests.support.images import folder_of_digits
from tests.support.threads import train_on_threads


def prepared(model: str, dataset: Dataset, folder: Path) -> setup.TrainingState:
    """What a run of ``model`` on digits starts from."""
    config = resolved({"dataset": "digits", "model": model, "precision": "fp32"}, global_batch_size=32)
    return setup.prepare(config, Decided.asked(config), dataset, folder, Worker(), Launch(0.0, 0.0))


def test_every_batch_norm_is_synchronised_when_asked_for(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built, not run: it needs GPUs."""
    monkeypatch.setattr(recipe, "check_place", lambda *_: None)
    small = {"dataset": "digits", "model": "resnet", "model_options": {"blocks": (1,), "width": 4}, "precision": "fp32"}
    for synchronised in (True, False):
        wanted = resolved(small, sync_batchnorm=synchronised)
        monkeypatch.setattr(strategies.of(wanted), "warm_ups", 0)
        job = setup.prepare(
            wanted, Decided.asked(wanted), digits, tmp_path / str(synchronised), Worker(), Launch(0.0, 0.0)
        )
        norms = [layer for layer in job.model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        assert {type(layer) for layer in norms} == {nn.SyncBatchNorm if synchronised else nn.BatchNorm2d}
        assert job.model.training
        weights = [parameter for parameter in job.model.parameters() if parameter.ndim == 4]
        assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_images_vary_as_the_models_recipe_says(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def crop_and_flip(images: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(rest[-2])
        return images

    monkeypatch.setattr(augment, "crop_and_flip", crop_and_flip)
    for model, variation in (("speednet", augment.Variation(2, True, True)), ("resnet", augment.USUAL)):
        prepared(model, digits, tmp_path)
        assert seen.pop() == variation


class Counts(nn.Linear):
    """Its count of passes is in no checkpoint."""

    passes: torch.Tensor

    def __init__(self) -> None:
        super().__init__(3, 10)
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(images.mean((2, 3)))


def test_passes_that_only_set_up_change_no_buffer(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.models, "build", lambda config, spec: Counts())
    job = prepared("simple_cnn", digits, tmp_path)
    assert job.model.passes == 0
    job.strategy.gradients(job.loader.micro_batches(0, 0))
    assert job.model.passes == 1


def test_a_worker_needs_no_folder_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another node there may be none, and nobody has looked at it."""
    folder_of_digits(tmp_path / "images", 40)
    usual = {"dataset": f"folder:{tmp_path / 'images'}", "data_dir": str(tmp_path), "model": "simple_cnn", "epochs": 1}
    config = resolved(usual, strategy="gpipe", topology="1x2", global_batch_size=20, precision="fp32")
    dataset = data.read(config)
    shutil.rmtree(tmp_path / "images")
    monkeypatch.setattr(data, "_known", {})
    for outcome, _ in train_on_threads(config, dataset, tmp_path / "run"):
        assert isinstance(outcome, Outcome)
    monkeypatch.setattr(data, "_known", {})
    assert preparation._measure(config, dataset.spec, "cpu", 1).precision == "fp32"
