"""An interrupted run comes to the same weights, to the last bit, as one that was never interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.models import speednet
from cifar_ray.training import checkpoint, recipe
from tests.support.helpers import Recorder, Stopped, train_here

VIT = {"dim": 24, "depth": 2, "heads": 2, "dropout": 0.1, "stochastic_depth": 0.2}
ARCHITECTURES = {
    "simple_cnn": TrainConfig(dataset="digits", model="simple_cnn"),
    "resnet": TrainConfig(dataset="digits", model="resnet", model_options={"blocks": (1, 1), "width": 8}),
    "speednet": TrainConfig(dataset="digits", model="speednet"),
    "vit": TrainConfig(dataset="digits", model="vit", model_options=VIT),
}
SHORT = {"epochs": 2, "steps_per_epoch": 11, "batch_size": 16, "checkpoint_every": 4, "log_every": 3}
SHORT["cpus_per_worker"] = 1  # several threads are slow where other tests run beside


CASES = [(name, "fp32") for name in sorted(ARCHITECTURES)] + [("resnet", "bf16")]
CASES += [pytest.param(name, "fp16", marks=pytest.mark.extended) for name in ("simple_cnn", "resnet")]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_an_interrupted_run_equals_an_uninterrupted_one(
    name: str, precision: str, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, metrics and history, interrupted within an epoch, at its end, and before any checkpoint."""
    monkeypatch.setattr(speednet, "_WIDTHS", (8, 16, 16))
    config = recipe.resolve(replace(ARCHITECTURES[name], precision=precision, **SHORT))  # type: ignore[arg-type]
    digits = replace(digits, test=digits.test.at(slice(64)))
    whole = train_here(config, digits, tmp_path / "whole")
    for stops in ((2,), (6, 13), (11,)):
        folder = tmp_path / "-".join(map(str, stops))
        for stop in stops:
            with pytest.raises(Stopped):
                train_here(config, digits, folder, Recorder(stop_after=stop))
        recorder = Recorder()
        resumed = train_here(config, digits, folder, recorder)
        assert resumed.weights_sha256 == whole.weights_sha256
        assert resumed.confusion == whole.confusion
        assert recorder.steps[-1] == 22
        assert recorder.steps[0] == recorder.begun[0].step + 1
        ours, theirs = (checkpoint.load(Path(out.checkpoint)).history for out in (resumed, whole))
        losses = [[(row.kind, row.step, row.metrics.get("train/loss")) for row in rows] for rows in (ours, theirs)]
        assert losses[0] == losses[1]
        assert ours[-1].metrics["train/epoch_loss"] == pytest.approx(theirs[-1].metrics["train/epoch_loss"])
