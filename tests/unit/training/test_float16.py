"""The loop in float16: steps that are skipped, and runs that go on."""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod
from pathlib import Path

import pytest
import torch

from cifar_ray.data import Dataset
from cifar_ray.training import checkpoint, optimizer
from cifar_ray.training.observer import Outcome
from cifar_ray.training.stopping import StoppedError
from tests.support.helpers import Recorder, digest, resolved, train_here
from tests.support.threads import train_on_threads

USUAL = {
    "dataset": "digits", "model": "simple_cnn", "precision": "fp16", "global_batch_size": 32, "steps_per_epoch": 8,
    "epochs": 2, "log_every": 1, "warmup_epochs": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def overflowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale with which the first gradients overflow, so that it falls."""
    begin = partialmethod(torch.amp.GradScaler.__init__, init_scale=2.0**26)
    monkeypatch.setattr(torch.amp.GradScaler, "__init__", begin)


@pytest.fixture
def few(digits: Dataset) -> Dataset:
    return replace(digits, test=digits.test.at(slice(40)))


def test_skipped_steps_take_the_next_samples_and_the_same_learning_rate(few: Dataset, tmp_path: Path) -> None:
    wanted = resolved(USUAL)
    outcome = train_here(wanted, few, tmp_path, recorder := Recorder())
    skipped = int(outcome.metrics["skipped_steps"])
    assert 2 <= skipped <= 12
    rates = [row.metrics["train/lr"] for row in recorder.rows]
    assert rates == [optimizer.learning_rate(wanted, max(step - skipped, 0), 8) for step in range(16)]
    losses = [row.metrics["train/loss"] for row in recorder.rows]
    assert len(set(losses)) == 16  # the first ones are of the same weights
    other = replace(wanted, precision="fp32", lr=1e-9)
    train_here(other, few, tmp_path / "still", still := Recorder())
    expected = [row.metrics["train/loss"] for row in still.rows]
    assert losses[: skipped + 1] == pytest.approx(expected[: skipped + 1], rel=2e-3)


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_ranks_go_on_to_the_same_bits(strategy: str, few: Dataset, tmp_path: Path) -> None:
    """Stopped while the scale falls; the scale, its count of good steps and that of skipped ones go on."""
    wanted = resolved(USUAL, strategy=strategy, topology="1x2", **({"ema": 0.9} if strategy == "ddp" else {}))
    whole = train_on_threads(wanted, few, tmp_path / "whole")
    stopped = train_on_threads(wanted, few, tmp_path / "parts", asked=lambda heard: len(heard.steps) >= 3)
    assert all(isinstance(error, StoppedError) for error, _ in stopped)
    rest = train_on_threads(wanted, few, tmp_path / "parts")
    assert rest[0][1].steps[0] == 5
    ends = [outcome for outcome, _ in (*whole, *rest) if isinstance(outcome, Outcome)]
    assert len(ends) == 4
    ((_, skipped),) = {(end.weights_sha256, end.metrics["skipped_steps"]) for end in ends}
    assert skipped > 2
    states = [checkpoint.load(Path(outcome.checkpoint)) for outcome in (ends[0], ends[-1])]
    assert states[0].optimizer["scaler"] == states[1].optimizer["scaler"]
    assert digest(states[0]) == digest(states[1])
