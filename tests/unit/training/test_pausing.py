"""A run that pauses after an epoch, and goes on from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.strategies import gradients
from cifar_ray.training import optimizer
from cifar_ray.training.stopping import StoppedError
from tests.support.helpers import Recorder, train_here


def paused(config: TrainConfig, digits: Dataset, folder: Path, after: int) -> tuple[int, Recorder]:
    """After which step it has paused."""
    recorder, paused = Recorder(), None
    try:
        train_here(config, digits, folder, recorder, pause_after=after)
    except StoppedError as stop:
        paused = stop.with_traceback(None)  # it has the lock
    assert paused is not None
    assert paused.paused
    return paused.step, recorder


def test_a_run_pauses_after_an_epoch_and_goes_on_to_the_same_bits(
    small: TrainConfig, digits: Dataset, tmp_path: Path
) -> None:
    config = replace(small, epochs=3)
    step, recorder = paused(config, digits, tmp_path / "parts", 2)
    assert (step, recorder.steps[-1], recorder.checkpoints[-1].step) == (22, 22, 22)
    again, recorder = paused(config, digits, tmp_path / "parts", 2)  # its driver did not hear of it
    assert (again, recorder.steps) == (22, [])
    parts = train_here(config, digits, tmp_path / "parts", pause_after=3)  # at its end there is nothing to wait for
    assert parts.weights_sha256 == train_here(config, digits, tmp_path / "whole").weights_sha256


def test_options_that_a_state_leaves_out_are_those_of_the_config(small: TrainConfig) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    before = optimizer.build(model, replace(small, momentum=0.5, weight_decay=0.1))
    model(torch.rand(2, 1, 4, 4)).sum().backward()
    before.step()
    state = before.state_dict()
    groups = [{"params": group["params"], "lr": 7.0} for group in state["param_groups"]]
    after = optimizer.build(model, replace(small, momentum=0.9, weight_decay=0.2))
    gradients.restore(after, {**state, "param_groups": groups})
    assert [(group["momentum"], group["weight_decay"], group["lr"]) for group in after.param_groups] == [
        (0.9, 0.2, 7.0),
        (0.9, 0.0, 7.0),
    ]
    assert after.state_dict()["state"].keys() == state["state"].keys() != set()
